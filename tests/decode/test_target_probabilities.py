"""The target's probability of every drafted node: that of the node's own path, and nothing else changes."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import PreTrainedModel

from branchwise import Grammar, Speculator, generate
from branchwise.decode.statistics import Generation
from branchwise.draft.protocol import StepRecord
from branchwise.tree import TokenTree
from branchwise.verify.law import Sampler, TreeLaw
from branchwise.verify.proposal import DraftTree
from drafters import RandomTrees
from grammar_rig import PATTERN, legal_by_list, piece_tokenizer
from oracles import logits_by_recompute
from processors import processors_of
from zoo import tiny_llama

pytestmark = pytest.mark.core
PROMPT = [7, 3, 11, 3, 7]
SETTINGS = (
    {"do_sample": False},
    {"do_sample": False, "repetition_penalty": 1.5},
    {"do_sample": True, "temperature": 0.7, "top_k": 5, "seed": 3},
)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_llama()


def run(model: PreTrainedModel, **settings: object) -> Generation:
    return Speculator(model, drafter=RandomTrees(1), budget=12).complete(PROMPT, max_new_tokens=16, **settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
def test_they_are_those_of_each_path_run_alone(model: PreTrainedModel, settings: dict) -> None:
    made = run(model, target_probabilities=True, **settings)
    processors = processors_of(model, PROMPT, **{name: value for name, value in settings.items() if name != "seed"})
    committed, nodes = list(PROMPT), 0
    for record in made.records:
        tree = record.draft.tree
        assert len(record.target_probabilities) == len(tree) - 1
        for node in range(1, len(tree)):
            path = [*committed, *(tree.tokens[above] for above in tree.path(tree.parents[node])[1:])]
            logits = logits_by_recompute(model, path)[-1:]
            scores = processors(torch.tensor([path]), logits if settings["do_sample"] else logits.float())
            expected = float(scores[0].softmax(0)[tree.tokens[node]])
            assert record.target_probabilities[node - 1] == pytest.approx(expected, abs=1e-6)
            nodes += 1
        committed += record.tokens
    assert nodes > 50


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
def test_the_output_is_the_same_with_and_without(model: PreTrainedModel, settings: dict) -> None:
    assert run(model, target_probabilities=True, **settings).tokens == run(model, **settings).tokens


def test_when_nobody_asks_no_law_is_made_for_them(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(law: TreeLaw) -> None:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(TreeLaw, "probabilities", forbidden)
    assert all(record.target_probabilities == () for record in run(model).records)
    with pytest.raises(AssertionError, match="nobody asked"):
        run(model, target_probabilities=True)


def test_below_a_token_that_the_grammar_forbids_there_is_no_law(model: PreTrainedModel) -> None:
    tokenizer = piece_tokenizer()
    made = Speculator(model, tokenizer, drafter=RandomTrees(2), budget=12).complete(
        PROMPT, max_new_tokens=8, grammar=Grammar.from_regex(PATTERN), target_probabilities=True, do_sample=False
    )
    written: list[int] = []
    for record in made.records:
        tree = record.draft.tree
        for node in range(1, len(tree)):
            told = record.target_probabilities[node - 1]
            above = [*written, *(tree.tokens[one] for one in tree.path(tree.parents[node])[1:])]
            legal = legal_by_list(above)
            if told is not None:
                assert (told > 0) is (tree.tokens[node] in legal)
        written += record.tokens


def test_nan_and_dead_branches_are_told_as_none() -> None:
    tree = TokenTree((0, 1, 2, 1), (-1, 0, 1, 0))
    logits = torch.tensor([[0.0, 1.0, 0.0], [math.nan, 0.0, 0.0], [0.0] * 3, [0.0] * 3], dtype=torch.float64)
    law = TreeLaw(DraftTree.deterministic(tree), [5, 0], logits, Sampler())
    first, below_nan, again = law.probabilities()
    assert first == again == pytest.approx(math.e / (math.e + 2)) and below_nan is None
    lone = TreeLaw(DraftTree.deterministic(TokenTree((0,), (-1,))), [0], logits, Sampler())
    assert lone.probabilities() == ()


def test_they_come_back_in_a_generation_only(model: PreTrainedModel) -> None:
    ids = torch.tensor([PROMPT])
    with pytest.raises(ValueError, match="target_probabilities come back in the Generation: pass return_dict"):
        generate(model, ids, max_new_tokens=2, target_probabilities=True)
    with pytest.raises(ValueError, match="target_probabilities come with a finished Generation"):
        Speculator(model).stream(ids, max_new_tokens=2, target_probabilities=True)
    output = generate(
        model, ids, drafter=RandomTrees(1), max_new_tokens=4, return_dict_in_generate=True, target_probabilities=True
    )
    assert any(record.target_probabilities for record in output.branchwise.records)
    assert output.branchwise.prompt == tuple(PROMPT) and output.branchwise.tokenizer is None
    # only the default counts
    assert StepRecord(*[None] * 3).target_probabilities == ()  # type: ignore[arg-type]
