"""The law of a dialogue: where the question ends, what is forced, what may follow."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from branchwise.train.chat_frame import ChatFrame
from branchwise.train.dialogue_law import DialogueEnd, DialogueLaw, DialoguePlan
from tiny_folder import character_tokenizer

pytestmark = pytest.mark.core

# tokens: 9 ends a question, 8 begins an answer, 7 ends an answer, 5 ends a sentence
FRAME = ChatFrame("", (9, 8), frozenset({7}), frozenset({7, 8, 9}), frozenset({5}))
PLAN = DialoguePlan(0, "test", (1, 2), 1, question_tokens=4, answer_tokens=5, temperature=0.0)
V = 12


def allowed(law: DialogueLaw, written: list[int], scores: torch.Tensor | None = None) -> list[int]:
    scores = torch.zeros(1, V) if scores is None else scores
    return (law(torch.tensor([[*PLAN.prompt, *written]]), scores)[0] > -math.inf).nonzero()[:, 0].tolist()


def test_a_question_holds_no_special_token_and_does_not_end_at_once() -> None:
    law = DialogueLaw(FRAME, PLAN)
    assert allowed(law, []) == [0, 1, 2, 3, 4, 5, 6, 10, 11]
    assert allowed(law, [3, 3, 3]) == [0, 1, 2, 3, 4, 5, 6, 9, 10, 11]


@pytest.mark.parametrize(
    ("written", "end"),
    [
        ([3, 3, 3], None),
        ([3, 3, 3, 9], 3),  # the target ends it
        ([3, 5, 3, 3], None),  # a sentence that ended before its length does not
        ([3, 3, 3, 5], 4),  # at its length, a sentence ends
        ([3, 3, 3, 3, 3], None),  # past its length, in the middle of a sentence
        ([3, 3, 3, 3, 3, 3], 6),  # 1.5 times its length
        ([3, 3, 3, 3, 5, 9, 8, 3], 5),
    ],
)
def test_where_a_question_ends(written: list[int], end: int | None) -> None:
    assert DialogueLaw(FRAME, PLAN).question_end(written) == end


def test_between_question_and_answer_every_token_is_forced() -> None:
    law = DialogueLaw(FRAME, PLAN)
    assert allowed(law, [3, 3, 3, 5]) == [9]
    assert allowed(law, [3, 3, 3, 5, 9]) == [8]
    assert allowed(law, [3, 3, 3, 9]) == [8]


def test_an_answer_is_the_targets_own() -> None:
    scores = torch.randn(1, V)
    greedy, warm = DialogueLaw(FRAME, PLAN), DialogueLaw(FRAME, replace(PLAN, temperature=0.5))
    written = [3, 3, 3, 9, 8]
    assert allowed(greedy, written, scores) == [int(scores.argmax())]
    assert torch.equal(warm(torch.tensor([[*PLAN.prompt, *written]]), scores), scores / 0.5)


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert allowed(DialogueLaw(FRAME, PLAN), [3, 3, 3, 9, 8], torch.zeros(1, V)) == [0]


def test_top_p_keeps_the_fewest_that_hold_the_mass() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.1, 0.06, 0.04, *[1e-9] * (V - 5)]])
    law = DialogueLaw(replace(FRAME, silent=frozenset({9}), after=(9, 8)), PLAN)
    assert allowed(law, [3, 3, 3], probabilities.log()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("answer", "over"),
    [([], False), ([3], False), ([3, 7], True), ([3] * 4, False), ([3] * 5, True)],
)
def test_when_a_dialogue_is_over(answer: list[int], over: bool) -> None:
    end = DialogueEnd(DialogueLaw(FRAME, PLAN))
    written = [3, 3, 3, 9, 8, *answer]
    assert bool(end(torch.tensor([[*PLAN.prompt, *written]]), None)) == over
    assert not end.is_over([3, 3, 7])  # not while the question is being written


def test_a_loop_ends_the_answer() -> None:
    end = DialogueEnd(DialogueLaw(FRAME, replace(PLAN, answer_tokens=500)))
    assert end.is_over([3, 3, 3, 9, 8, *[3, 4] * 16])
    assert not end.is_over([3, 3, 3, 9, 8, *[3, 4] * 15])  # looked at every 16 tokens


def test_a_question_that_ends_with_ordinary_text() -> None:
    # as in templates that close with " [/INST]": the target must write all of it, or the length decides
    frame = replace(FRAME, silent=frozenset({7}))
    law = DialogueLaw(frame, PLAN)
    assert law.question_end([3, 3, 9]) is None
    assert law.question_end([3, 3, 9, 8]) == 2
    assert allowed(law, [3] * 6) == [9]
    assert law.answer_start([3] * 6) is None and law.answer_start([*[3] * 6, 9, 8]) == 8


def test_a_closed_prompt_is_answered_at_once() -> None:
    law = DialogueLaw(FRAME, replace(PLAN, question_tokens=0))
    assert law.answer_start([]) == 0
    assert allowed(law, []) == [0]


def test_the_frame_of_a_template(tmp_path: Path) -> None:
    tokenizer = character_tokenizer(chat=True)
    frame = ChatFrame.read(tokenizer, [2])
    assert frame.before == "<|user|>" and frame.after == (5,) and frame.stops == {2} and frame.ends_by_token
    assert {tokenizer.decode([token]) for token in frame.sentence_ends} == {".", "!", "?", "\n"}
    ids, context = frame.prompt(tokenizer, "abc", closed=True)
    assert tokenizer.decode(ids) == "<|user|>abc<|assistant|>" and context == 1
    assert frame.prompt(tokenizer, "abc", closed=False)[0] == ids[:-1]


def test_without_a_template_the_target_continues() -> None:
    frame = ChatFrame.read(character_tokenizer(), [2])
    assert frame.after == () and DialogueLaw(frame, PLAN).answer_start([]) == 0


def test_a_template_that_drops_the_words_is_refused() -> None:
    tokenizer = character_tokenizer(chat=True)
    tokenizer.chat_template = "<|user|>hello<|assistant|>"
    with pytest.raises(ValueError, match="does not write the user's words"):
        ChatFrame.read(tokenizer, [2])
