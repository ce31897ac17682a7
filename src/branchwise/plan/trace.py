"""Who comes when and asks for how much: made by chance from a rate, or read from a file."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

from .fields import Fields


@dataclass(frozen=True)
class Arrival:
    """One request.

    Attributes:
        at: seconds from the start.
        prompt_tokens: it brings.
        output_tokens: it gets, however they are decoded.
    """

    at: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Lengths:
    """How long prompts and outputs are: log-normal around their means.

    Attributes:
        prompt_tokens, output_tokens: means.
        spread: standard deviation of the logarithm; 0 makes all alike.
    """

    prompt_tokens: int = 512
    output_tokens: int = 256
    spread: float = 0.5

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 <= self.spread <= 2:
            raise ValueError(f"the spread of lengths must be from 0 to 2, got {self.spread}")

    def draw(self, mean: int, chance: random.Random) -> int:
        """One length of at least 1."""
        # the mean of exp(N(m, s)) is exp(m + s^2 / 2)
        return max(1, round(chance.lognormvariate(math.log(mean) - self.spread**2 / 2, self.spread)))


def poisson(rate: float, duration: float, lengths: Lengths, seed: int) -> list[Arrival]:
    """Arrivals that do not know of each other, ``rate`` per second on average, in the first ``duration`` seconds.

    Raises:
        ValueError: rate or duration is not above 0.
    """
    if not rate > 0 or not duration > 0 or not math.isfinite(rate * duration):
        raise ValueError(f"rate and duration must be numbers above 0, got {rate} and {duration}")
    chance = random.Random(seed)
    arrivals: list[Arrival] = []
    now = chance.expovariate(rate)
    while now < duration:
        prompt, output = (lengths.draw(mean, chance) for mean in (lengths.prompt_tokens, lengths.output_tokens))
        arrivals.append(Arrival(now, prompt, output))
        now += chance.expovariate(rate)
    return arrivals


def read_trace(path: Path, duration: float | None = None) -> list[Arrival]:
    """Arrivals from a file: one JSON object per line with ``at``, ``prompt_tokens`` and ``output_tokens``.

    Args:
        path: of the file.
        duration: what comes later is left out; None takes all.

    Raises:
        ValueError: there is no such file, it is empty, or a line is not of the form. Names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read as a trace: {error.strerror or error}") from None
    arrivals = [_arrival(line, f"{path.name}, line {at}") for at, line in enumerate(lines, start=1) if line.strip()]
    kept = [arrival for arrival in arrivals if duration is None or arrival.at < duration]
    if not kept:
        raise ValueError(f"{path.name} holds no arrivals" + ("" if duration is None else f" before {duration} s"))
    return sorted(kept, key=lambda arrival: arrival.at)


def parse_trace(text: str, duration: float | None, lengths: Lengths, seed: int) -> list[Arrival]:
    """``poisson:RATE``, or a file.

    Raises:
        ValueError: it is neither, or there are no arrivals in it.
    """
    kind, colon, rate = text.partition(":")
    if kind != "poisson" or not colon:
        return read_trace(Path(text).expanduser(), duration)
    try:
        per_second = float(rate)
    except ValueError:
        raise ValueError(f"--trace must be poisson:RATE (requests per second) or a file, got {text!r}") from None
    if duration is None:
        raise ValueError("--trace poisson:RATE needs --duration, in seconds")
    arrivals = poisson(per_second, duration, lengths, seed)
    if not arrivals:
        raise ValueError(f"nobody comes in {duration} s at {per_second} requests per second; simulate longer")
    return arrivals


def _arrival(line: str, where: str) -> Arrival:
    try:
        record = json.loads(line)
    except ValueError:
        raise ValueError(f"{where} is no JSON object") from None
    fields = Fields(record, where)
    made = Arrival(fields.number("at"), fields.whole("prompt_tokens"), fields.whole("output_tokens"))
    fields.done()
    return made
