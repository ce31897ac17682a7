"""Drafting under a grammar: what it forbids is not drafted, what it forces is drafted for free.

Knows candidates and a lane's place in its grammar. Knows no text and no drafter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..tree import TokenTree
from ..verify.grammar_state import GrammarState
from ..verify.proposal import DraftTree, OneHot
from .best_first import Candidate, Expand, Path

#: name of the source that the grammar's own candidates carry
SOURCE = "grammar"
#: how often the longest token of a forced text is the model's choice (measured on the default model under twelve JSON
#: schemas: 208 of 292; it likes to begin a key with one letter)
AHEAD_ESTIMATE = 0.7
#: at most so many legal tokens are all drafted if the budget allows, whether or not a source names them
FEW_TOKENS = 4
#: candidates are asked for down to this share of the least useful estimate: the legal ones gain from the others' loss
ASK_BELOW = 0.25


def within_grammar(grammar: GrammarState, expand: Expand) -> Expand:
    """``expand`` under a grammar.

    Where one token is legal it is the only candidate, with estimate 1. Elsewhere illegal candidates are dropped and the
    others grow to fill the gap; the likely next token of a forced text takes `AHEAD_ESTIMATE`; a few legal tokens share
    what nobody claims.
    """

    def expand_legal(path: Path, least: float) -> Sequence[Candidate]:
        legal = grammar.count(path)
        if legal <= 1:
            return [(token, 1.0, SOURCE) for token in grammar.legal(path)]
        estimates, sources, lost = _legal_candidates(grammar, path, expand, least)
        scale = 1.0 / (1.0 - lost) if lost < 1.0 else 1.0
        ahead = grammar.ahead(path)
        if ahead is not None:
            scale *= 1.0 - AHEAD_ESTIMATE
        estimates = {token: estimate * scale for token, estimate in estimates.items()}
        if ahead is not None:
            estimates[ahead] = estimates.get(ahead, 0.0) + AHEAD_ESTIMATE
            sources.setdefault(ahead, SOURCE)
        if legal <= FEW_TOKENS:
            spare = max(0.0, 1.0 - sum(estimates.values())) / legal
            for token in grammar.legal(path):
                estimates[token] = estimates.get(token, 0.0) + spare
                sources.setdefault(token, SOURCE)
        return [(token, min(1.0, estimate), sources[token]) for token, estimate in estimates.items()]

    return expand_legal


def _legal_candidates(
    grammar: GrammarState, path: Path, expand: Expand, least: float
) -> tuple[dict[int, float], dict[int, str], float]:
    """Estimates and sources of the legal candidates, and the estimates of the illegal ones in all."""
    estimates: dict[int, float] = {}
    sources: dict[int, str] = {}
    lost = 0.0
    for token, estimate, source in expand(path, least * ASK_BELOW):
        if grammar.allows(path, token):
            estimates[token], sources[token] = estimate, source
        else:
            lost += estimate
    return estimates, sources, lost


def legal_vector(grammar: GrammarState, path: Path, vector: Tensor) -> Tensor | None:
    """A law ``[V]`` to sample children of ``path`` from, without what the grammar forbids, renormalised.

    For drafters that sample: mask first, draw from the result and save the result as the proposal. A child that was
    drawn already must never be dropped or reordered.

    Returns:
        a new tensor (``vector`` itself where the grammar has nothing to say), or None when no mass is left.
    """
    mask = grammar.mask(path)
    if mask is None:
        return vector
    legal = torch.where(mask.to(vector.device), vector, torch.zeros_like(vector))  # [V]
    total = legal.sum(dtype=torch.float64)
    return (legal / total).to(vector.dtype) if float(total) > 0 else None


def prune(draft: DraftTree, grammar: GrammarState) -> DraftTree:
    """``draft`` without the children that were picked without chance and are illegal, and without what hangs below.

    For drafters that do not look at the grammar. A child that was *sampled* stays, illegal or not: dropping it would
    bias the rules that use draft probabilities. Node order and proposals of the others are kept.
    """
    tree = draft.tree
    new_number: dict[int, int] = {0: 0}
    paths: dict[int, Path] = {0: ()}
    for node in range(1, len(tree)):
        parent, token = tree.parents[node], tree.tokens[node]
        if parent not in new_number:
            continue
        if isinstance(draft.proposal(node), OneHot) and not grammar.allows(paths[parent], token):
            continue
        new_number[node] = len(new_number)
        paths[node] = (*paths[parent], token)
    if len(new_number) == len(tree):
        return draft
    kept = list(new_number)
    parents = [-1, *(new_number[tree.parents[node]] for node in kept[1:])]

    def of_kept(values: tuple) -> tuple:
        return tuple(values[node - 1] for node in kept[1:]) if values else ()

    return DraftTree(
        TokenTree([tree.tokens[node] for node in kept], parents),
        of_kept(draft.proposals),
        of_kept(draft.sources),
        of_kept(draft.scores),
    )
