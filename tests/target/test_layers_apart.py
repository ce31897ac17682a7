"""A tree verified from a head start: logits, features and cache are those of one forward through all layers."""

from __future__ import annotations

import copy

import pytest
import torch

from branchwise.target import HuggingFaceTarget
from branchwise.target.early_exit import EarlyExit, merge
from branchwise.target.layers import UnsupportedSplit, find_layers
from branchwise.tree import TokenTree
from zoo import SUPPORTED, build, tiny_llama

pytestmark = pytest.mark.core

PROMPTS = ([7, 3, 11, 3, 7, 3, 11, 19, 23], [5], [2, 30, 2, 30, 9, 9, 1])
#  drafted, level by level: 0 | 1 2 | 3 4        to verify, in another order:
#         0                                              0            3 and 8, 9 were never run; 4 is not verified;
#       /   \                                          /   \          9 has the path of 8
#      1     2                                        2     1
#      |     |                                       / \   / \
#      3     4                                      7   5 3   8=9
RUN = (-1, 0, 0, 1, 2)
LEVELS = (1, 3, 5)
VERIFIED_PARENTS = (-1, 0, 0, 2, 1, 1, 2, 2)
#: per prompt: tokens of the drafted nodes and of the verified ones
DRAFTED = ((23, 4, 6, 8, 10), (5, 5, 0, 5, 3), (1, 36, 35, 34, 33))
VERIFIED = ((23, 6, 4, 8, 1, 2, 3, 3), (5, 0, 5, 5, 1, 2, 7, 7), (1, 35, 36, 34, 0, 3, 4, 4))
PATH = (0, 2, 7)


def assert_as_whole(model, skipped, *, tolerance=1e-12, features=(), attention="auto"):
    """Drafts, verifies and commits in three lanes of which the middle one drafts nothing but its root."""
    target = HuggingFaceTarget(model, attention=attention)
    early = EarlyExit(target, skipped)
    lanes = [target.open() for _ in PROMPTS]
    for lane, prompt in zip(lanes, PROMPTS, strict=True):
        target.prefill(lane, prompt)
    trees = {
        lane: TokenTree(tokens, VERIFIED_PARENTS[: len(tokens)]) for lane, tokens in zip(lanes, VERIFIED, strict=True)
    }
    whole = target.forward(trees, features)
    target.commit(dict.fromkeys(lanes, PATH))
    rows = [
        [tuple(part.clone() for part in target.cache.rows(lane, i)) for i in range(len(target.windows))]
        for lane in lanes
    ]
    for lane in lanes:
        target.cache.clear(lane)
        target.prefill(lane, PROMPTS[lanes.index(lane)])

    begun = early.begin(
        {lane: TokenTree(nodes[:1], RUN[:1]) for lane, nodes in zip(lanes, DRAFTED, strict=True)}, features
    )
    assert all(logits.shape == (1, target.vocab_size) for logits in begun.values())
    for nodes in LEVELS[1:]:
        grown = {lanes[i]: TokenTree(DRAFTED[i][:nodes], RUN[:nodes]) for i in (0, 2)}
        assert set(early.grow(grown)) == {lanes[0], lanes[2]}
    early.end()
    assert target.head_start is not None
    assert target.head_start.covers(trees, features)
    split = target.forward(trees, features)
    for lane in lanes:
        torch.testing.assert_close(split[lane].logits, whole[lane].logits, rtol=0, atol=tolerance)
        assert set(split[lane].features) == set(features)
        for layer in features:
            torch.testing.assert_close(split[lane].features[layer], whole[lane].features[layer], rtol=0, atol=tolerance)
    target.commit(dict.fromkeys(lanes, PATH))
    target.cache.check_integrity()
    assert target.head_start is None
    for lane, known in zip(lanes, rows, strict=True):
        for index, parts in enumerate(known):
            for mine, part in zip(target.cache.rows(lane, index), parts, strict=True):
                torch.testing.assert_close(mine, part, rtol=0, atol=tolerance)


@pytest.mark.parametrize("family", SUPPORTED, ids=lambda family: family.name)
def test_every_family_goes_on_from_its_first_layer(family):
    assert_as_whole(build(family), [1], tolerance=max(1e-12, family.tolerance if family.tolerance > 1e-9 else 0))


@pytest.mark.parametrize("skipped", [[1, 2, 3, 4], [3, 4], [4], [2], [1, 3], [2, 4]], ids=str)
def test_any_exit_and_any_set_of_skipped_layers(skipped):
    assert_as_whole(tiny_llama(num_hidden_layers=5), skipped)


@pytest.mark.parametrize("skipped", [[1, 2, 3], [2, 3], [1, 2]], ids=str)
@pytest.mark.parametrize("name", ["gemma3_text", "mistral"])
def test_windows_of_two_reach_less_far_than_the_tree(name, skipped):
    options = {"num_hidden_layers": 4, "sliding_window": 2}
    if name == "gemma3_text":
        options["layer_types"] = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    family = next(family for family in SUPPORTED if family.model_type == name)
    assert_as_whole(build(family, **options), skipped)


def test_the_reference_attention_agrees():
    assert_as_whole(tiny_llama(num_hidden_layers=3), [2], attention="reference")


@pytest.mark.parametrize("skipped", [[2, 3], [1, 3]], ids=str)
@pytest.mark.parametrize("name", ["llama", "falcon", "gpt2"])
def test_features_of_all_layers_come_along(name, skipped):
    family = next(family for family in SUPPORTED if family.model_type == name)
    model = build(family, **{"n_layer" if name == "gpt2" else "num_hidden_layers": 4})
    assert_as_whole(model, skipped, features=(0, 1, 2, 3, 4))
    # transformers installs hooks on the layers when features are first asked for: none may have been out of its sight
    assert len(model(torch.tensor([[1, 2]]), output_hidden_states=True).hidden_states) == 5


def test_transformers_hooks_installed_during_a_split_forward_reach_every_layer():
    model = tiny_llama(num_hidden_layers=3)
    target = HuggingFaceTarget(model)
    early = EarlyExit(target, [1, 2])
    lane = target.open()
    early.begin({lane: TokenTree((1,), (-1,))}, (0,))
    target.rollback()
    ids = torch.tensor([[1, 2, 3]])
    expected = tiny_llama(num_hidden_layers=3)(ids, output_hidden_states=True).hidden_states
    found = model(ids, output_hidden_states=True).hidden_states
    assert len(found) == 4
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def started(features=()):
    target = HuggingFaceTarget(tiny_llama(num_hidden_layers=3))
    early = EarlyExit(target, [2])
    lanes = [target.open(), target.open()]
    for lane in lanes:
        target.prefill(lane, PROMPTS[0])
    return target, early, lanes


@pytest.mark.parametrize("why", ["other root", "lane not begun", "feature not kept"])
def test_what_does_not_fit_the_head_start_runs_whole(why):
    target, early, lanes = started()
    begun = lanes[:1] if why == "lane not begun" else lanes
    early.begin({lane: TokenTree((23,), (-1,)) for lane in begun})
    early.end()
    root = 22 if why == "other root" else 23
    features = (1,) if why == "feature not kept" else ()
    trees = {lane: TokenTree((root, 4), (-1, 0)) for lane in lanes}
    assert not target.head_start.covers(trees, features)
    split = target.forward(trees, features)
    target.rollback()
    whole = target.forward(trees, features)
    for lane in lanes:
        assert torch.equal(split[lane].logits, whole[lane].logits)


def test_lanes_that_are_not_verified_ride_along_and_keep_their_rows():
    target, early, lanes = started()
    early.begin({lane: TokenTree((23,), (-1,)) for lane in lanes})
    early.end()
    tree = TokenTree((23, 4), (-1, 0))
    split = target.forward({lanes[1]: tree})[lanes[1]]
    target.commit({lanes[1]: (0, 1)})
    assert [target.length(lane) for lane in lanes] == [8, 10]
    target.cache.check_integrity()
    fresh = HuggingFaceTarget(target.model)
    lane = fresh.open()
    fresh.prefill(lane, PROMPTS[0])
    torch.testing.assert_close(split.logits, fresh.forward({lane: tree})[lane].logits, rtol=0, atol=1e-12)


def test_a_row_of_nan_that_nobody_verifies_does_no_harm_later():
    """A short lane runs a token whose embedding is NaN, and a long lane moves on by three tokens.

    The short lane's stale rows then reach over the place where the bad row was written.
    """
    model = tiny_llama(num_hidden_layers=3)
    bad = 30
    with torch.no_grad():
        model.model.embed_tokens.weight[bad] = torch.nan
    target = HuggingFaceTarget(model)
    early = EarlyExit(target, [2])
    short, long = target.open(), target.open()
    target.prefill(short, [4, 5])
    target.prefill(long, PROMPTS[0])
    early.begin({short: TokenTree((5,), (-1,)), long: TokenTree((23,), (-1,))})
    early.grow({short: TokenTree((5, bad), (-1, 0)), long: TokenTree((23, 4), (-1, 0))})
    early.end()
    target.forward({short: TokenTree((5, 6), (-1, 0)), long: TokenTree((23, 4, 6), (-1, 0, 1))})
    target.commit({short: (0,), long: (0, 1, 2)})
    logits = target.forward({short: TokenTree((6,), (-1,)), long: TokenTree((8,), (-1,))})[short].logits
    alone = HuggingFaceTarget(model)
    lane = alone.open()
    alone.prefill(lane, [4, 5, 6])
    torch.testing.assert_close(logits, alone.forward({lane: TokenTree((6,), (-1,))})[lane].logits, rtol=0, atol=1e-12)


def test_a_rolled_back_head_start_is_forgotten():
    target, early, lanes = started()
    early.begin({lane: TokenTree((23,), (-1,)) for lane in lanes})
    target.rollback()
    assert target.head_start is None
    target.cache.check_integrity()
    assert all(layer.in_flight == 0 for layer in target.cache.layers)


@pytest.mark.parametrize("layer", [0, 2])
def test_a_forward_that_fails_takes_the_head_start_with_it(layer):
    target, early, lanes = started()
    early.begin({lane: TokenTree((23,), (-1,)) for lane in lanes})
    early.end()

    def fail(*args):
        raise OSError("disk full")

    handle = target.model.model.layers[layer].register_forward_pre_hook(fail)
    trees = dict.fromkeys(lanes, TokenTree((23, 4), (-1, 0)))
    with pytest.raises(OSError):
        target.forward(trees)
    handle.remove()
    assert target.head_start is None
    again = target.forward(trees)
    target.rollback()
    for lane, output in target.forward(trees).items():
        assert torch.equal(again[lane].logits, output.logits)


def test_a_tree_on_a_head_start_does_not_grow():
    target, early, lanes = started()
    early.begin({lane: TokenTree((23,), (-1,)) for lane in lanes})
    early.end()
    tree = TokenTree((23, 4), (-1, 0))
    target.forward(dict.fromkeys(lanes, tree))
    with pytest.raises(RuntimeError, match="run by its drafter cannot grow"):
        target.extend({lanes[0]: TokenTree((23, 4, 5), (-1, 0, 0))})


def test_merging_keeps_the_order_of_what_was_run():
    run = TokenTree((5, 8, 9, 4), (-1, 0, 1, 0))
    tree = TokenTree((5, 4, 8, 7, 7, 2), (-1, 0, 0, 2, 2, 3))
    grown, places = merge(run, tree)
    assert grown.tokens == (5, 8, 9, 4, 7, 2)
    assert grown.parents == (-1, 0, 1, 0, 1, 4)
    assert places == [0, 3, 1, 4, 4, 5]


# what cannot be run apart


class AddsTheEmbeddings(torch.nn.Module):
    """The last layer of a model that adds what the first one saw, behind the back of the loop over the layers."""

    def __init__(self, layer, seen):
        super().__init__()
        self.layer = layer
        self.__dict__["seen"] = seen

    def forward(self, hidden_states, *args, **kwargs):
        return self.layer(hidden_states, *args, **kwargs) + self.seen[-1]


def test_a_model_with_a_secret_between_its_layers_is_refused():
    model = tiny_llama(num_hidden_layers=3)
    seen = []
    model.model.layers[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model.model.layers[2] = AddsTheEmbeddings(model.model.layers[2], seen)
    target = HuggingFaceTarget(model)
    with pytest.raises(UnsupportedSplit, match=r"(?s)'llama'.*in two parts.*other than 'early_exit'"):
        EarlyExit(target, [1, 2])
    assert target.cache.lanes == ()


def test_a_model_without_a_list_of_its_layers_is_refused():
    model = tiny_llama()
    twin = copy.deepcopy(model)
    model.add_module("twin", twin.model)
    with pytest.raises(UnsupportedSplit, match="2 lists of 2 layers"):
        find_layers(model, 2)
    with pytest.raises(UnsupportedSplit, match="0 lists of 3 layers"):
        find_layers(model, 3)


@pytest.mark.parametrize("skipped", [[0], [0, 1], [2, 1], [1, 1], [3], [-1]], ids=str)
def test_layers_that_cannot_be_skipped(skipped):
    with pytest.raises(ValueError, match=r"distinct numbers from 1 to 2"):
        EarlyExit(HuggingFaceTarget(tiny_llama(num_hidden_layers=3)), skipped)


def test_skipping_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one layer"):
        EarlyExit(HuggingFaceTarget(tiny_llama()), [])
