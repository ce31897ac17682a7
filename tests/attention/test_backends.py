"""All backends against one slow oracle, over every option of tree attention and every kind of tree."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from attention_oracle import Drawn, oracle_attention
from torch import Tensor

from branchwise.attention import TreeLayout, backend_names, folded, get_backend, tree_attention
from branchwise.attention.grown_layout import GrownLayout
from branchwise.attention.triton_backend import has_triton
from branchwise.tree import TokenGraph, TokenTree, chain_shape, kary_shape
from compiler import NEEDS_COMPILER

pytestmark = pytest.mark.core

# Triton has no wheels for some platforms
NEEDS_TRITON = pytest.mark.skipif(not has_triton(), reason="triton is not installed")
NEEDS = {"triton": NEEDS_TRITON, "native": NEEDS_COMPILER}
ALL_BACKENDS = [pytest.param(name, marks=NEEDS.get(name, ())) for name in backend_names()]
# the native backend computes in float32
BACKENDS = [backend for backend in ALL_BACKENDS if backend.values != ("native",)]


def device_of(backend: str) -> str:
    """Where a backend is tested: on a GPU if it is for GPUs and there is one."""
    return "cuda" if backend in ("triton", "flex") and torch.cuda.is_available() else "cpu"


def attend(query: Tensor, key: Tensor, value: Tensor, tree: object, backend: str = "auto", **options: Any) -> Tensor:
    """`tree_attention` where the backend is tested, the output on the CPU."""
    device = device_of(backend)
    moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in options.items()}
    query, key, value = (tensor.to(device) for tensor in (query, key, value))
    return tree_attention(query, key, value, tree, backend=backend, **moved).cpu()


@pytest.fixture(autouse=True)
def _prompts_begin_at_200_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the slow oracle can afford to check the way that prompts take."""
    monkeypatch.setattr(folded, "PROMPT_NODES", 200)


def tree_of(parents: Sequence[int]) -> TokenTree:
    return TokenTree(range(len(parents)), parents)


def random_parents(nodes: int, seed: int) -> list[int]:
    """Any earlier node may be a parent, so the order is topological but rarely breadth-first."""
    draw = random.Random(seed)
    return [-1, *(draw.randrange(node) for node in range(1, nodes))]


def drawn(tree: TokenTree | TokenGraph) -> Drawn:
    if isinstance(tree, TokenGraph):
        return Drawn([[parent for parent, child in tree.edges if child == node] for node in range(len(tree))])
    return Drawn([[parent] if parent >= 0 else [] for parent in tree.parents])


#     0            0               0 -.
#    / \           |              / \  \        (a graph: 3 has the parents 1 and 2)
#   1   2          1             1   2  |
#   |              |              \ /   |
#   3              2               3    4
BRANCHED = tree_of((-1, 0, 0, 1))
CHAIN = tree_of(chain_shape(4))
STAR = tree_of((-1, 0, 0, 0, 0, 0))
DIAMOND = TokenGraph(range(5), [(0, 1), (0, 2), (1, 3), (2, 3), (0, 4)])
SCRAMBLED = tree_of(random_parents(11, seed=3))


@dataclass(frozen=True)
class Case:
    """One call of tree attention; sizes not given follow from the trees."""

    trees: TokenTree | TokenGraph | tuple[TokenTree | TokenGraph, ...]
    batch: int = 1
    heads: int = 4
    kv_heads: int = 2
    slots: int = 7
    dim: int = 8
    value_dim: int = 8
    width: int | None = None
    committed: tuple[int, ...] | None = None
    options: dict[str, object] = field(default_factory=dict)

    @property
    def per_row(self) -> tuple[TokenTree | TokenGraph, ...]:
        return self.trees if isinstance(self.trees, tuple) else (self.trees,) * self.batch

    @property
    def nodes(self) -> int:
        return self.width or max(map(len, self.per_row))


CASES = {
    "lone root": Case(tree_of((-1,))),
    "lone root, no slots": Case(tree_of((-1,)), slots=0),
    "branched": Case(BRANCHED),
    "no slots": Case(BRANCHED, slots=0),
    "chain": Case(CHAIN),
    "chain, no slots": Case(CHAIN, slots=0),
    "star": Case(STAR),
    "k-ary": Case(tree_of(kary_shape((3, 2)))),
    "any topological order": Case(SCRAMBLED),
    "graph": Case(DIAMOND),
    "one kv head": Case(BRANCHED, heads=3, kv_heads=1),
    "no grouping": Case(BRANCHED, heads=3, kv_heads=3),
    "nine heads on three": Case(BRANCHED, heads=9, kv_heads=3),
    "wide values": Case(BRANCHED, value_dim=12),
    "narrow values": Case(BRANCHED, value_dim=4),
    "own scale": Case(BRANCHED, options={"scale": 0.5}),
    "some slots ignored": Case(SCRAMBLED, committed=(4,)),
    "nothing committed": Case(SCRAMBLED, committed=(0,)),
    "padded": Case(BRANCHED, width=6),
    "padded lone root": Case(tree_of((-1,)), width=3),
    "batch, one tree": Case(SCRAMBLED, batch=3),
    "batch, one tree, lengths": Case(SCRAMBLED, batch=3, committed=(0, 7, 3)),
    "ragged": Case((tree_of((-1,)), STAR, SCRAMBLED), batch=3),
    "ragged, lengths": Case((SCRAMBLED, tree_of((-1,)), DIAMOND, CHAIN), batch=4, committed=(1, 0, 7, 3)),
    "ragged chains": Case((CHAIN, tree_of(chain_shape(2))), batch=2, slots=0),
    "window of one": Case(SCRAMBLED, options={"window": 1}),
    "window inside the tree": Case(SCRAMBLED, options={"window": 2}),
    "window across the edge": Case(SCRAMBLED, options={"window": 4}),
    "window just too short": Case(CHAIN, options={"window": 11}),  # root of the chain at 7, deepest node at 11
    "window just enough": Case(CHAIN, options={"window": 12}),
    "window on a chain": Case(CHAIN, slots=0, options={"window": 2}),
    "window, ragged, lengths": Case((SCRAMBLED, CHAIN, DIAMOND), batch=3, committed=(5, 7, 2), options={"window": 3}),
    "softcap": Case(SCRAMBLED, options={"softcap": 0.7}),
    "sinks": Case(SCRAMBLED, heads=4, options={"sinks": (0.3, -2.0, 4.0, 0.0)}),
    "sinks, huge": Case(BRANCHED, heads=4, options={"sinks": (30.0, -30.0, 0.0, 9.0)}),
    "everything": Case(
        (SCRAMBLED, CHAIN, DIAMOND),
        batch=3,
        heads=6,
        kv_heads=3,
        value_dim=5,
        committed=(5, 7, 2),
        options={"window": 4, "softcap": 1.5, "sinks": (0.1, 1.0, -1.0, 2.0, 0.0, 0.5), "scale": 0.9},
    ),
    "long enough to be a prompt": Case(tree_of(chain_shape(256)), slots=0, heads=2, kv_heads=1, dim=4, value_dim=4),
    "prompt after a prompt": Case(tree_of(chain_shape(256)), slots=9, heads=2, kv_heads=1, dim=4, value_dim=4),
    "prompt in a window": Case(
        tree_of(chain_shape(256)), slots=9, heads=2, kv_heads=1, dim=4, value_dim=4, options={"window": 20}
    ),
    "wide tree": Case(tree_of(random_parents(260, 5)), slots=3, heads=2, kv_heads=1, dim=4, value_dim=4),
    "more keys than a block": Case(BRANCHED, slots=4500, heads=2, kv_heads=1, options={"softcap": 5.0}),
}

# float64 is compared to rounding of a few hundred sums. float32 likewise: outputs are averages of values of size ~1,
# eps 1.2e-7 times the length of the sums. The half types round the query, the weights or the output once or twice to
# 8 (bf16) or 11 (fp16) bits: 2 to 4 ulps of a number in [1, 4).
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def tensors(case: Case, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as the model and the cache hand them over: strided views, garbage where nothing counts."""
    make = torch.Generator().manual_seed(seed)
    rows = case.slots + case.nodes
    query = torch.randn(case.batch, case.nodes, case.heads, case.dim, generator=make).to(dtype).transpose(1, 2)
    buffers = [
        torch.randn(case.batch, case.kv_heads, rows + 5, width, generator=make).to(dtype)
        for width in (case.dim, case.value_dim)
    ]
    for row, tree in enumerate(case.per_row):
        committed = case.slots if case.committed is None else case.committed[row]
        for buffer in buffers:
            buffer[row, :, committed : case.slots] = 1e3 * (-1) ** row
            buffer[row, :, case.slots + len(tree) :] = -1e3
    return query, buffers[0][:, :, :rows], buffers[1][:, :, :rows]


def options_of(case: Case, dtype: torch.dtype) -> dict[str, object]:
    options = dict(case.options)
    if "sinks" in options:
        options["sinks"] = torch.tensor(options["sinks"], dtype=dtype)
    return options


@cache
def expected(name: str, dtype: torch.dtype) -> Tensor:
    """What the oracle says, in float64, about the same rounded inputs that the backends get; once for all backends."""
    case = CASES[name]
    options: dict = {"scale": case.dim**-0.5} | options_of(case, dtype)
    committed = case.committed or (case.slots,) * case.batch
    return oracle_attention(*tensors(case, dtype), list(map(drawn, case.per_row)), committed, **options)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_backend_equals_oracle(backend: str, name: str, dtype: torch.dtype) -> None:
    if (backend, dtype) == ("native", torch.float64):
        # who asks it for float64 is refused, which has a test of its own
        pytest.skip("the native backend computes in float32")
    case = CASES[name]
    query, key, value = tensors(case, dtype)
    output = attend(query, key, value, case.trees, committed=case.committed, backend=backend, **options_of(case, dtype))
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected(name, dtype), rtol=0, atol=TOLERANCE[dtype])
    for row, tree in enumerate(case.per_row):
        assert not output[row, :, len(tree) :].any(), "padding must be exactly zero"


@pytest.mark.parametrize("window", [None, 1, 3, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_node_equals_its_path_run_alone(backend: str, window: int | None) -> None:
    tree = SCRAMBLED
    case = Case(tree, slots=6)
    query, key, value = tensors(case, torch.float64)
    together = attend(query, key, value, tree, window=window, backend=backend)
    for node in range(len(tree)):
        path = list(tree.path(node))
        rows = [*range(6), *(6 + step for step in path)]
        alone = attend(
            query[:, :, path],
            key[:, :, rows],
            value[:, :, rows],
            TokenTree.from_chain(0, [0] * (len(path) - 1)),
            window=window,
            backend=backend,
        )
        torch.testing.assert_close(together[:, :, node], alone[:, :, -1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_changing_a_node_changes_its_descendants_only(backend: str) -> None:
    tree = SCRAMBLED
    case = Case(tree)
    query, key, value = tensors(case, torch.float32)
    before = attend(query, key, value, tree, backend=backend)
    for node in range(len(tree)):
        other_key, other_value = key.clone(), value.clone()
        other_key[:, :, case.slots + node] += 1.0
        other_value[:, :, case.slots + node] -= 1.0
        after = attend(query, other_key, other_value, tree, backend=backend)
        changed = {i for i in range(len(tree)) if not torch.equal(before[:, :, i], after[:, :, i])}
        assert changed == {i for i in range(len(tree)) if node in tree.path(i)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_equals_itself_run_alone(backend: str) -> None:
    trees = (tree_of((-1,)), STAR, SCRAMBLED, CHAIN)
    case = Case(trees, batch=4, slots=9, committed=(1, 3, 9, 9))
    query, key, value = tensors(case, torch.float64)
    together = attend(query, key, value, trees, committed=case.committed, backend=backend)
    for row, (tree, committed) in enumerate(zip(trees, (1, 3, 9, 9), strict=True)):
        rows = [*range(committed), *range(9, 9 + len(tree))]
        alone = attend(
            query[row : row + 1, :, : len(tree)],
            key[row : row + 1, :, rows],
            value[row : row + 1, :, rows],
            tree,
            backend=backend,
        )
        torch.testing.assert_close(together[row : row + 1, :, : len(tree)], alone, rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trimmed_cache_gives_what_the_whole_cache_gives_inside_the_window(backend: str) -> None:
    """Positions are relative: dropping slots that nobody can see, and counting from there, changes nothing."""
    case = Case(BRANCHED, slots=20)
    query, key, value = tensors(case, torch.float64)
    whole = attend(query, key, value, BRANCHED, window=6, backend=backend)
    kept = attend(query, key[:, :, 15:], value[:, :, 15:], BRANCHED, window=6, backend=backend)
    torch.testing.assert_close(kept, whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_inputs_are_not_written_to(backend: str) -> None:
    query, key, value = tensors(Case(SCRAMBLED), torch.float32)
    copies = query.clone(), key.clone(), value.clone()
    for options in ({}, {"softcap": 2.0}, {"window": 3}):
        attend(query, key, value, SCRAMBLED, backend=backend, **options)
    assert all(map(torch.equal, (query, key, value), copies))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_layout_serves_many_layers_windows_and_steps(backend: str) -> None:
    """A layout caches masks: a stale one (flashinfer PR 1028) would show in the second use with other arguments."""
    layout = TreeLayout.from_trees(SCRAMBLED, device=device_of(backend))
    for slots in (7, 4, 9, 7):
        for window in (None, 2, 5):
            for dtype in (torch.float32, torch.float64):
                query, key, value = tensors(Case(SCRAMBLED, slots=slots), dtype)
                planned = attend(query, key, value, layout, window=window, backend=backend)
                fresh = attend(query, key, value, SCRAMBLED, window=window, backend=backend)
                assert torch.equal(planned, fresh)


@pytest.mark.parametrize("slots", [0, 30])
@pytest.mark.parametrize("window", [None, 10, 299, 300])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lazy_chain_is_a_chain_tree(backend: str, slots: int, window: int | None) -> None:
    case = Case(tree_of(chain_shape(299)), slots=slots)
    query, key, value = tensors(case, torch.float64)
    lazy = attend(query, key, value, TreeLayout.chain(300, device=device_of(backend)), window=window, backend=backend)
    plain = attend(query, key, value, case.trees, window=window, backend="reference")
    torch.testing.assert_close(lazy, plain, rtol=0, atol=1e-12)


def test_backend_may_be_called_directly_with_a_layout() -> None:
    case = Case((CHAIN, SCRAMBLED), batch=2, committed=(2, 5))
    query, key, value = tensors(case, torch.float64)
    layout = TreeLayout.from_trees(case.per_row)
    direct = get_backend()(query, key, value, layout, (2, 5), scale=8**-0.5)
    assert torch.equal(direct, attend(query, key, value, case.trees, committed=(2, 5)))


@pytest.mark.parametrize("window", [None, 2, 5])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nodes_that_a_tree_grew_by_see_what_they_see_in_the_whole_tree(backend: str, window: int | None) -> None:
    # row 0 grows from 4 nodes to 11, row 1 from a lone root to 6; in flight are 4 rows, 3 of them padding in row 1
    trees, known, slots = (SCRAMBLED, STAR), (4, 1), 7
    whole = Case(trees, batch=2, slots=slots, committed=(3, 7))
    query, key, value = tensors(whole, torch.float64)
    expected_rows = attend(query, key, value, trees, committed=(3, 7), window=window, backend="reference")
    device = device_of(backend)
    layout = GrownLayout(trees, [range(4), range(1)], 4, device)
    new = [list(range(start, len(tree))) for start, tree in zip(known, trees, strict=True)]
    padded = [nodes + [nodes[-1]] * (layout.width - len(nodes)) for nodes in new]
    rows = [
        [*range(slots), *(slots + min(i, start - 1) for i in range(4)), *(slots + node for node in nodes)]
        for start, nodes in zip(known, padded, strict=True)
    ]
    grown = get_backend(backend)(
        torch.stack([query[row][:, nodes] for row, nodes in enumerate(padded)]).to(device),
        torch.stack([key[row][:, at] for row, at in enumerate(rows)]).to(device),
        torch.stack([value[row][:, at] for row, at in enumerate(rows)]).to(device),
        layout,
        (3, 7),
        scale=8**-0.5,
        window=window,
    ).cpu()
    for row, nodes in enumerate(new):
        torch.testing.assert_close(grown[row, :, : len(nodes)], expected_rows[row][:, nodes], rtol=0, atol=1e-12)
        assert not grown[row, :, len(nodes) :].any()
