"""Asking a drafter for trees and living with what it does: a drafter's fault costs speed, never the text.

Knows lanes and one drafter; knows no target and no budget.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..draft.grammar import prune
from ..draft.none import NoneDrafter
from ..draft.protocol import Drafter
from ..verify.proposal import DraftTree
from ..warning import BranchwiseWarning
from .lane import Lane, Turn


class Drafting:
    """One drafter and the lanes it drafts for.

    A drafter that raises is given up for the lanes concerned, with one warning; they go on with lone roots.

    Args:
        drafter: proposes trees.
        isolates: find out which lanes it fails for, and keep it for the others. Otherwise it is given up for all, and a
            malformed draft is an error.
        on_failure: called whenever it has raised.
    """

    def __init__(self, drafter: Drafter, isolates: bool, on_failure: Callable[[], None]) -> None:
        self._drafter = drafter
        self._isolates = isolates
        self._on_failure = on_failure

    def start(self, lane: Lane) -> None:
        """Gives the lane a state."""
        lane.draft_state = self._drafter.start(lane.context)
        lane.is_drafting = True

    def propose(self, lanes: Sequence[Lane], budgets_of: Callable[[Sequence[Lane]], list[int]]) -> list[DraftTree]:
        """One checked draft per lane, without what a grammar forbids.

        Args:
            lanes: whose contexts say where they are.
            budgets_of: most nodes of each tree, for the lanes that are drafted for.

        Raises:
            ValueError, TypeError: a draft is malformed, and nobody isolates.
        """
        drafts = self._drafts(lanes, budgets_of)
        return [drafts.get(lane.number) or lone_root(lane) for lane in lanes]

    def _drafts(self, lanes: Sequence[Lane], budgets_of: Callable[[Sequence[Lane]], list[int]]) -> dict[int, DraftTree]:
        while drafting := [lane for lane in lanes if lane.is_drafting]:
            budgets = budgets_of(drafting)
            try:
                drafts = self._ask(drafting, budgets)
            except Exception as error:
                self._on_failure()
                self._give_up(self._culprits(drafting, budgets), error)
                continue
            if len(drafts) == len(drafting):
                return self._sound(drafting, drafts, budgets)
            said = f"proposed {len(drafts)} trees for {len(drafting)} lanes"
            self._refuse(drafting, ValueError(f"drafter {self._drafter.name!r} {said}"))
        return {}

    def observe(self, turns: Sequence[Turn]) -> None:
        """Shows the drafter what became of its trees."""
        turns = [turn for turn in turns if turn.lane.is_drafting]
        if not turns:
            return
        try:
            self._drafter.observe([turn.lane.draft_state for turn in turns], [turn.record for turn in turns])
        except Exception as error:
            self._give_up([turn.lane for turn in turns], error)

    def finish(self, lane: Lane) -> None:
        """The lane leaves, or is no longer drafted for."""
        if not lane.is_drafting:
            return
        lane.is_drafting = False
        if not hasattr(self._drafter, "finish"):
            return
        try:
            self._drafter.finish(lane.draft_state)
        except Exception as error:
            if not self._isolates:
                raise
            lane.draft_error = error

    def _ask(self, lanes: Sequence[Lane], budgets: Sequence[int]) -> list[DraftTree]:
        return self._drafter.propose([lane.draft_state for lane in lanes], [lane.context for lane in lanes], budgets)

    def _culprits(self, lanes: Sequence[Lane], budgets: Sequence[int]) -> list[Lane]:
        """The lanes that cannot be drafted for even alone; all of them when that explains nothing."""
        if not self._isolates or len(lanes) == 1:
            return list(lanes)
        culprits = []
        for lane, budget in zip(lanes, budgets, strict=True):
            try:
                self._ask([lane], [budget])
            except Exception:
                culprits.append(lane)
            self._on_failure()
        return culprits or list(lanes)

    def _sound(
        self, lanes: Sequence[Lane], drafts: Sequence[DraftTree], budgets: Sequence[int]
    ) -> dict[int, DraftTree]:
        """The drafts by lane."""
        sound = {}
        for lane, draft, budget in zip(lanes, drafts, budgets, strict=True):
            fault = self._fault(lane, draft, budget)
            if fault is not None:
                self._refuse([lane], fault)
                continue
            grammar = lane.context.grammar
            sound[lane.number] = draft if grammar is None else prune(draft, grammar)
        return sound

    def _fault(self, lane: Lane, draft: DraftTree, budget: int) -> Exception | None:
        name = self._drafter.name
        if not isinstance(draft, DraftTree):
            return TypeError(f"drafter {name!r} proposed a {type(draft).__name__}, not a DraftTree")
        tree, context = draft.tree, lane.context
        fault = None
        if tree.tokens[0] != context.tokens[-1]:
            fault = f"root {tree.tokens[0]}, not the last token {context.tokens[-1]}"
        elif len(tree) > budget:
            fault = f"{len(tree)} nodes under a budget of {budget}"
        elif context.max_depth is not None and tree.height > context.max_depth:
            fault = f"depth {tree.height} where {context.max_depth} is the limit"
        elif max(tree.tokens) >= context.vocab_size:
            fault = f"token {max(tree.tokens)} in a vocabulary of {context.vocab_size}"
        return None if fault is None else ValueError(f"drafter {name!r} proposed a tree with {fault}")

    def _refuse(self, lanes: Sequence[Lane], fault: Exception) -> None:
        """A malformed draft is a mistake in the drafter's code, and its author should see it."""
        if not self._isolates:
            raise fault
        self._give_up(lanes, fault)

    def _give_up(self, lanes: Sequence[Lane], error: Exception) -> None:
        warnings.warn(
            f"drafter {self._drafter.name!r} failed ({type(error).__name__}: {error}); continuing with plain decoding",
            BranchwiseWarning,
            stacklevel=levels_to_the_user(),
        )
        for lane in lanes:
            lane.draft_error = error
            with suppress(Exception):  # it is broken already
                self.finish(lane)


def lone_root(lane: Lane) -> DraftTree:
    """Plain decoding's draft."""
    return NoneDrafter().propose([None], [lane.context], [1])[0]


def levels_to_the_user() -> int:
    """For a warning of the calling function: how far up the stack this package was called."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("branchwise"):
        frame, level = frame.f_back, level + 1
    return level
