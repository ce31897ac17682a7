"""Which sequences make a step: a pure function of seed and step, so that a resumed training sees the same ones.

Knows lengths and numbers; knows no features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from .corpus import Piece
from .features import FeatureSource
from .shards import ANSWER, CONTEXT, USER

#: sequences are sorted by length within groups of so many batches: little padding, and still a mixed order
SORTED_BATCHES = 24


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences side by side, padded behind.

    Attributes:
        tokens: int64 ``[B, L]``.
        roles: int64 ``[B, L]``; padding has role `CONTEXT`.
        weights: float32 ``[B, L]``: what each token counts for where it is to be drafted; 0 in padding.
        lengths: of the rows.
        features: ``[B, L, F, h]`` as `FeatureSource` gives them, in float32 or the dtype asked for; 0 in padding.
        number: of the step; seeds what a method draws by chance.
    """

    tokens: Tensor
    roles: Tensor
    weights: Tensor
    lengths: tuple[int, ...]
    features: Tensor
    number: int

    @property
    def real_tokens(self) -> int:
        """Tokens without padding."""
        return sum(self.lengths)


class BatchOrder:
    """The order of all batches of all epochs.

    Args:
        pieces: of the training side.
        batch_tokens: about how many tokens a batch holds.
        longest: longer sequences are cut.
        seed: of the order.
    """

    def __init__(self, pieces: Sequence[Piece], batch_tokens: int, longest: int, seed: int) -> None:
        if batch_tokens < 1:
            raise ValueError(f"batch-tokens must be >= 1, got {batch_tokens}")
        self._pieces = pieces
        self._lengths = [min(len(piece), longest) for piece in pieces]
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._epoch = -1
        self._batches: list[list[int]] = []
        self._before = 0  # batches of earlier epochs

    def pieces(self, number: int) -> list[Piece]:
        """The sequences of batch ``number``, counted over all epochs. Numbers may only grow."""
        if number < self._before:
            self._epoch, self._batches, self._before = -1, [], 0
        while number >= self._before + len(self._batches):
            self._before += len(self._batches)
            self._epoch += 1
            self._batches = self._shuffled(self._epoch)
        return [self._pieces[place] for place in self._batches[number - self._before]]

    @property
    def epoch(self) -> int:
        """Of the batch that was asked for last."""
        return self._epoch

    def _shuffled(self, epoch: int) -> list[list[int]]:
        chance = Random(f"order {self._seed} {epoch}")
        order = list(range(len(self._pieces)))
        chance.shuffle(order)
        batches: list[list[int]] = []
        group: list[int] = []
        tokens = 0
        for place in order:
            group.append(place)
            tokens += self._lengths[place]
            if tokens >= SORTED_BATCHES * self._batch_tokens:
                batches += self._cut(group)
                group, tokens = [], 0
        batches += self._cut(group)
        chance.shuffle(batches)
        return batches

    def _cut(self, group: list[int]) -> list[list[int]]:
        """Batches of about the right number of tokens, each of like lengths."""
        batches: list[list[int]] = []
        tokens = self._batch_tokens
        for place in sorted(group, key=lambda place: (self._lengths[place], place)):
            if tokens >= self._batch_tokens:
                batches.append([])
                tokens = 0
            batches[-1].append(place)
            tokens += self._lengths[place]
        return batches


def make_batch(
    pieces: Sequence[Piece],
    source: FeatureSource,
    *,
    longest: int,
    question_weight: float,
    number: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Batch:
    """Reads features and pads.

    Args:
        pieces: the sequences.
        source: of features.
        longest: longer sequences are cut here.
        question_weight: what a token in the user's place counts for; one of an answer counts 1, the template nothing.
        number: see `Batch`.
        device: where the head is.
        dtype: of the features in the batch.
    """
    rows = [feature[:longest] for feature in source.get(pieces)]
    lengths = tuple(map(len, rows))
    shape = (len(rows), max(lengths))
    tokens, roles = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    features = torch.zeros(*shape, *rows[0].shape[1:], dtype=dtype, device=device)
    for row, (piece, length) in enumerate(zip(pieces, lengths, strict=True)):
        tokens[row, :length] = torch.from_numpy(piece.sequence.tokens[:length].astype("int64"))
        roles[row, :length] = torch.from_numpy(piece.sequence.roles[:length].astype("int64"))
        features[row, :length] = rows[row].to(device=device, dtype=dtype)
    weights = torch.zeros(3)
    weights[[CONTEXT, USER, ANSWER]] = torch.tensor([0.0, question_weight, 1.0])
    return Batch(tokens.to(device), roles.to(device), weights[roles].to(device), lengths, features, number)
