"""Many replicas of the engine under a trace of arrivals, on simulated clocks: who waits for how long, at what cost.

A discrete-event simulation whose events are arrivals and steps of the real `Engine` (see `simulated`). Each replica has
a clock of its own. The next event is always the earliest: an idle replica sleeps until somebody comes, a busy one makes
its next step. An arrival goes to the replica with the fewest requests that are not finished at that moment, and like in
the real engine takes part from the beginning of the replica's next step on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..decode.admission import RequestTooLarge
from ..decode.engine import Engine
from ..decode.handle import Handle
from ..decode.request import Request
from ..decode.stopping import StopRules
from ..tune.shared import SharedBudget
from ..verify.sampler import Sampler
from .batches import USABLE
from .simulated import SimulatedClock, SimulatedDrafter, SimulatedRule, SimulatedTarget
from .step_cost import StepModel
from .trace import Arrival


@dataclass(frozen=True)
class FleetSettings:
    """How the replicas are run.

    Attributes:
        replicas: engines.
        max_lanes: requests per engine that run or are read at once.
        budget: nodes per tree, or "auto" for the shared budget.
        seed: of the dice that accept nodes.
    """

    replicas: int = 1
    max_lanes: int = 64
    budget: int | str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"replicas must be >= 1, got {self.replicas}")
        if self.budget != "auto" and (not isinstance(self.budget, int) or self.budget < 1):
            raise ValueError(f"the budget is auto or a number of nodes from 1 on, got {self.budget!r}")


@dataclass(frozen=True)
class Served:
    """One request that was answered.

    Attributes:
        arrival: what it asked.
        replica: that served it.
        first_token_at, finished_at: seconds from the start.
        preemptions: times it had to make room.
    """

    arrival: Arrival
    replica: int
    first_token_at: float
    finished_at: float
    preemptions: int

    @property
    def first_token_seconds(self) -> float:
        """From its arrival to its first token."""
        return self.first_token_at - self.arrival.at

    @property
    def token_seconds(self) -> float | None:
        """Per token after the first run; None for an output of one token."""
        more = self.arrival.output_tokens - 1
        return (self.finished_at - self.first_token_at) / more if more else None

    @property
    def seconds(self) -> float:
        """From its arrival to its end."""
        return self.finished_at - self.arrival.at


@dataclass(frozen=True)
class FleetRun:
    """What came of a trace.

    Attributes:
        served: in order of their end.
        refused: requests that could not fit even alone, with the reason.
        ended_at: seconds from the start to the last token.
        busy_seconds: of every replica.
        steps, drafted, accepted, generated: counts of all engines together: steps, nodes, tokens.
    """

    served: tuple[Served, ...]
    refused: tuple[tuple[Arrival, str], ...]
    ended_at: float
    busy_seconds: tuple[float, ...]
    steps: int
    drafted: int
    accepted: int
    generated: int


class Replica:
    """One engine on its own clock.

    Args:
        number: of it.
        model: what steps cost.
        settings: see `FleetSettings`.
    """

    def __init__(self, number: int, model: StepModel, settings: FleetSettings) -> None:
        self.number = number
        self.clock = SimulatedClock()
        self.target = SimulatedTarget(model, self.clock)
        shared = SharedBudget()
        if shared.largest > model.acceptance.largest:
            shared = SharedBudget(model.acceptance.largest)
        self.engine = Engine(
            self.target,
            drafter=SimulatedDrafter(model, self.clock),
            rule=SimulatedRule(model.acceptance, settings.seed * 1_000_003 + number),
            budget=shared if settings.budget == "auto" else settings.budget,
            max_lanes=settings.max_lanes,
            pool_tokens=pool_tokens(model),
            prefix_bytes=0,
            clock=self.clock,
        )
        self.is_busy = False
        self.busy_seconds = 0.0
        self._open: list[tuple[Arrival, Handle]] = []
        self._recent: deque[float] = deque()  # ends of requests that others may not know of yet

    def load(self, now: float) -> int:
        """Requests that are here and not finished at ``now``, which may lie before the end of the step in progress."""
        while self._recent and self._recent[0] <= now:
            self._recent.popleft()
        return len(self._open) + len(self._recent)

    def submit(self, arrival: Arrival) -> None:
        """Takes a request.

        Raises:
            RequestTooLarge: it could not fit even alone.
        """
        if not self.is_busy:
            self.clock.now = max(self.clock.now, arrival.at)
        request = Request((0,) * arrival.prompt_tokens, Sampler(), StopRules(arrival.output_tokens), seed=0)
        self._open.append((arrival, self.engine.submit(request)))
        self.is_busy = True

    def step(self) -> list[Served]:
        """One step of the engine; returns whom it finished."""
        began = self.clock.now
        self.is_busy = self.engine.step()
        self.busy_seconds += self.clock.now - began
        finished = [(arrival, handle) for arrival, handle in self._open if handle.is_done]
        if finished:
            self._open = [entry for entry in self._open if not entry[1].is_done]
            self._recent.extend(self.clock.now for _ in finished)
        return [self._served(arrival, handle) for arrival, handle in finished]

    def _served(self, arrival: Arrival, handle: Handle) -> Served:
        tokens = len(handle.result(timeout=0).tokens)
        assert tokens == arrival.output_tokens, f"{tokens} tokens for a request of {arrival.output_tokens}"
        assert handle.first_token_at is not None and handle.finished_at is not None
        return Served(arrival, self.number, handle.first_token_at, handle.finished_at, handle.preemptions)


def simulate(arrivals: Sequence[Arrival], model: StepModel, settings: FleetSettings) -> FleetRun:
    """Serves all arrivals, also those that are still waiting when the last one has come.

    Args:
        arrivals: in order of time.
        model: what steps cost.
        settings: of the replicas.

    Raises:
        ValueError: the model leaves no memory for keys and values, or a setting is out of range.
    """
    known = model.acceptance.largest
    if settings.budget != "auto" and int(settings.budget) > known:
        raise ValueError(f"acceptance was measured for budgets up to {known}, got {settings.budget}")
    replicas = [Replica(number, model, settings) for number in range(settings.replicas)]
    coming = deque(arrivals)
    served: list[Served] = []
    refused: list[tuple[Arrival, str]] = []
    while True:
        busy = min((replica for replica in replicas if replica.is_busy), key=lambda one: one.clock.now, default=None)
        if coming and (busy is None or busy.clock.now >= coming[0].at):
            arrival = coming.popleft()
            try:
                min(replicas, key=lambda one: (one.load(arrival.at), one.number)).submit(arrival)
            except RequestTooLarge as error:
                refused.append((arrival, str(error)))
        elif busy is not None:
            served += busy.step()
        else:
            break
    counts = [replica.engine.statistics for replica in replicas]
    return FleetRun(
        served=tuple(served),
        refused=tuple(refused),
        ended_at=max((one.finished_at for one in served), default=0.0),
        busy_seconds=tuple(replica.busy_seconds for replica in replicas),
        steps=sum(count.steps for count in counts),
        drafted=sum(count.draft_tokens for count in counts),
        accepted=sum(count.accepted_tokens for count in counts),
        generated=sum(count.generated_tokens for count in counts),
    )


def pool_tokens(model: StepModel) -> int:
    """Rows of keys and values that fit beside the weights.

    Raises:
        ValueError: the weights alone fill the device. Names both.
    """
    target, drafter = model.target, model.drafter
    weights = target.weight_bytes + (drafter.weight_bytes if drafter is not None else 0.0)
    room = USABLE * target.hardware.memory_bytes - weights
    per_token = target.token_bytes + (drafter.token_bytes if drafter is not None else 0.0)
    if room < 64 * per_token:
        raise ValueError(
            f"{target.shape.name} takes {weights / 1e9:.1f} GB per device, which leaves no room for keys and values in "
            f"{USABLE:.0%} of {target.hardware.memory_bytes / 1e9:.1f} GB ({target.hardware.name}); use more devices"
        )
    return int(room // per_token)
