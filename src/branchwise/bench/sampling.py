"""How the next token is chosen, as arguments for ``generate``; shared by both libraries and all methods.

A checkpoint's generation config may carry sampling defaults (temperature 0.7, a repetition penalty, ...). What the user
asked for wins: every setting is passed explicitly, those not asked for as "off".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """Sampling settings as a user writes them.

    Attributes:
        temperature: 0 is greedy decoding.
        top_k, top_p, min_p: truncations of the law, each None when off; they need a temperature above 0.
        repetition_penalty: None (or 1) when off; also changes greedy decoding.

    Raises:
        ValueError: a setting is out of range, or has no effect without a temperature.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be >= 0 (0 is greedy decoding), got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top-k must be >= 1, got {self.top_k}; leave it out to keep all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top-p must lie in (0, 1], got {self.top_p}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min-p must lie in [0, 1], got {self.min_p}")
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition-penalty must be > 0 (1 is off), got {self.repetition_penalty}")
        for name in ("top_k", "top_p", "min_p"):
            if self.temperature == 0 and getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise ValueError(
                    f"{option} has no effect on greedy decoding, which always takes the best token: add a temperature "
                    "above 0 (--temperature 1 leaves the model's own probabilities), or leave it out"
                )

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken, without chance."""
        return self.temperature == 0

    def as_transformers(self) -> dict[str, Any]:
        """Every setting that transformers' ``generate`` might otherwise take from the checkpoint."""
        return {
            "do_sample": not self.is_greedy,
            "temperature": 1.0 if self.is_greedy else self.temperature,
            "top_k": self.top_k or 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": 1.0 if self.repetition_penalty is None else self.repetition_penalty,
            "typical_p": 1.0,
            "epsilon_cutoff": 0.0,
            "eta_cutoff": 0.0,
            "no_repeat_ngram_size": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
        }
