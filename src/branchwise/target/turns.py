"""Cosines and sines that turn queries and keys to their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .decoder_parts import Turn

#: rows that the tables of a `Turns` grow by
_TURNS = 1024


class Turns:
    """Cosines and sines of positions, computed once for each position.

    Args:
        rotary: the tables by name.
    """

    def __init__(self, rotary: Mapping[str, Turn]) -> None:
        self._rotary = dict(rotary)
        self._tables: dict[str, Tensor] = {}  # by name of the input: [positions, D]
        self._known = 0

    def of(self, positions: Sequence[int]) -> dict[str, Tensor]:
        """The rows of some positions, under "cosines.NAME" and "sines.NAME" for every table."""
        if not self._rotary:
            return {}
        if max(positions) >= self._known:
            self._known = _TURNS * (1 + max(positions) // _TURNS)
            for name, turn in self._rotary.items():
                pair = turn(torch.arange(self._known))
                self._tables |= {f"{which}.{name}": t for which, t in zip(("cosines", "sines"), pair, strict=True)}
        at = torch.tensor(positions)
        return {name: table.index_select(0, at) for name, table in self._tables.items()}
