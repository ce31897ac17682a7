"""The target's own second thoughts, recycled: what it ranked highest after a token, the last times it saw that token.

Knows token ids and logits. Does not know the text: a guess depends on the last one or two tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence

from .best_first import Path
from .interpolation import TrustWeights
from .protocol import DraftContext, StepRecord
from .source import Claim
from .top_tokens import top_tokens

#: tokens kept after each token or pair of tokens
TOP_K = 8
#: pairs of tokens kept; the oldest are dropped beyond (about 400 bytes each)
MAX_PAIRS = 65_536
LEAST_ESTIMATE = 0.004

#: the target's top tokens after some context, with probabilities renormalised over them
Row = tuple[tuple[int, float], ...]


class AdjacencyTable:
    """Token -> the target's top tokens after it, and the same for pairs of tokens. The newest logits win."""

    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
        self.after_token: dict[int, Row] = {}
        self.after_pair: dict[tuple[int, int], Row] = {}
        self._max_pairs = max_pairs

    def put(self, before: int | None, token: int, row: Row) -> None:
        """Stores what the target ranked highest after ``token``, which followed ``before`` (None: nothing)."""
        self.after_token[token] = row
        if before is None:
            return
        pair = (before, token)
        self.after_pair.pop(pair, None)  # put it back at the young end
        self.after_pair[pair] = row
        if len(self.after_pair) > self._max_pairs:
            del self.after_pair[next(iter(self.after_pair))]


class RecyclingState:
    """The last two committed tokens of one lane."""

    def __init__(self) -> None:
        self.tail: tuple[int, ...] = ()


class RecyclingSource:
    """Token recycling (Luo et al. 2024): verified nodes, rejected ones too, teach what the target likes after a token.

    Beyond the paper the table also knows pairs of tokens, and says how likely each candidate is: the target's
    probabilities, with the trust in pairs over single tokens learned online. The table is shared by all lanes and kept
    for as long as the source is: keep the drafter, and the next request starts warm.

    Args:
        table: an existing table to go on with.
    """

    name = "recycling"
    feature_layers: tuple[int, ...] = ()

    def __init__(self, table: AdjacencyTable | None = None) -> None:
        self.table = AdjacencyTable() if table is None else table
        self._trust = TrustWeights((0.6, 0.4))

    def start(self, context: DraftContext) -> RecyclingState:
        """An empty state: the lane adds nothing of its own."""
        return RecyclingState()

    def begin(self, states: Sequence[RecyclingState], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """Notes the last two tokens."""
        for state, context in zip(states, contexts, strict=True):
            state.tail = tuple(context.tokens[-2:])

    def _levels(self, state: RecyclingState, path: Path) -> list[tuple[int, Row]]:
        window = (state.tail + path)[-2:]
        found: list[tuple[int, Row]] = []
        if len(window) == 2:
            row = self.table.after_pair.get((window[0], window[1]))
            if row is not None:
                found.append((0, row))
        row = self.table.after_token.get(window[-1])
        if row is not None:
            found.append((1, row))
        return found

    def expand(self, state: RecyclingState, path: Path) -> list[Claim]:
        """The top tokens after the path's last pair and last token, blended."""
        estimates: dict[int, float] = {}
        left = 1.0
        for kind, row in self._levels(state, path):
            trusted = left * self._trust.weights[kind]
            for token, share in row:
                estimates[token] = estimates.get(token, 0.0) + trusted * share
            left -= trusted
        return [claim for claim in estimates.items() if claim[1] >= LEAST_ESTIMATE]

    def learn(self, state: RecyclingState, path: Path, token: int) -> None:
        """Trusts pairs, or single tokens, a little more or less."""
        levels = self._levels(state, path)
        self._trust.learn([(kind, dict(row).get(token, 0.0)) for kind, row in levels])

    def absorb(self, states: Sequence[RecyclingState], records: Sequence[StepRecord]) -> None:
        """Files the top tokens of every verified node under the node's token."""
        for state, record in zip(states, records, strict=True):
            if record.output is None:
                continue
            tree = record.draft.tree
            logits = record.output.logits  # [N, V]
            values, indices = top_tokens(logits, min(TOP_K, logits.shape[-1]))  # [N, k] each
            shares = values.float().softmax(dim=-1).tolist()
            for node, tokens in enumerate(indices.tolist()):
                parent = tree.parents[node]
                before = tree.tokens[parent] if parent >= 0 else (state.tail[-2] if len(state.tail) > 1 else None)
                self.table.put(before, tree.tokens[node], tuple(zip(tokens, shares[node], strict=True)))
