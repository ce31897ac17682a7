"""What a drafter is: the protocol, what it is given and what it is told afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..target.protocol import Target, TargetOutput
from ..verify.coins import SeededCoins
from ..verify.grammar_state import GrammarState
from ..verify.proposal import DraftTree
from ..verify.rule import Verdict
from ..verify.sampler import Sampler

#: whatever one lane's drafter needs to remember between steps; only the drafter that made it looks inside
DraftState = Any


@dataclass(frozen=True, eq=False)
class TargetLane:
    """Where a lane lies in its target, for drafters that work inside the target.

    Attributes:
        target: the target of the loop.
        number: its number for the lane.
    """

    target: Target
    number: int


@dataclass
class DraftContext:
    """One lane as its drafter sees it. The loop appends to it after every step.

    Attributes:
        tokens: committed tokens including the root (the last one), without padding. The drafter must not change it.
        features: hidden states by layer, as the drafter's ``feature_layers`` asked, of the tokens committed since
            the last `propose`: at first the prompt without its last token, then each step's accepted path, root first.
        vocab_size: ids run from 0 to ``vocab_size - 1``.
        max_depth: deepest node a tree may have now, or None.
        grammar: says which tokens may follow a path below the root, or None. What it forbids is best not drafted (see
            `draft.grammar`); the loop drops illegal children that were picked without chance before they cost a
            forward.
        coins: the lane's coins for drafting at this step, independent of those that verify; None leaves a drafter that
            samples to its own.
        sampler: the lane's sampling settings, for drafters that draw from a law of their own; None when not told.
        place: the lane's place in the target, or None where there is none to speak of.
    """

    tokens: list[int]
    vocab_size: int
    features: dict[int, Any] = field(default_factory=dict)
    max_depth: int | None = None
    grammar: GrammarState | None = None
    coins: SeededCoins | None = None
    sampler: Sampler | None = None
    place: TargetLane | None = None


@dataclass(frozen=True, eq=False)
class StepRecord:
    """One lane's step: what was drafted, decided and emitted.

    Attributes:
        draft: the draft tree that was verified.
        verdict: the rule's decision.
        tokens: emitted tokens in order, after stopping trimmed the run: accepted ones, then the bonus token.
        output: the target's logits and features of all nodes while the drafter observes; None in kept records.
        target_probabilities: of every drafted node given its own prefix, the same layout as ``draft.proposals``; None
            where there is no law; empty unless the request asked for them.
    """

    draft: DraftTree
    verdict: Verdict
    tokens: tuple[int, ...]
    output: TargetOutput | None = None
    target_probabilities: tuple[float | None, ...] = ()


class Drafter(Protocol):
    """Proposes trees. One object serves many lanes; what a lane alone needs is in its state.

    Some members are optional: ``finish(state)`` is called when a lane ends, for drafters that hold something for it;
    ``is_deterministic = False`` says that children are sampled, so that ``rule="auto"`` can use their proposals;
    ``shape`` is ``"chain"`` (or ``"rollouts"``, independent chains from the root) for a drafter that never branches
    elsewhere, so that rules for these shapes take it; it counts as ``"tree"`` otherwise;
    ``costs_forwards = True`` says that `propose` runs a model, so that a `MixedDrafter` may do without it in a step
    (`propose` is then not called, and the next one finds more new tokens).
    """

    name: str
    #: hidden states wanted from the target, as numbered in `TargetOutput.features`
    feature_layers: tuple[int, ...]

    def start(self, context: DraftContext) -> DraftState:
        """State for one new lane whose prompt is in ``context.tokens``."""
        ...

    def propose(
        self, states: Sequence[DraftState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """One draft per lane, which must not depend on other lanes.

        Each has the lane's last token as its root and at most ``budget`` nodes, root included; fewer are fine. No node
        lies deeper than ``context.max_depth``.
        """
        ...

    def observe(self, states: Sequence[DraftState], records: Sequence[StepRecord]) -> None:
        """Learns from a finished step. ``contexts`` seen by the next `propose` already hold the emitted tokens."""
        ...
