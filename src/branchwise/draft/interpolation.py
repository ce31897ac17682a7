"""Weights that say how far to trust each level of a back-off chain, learned from what the target went on to produce.

Knows probabilities only: no tokens, no tables.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class TrustWeights:
    """One weight per kind of evidence.

    A weight is the probability that the next token comes from that evidence and not from a weaker one further down the
    chain. With levels 1 (strongest) to K found for a context, the estimate of a token is
    ``sum_k w_k * share_k(token) * prod_{j<k} (1 - w_j)``: linear interpolation of language models (Jelinek and Mercer
    1980), with a weight per kind of evidence. The weights are the running maximum-likelihood ones: `learn` does one
    step of online expectation-maximisation over counts that slowly forget.

    Args:
        prior: starting weight of every kind.
        strength: how many observations the starting weight counts for.
        memory: counts are halved when a kind has seen this many observations, so that old ones fade.
    """

    #: what is left for tokens no level has seen; only the ratio to a level's share matters, so a rough figure will do
    UNSEEN = 1e-3

    def __init__(self, prior: Sequence[float], strength: float = 16.0, memory: float = 1024.0) -> None:
        self.weights = array("d", prior)
        self.memory = memory
        self._hits = array("d", [weight * strength for weight in prior])
        self._trials = array("d", [strength] * len(self.weights))

    @property
    def counts(self) -> tuple[array[float], array[float], array[float]]:
        """What there is to change when something is learned: weights, hits and trials, which keep their places."""
        return self.weights, self._hits, self._trials

    def learn(self, levels: Sequence[tuple[int, float]]) -> None:
        """Takes in one observed token: for each level found, strongest first, its kind and the share it gave it."""
        below = [self.UNSEEN]  # probability of the token under the levels from k on, built from the weakest upwards
        for kind, share in reversed(levels):
            weight = self.weights[kind]
            below.append(weight * share + (1.0 - weight) * below[-1])
        arrived = 1.0  # posterior probability that no stronger level produced the token
        for index, (kind, share) in enumerate(levels):
            responsible = self.weights[kind] * share / below[len(levels) - index]
            self._hits[kind] += arrived * responsible
            self._trials[kind] += arrived
            if self._trials[kind] > self.memory:
                self._hits[kind] *= 0.5
                self._trials[kind] *= 0.5
            arrived *= 1.0 - responsible
            if arrived < 1e-3:
                break
        for kind, _ in levels:
            self.weights[kind] = self._hits[kind] / self._trials[kind]
