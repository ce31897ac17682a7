"""Rules and drafters that do not fit each other are refused before the first token; what is forbidden is not drawn."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig

from branchwise import BranchwiseWarning, Speculator
from branchwise.draft import make_drafter
from branchwise.draft.sampled import SampledDrafter
from branchwise.verify import RULES, BestPath, Block, Greedy, Sampled
from zoo import tiny_llama

pytestmark = pytest.mark.core

IDS = torch.tensor([[7, 3, 11, 3, 7]])
SAMPLING = {"do_sample": True, "max_new_tokens": 12}


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def refused(model, drafter, rule, says: str, **options) -> None:
    speculator = Speculator(model, drafter=drafter, rule=rule, budget=9)
    with pytest.raises(ValueError, match=says):
        speculator.stream(IDS, **{**SAMPLING, **options})
    assert speculator.target.cache.lanes == ()


@pytest.mark.parametrize("drafter", ["ngram", "recycling", "mixed", "suffix", "static", "sampled", "auto"])
def test_block_takes_no_drafter_of_trees(model, drafter):
    refused(model, drafter, "block", f"rule 'block' does not fit drafter '{make_drafter(drafter).name}'.*chain")


def test_best_path_takes_no_trees_and_no_lookups(model):
    refused(model, "sampled", "best_path", "rule 'best_path' does not fit drafter 'sampled'.*drafts a tree")
    refused(model, "mixed", "best_path", "rule 'best_path' does not fit drafter 'mixed', which picks")


@pytest.mark.parametrize("rule", [Block(), BestPath(), Greedy()])
def test_a_rule_object_is_checked_like_its_name(model, rule):
    refused(model, "mixed", rule, f"rule '{rule.name}' does not fit")


@pytest.mark.parametrize("rule", ["block", "best_path"])
def test_a_sampled_chain_suits_the_rules_for_chains(model, rule):
    drafter = make_drafter("sampled", width=1)
    text = Speculator(model, drafter=drafter, rule=rule, budget=5).generate(IDS, seed=3, **SAMPLING)
    assert text.shape[1] > IDS.shape[1]


def test_a_lossy_rule_says_so(model):
    assert [name for name, entry in RULES.items() if not entry.lossless] == ["typical"]
    with pytest.warns(BranchwiseWarning, match="rule 'typical' is lossy"):
        Speculator(model, drafter="mixed", rule="typical", budget=5).generate(IDS, seed=1, **SAMPLING)


@pytest.mark.parametrize(
    "ban",
    [
        {"suppress_tokens": [3, 7, 11]},
        {"bad_words_ids": [[3], [7], [11]]},
        {"sequence_bias": [[[3], -float("inf")], [[7], -float("inf")], [[11], -float("inf")]]},
        {"min_new_tokens": 12, "eos_token_id": [3, 7, 11]},
    ],
    ids=lambda ban: next(iter(ban)),
)
def test_what_is_known_to_be_forbidden_is_never_drawn(model, ban):
    drafter = make_drafter("sampled")
    assert isinstance(drafter, SampledDrafter)
    speculator = Speculator(model, drafter=drafter, budget=17)
    config = GenerationConfig(**SAMPLING, **ban)
    drawn = 0
    for seed in range(4):
        generation = speculator.generate(
            IDS, generation_config=config, return_dict_in_generate=True, seed=seed, pad_token_id=0
        ).branchwise
        for record in generation.records:
            for node in range(1, len(record.draft.tree)):
                proposal = record.draft.proposal(node)
                assert isinstance(proposal, Sampled)
                assert float(proposal.vector[[3, 7, 11]].sum()) == 0.0
                drawn += 1
    assert drawn > 20
