"""A trained head on disk as drafters of several shapes: trees, chains, and trees that it shares with free drafts.

Knows the kinds of heads. Its weights are read once, whatever number of drafters is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from ..draft import DrafterSource, MixedDrafter, NgramSource, RecyclingSource
from ..draft.block import BlockDrafter
from ..draft.block_load import load_block_head
from ..draft.checkpoint import HeadCheckpoint
from ..draft.eagle import EagleDrafter
from ..draft.eagle_load import load_eagle_head
from ..draft.head import head_kind
from ..draft.medusa import MedusaDrafter
from ..draft.medusa_load import load_medusa_heads
from ..draft.protocol import DraftContext, Drafter, DraftState, StepRecord
from ..draft.token_map import read_token_ids
from ..tree import TokenTree
from ..verify.proposal import DraftTree

#: tokens of a chain at most, where nobody says how deep drafts are
CHAIN_TOKENS = 5
#: nodes that a tree is asked for where only its best chain is kept
CHAIN_BUDGET = 65


@dataclass(frozen=True, eq=False)
class HeadFolder:
    """A head for a target.

    Attributes:
        path: its folder.
        kind: ``"eagle"``, ``"block"`` or ``"medusa"``.
        levels: of an EAGLE head's trees, or ``"auto"``.
        make: its drafter; the argument is the depth of an EAGLE head's tree, and its width.
    """

    path: Path
    kind: str
    levels: int | str
    make: Callable[[int | str, int], Drafter]

    @classmethod
    def open(cls, path: Path, model: PreTrainedModel, levels: int | str = "auto") -> HeadFolder:
        """Reads the head's weights.

        Raises:
            HeadCheckpointError: there is no head, or it does not fit the target.
        """
        kind = head_kind(path)
        load = {"eagle": _eagle, "block": _block, "medusa": _medusa}[kind]
        return cls(path, kind, levels, load(path, model))

    def tree(self) -> Drafter:
        """Drafts trees."""
        return self.make(self.levels, 8)

    def chain(self) -> Drafter:
        """Drafts one branch."""
        if self.kind == "eagle":
            return self.make(CHAIN_TOKENS if self.levels == "auto" else self.levels, 1)
        return BestChain(self.tree())

    def mixed(self) -> Drafter:
        """Shares trees with n-grams and recycled tokens."""
        return MixedDrafter([NgramSource(), RecyclingSource(), DrafterSource(self.tree())])

    def vocabulary(self, vocab_size: int) -> frozenset[int] | None:
        """Tokens that the head can draft, or None where these are all."""
        checkpoint = HeadCheckpoint(self.path)
        if "d2t" not in checkpoint:
            return None
        ids = read_token_ids(checkpoint, checkpoint.shape("d2t")[0], vocab_size)
        return frozenset(ids.tolist())


def _eagle(path: Path, model: PreTrainedModel) -> Callable[[int | str, int], Drafter]:
    head = load_eagle_head(path, model)
    return lambda levels, width: EagleDrafter(head, depth=levels, width=width)


def _block(path: Path, model: PreTrainedModel) -> Callable[[int | str, int], Drafter]:
    loaded = load_block_head(path, model)
    return lambda levels, width: BlockDrafter(loaded.head, model, token_ids=loaded.token_ids)


def _medusa(path: Path, model: PreTrainedModel) -> Callable[[int | str, int], Drafter]:
    heads = load_medusa_heads(path, model)
    return lambda levels, width: MedusaDrafter(heads, model)


class BestChain:
    """Another drafter's trees, cut to the chain of best children.

    Args:
        drafter: whose node order says which child is best: the first.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.feature_layers = drafter.feature_layers
        self._drafter = drafter

    def start(self, context: DraftContext) -> DraftState:
        """See `Drafter.start`."""
        return self._drafter.start(context)

    def finish(self, state: DraftState) -> None:
        """See `Drafter`."""
        if hasattr(self._drafter, "finish"):
            self._drafter.finish(state)

    def propose(
        self, states: Sequence[DraftState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """See `Drafter.propose`."""
        drafts = self._drafter.propose(states, contexts, [CHAIN_BUDGET] * len(budgets))
        return [self._cut(draft.tree, budget) for draft, budget in zip(drafts, budgets, strict=True)]

    def observe(self, states: Sequence[DraftState], records: Sequence[StepRecord]) -> None:
        """See `Drafter.observe`."""
        self._drafter.observe(states, records)

    def _cut(self, tree: TokenTree, budget: int) -> DraftTree:
        chain, node = [tree.tokens[0]], 0
        while len(chain) < budget and (children := tree.children(node)):
            node = children[0]
            chain.append(tree.tokens[node])
        return DraftTree.deterministic(TokenTree.from_chain(chain[0], chain[1:]), self.name)
