"""Compiled targets as drafters run them: trees that grow level by level, each level a forward of its new nodes."""

from __future__ import annotations

import random

import pytest
import torch

from branchwise import UnsupportedModel
from branchwise.target import HuggingFaceTarget
from branchwise.target.compiled import CompiledTarget
from branchwise.target.native import NativeTarget
from branchwise.target.native_engine import native_library
from branchwise.tree import TokenTree
from small_model_rig import cut
from zoo import SUPPORTED, VOCAB, build

pytestmark = pytest.mark.core

ENGINES = ("transformers", "native", "openvino")
#: no window; one in every layer; in some, with two rotary tables
FAMILIES = [family for family in SUPPORTED if family.model_type in ("llama", "mistral", "gemma3_text")]
PROMPTS = ([7, 3, 11, 3, 7, 3, 11, 19, 23], [5], [2, 30, 2, 30, 2])
#        0
#      / | \
#     1  3  7       in flight first: 0 1 2; then 3 4 5 6; then the others. 5 hangs on a node of the first forward,
#    / \  \          8 and 9 on nodes of the second; tokens repeat
#   2   5  4
#   |   |   \
#   6   9    8
TREE = TokenTree((23, 5, 6, 9, 5, 0, 8, 9, 6, 5), (-1, 0, 1, 0, 3, 1, 2, 0, 4, 5))
CUTS = (3, 7, 10)
_MADE: dict[tuple[str, str], CompiledTarget | HuggingFaceTarget] = {}


def make(model, engine: str, **options):
    if engine == "transformers":
        return HuggingFaceTarget(model)
    if engine == "native":
        if native_library().library is None:
            # the native engine is compiled on the machine: without a compiler there is none
            pytest.skip(native_library().reason)
        return NativeTarget(model, weights="f32", threads=1, **options)
    # OpenVINO is an extra: the tests run without it, too
    pytest.importorskip("openvino", reason="this engine is an extra of its own: branchwise[openvino]")
    from branchwise.target.openvino import OpenVinoTarget

    return OpenVinoTarget(model, weights="f32", threads=1, **options)


def drafting(family, engine: str):
    """A target with lanes of its own; compiling takes longer than a test."""
    if (family.name, engine) not in _MADE:
        _MADE[family.name, engine] = make(build(family).float(), engine)
    return _MADE[family.name, engine].for_drafting()


def rooted(tree: TokenTree, root: int) -> TokenTree:
    return TokenTree((root, *tree.tokens[1:]), tree.parents)


@torch.no_grad()
def path_logits(model, prompt, tree: TokenTree, node: int) -> torch.Tensor:
    tokens = [*prompt[:-1], *(tree.tokens[i] for i in tree.path(node))]
    return model(torch.tensor([tokens]), use_cache=False).logits[0, -1]


def assert_close(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_nodes_of_every_level_have_the_logits_of_their_path_run_alone(family, engine):
    target = drafting(family, engine)
    lanes = {}
    for prompt in PROMPTS:
        lane = target.open()
        target.prefill(lane, prompt)
        lanes[lane] = (prompt, rooted(TREE, prompt[-1]))
    outputs = target.forward({lane: cut(tree, CUTS[0]) for lane, (_, tree) in lanes.items()})
    last = next(reversed(lanes))
    for before, nodes in zip((0, *CUTS), CUTS, strict=False):
        if before:
            # the last lane grows once only, and by a node less: a lone one when its turn comes
            named = {lane: cut(tree, nodes) for lane, (_, tree) in lanes.items() if lane != last}
            if nodes == CUTS[1]:
                named[last] = cut(lanes[last][1], CUTS[0] + 1)
            outputs = target.extend(named)
            assert set(outputs) == set(named)
        for lane, found in outputs.items():
            prompt, tree = lanes[lane]
            assert len(found.logits) == (1 if before and lane == last else nodes - before)
            for row, logits in enumerate(found.logits):
                assert_close(logits, path_logits(target.model, prompt, tree, before + row))
    # rows of nodes from different forwards make the path that stays
    path = [0, 1, 5, 9]
    target.commit({lane: path if lane != last else [0, 3] for lane in lanes})
    target.cache.check_integrity()
    for lane, (prompt, tree) in lanes.items():
        kept = [*prompt[:-1], *(tree.tokens[node] for node in (path if lane != last else [0, 3]))]
        assert target.length(lane) == len(kept)
        root = TokenTree.from_chain(4)
        assert_close(target.forward({lane: root})[lane].logits[0], path_logits(target.model, [*kept, 4], root, 0))
        target.rollback()
        target.shorten(lane, 0)
        target.free(lane)
    target.cache.check_integrity()


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_trees_that_cross_blocks_of_rows_while_they_grow(engine):
    """300 nodes of a random tree behind 250 tokens, by 1 to 60 nodes at a time."""
    target = make(build(FAMILIES[0], max_position_embeddings=1024).float(), engine).for_drafting()
    draw = random.Random(5)
    prompt = [draw.randrange(VOCAB) for _ in range(251)]
    parents = [-1, *(draw.randrange(max(0, node - 30), node) for node in range(1, 300))]
    tree = TokenTree([prompt[-1], *(draw.randrange(VOCAB) for _ in range(299))], parents)
    lane = target.open()
    target.prefill(lane, prompt)
    rows = [*target.forward({lane: cut(tree, 20)})[lane].logits]
    while len(rows) < len(tree):
        rows += target.extend({lane: cut(tree, min(len(tree), len(rows) + draw.randint(1, 60)))})[lane].logits
        target.cache.check_integrity()
    for node in (0, 1, 5, 6, 19, 20, 37, 70, 133, 290, 299, tree.depth.index(tree.height)):
        assert_close(rows[node], path_logits(target.model, prompt, tree, node))


# the second one's newest node hangs from the one before, as in a chain, with a leaf beside them
@pytest.mark.parametrize("parents", [range(-1, 8), (-1, 0, 0, 2, 3, 4, 5, 6, 7)], ids=["chain", "beside a leaf"])
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_tree_that_grows_token_by_token(engine, parents):
    target = drafting(FAMILIES[1], engine)
    lane, prompt = target.open(), PROMPTS[0]
    target.prefill(lane, prompt)
    tree = TokenTree((prompt[-1], 5, 9, 2, 30, 5, 5, 1, 8), parents)
    rows = [*target.forward({lane: cut(tree, 1)})[lane].logits]
    for nodes in range(2, len(tree) + 1):
        rows += target.extend({lane: cut(tree, nodes)})[lane].logits
    for node, row in enumerate(rows):
        assert_close(row, path_logits(target.model, prompt, tree, node))


@pytest.mark.parametrize("engine", ENGINES)
def test_logits_and_features_of_chosen_nodes(engine):
    target = drafting(FAMILIES[0], engine)
    lane, other = target.open(), target.open()
    for each, prompt in ((lane, PROMPTS[0]), (other, PROMPTS[2])):
        target.prefill(each, prompt)
    trees = {other: rooted(cut(TREE, 3), PROMPTS[2][-1]), lane: cut(TREE, 3)}
    found = target.forward(trees, (1,), wanted={lane: [2, 0], other: []})
    assert found[other].logits.shape == (0, VOCAB) and found[other].features[1].shape == (3, 32)
    for row, node in enumerate((2, 0)):
        assert_close(found[lane].logits[row], path_logits(target.model, PROMPTS[0], TREE, node))
    found = target.extend({lane: TREE}, (1,), wanted={lane: [9, 4]})[lane]
    for row, node in enumerate((9, 4)):
        assert_close(found.logits[row], path_logits(target.model, PROMPTS[0], TREE, node))
    # the new nodes' own: as when the whole tree is run at once
    target.rollback()
    assert_close(found.features[1], target.forward({lane: TREE}, (1,))[lane].features[1][3:])


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_what_is_no_growth_is_refused_and_changes_nothing(engine):
    target = drafting(FAMILIES[0], engine)
    lane = target.open()
    target.prefill(lane, PROMPTS[0])
    with pytest.raises(ValueError, match=f"lane {lane} has no tree in flight that could grow; call forward first"):
        target.extend({lane: TREE})
    target.forward({lane: cut(TREE, 3)})
    for tree, message in (
        (rooted(TREE, 4), "does not begin with the nodes in flight"),
        (TokenTree(TREE.tokens, (-1, 0, 0, *TREE.parents[3:])), "does not begin with the nodes in flight"),
        (cut(TREE, 3), "has not grown: it has 3 nodes, as before"),
        (cut(TREE, 2), "has not grown: it has 2 nodes"),
        (TokenTree.from_chain(23, [5, 6] + [1] * 300), "but only 247 positions are left"),
    ):
        with pytest.raises(ValueError, match=message):
            target.extend({lane: tree})
    with pytest.raises(RuntimeError, match="in flight; commit or roll back first"):
        target.forward({lane: TREE})
    rows = target.extend({lane: TREE}, wanted={lane: [9]})[lane].logits
    assert_close(rows[0], path_logits(target.model, PROMPTS[0], TREE, 9))
    target.commit({lane: [0]})
    with pytest.raises(ValueError, match=f"lane {lane} has no tree in flight that could grow"):
        target.extend({lane: rooted(TREE, 4)})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lane_that_was_shortened_goes_on_as_if_it_had_never_been_longer(engine):
    target = drafting(FAMILIES[0], engine)
    lane, prompt = target.open(), PROMPTS[0]
    target.prefill(lane, prompt)
    target.forward({lane: cut(TREE, 3)})
    target.commit({lane: [0, 1, 2]})
    for length in (len(prompt) + 1, 4, 0):
        target.shorten(lane, length)
        assert target.length(lane) == length
        kept = [*prompt, 5][:length]
        for root in (2, 30):  # rows of the first tree lie where those of the second go
            tree = rooted(TREE, root)
            target.forward({lane: cut(tree, 7)})
            rows = target.extend({lane: tree}, wanted={lane: [9]})[lane].logits
            assert_close(rows[0], path_logits(target.model, [*kept, root], tree, 9))
            target.rollback()


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_level_that_is_interrupted_leaves_no_rows(engine, monkeypatch):
    target = drafting(FAMILIES[0], engine)
    lane = target.open()
    target.prefill(lane, PROMPTS[0])
    target.forward({lane: cut(TREE, 3)})

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(target.cache, "blocks", interrupt)
        with pytest.raises(KeyboardInterrupt):
            target.extend({lane: TREE})
    target.cache.check_integrity()
    assert target.length(lane) == len(PROMPTS[0]) - 1
    rows = target.forward({lane: TREE}, wanted={lane: [9]})[lane].logits
    assert_close(rows[0], path_logits(target.model, PROMPTS[0], TREE, 9))


@pytest.mark.parametrize("engine", ENGINES)
def test_targets_for_drafting_share_weights_and_no_lanes(engine):
    one = drafting(FAMILIES[0], engine)
    other = one.for_drafting()
    trees = []
    for target, prompt in ((one, PROMPTS[0]), (other, PROMPTS[2])):
        lane = target.open()
        target.prefill(lane, prompt)
        trees.append((target, lane, prompt, rooted(TREE, prompt[-1])))
        target.forward({lane: cut(trees[-1][3], 3)})
    for target, lane, prompt, tree in trees:  # both are in flight
        rows = target.extend({lane: tree}, wanted={lane: [8]})[lane].logits
        assert_close(rows[0], path_logits(target.model, prompt, tree, 8))
    one.commit({trees[0][1]: [0]})
    assert one.length(trees[0][1]) == len(PROMPTS[0]) and other.length(trees[1][1]) == len(PROMPTS[2]) - 1
    assert other.model is one.model


def test_trees_do_not_grow_in_paged_attention():
    target = make(build(FAMILIES[0]).float(), "openvino")
    lane = target.open()
    target.prefill(lane, PROMPTS[0])
    target.forward({lane: cut(TREE, 3)})
    with pytest.raises(RuntimeError, match="cannot grow in paged attention; draft with what for_drafting"):
        target.extend({lane: TREE})


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_another_model_beside_a_target_is_asked_for_in_the_same_way(engine):
    target = make(build(FAMILIES[0]).float(), engine, prefill_chunk=7)
    small = build(FAMILIES[1], seed=1).bfloat16()
    beside = target.beside(small)
    assert type(beside) is type(target) and beside.model is small
    assert (beside.weights, beside.prefill_chunk, beside._threads) == ("f32", 7, 1)
    assert target.beside(small) is beside, "its weights are made ready once"
    assert target.beside(target.model) is target
    other = build(FAMILIES[0], seed=2).float()
    assert target.beside(other).model is other
    with pytest.raises(UnsupportedModel, match="'gpt2'"):
        target.beside(build(next(family for family in SUPPORTED if family.name == "gpt2")).float())
