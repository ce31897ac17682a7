"""A smaller causal model as drafter, with a tree cache of its own.

Knows how to keep the small model's cache in step with the committed tokens and how to run one level of every lane's
tree in one forward. Does not know the target: it sees its tokens only.

The drafter's cache of a lane, between two steps, holds the committed tokens it has seen; ``tokens[seen:]`` (the bonus
token, and accepted tokens it never ran because they were leaves or somebody else's drafts) form the chain that its next
tree grows from:

    cache  | committed, seen | chain: missing ... root | level 1 | level 2 | ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..target.huggingface import HuggingFaceTarget
from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import Path, check_budget
from .expand import Expansion
from .protocol import DraftContext, StepRecord
from .top_tokens import top_tokens


@dataclass
class SmallModelState:
    """One lane: its place in the small model's cache, and which paths of the tree in flight were run."""

    lane: int
    chain: int = 0  # nodes of the chain, root included; 0 when nothing is in flight
    node_of: dict[Path, int] = field(default_factory=dict)


class SmallModelDrafter:
    """Drafts dynamic trees from any smaller causal model that shares the target's token ids.

    Args:
        model: the small model, in eval mode; left as found.
        depth: levels of the tree, one forward each.
        width: nodes expanded per level and candidates taken below each.
        tokenizer: the small model's tokenizer, to be compared with ``target_tokenizer``.
        target_tokenizer: the target's; both or neither must be given.

    Raises:
        ValueError: depth or width is below 1, or the tokenizers give shared ids different meanings.
        UnsupportedModel: the small model cannot run trees.
    """

    name = "model"
    feature_layers: tuple[int, ...] = ()

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        depth: int = 5,
        width: int = 4,
        tokenizer: Any = None,
        target_tokenizer: Any = None,
    ) -> None:
        for label, value in (("depth", depth), ("width", width)):
            if value < 1:
                raise ValueError(f"a small-model drafter needs {label} >= 1, got {value}")
        if (tokenizer is None) != (target_tokenizer is None):
            raise ValueError("give both tokenizers or neither: one alone cannot be compared")
        if tokenizer is not None:
            check_shared_vocabulary(tokenizer, target_tokenizer)
        self.depth = depth
        self.width = width
        self._model = HuggingFaceTarget(model)

    def start(self, context: DraftContext) -> SmallModelState:
        """Reads the prompt into a lane of the small model.

        Raises:
            ValueError: a prompt token is not in the small model's vocabulary.
        """
        highest = max(context.tokens)
        if highest >= self._model.vocab_size:
            raise ValueError(
                f"token {highest} is outside the drafter's vocabulary of {self._model.vocab_size} ids; does it share "
                "the target's tokenizer?"
            )
        lane = self._model.open(len(context.tokens) + self.depth * self.width)
        self._model.prefill(lane, context.tokens)
        return SmallModelState(lane)

    def finish(self, state: SmallModelState) -> None:
        """Gives the lane back."""
        self._model.rollback()
        self._model.free(state.lane)

    def propose(
        self, states: Sequence[SmallModelState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """Grows all lanes' trees together: one forward of the small model per level."""
        self._model.rollback()
        expansions = [self._expansion(*row) for row in zip(states, contexts, budgets, strict=True)]
        trees = {}
        for state, context in zip(states, contexts, strict=True):
            chain = context.tokens[self._model.length(state.lane) :]
            state.chain = len(chain)
            state.node_of = {(): len(chain) - 1}
            trees[state.lane] = TokenTree.from_chain(chain[0], chain[1:])
        growing = [i for i, expansion in enumerate(expansions) if expansion.max_depth > 0 and expansion.budget > 1]
        outputs = self._model.forward(trees) if growing else {}
        if not growing:
            for state in states:
                state.chain = 0
        rows = {i: outputs[states[i].lane].logits[-1:] for i in growing}
        while rows:
            children = self._children(rows, contexts)
            for i, row in children.items():
                expansions[i].take(row)
            growing = [i for i in rows if expansions[i].frontier]
            if not growing:
                break
            for i in growing:
                trees[states[i].lane] = self._grown(trees[states[i].lane], states[i], expansions[i])
            outputs = self._model.extend({states[i].lane: trees[states[i].lane] for i in growing})
            rows = {i: outputs[states[i].lane].logits for i in growing}
        return [
            expansion.tree(context.tokens[-1], self.name)
            for expansion, context in zip(expansions, contexts, strict=True)
        ]

    def observe(self, states: Sequence[SmallModelState], records: Sequence[StepRecord]) -> None:
        """Keeps the rows of the chain and of the accepted path, as far as the small model ran it."""
        paths = {}
        for state, record in zip(states, records, strict=True):
            if not state.chain:
                continue
            rows = list(range(state.chain))
            tree = record.draft.tree
            accepted: Path = ()
            for node in record.verdict.path[1:]:
                accepted = (*accepted, tree.tokens[node])
                if accepted not in state.node_of:
                    break
                rows.append(state.node_of[accepted])
            paths[state.lane] = rows
            state.chain = 0
        if paths:
            self._model.commit(paths)

    def _expansion(self, state: SmallModelState, context: DraftContext, budget: int) -> Expansion:
        check_budget(budget)
        depth = self.depth if context.max_depth is None else min(self.depth, context.max_depth)
        limit = self._model.depth_limit(state.lane)
        if limit is not None:
            missing = len(context.tokens) - 1 - self._model.length(state.lane)
            # the deepest candidates are never run, so they may lie one position past the small model's own limit
            depth = min(depth, max(0, limit - missing + 1))
        return Expansion(budget, self.width, depth)

    def _children(
        self, rows: dict[int, Tensor], contexts: Sequence[DraftContext]
    ) -> dict[int, list[list[tuple[int, float]]]]:
        """Candidates below every frontier node of every growing lane: one selection over all rows."""
        vocab_size = min(self._model.vocab_size, *(contexts[i].vocab_size for i in rows))
        logits = torch.cat(list(rows.values()))[:, :vocab_size]  # [all frontiers, V]
        k = min(self.width, vocab_size)
        values, tokens = top_tokens(logits, k)
        # ids past the target's vocabulary get no probability, so the others share all of it
        total = torch.logsumexp(logits if logits.dtype == torch.float64 else logits.float(), dim=1, keepdim=True)
        logp = (values - total).tolist()
        ids = tokens.tolist()
        children, at = {}, 0
        for i, row in rows.items():
            children[i] = [list(zip(ids[r], logp[r], strict=True)) for r in range(at, at + len(row))]
            at += len(row)
        return children

    def _grown(self, tree: TokenTree, state: SmallModelState, expansion: Expansion) -> TokenTree:
        """The tree in flight with the frontier appended."""
        tokens, parents = list(tree.tokens), list(tree.parents)
        for _, path in expansion.frontier:
            state.node_of[path] = len(tokens)
            tokens.append(path[-1])
            parents.append(state.node_of[path[:-1]])
        return TokenTree(tokens, parents)


def check_shared_vocabulary(tokenizer: Any, target_tokenizer: Any) -> None:
    """Raises ValueError unless every id that both tokenizers know stands for the same token.

    A vocabulary may be longer than the other (padding, added tokens): ids only one side knows are never drafted, or
    never produced by the target.
    """
    own = {index: token for token, index in tokenizer.get_vocab().items()}
    other = {index: token for token, index in target_tokenizer.get_vocab().items()}
    shared = own.keys() & other.keys()
    different = sorted(index for index in shared if own[index] != other[index])
    if different or not shared:
        example = different[0] if different else 0
        raise ValueError(
            f"the drafter's tokenizer disagrees with the target's on {len(different)} of {len(shared)} shared ids (id "
            f"{example}: {own.get(example)!r} against {other.get(example)!r}); use one with the target's tokenizer"
        )
