"""From a model's logits to candidates below the nodes of a tree, and what a grammar says without asking any model.

Knows logits, grammars and paths. Does not know what computed the logits, nor how a tree grows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..verify.grammar_state import GrammarState
from .best_first import Path
from .expand import Forced
from .top_tokens import likeliest_tokens

#: at most so many forced tokens are followed without asking the model
FORCED_RUN = 16


def likeliest(
    logits: Tensor, places: Sequence[tuple[GrammarState | None, Path]], width: int
) -> list[list[tuple[int, float]]]:
    """The best tokens below every node with their log-probabilities: one selection over all rows.

    Args:
        logits: ``[N, V]``, cut off at the target's vocabulary, so that the others share all probability.
        places: per row the lane's grammar, if any, and the node's path. What is illegal there gets no probability.
        width: most candidates per node.

    Returns:
        per row tokens and log-probabilities, the likeliest first; none where logits are NaN.
    """
    if any(grammar is not None for grammar, _ in places):
        logits = _legal_only(logits, places)
    return [_finite(row) for row in likeliest_tokens(logits, min(width, logits.shape[1]))]


def _legal_only(logits: Tensor, places: Sequence[tuple[GrammarState | None, Path]]) -> Tensor:
    """``[N, V]`` with minus infinity where the row's grammar forbids a token; a new tensor."""
    logits = logits.clone()
    for row, (grammar, path) in zip(logits, places, strict=True):
        if grammar is not None:
            legal = grammar.mask(path)
            forbidden = slice(None) if legal is None else ~legal[: len(row)].to(row.device)
            row[forbidden] = -torch.inf
    return logits


def _finite(candidates: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Candidates that can be drafted at all: not those that a grammar forbids, nor those of NaN."""
    return [candidate for candidate in candidates if candidate[1] > -torch.inf]


def forced_by(grammar: GrammarState | None) -> Forced | None:
    """The tokens that must follow a path under a grammar, without asking a model."""
    if grammar is None:
        return None

    def forced(path: Path) -> list[int]:
        run: list[int] = []
        while len(run) < FORCED_RUN:
            token = grammar.forced((*path, *run))
            if token is None:
                break
            run.append(token)
        return run

    return forced
