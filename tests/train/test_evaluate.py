"""Evaluation: what is counted, from trees drawn by hand, and a whole run beside a head, by category."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from training_rig import Listener

from branchwise.bench.methods import Run
from branchwise.bench.stopwatch import Timing
from branchwise.decode.statistics import Generation, StepSeconds
from branchwise.draft.protocol import StepRecord
from branchwise.target import HuggingFaceTarget
from branchwise.train.counts import Counts
from branchwise.train.draft_vocabulary import DraftVocabulary
from branchwise.train.eagle3 import Eagle3Method, Eagle3Options
from branchwise.train.evaluate import Evaluation, evaluate
from branchwise.train.evaluation_report import table
from branchwise.train.head_folder import BestChain, HeadFolder
from branchwise.train.medusa import MedusaMethod, MedusaOptions
from branchwise.train.questions import Question, read_questions
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict
from oracles import greedy_by_recompute
from zoo import VOCAB, tiny_llama

#        0
#      /   \
#     1     2
#    / \     \
#   3   4     5
TREE = TokenTree((9, 1, 2, 3, 4, 5), (-1, 0, 0, 1, 1, 2))


def record(*path: int) -> StepRecord:
    return StepRecord(DraftTree.deterministic(TREE), Verdict(path, 7), (0,) * len(path))


def counted(*paths: tuple[int, ...]) -> dict:
    """Steps of half a second of forward, a quarter of drafting and a quarter of the rest."""
    records = tuple(record(*path) for path in paths)
    tokens = tuple(token for r in records for token in r.tokens)
    seconds = (StepSeconds(0.25, 0.5, 0.0, 0.0, 0.25),) * len(records)
    generation = Generation(tokens, 1, "length", "max_new_tokens", None, records, seconds, 0.0)
    first = len(records[0].tokens)
    timing = Timing(0.0, float(len(records) - 1), first, len(tokens) - first, len(records), 0.0)
    counts = Counts()
    counts.add(Run(tokens, timing, generation), True)
    return counts.as_dict()


def test_acceptance_by_depth_and_rank() -> None:
    found = counted((0,), (0, 1), (0, 2), (0, 2, 5), (0, 1, 4))
    # the first run of tokens and its step are not timed
    assert found["tokens_per_step"] == 2.2 and found["tokens_per_second"] == 2.5 and found["forward_share"] == 0.5
    assert found["draft_of_forward"] == 0.5 and found["draft_ms"] == 250 and found["tree_heights"] == {2: 5}
    first, second = found["depths"]
    assert (first["asked"], first["accepted"]) == (5, 0.8) and first["by_rank"][:3] == [0.4, 0.4, 0.0]
    assert (second["asked"], second["accepted"]) == (4, 0.5) and second["by_rank"][:3] == [0.25, 0.25, 0.0]


def test_a_path_that_reaches_a_leaf_is_not_asked_further() -> None:
    assert [row["depth"] for row in counted((0, 2, 5))["depths"]] == [1, 2]


def test_the_best_chain_follows_first_children() -> None:
    class Fixed:
        name = "fixed"
        feature_layers = ()

        def propose(self, states, contexts, budgets):
            return [DraftTree.deterministic(TREE)]

    chain = BestChain(Fixed())
    assert chain.propose([None], [None], [65])[0].tree.tokens == (9, 1, 3)
    assert chain.propose([None], [None], [2])[0].tree.tokens == (9, 1)


KINDS = ("tree", "free", "mixed")
QUESTIONS = [Question((7, 3, 11, 3), "chat"), Question((5, 6, 5, 6, 5), "maths"), Question((9, 9, 4), "chat")]


def test_every_setting_by_category_and_what_the_vocabulary_covers(tmp_path: Path) -> None:
    model = tiny_llama()
    ids = np.arange(0, VOCAB, 2)
    Eagle3Method(model, DraftVocabulary(ids, VOCAB, 0.5, 0.5), Eagle3Options()).export(tmp_path)
    folder = HeadFolder.open(tmp_path, model)
    found = evaluate(
        folder, HuggingFaceTarget(model), model, QUESTIONS, max_new_tokens=12, budgets=(5, 9), progress=Listener()
    )
    settings = found.settings
    assert list(settings) == ["hf-plain", "plain", "chain", *(f"{k}-{b}" for k in KINDS for b in (5, 9))]
    for figures in settings.values():
        assert figures["prompts"] == figures["equal"] == 3
        assert {name: row["prompts"] for name, row in figures["categories"].items()} == {"chat": 2, "maths": 1}
    assert settings["plain"]["tokens_per_step"] == 1.0 <= settings["mixed-9"]["tokens_per_step"]

    known = set(ids.tolist())
    written = [token for q in QUESTIONS for token in greedy_by_recompute(model, list(q.tokens), 12)]
    assert found.coverage[""] == pytest.approx(sum(token in known for token in written) / len(written), abs=1e-4)
    lines = list(table(found))
    assert any(line.split()[:3] == ["tokens/step", "chat", "maths"] for line in lines)
    assert any("the head can draft: all " in line for line in lines)


def test_a_head_with_the_targets_vocabulary_covers_all(tmp_path: Path) -> None:
    model = tiny_llama()
    MedusaMethod(model, DraftVocabulary(np.arange(VOCAB), VOCAB, 1.0, 1.0), MedusaOptions(heads=2)).export(tmp_path)
    folder = HeadFolder.open(tmp_path, model)
    assert folder.kind == "medusa" and folder.vocabulary(VOCAB) is None


def test_the_table_reads_as_the_figures() -> None:
    settings = {"hf-plain": {**counted((0,), (0,), (0,))}, "plain": {**counted((0,), (0,), (0,))}}
    settings["tree-9"] = counted((0,), (0, 2, 5), (0, 1))
    settings = {name: {**figures, "categories": {}} for name, figures in settings.items()}
    lines = list(table(Evaluation(settings, {"": 0.5})))
    assert lines[3].split() == ["tree-9", "2.00", "2.5", "2.50", "50%", "1/1"]
    assert any(line.startswith("depth 1") and line.split()[2:5] == ["0.333", "0.333", "0.000"] for line in lines)


def test_prompts_with_and_without_categories(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [{"question_id": n, "category": "ab"[n % 2], "topic": "t", "turns": [f"question {n}"]} for n in range(6)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [q.text for q in read_questions(path, None, 2)] == [f"question {n}" for n in range(4)]
    assert len(read_questions(path, 3, None)) == 3
    plain = tmp_path / "q.txt"
    plain.write_text("one?\ntwo?\n")
    assert [(q.text, q.category) for q in read_questions(plain, 1, None)] == [("one?", "")]
    with pytest.raises(ValueError, match="no categories"):
        read_questions(plain, None, 2)
