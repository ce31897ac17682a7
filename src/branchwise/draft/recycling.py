"""The target's own second thoughts, recycled: what it ranked highest after a token when it last saw that token.

Knows token ids and logits. Does not know the text: a guess depends on the last two tokens at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .best_first import Path
from .protocol import DraftContext, StepRecord
from .source import Evidence
from .top_tokens import top_tokens

#: tokens kept after each token or pair of tokens
TOP_K = 8
#: pairs of tokens kept; the oldest are dropped beyond (about 1 kB each)
MAX_PAIRS = 32_768
#: kinds of evidence per table: how sure of its first token the target was, in quarters
SURENESS = 4
#: the tokens the target writes most often, wherever: how many are proposed, after how many written tokens they are
#: ranked again, and the factor all counts lose at each ranking
COMMON_TOKENS = 32
COMMON_REFRESH = 32
COMMON_MEMORY = 0.99
#: a count below this is forgotten at the next ranking
COMMON_LEAST = 0.2

#: the target's top tokens after some context, falling, with probabilities renormalised over them
Row = dict[int, float]


class AdjacencyTable:
    """What the target likes after a token, after a pair of tokens, and anywhere. The newest logits win.

    Rows are kept as the evidence they will be, since they are read more often than written. Bounded: one row per token
    of the vocabulary, ``max_pairs`` rows for pairs, and counts that fade.
    """

    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
        self.after_token: dict[int, Evidence] = {}
        self.after_pair: dict[tuple[int, int], Evidence] = {}
        self.common: Evidence | None = None
        self._max_pairs = max_pairs
        self._written: dict[int, float] = {}
        self._written_since = 0

    def put(self, before: int | None, token: int, row: Row) -> None:
        """Stores what the target ranked highest after ``token``, which followed ``before`` (None: nothing)."""
        sureness = min(SURENESS - 1, int(next(iter(row.values())) * SURENESS))
        self.after_token[token] = Evidence(SURENESS + sureness, row)
        if before is None:
            return
        pair = (before, token)
        self.after_pair.pop(pair, None)  # so that it goes back in at the young end
        self.after_pair[pair] = Evidence(sureness, row)
        if len(self.after_pair) > self._max_pairs:
            del self.after_pair[next(iter(self.after_pair))]

    def count(self, tokens: Sequence[int]) -> None:
        """Counts what the target wrote, and every now and then ranks the commonest tokens anew."""
        for token in tokens:
            self._written[token] = self._written.get(token, 0.0) + 1.0
        self._written_since += len(tokens)
        if self._written_since >= COMMON_REFRESH or self.common is None:
            self._written_since = 0
            total = sum(self._written.values())
            best = heapq.nlargest(COMMON_TOKENS, self._written.items(), key=lambda item: item[1])
            self.common = Evidence(2 * SURENESS, dict(best), total)
            faded = ((token, count * COMMON_MEMORY) for token, count in self._written.items())
            self._written = {token: count for token, count in faded if count >= COMMON_LEAST}


class RecyclingState:
    """The last two committed tokens of one lane."""

    def __init__(self) -> None:
        self.tail: tuple[int, ...] = ()


class RecyclingSource:
    """Token recycling (Luo et al. 2024): verified nodes, rejected ones too, teach what the target likes after a token.

    Beyond the paper: the table knows pairs of tokens too, rows carry the target's probabilities and not the ranks only,
    and the tokens the target writes most often stand in where nothing better is known. The table is shared by all lanes
    and kept for as long as the source is: keep the drafter, and the next request starts warm.

    Args:
        table: an existing table to go on with.
    """

    name = "recycling"
    feature_layers: tuple[int, ...] = ()
    trust = (0.5,) * SURENESS + (0.4,) * SURENESS + (0.5,)

    def __init__(self, table: AdjacencyTable | None = None) -> None:
        self.table = AdjacencyTable() if table is None else table

    def start(self, context: DraftContext) -> RecyclingState:
        """An empty state: the lane adds nothing of its own."""
        return RecyclingState()

    def begin(self, states: Sequence[RecyclingState], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """Notes the last two tokens."""
        for state, context in zip(states, contexts, strict=True):
            state.tail = tuple(context.tokens[-2:])

    def evidence(self, state: RecyclingState, path: Path) -> list[Evidence]:
        """The rows of the path's last pair and last token, and the common tokens."""
        *before, token = (state.tail + path)[-2:]
        table = self.table
        rows = (
            table.after_pair.get((before[0], token)) if before else None,
            table.after_token.get(token),
            table.common,
        )
        return [row for row in rows if row is not None]

    def absorb(self, states: Sequence[RecyclingState], records: Sequence[StepRecord]) -> None:
        """Files the top tokens of every verified node under the node's token and pair."""
        for state, record in zip(states, records, strict=True):
            self.table.count(record.tokens)
            if record.output is None:
                continue
            tree = record.draft.tree
            logits = record.output.logits  # [N, V]
            values, indices = top_tokens(logits, min(TOP_K, logits.shape[-1]))  # [N, k] each
            shares = values.float().softmax(dim=-1).tolist()
            for node, tokens in enumerate(indices.tolist()):
                parent = tree.parents[node]
                before = tree.tokens[parent] if parent >= 0 else (state.tail[-2] if len(state.tail) > 1 else None)
                self.table.put(before, tree.tokens[node], dict(zip(tokens, shares[node], strict=True)))
