"""Answering waves on a model of this process. What a wave gives depends on the wave and the settings alone.

Every wave gets an engine of its own, so that nothing that was learned from earlier rows (by drafters, by budgets, in
kept prefixes) is left, and a clock that counts its readings instead of seconds, so that nothing is decided by how fast
the machine was. The forwards of a wave then have the same shapes each time, and a wave that is repeated after a kill
repeats its bytes, also in low precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..decode.recipe import EngineRecipe
from ..draft.asking import AskRule
from ..serve.settings import ServerSettings
from ..target.protocol import Target
from ..tune.shared import SharedBudget
from ..tune.stated_cost import StatedCost
from .answer import Answer, answer_wave
from .row import RowDefaults, parse_row
from .source import InputFile, Wave

#: of an EAGLE head's trees
LEVELS = 5


@dataclass(frozen=True)
class Work:
    """What all waves of a job have in common; plain values, for other processes.

    Attributes:
        source: the rows.
        defaults: what rows leave out.
        recipe: of the engines.
        model_name: what rows may call the model.
    """

    source: InputFile
    defaults: RowDefaults
    recipe: EngineRecipe
    model_name: str


@dataclass
class CountingClock:
    """Seconds that pass only when somebody looks: a thousandth each time."""

    readings: int = 0

    def __call__(self) -> float:
        """The time."""
        self.readings += 1
        return self.readings / 1000


@dataclass(eq=False)
class Worker:
    """Answers waves, one at a time.

    Attributes:
        work: what is to be done.
        target, tokenizer: the loaded model.
        drafter_options: what the drafter is made of, draft model included.
    """

    work: Work
    target: Target
    tokenizer: Any
    drafter_options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, work: Work) -> Worker:
        """Loads what the recipe names."""
        target, tokenizer = work.recipe.target()
        return cls(work, target, tokenizer, work.recipe.drafter_options(target))

    def answers(self, wave: Wave) -> Iterator[Answer]:
        """The answers of a wave's rows, in order.

        Raises:
            ValueError: the input is not what it was, or the model does not fit the recipe.
        """
        work = self.work
        rows = [parse_row(line, number, work.defaults) for number, line in work.source.lines(wave)]
        clock = CountingClock()
        options = {**self.drafter_options, **_without_seconds(work.recipe, clock)}
        budget: Any = work.recipe.budget
        if budget == "auto":
            budget = SharedBudget()
            budget.curve = StatedCost(self.target.device.type)
        settings = ServerSettings(work.model_name, body_bytes=work.source.line_bytes)
        with work.recipe.engine(
            self.target, self.tokenizer, options, budget=budget, clock=clock, queue_limit=None
        ) as engine:
            yield from answer_wave(rows, engine, settings, work.source.sha256)


def _without_seconds(recipe: EngineRecipe, clock: CountingClock) -> dict[str, Any]:
    """Options that leave a drafter nothing to decide by the time that passes."""
    if recipe.drafter == "eagle":
        return {"depth": LEVELS}
    if recipe.drafter not in ("auto", "mixed"):
        return {}
    # "auto" may find a head by itself
    may_have_head = recipe.head is not None or (recipe.drafter == "auto" and recipe.draft_model is None)
    if not may_have_head and recipe.draft_model is None:
        return {}
    return {"ask": AskRule(clock), **({"levels": LEVELS} if may_have_head else {})}
