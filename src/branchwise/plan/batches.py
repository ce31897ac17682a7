"""Which budget pays at which batch size, and from which batch on trees do not pay at all.

All lanes are alike here: one context, one drafter. Tokens per second of a user are the expected tokens of a step over
its seconds. Knows no arrivals and no prompts (`fleet` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .step_cost import StepCost, StepModel

#: of a device's memory; the rest is for what an allocator and a runtime need
USABLE = 0.9


@dataclass(frozen=True)
class BatchPlan:
    """The best budget of one batch size.

    Attributes:
        batch: lanes.
        budget: nodes per lane, root included.
        tokens_per_step: expected, per lane.
        step: what a step costs.
        plain: what a step of plain decoding costs.
        memory_bytes: of one device.
        fits: whether that is there.
    """

    batch: int
    budget: int
    tokens_per_step: float
    step: StepCost
    plain: StepCost
    memory_bytes: float
    fits: bool

    @property
    def per_user(self) -> float:
        """Tokens per second of one lane."""
        return self.tokens_per_step / self.step.total

    @property
    def in_all(self) -> float:
        """Tokens per second of all lanes."""
        return self.batch * self.per_user

    @property
    def gain(self) -> float:
        """As a multiple of plain decoding."""
        return self.per_user * self.plain.total


class Planner:
    """Plans batch sizes.

    Args:
        model: what steps cost.
        context: committed tokens of every lane.
        largest: most nodes of a tree; None for as many as the acceptance knows.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, model: StepModel, context: int, largest: int | None = None) -> None:
        if context < 1:
            raise ValueError(f"the context must be >= 1, got {context}")
        known = model.acceptance.largest
        if largest is not None and not 1 <= largest <= known:
            raise ValueError(f"acceptance was measured for budgets from 1 to {known}, the largest cannot be {largest}")
        self.model = model
        self.context = context
        self.largest = known if largest is None else largest

    def plan(self, batch: int) -> BatchPlan:
        """The best budget for a batch; the smallest of equally good ones."""
        expected = self.model.acceptance.expected_tokens
        steps = {budget: self.model.uniform(batch, budget, self.context) for budget in range(1, self.largest + 1)}
        best = max(steps, key=lambda budget: (expected(budget) / steps[budget].total, -budget))
        memory = self.memory_bytes(batch, best)
        fits = memory <= USABLE * self.model.target.hardware.memory_bytes
        return BatchPlan(batch, best, expected(best), steps[best], steps[1], memory, fits)

    def memory_bytes(self, batch: int, budget: int) -> float:
        """Weights, keys and values, and logits, on one device."""
        target, drafter = self.model.target, self.model.drafter
        tokens = self.context + budget
        held = target.weight_bytes + batch * target.lane_bytes(tokens)
        # logits are widened to float32 where laws are made
        held += batch * budget * target.shape.vocabulary * (target.itemsize + 4) / target.devices
        if drafter is not None:
            held += drafter.weight_bytes + batch * drafter.lane_bytes(tokens)
        return held

    def most_lanes(self) -> int:
        """Lanes that fit with plain decoding."""
        room = USABLE * self.model.target.hardware.memory_bytes
        lane = self.memory_bytes(1, 1) - self.memory_bytes(0, 1)
        return max(0, int((room - self.memory_bytes(0, 1)) // lane))

    def crossover(self, batches: Sequence[int]) -> int | None:
        """The first batch, as far as the range goes, from which on lone roots are best; None where trees still pay.

        Args:
            batches: rising. Where trees pay at one and not at the next, the place between them is searched.
        """
        pays = [self.plan(batch).budget > 1 for batch in batches]
        if pays[-1]:
            return None
        last = max((at for at, paying in enumerate(pays) if paying), default=-1)
        low, high = (batches[last] if last >= 0 else batches[0] - 1), batches[last + 1]
        while high - low > 1:
            middle = (low + high) // 2
            if self.plan(middle).budget > 1:
                low = middle
            else:
                high = middle
        return high


def parse_batches(text: str) -> list[int]:
    """``1..512`` doubles from 1 to 512, both included; ``1,8,64`` is a list.

    Raises:
        ValueError: it is neither.
    """
    first, dots, last = text.partition("..")
    words = [first, last] if dots else text.split(",")
    if not all(word.strip().isdigit() and int(word) for word in words):
        raise ValueError(f"--batch must be like 1..512 or 1,8,64, got {text!r}")
    numbers = [int(word) for word in words]
    if not dots:
        return sorted(set(numbers))
    if numbers[0] > numbers[1]:
        raise ValueError(f"--batch {text} falls; write the smaller number first")
    batches = []
    while numbers[0] < numbers[1]:
        batches.append(numbers[0])
        numbers[0] *= 2
    return [*batches, numbers[1]]
