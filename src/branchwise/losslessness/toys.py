"""Toy models: a target and a draft law for every prefix over a few tokens.

Small enough to enumerate, rich enough to catch a wrong rule: laws differ from prefix to prefix, hold zeros and ties,
and the draft sometimes misses tokens of the target.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any, Literal

import torch

from .plain import Plain

#: rational: exact. float: Python floats, quick. tensor: the float64 tensors that run in production.
Arithmetic = Literal["rational", "float", "tensor"]
Prefix = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ToyPair:
    """A target and a draft over tokens 0 .. vocabulary - 1.

    Attributes:
        vocabulary: number of tokens.
        target: law of the next token after every prefix, as a `Plain` or a float64 tensor ``[V]``.
        draft: the same of the drafter.
    """

    vocabulary: int
    target: Mapping[Prefix, Any]
    draft: Mapping[Prefix, Any]

    def cold(self) -> ToyPair:
        """The pair at temperature 0: all mass of the target on its best token."""
        target = {
            prefix: Plain([Fraction(token == law.best_token()) for token in range(self.vocabulary)])
            for prefix, law in self.target.items()
        }
        return ToyPair(self.vocabulary, target, self.draft)

    def cast(self, arithmetic: Arithmetic) -> ToyPair:
        """The same laws in another arithmetic; ``self`` must be rational."""
        return ToyPair(self.vocabulary, _cast(self.target, arithmetic), _cast(self.draft, arithmetic))


def _cast(laws: Mapping[Prefix, Plain], arithmetic: Arithmetic) -> Mapping[Prefix, Any]:
    if arithmetic == "rational":
        return laws
    floats = {prefix: [float(value) for value in law.values] for prefix, law in laws.items()}
    if arithmetic == "float":
        return {prefix: Plain(values) for prefix, values in floats.items()}
    return {prefix: torch.tensor(values, dtype=torch.float64) for prefix, values in floats.items()}


@cache
def toy_pairs() -> tuple[ToyPair, ...]:
    """The eight pairs over three tokens that the printed table refers to, in rationals."""
    stored = json.loads(files(__package__).joinpath("toy_pairs.json").read_text())

    def read(laws: dict[str, list[str]]) -> dict[Prefix, Plain]:
        return {
            tuple(map(int, prefix.split())): Plain([Fraction(value) for value in values])
            for prefix, values in laws.items()
        }

    return tuple(ToyPair(stored["vocabulary"], read(pair["target"]), read(pair["draft"])) for pair in stored["pairs"])


def random_pair(seed: int, vocabulary: int = 4, length: int = 3) -> ToyPair:
    """A pair of rational laws for all prefixes up to ``length`` tokens, with zeros and ties.

    The draft's support is at most three tokens, however large the vocabulary: the number of drafts to enumerate grows
    with its support to the power of the number of nodes.
    """
    rng = random.Random(seed)

    def laws(support: int) -> dict[Prefix, Plain]:
        return {prefix: law(support) for n in range(length + 1) for prefix in product(range(vocabulary), repeat=n)}

    def law(support: int) -> Plain:
        weights = [0] * vocabulary
        while not any(weights):
            for token in rng.sample(range(vocabulary), support):
                weights[token] = rng.choice((0, 1, 1, 2, 3, 5))
        return Plain([Fraction(weight, sum(weights)) for weight in weights])

    return ToyPair(vocabulary, laws(vocabulary), laws(min(vocabulary, 3)))
