"""How a head is trained: everything that decides the curve, the data and the target apart."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of one training.

    Attributes:
        steps: optimizer steps in all; None where ``seconds`` decides.
        seconds: of training in all, over all runs; the learning rate then follows the clock, so the curve of a resumed
            training is not exactly that of an uninterrupted one.
        batch_tokens: about how many tokens per batch.
        accumulate: batches per step.
        longest: longer sequences are cut.
        learning_rate: the peak.
        warm_up: steps until it is reached.
        final_rate: share of the peak that is left at the end of the linear decay.
        clip: largest norm of a gradient.
        ema: decay of the average of the weights that is kept beside them and exported, 0 for none.
        seed: of initial weights, order and anchors.
        question_weight: what a token in the user's place counts for, beside 1 of an answer's; with 0 answers alone are
            learned, which costs less where prompts are long.
    """

    steps: int | None = None
    seconds: float | None = None
    batch_tokens: int = 1024
    accumulate: int = 1
    longest: int = 1536
    learning_rate: float = 2e-3
    warm_up: int = 40
    final_rate: float = 0.03
    clip: float = 1.0
    ema: float = 0.0
    seed: int = 0
    question_weight: float = 0.5

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("give --steps or --minutes, one of the two: it decides when the learning rate is down")
        if (self.steps is not None and self.steps < 1) or (self.seconds is not None and self.seconds <= 0):
            raise ValueError("a training needs at least 1 step or more than 0 minutes")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must lie in [0, 1), got {self.ema}")
        if not 0 <= self.question_weight <= 1:
            raise ValueError(f"question-weight must lie in [0, 1], got {self.question_weight}")
        for name in ("batch_tokens", "accumulate", "warm_up"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('_', '-')} must be >= 1, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning-rate must be > 0, got {self.learning_rate}")
        if self.longest < 8:
            raise ValueError(f"longest must be >= 8 tokens, got {self.longest}")

    def done(self, step: int, seconds: float) -> float:
        """Share of the training that lies behind, 1 at its end."""
        if self.steps is not None:
            return min(1.0, step / self.steps)
        assert self.seconds is not None
        return min(1.0, seconds / self.seconds)

    def rate(self, step: int, seconds: float) -> float:
        """Learning rate of a step: linear warm-up by steps, then linear decay by what is done."""
        up = min(1.0, (step + 1) / self.warm_up)
        down = 1.0 - (1.0 - self.final_rate) * self.done(step, seconds)
        return self.learning_rate * min(up, down)

    def as_dict(self) -> dict[str, Any]:
        """For JSON and checkpoints."""
        return asdict(self)
