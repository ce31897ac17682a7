"""What the native backend adds to the shared test: threads, parts, wide heads, long contexts, and its absence."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import torch
from test_backends import DIAMOND, NEEDS_COMPILER, SCRAMBLED, STAR, TOLERANCE, Case, random_parents, tensors, tree_of

from branchwise.attention import explain, native, tree_attention
from branchwise.attention.layout import TreeLayout
from branchwise.attention.registry import get_backend, packed_attention
from branchwise.cache import Packing
from branchwise.native import kernel
from branchwise.tree import chain_shape
from compiler import OTHER_PROCESSORS

pytestmark = [pytest.mark.core, NEEDS_COMPILER]


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    native.native.cache_clear()
    yield
    native.native.cache_clear()


CASES = {
    "tiles of the matrix unit": Case(SCRAMBLED, heads=6, slots=700, dim=64, value_dim=64),
    "wide": Case(SCRAMBLED, heads=8, slots=300, dim=128, value_dim=128),
    "no multiple of anything": Case(SCRAMBLED, heads=3, kv_heads=1, slots=523, dim=35, value_dim=21),
    "a width that is a multiple of 16 only": Case(STAR, slots=100, dim=80, value_dim=48),
    "more nodes than a block has keys": Case(tree_of(random_parents(300, 2)), slots=40, dim=32, value_dim=32),
    "chain": Case(tree_of(chain_shape(300)), slots=40, dim=32, value_dim=32),
    "ragged": Case((SCRAMBLED, STAR, DIAMOND), batch=3, slots=1100, committed=(1100, 0, 513), dim=64, value_dim=64),
    "window": Case(SCRAMBLED, slots=1100, dim=64, value_dim=64, options={"window": 600}),
    "capped, with sinks": Case(
        SCRAMBLED, slots=600, dim=64, value_dim=64, options={"softcap": 3.0, "sinks": (0.3, -2.0, 4.0, 0.0)}
    ),
    "a negative scale": Case(SCRAMBLED, slots=300, options={"scale": -0.4}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_it_equals_the_reference(name: str, parts: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "choose_parts", lambda *_: parts)
    case = CASES[name]
    query, key, value = tensors(case, dtype)
    options = dict(case.options)
    if "sinks" in options:
        options["sinks"] = torch.tensor(options["sinks"])
    exact = tree_attention(
        *(tensor.double() for tensor in (query, key, value)), case.trees, committed=case.committed, backend="reference",
        **options,
    )  # fmt: skip
    output = tree_attention(query, key, value, case.trees, committed=case.committed, backend="native", **options)
    torch.testing.assert_close(output.double(), exact, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 600])
@pytest.mark.parametrize("name", ["auto", "native", "folded"])
def test_queries_of_ragged_trees_side_by_side(name: str, window: int | None, dtype: torch.dtype) -> None:
    """Bit for bit what each tree gets alone among padding, wherever the others lie."""
    case = CASES["ragged"]
    layout = TreeLayout.from_trees(case.per_row)
    packing = Packing(layout.nodes)
    query, key, value = tensors(case, dtype)
    committed, options = case.committed, {"scale": 0.1, "window": window}
    padded = get_backend(name)(query, key, value, layout, committed, **options)
    packed = packed_attention(
        get_backend(name), packing, packing.gather(query), key, value, layout, committed, **options
    )
    assert packed.shape == (1, 4, sum(layout.nodes), 64)
    assert torch.equal(packed, packing.gather(padded))
    exact = get_backend("reference")(query.double(), key.double(), value.double(), layout, committed, **options)
    torch.testing.assert_close(packed.double(), packing.gather(exact), rtol=0, atol=TOLERANCE[dtype])


def test_padding_is_zero_and_costs_the_others_nothing() -> None:
    """The rows of a small tree do not depend on how large the largest one beside it is."""
    small, large = tree_of((-1, 0, 0)), tree_of(random_parents(90, 3))
    case = Case((small, large), batch=2, slots=700, committed=(650, 700), dim=64, value_dim=64)
    query, key, value = tensors(case, torch.bfloat16)
    both = tree_attention(query, key, value, case.trees, committed=case.committed, backend="native")
    assert not both[0, :, 3:].any()
    rows = [*range(700), 700, 701, 702]
    alone = tree_attention(
        query[:1, :, :3], key[:1, :, rows], value[:1, :, rows], small, committed=(650,), backend="native"
    )
    assert torch.equal(both[:1, :, :3], alone)


def test_scores_of_any_size_do_not_overflow() -> None:
    case = Case(SCRAMBLED, slots=300, dim=64, value_dim=64, options={"scale": 300.0})
    query, key, value = tensors(case, torch.float32)
    exact = tree_attention(query.double(), key.double(), value.double(), SCRAMBLED, scale=300.0, backend="reference")
    output = tree_attention(query, key, value, SCRAMBLED, scale=300.0, backend="native")
    # scores of several thousand, rounded to float32: weights of near-ties differ
    torch.testing.assert_close(output.double(), exact, rtol=0, atol=5e-3)


def test_parts_give_every_thread_an_equal_share() -> None:
    assert native.choose_parts(pairs=3, longest=8192, threads=2) == 2
    assert native.choose_parts(pairs=8, longest=8192, threads=2) == 1
    assert native.choose_parts(pairs=1, longest=8192, threads=16) == 16
    assert native.choose_parts(pairs=1, longest=600, threads=16) == 1, "short contexts are not worth a split"
    assert native.choose_parts(pairs=3, longest=0, threads=2) == 1


def test_auto_takes_it_and_says_so() -> None:
    query, key, value = tensors(Case(STAR), torch.bfloat16)
    choice = explain(query, key, value)
    assert choice.backend == "native"
    assert "bfloat16 is multiplied" in choice.reason
    assert torch.equal(
        tree_attention(query, key, value, STAR), tree_attention(query, key, value, STAR, backend="native")
    )
    assert explain(query.double(), key.double(), value.double()).backend == "folded"
    assert explain(query[:, :, :1].expand(-1, -1, 600, -1), key, value).backend == "folded"


@pytest.mark.usefixtures("compiled_anew")
def test_without_a_compiler_folded_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel.shutil, "which", lambda name: None)
    query, key, value = tensors(Case(STAR), torch.float32)
    choice = explain(query, key, value)
    assert (choice.backend, "there is no C compiler" in choice.reason) == ("folded", True)
    assert torch.equal(
        tree_attention(query, key, value, STAR), tree_attention(query, key, value, STAR, backend="folded")
    )
    with pytest.raises(native.NativeUnavailable, match=r"not available: there is no C compiler .* use backend='auto'"):
        tree_attention(query, key, value, STAR, backend="native")


@pytest.mark.usefixtures("compiled_anew")
def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))

    def fails(compiler, source, folders, flags, path):
        raise subprocess.CalledProcessError(1, compiler, stderr="no such instruction")

    monkeypatch.setattr(kernel, "_compile", fails)
    query, key, value = tensors(Case(STAR), torch.float32)
    assert "no such instruction" in explain(query, key, value).reason
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.usefixtures("compiled_anew")
def test_it_is_compiled_once_for_all_processes(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    assert native.native().library is not None
    (compiled,) = tmp_path.rglob("*.so")
    native.native.cache_clear()
    monkeypatch.setattr(kernel, "_compile", lambda *_: pytest.fail("compiled again"))
    assert native.native().library is not None
    assert list((tmp_path / "native").iterdir()) == [compiled], "nothing half-done is left behind"


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_other_dtypes_are_named(dtype: torch.dtype) -> None:
    query, key, value = (tensor.to(dtype) for tensor in tensors(Case(STAR), torch.float32))
    with pytest.raises((native.NativeUnavailable, TypeError), match=str(dtype)):
        tree_attention(query, key, value, STAR, backend="native")


def test_rows_whose_numbers_are_not_neighbours() -> None:
    query, key, value = tensors(Case(STAR, dim=16, value_dim=16), torch.float32)
    apart = [tensor.transpose(2, 3).contiguous().transpose(2, 3) for tensor in (query, key, value)]
    together = tree_attention(query, key, value, STAR, backend="native")
    assert torch.equal(tree_attention(*apart, STAR, backend="native"), together)


@pytest.fixture
def _own_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_own_threads")
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_the_work(threads: int) -> None:
    case = Case((SCRAMBLED, STAR, DIAMOND), batch=3, slots=2100, committed=(2100, 0, 1313), dim=64, value_dim=64)
    query, key, value = tensors(case, torch.float32)
    alone = tree_attention(query, key, value, case.trees, committed=case.committed, backend="folded")
    torch.set_num_threads(threads)
    for _ in range(20):
        output = tree_attention(query, key, value, case.trees, committed=case.committed, backend="native")
        torch.testing.assert_close(output, alone, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("flags", OTHER_PROCESSORS)
def test_processors_without_some_instructions(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel, "_FLAGS", (*kernel._FLAGS, *flags))
    for name in ("tiles of the matrix unit", "no multiple of anything", "ragged", "capped, with sinks"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            test_it_equals_the_reference(name, 2, dtype, monkeypatch)
