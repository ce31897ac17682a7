"""How large the next tree may be.

A policy answers before every step and is told afterwards what the step cost and gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..decode.statistics import StepSeconds
    from ..target.protocol import Target
    from .shared import SharedBudget

_NO_BUDGET = "a budget is a whole number of nodes or 'auto', got {!r}"


class BudgetPolicy(Protocol):
    """Chooses the budget of every lane's next tree."""

    #: the most nodes a tree may get from this policy; sizes the cache
    largest: int

    def choose(self, lanes: int) -> list[int]:
        """Nodes, root included, for each of ``lanes`` trees."""
        ...

    def learn(self, nodes: Sequence[int], paths: Sequence[Sequence[int]], seconds: StepSeconds) -> None:
        """What the step's trees had (nodes), gave (the accepted paths, root first, as node numbers) and cost."""
        ...


class FixedBudget:
    """The same budget at every step.

    Args:
        nodes: nodes per tree, root included; 1 is plain decoding.

    Raises:
        ValueError: fewer than one node.
    """

    def __init__(self, nodes: int) -> None:
        if isinstance(nodes, bool) or not isinstance(nodes, int):
            raise ValueError(_NO_BUDGET.format(nodes))
        if nodes < 1:
            raise ValueError(
                f"a budget counts nodes, root included: it must be >= 1 (1 is plain decoding), got {nodes}"
            )
        self.largest = nodes

    def choose(self, lanes: int) -> list[int]:
        """The fixed number for everybody."""
        return [self.largest] * lanes

    def learn(self, nodes: Sequence[int], paths: Sequence[Sequence[int]], seconds: StepSeconds) -> None:
        """Nothing to learn."""


def make_budget(
    spec: int | str | BudgetPolicy | SharedBudget, target: Target | None = None
) -> BudgetPolicy | SharedBudget:
    """The policy for what a user wrote: a number of nodes, ``"auto"``, or a policy itself.

    Args:
        spec: what the user wrote.
        target: whose stored cost curve ``"auto"`` begins with and adds to; without one it learns for itself.

    Raises:
        ValueError: neither a number of nodes from 1 on nor ``"auto"``.
    """
    if spec == "auto":
        return _auto(target)
    if isinstance(spec, str):
        try:
            spec = int(spec)
        except ValueError:
            raise ValueError(_NO_BUDGET.format(spec)) from None
    if not isinstance(spec, int) and (hasattr(spec, "choose") or hasattr(spec, "ceilings")):
        return spec
    # anything else: its own check says what is wrong
    return FixedBudget(spec)  # type: ignore[arg-type]


def _auto(target: Target | None) -> SharedBudget:
    from .shared import CEILINGS, SharedBudget

    if target is None:
        return SharedBudget()
    from ..target.protocol import InPasses
    from .curve_key import curve_key
    from .curve_store import CurveStore

    store = CurveStore(curve_key(target))
    rows_at_once, largest = target.rows_at_once if isinstance(target, InPasses) else None, CEILINGS[-1]
    if rows_at_once is not None and rows_at_once < largest:
        largest -= largest % rows_at_once  # a tree of 33 for one node more than a pass serves would cost two
    return SharedBudget(largest, table=store.load(), keep=store.add, rows_at_once=rows_at_once)
