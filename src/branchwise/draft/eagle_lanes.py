"""Which engine runs a head: torch, or this library's own C (`native_head`). Knows what each needs, and which is faster.

Both give the same candidates up to rounding, so the choice is a matter of speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..attention.native import NativeUnavailable
from ..cache import PagedCache, TreeCache
from .eagle_head import EagleHead
from .head_lanes import Candidates, CommittedRows, HeadLanes
from .native_head import MOST_CANDIDATES, head_library, why_not_native
from .native_lanes import NativeLanes

ENGINES = ("auto", "native", "torch")


class Lanes(Protocol):
    """A head and its cache, for several lanes at once; see `HeadLanes`."""

    head: EagleHead
    engine: str

    @property
    def cache(self) -> TreeCache | PagedCache: ...

    def open(self, expected_rows: int) -> int: ...

    def free(self, lane: int) -> None: ...

    def rollback(self) -> None: ...

    def read(self, rows: Mapping[int, CommittedRows], wanted: int = 0) -> dict[int, list[Candidates]]: ...

    def extend(self, nodes: Mapping[int, Sequence[tuple[int, int]]], wanted: int) -> dict[int, list[Candidates]]: ...


def lanes_for(
    head: EagleHead, wanted: int, *, attention: str = "auto", engine: str = "auto", weights: str | None = None
) -> Lanes:
    """The head, run by an engine.

    Args:
        head: the head.
        wanted: candidates of a node at most.
        attention: of torch; "auto" where C may run the head.
        engine: one of `ENGINES`. "auto" takes C for a head on a CPU in float32, bfloat16 or float16 that is not being
            trained, where there is a compiler and the processor is one that its C is written for; torch for all
            others.
        weights: of the native engine.

    Raises:
        ValueError: there is no such engine, or weights were chosen for torch, or an attention backend for C.
        NativeUnavailable: the native engine was asked for and cannot run this head.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if weights is not None and engine != "native":
        raise ValueError(f"weights={weights!r} are a format of engine='native', got engine={engine!r}")
    if attention != "auto" and engine == "native":
        raise ValueError(f"attention={attention!r} is a backend of engine='torch', got engine='native'")
    if engine == "native" and wanted > MOST_CANDIDATES:
        raise NativeUnavailable(
            f"the engine 'native' gives at most {MOST_CANDIDATES} candidates of a node, not {wanted}; use 'torch'"
        )
    if engine == "auto":
        can = attention == "auto" and wanted <= MOST_CANDIDATES
        can = can and why_not_native(head) is None and head_library().is_fast
        engine = "native" if can else "torch"
    return NativeLanes(head, weights) if engine == "native" else HeadLanes(head, attention)
