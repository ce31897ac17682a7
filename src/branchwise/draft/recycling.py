"""The target's own second thoughts, recycled: what it ranked highest after a token when it last saw that token.

Knows token ids and logits. Does not know the text: a guess depends on the last two tokens at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .best_first import Path
from .common_tokens import CommonTokens
from .native_tables import NativeAdjacency, mix_library
from .protocol import DraftContext, StepRecord
from .source import Evidence
from .top_tokens import top_tokens

#: tokens kept after each token or pair of tokens
TOP_K = 8
#: pairs of tokens kept; the oldest are dropped beyond (about 1 kB each)
MAX_PAIRS = 32_768
#: kinds of evidence per table: how sure of its first token the target was, in quarters
SURENESS = 4
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
        self.written = CommonTokens(2 * SURENESS)
        self._max_pairs = max_pairs

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

    def put_tree(
        self, tokens: Sequence[int], parents: Sequence[int], before: int | None, likeliest: Tensor, shares: Tensor
    ) -> None:
        """Stores what it ranked highest after every node of a tree.

        Args:
            tokens: of the nodes.
            parents: of the nodes.
            before: the token that precedes the root, if any.
            likeliest: int64 ``[N, k]``.
            shares: ``[N, k]``, falling, each row summing to 1.
        """
        of_nodes = zip(tokens, parents, likeliest.tolist(), shares.tolist(), strict=True)
        for token, parent, row_tokens, row_shares in of_nodes:
            above = before if parent < 0 else tokens[parent]
            self.put(above, token, dict(zip(row_tokens, row_shares, strict=True)))

    def count(self, tokens: Sequence[int]) -> None:
        """Counts what the target wrote."""
        self.written.count(tokens)

    def evidence_after(self, tokens: Sequence[int]) -> list[Evidence]:
        """The rows of the last pair and of the last token, and the common tokens."""
        *before, token = tokens[-2:]
        rows = (
            self.after_pair.get((before[0], token)) if before else None,
            self.after_token.get(token),
            self.written.evidence,
        )
        return [row for row in rows if row is not None]


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
        table: an existing table to go on with; a new one by default, in C where there is a compiler.
    """

    name = "recycling"
    feature_layers: tuple[int, ...] = ()
    trust = (0.5,) * SURENESS + (0.4,) * SURENESS + (0.5,)

    def __init__(self, table: AdjacencyTable | NativeAdjacency | None = None) -> None:
        library = mix_library()
        self.table = table or (AdjacencyTable() if library is None else NativeAdjacency(library, MAX_PAIRS, SURENESS))

    def start(self, context: DraftContext) -> RecyclingState:
        """An empty state: the lane adds nothing of its own."""
        return RecyclingState()

    def native_table(self, state: RecyclingState) -> NativeAdjacency | None:
        """What `evidence` reads, if it is a table of C."""
        return self.table if isinstance(self.table, NativeAdjacency) else None

    def begin(self, states: Sequence[RecyclingState], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """Notes the last two tokens."""
        for state, context in zip(states, contexts, strict=True):
            state.tail = tuple(context.tokens[-2:])

    def evidence(self, state: RecyclingState, path: Path) -> list[Evidence]:
        """The rows of the path's last pair and last token, and the common tokens."""
        return self.table.evidence_after((state.tail + path)[-2:])

    def absorb(self, states: Sequence[RecyclingState], records: Sequence[StepRecord]) -> None:
        """Files the top tokens of every verified node under the node's token and pair."""
        for state, record in zip(states, records, strict=True):
            self.table.count(record.tokens)
            if record.output is None:
                continue
            tree = record.draft.tree
            logits = record.output.logits  # [N, V]
            k = min(TOP_K, logits.shape[-1])
            known = record.output.top
            # [N, k] each
            values, indices = known if known is not None and known[0].shape[1] == k else top_tokens(logits, k)
            before = state.tail[-2] if len(state.tail) > 1 else None
            self.table.put_tree(tree.tokens, tree.parents, before, indices, values.float().softmax(dim=-1))
