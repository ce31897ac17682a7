"""Every wrong argument is refused before anything is computed, with the value and what to do about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from branchwise.attention import (
    TreeLayout,
    backend_names,
    explain,
    get_backend,
    register_backend,
    registry,
    tree_attention,
)
from branchwise.tree import TokenTree

pytestmark = pytest.mark.core

TREE = TokenTree((5, 8, 9, 8), (-1, 0, 0, 1))


def call(**changes: Any) -> torch.Tensor:
    """A valid call of 2 rows, 4 heads on 2, 4 nodes after 6 slots, with some arguments replaced."""
    arguments: dict[str, Any] = {
        "query": torch.zeros(2, 4, 4, 8),
        "key": torch.zeros(2, 2, 10, 8),
        "value": torch.zeros(2, 2, 10, 8),
        "tree": TREE,
    }
    return tree_attention(**(arguments | changes))


def test_the_call_is_valid_unchanged() -> None:
    assert call().shape == (2, 4, 4, 8)
    assert call(committed=torch.tensor([0, 6], dtype=torch.int32)).shape == (2, 4, 4, 8)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"query": [1.0]}, TypeError, "query must be a tensor, got list"),
        ({"query": torch.zeros(4, 4, 8)}, ValueError, r"query must be .* got shape \(4, 4, 8\)"),
        ({"value": torch.zeros(2, 10, 8)}, ValueError, r"value must be .* got shape \(2, 10, 8\)"),
        ({"query": torch.zeros(2, 4, 4, 8, dtype=torch.int64)}, TypeError, "floating point, got torch.int64"),
        ({"key": torch.zeros(2, 2, 10, 8).half()}, ValueError, "key is torch.float16 but query is torch.float32"),
        ({"value": torch.zeros(2, 2, 10, 8).double()}, ValueError, "value is torch.float64"),
        ({"key": torch.zeros(2, 2, 10, 8, device="meta")}, ValueError, "key is on meta but query is on cpu"),
        ({"key": torch.zeros(1, 2, 10, 8)}, ValueError, "key has batch 1 but query has batch 2"),
        ({"query": torch.zeros(2, 4, 0, 8)}, ValueError, "query must not be empty"),
        ({"key": torch.zeros(2, 2, 10, 7)}, ValueError, "key has width 7 but query has width 8"),
        ({"query": torch.zeros(2, 3, 4, 8)}, ValueError, "3 heads, which is not a multiple of the 2 heads of key"),
        ({"value": torch.zeros(2, 2, 9, 8)}, ValueError, r"got \(2, 9\) and \(2, 10\)"),
        ({"value": torch.zeros(2, 4, 10, 8)}, ValueError, r"got \(4, 10\) and \(2, 10\)"),
        ({"key": torch.zeros(2, 2, 3, 8), "value": torch.zeros(2, 2, 3, 8)}, ValueError, "3 rows for 4 nodes"),
        ({"tree": TokenTree.from_chain(0, [1] * 4)}, ValueError, "5 nodes, but there is room for 4"),
        ({"tree": [TREE]}, ValueError, "got 1 trees for 2 batch rows"),
        ({"tree": [TREE, TREE, TREE]}, ValueError, "got 3 trees for 2 batch rows"),
        ({"tree": [TREE, None]}, TypeError, r"tree\[1\] must be a TokenTree or a TokenGraph, got NoneType"),
        ({"tree": TreeLayout.from_trees(TREE)}, ValueError, "layout is for 1 rows of 4 nodes, query has 2 of 4"),
        ({"committed": [6]}, ValueError, r"one count per batch row \(2\), got 1"),
        ({"committed": 6}, TypeError, "one int per row, got 6"),
        ({"committed": [6, 7]}, ValueError, r"committed\[1\] = 7 is outside \[0, 6\]"),
        ({"committed": torch.tensor([-1, 6])}, ValueError, r"committed\[0\] = -1 is outside"),
        ({"committed": torch.tensor([6.0, 6.0])}, TypeError, "integer tensor, got torch.float32"),
        ({"committed": torch.tensor([True, False])}, TypeError, "integer tensor, got torch.bool"),
        ({"committed": torch.tensor([[6], [6]])}, ValueError, r"got shape \(2, 1\)"),
        ({"committed": [6, 5.0]}, TypeError, r"committed\[1\] must be an int, got 5.0"),
        ({"window": 0}, ValueError, "window must be >= 1 .* got 0"),
        ({"window": 2.5}, TypeError, "window must be an int or None, got 2.5"),
        ({"softcap": 0.0}, ValueError, "softcap must be > 0 .* got 0.0"),
        ({"softcap": float("nan")}, ValueError, "softcap must be > 0"),
        ({"sinks": torch.zeros(2)}, ValueError, r"sinks must be \[heads\] = \[4\].* got \(2,\)"),
        ({"sinks": torch.zeros(4, dtype=torch.int64)}, TypeError, "sinks must be a floating point tensor"),
        ({"sinks": torch.zeros(4, device="meta")}, ValueError, "sinks is on meta"),
        ({"backend": "flash"}, ValueError, "unknown attention backend 'flash': registered are 'reference', 'folded'"),
    ],
)
def test_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(**changes)


def test_nothing_is_computed_before_the_arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise AssertionError("the backend ran")

    monkeypatch.setitem(registry._BACKENDS, "unreachable", unreachable)
    with pytest.raises(ValueError, match="window"):
        call(window=0, backend="unreachable")


def test_register_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    seen = []

    def spy(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((args[3], kwargs["window"]))
        return query

    register_backend("spy", spy)
    assert "spy" in backend_names() and get_backend("spy") is spy
    call(backend="spy", committed=[1, 2], window=3)
    assert seen == [((1, 2), 3)]
    for taken in ("spy", "folded", "auto", ""):
        with pytest.raises(ValueError, match="cannot register"):
            register_backend(taken, spy)


def test_auto_is_the_backend_that_explain_names() -> None:
    query, key, value = torch.randn(1, 4, 4, 8), torch.randn(1, 2, 10, 8), torch.randn(1, 2, 10, 8)
    for dtype in (torch.float32, torch.float64):
        tensors = [tensor.to(dtype) for tensor in (query, key, value)]
        named = tree_attention(*tensors, TREE, backend=explain(*tensors).backend)
        assert torch.equal(tree_attention(*tensors, TREE), named)
