"""Laws: the target's logits at a node, through every processor, on that node's own prefix.

Everything is evaluated when a rule asks for it and kept for the step, so nodes that no rule visits cost nothing. Knows
the tree, the committed tokens and the sampler; knows no model.

Number types. Scores are float32 as in transformers' ``generate``, whatever the model computes in: with ``do_sample``
False even a float64 model is rounded, so the greedy token is transformers' own. When sampling, float64 logits stay
float64, because there "plain decoding" is this library's and exactness is checked in that type.

A grammar comes before every processor, so that truncation is over legal tokens and penalties and user processors see
minus infinity where a token is illegal; and once more after those that might write, so that nothing makes an illegal
token legal again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .grammar_state import GrammarState
from .proposal import DraftTree
from .sampler import Sampler
from .vectors import best_token


class PrefixBuffer:
    """The committed tokens of one lane as a growing tensor, so that no step converts the whole context again."""

    def __init__(self) -> None:
        self._ids = torch.empty(256, dtype=torch.long)
        self._length = 0

    def below(self, committed: Sequence[int], length: int, path: Sequence[int], device: torch.device) -> Tensor:
        """A fresh tensor ``[1, L]``: the first ``length`` committed tokens, then ``path``.

        Between calls ``committed`` may grow; its earlier tokens must stay the same.
        """
        if length > len(self._ids):
            grown = torch.empty(max(2 * len(self._ids), length), dtype=torch.long)
            grown[: self._length] = self._ids[: self._length]
            self._ids = grown
        if length > self._length:
            self._ids[self._length : length] = torch.tensor(committed[self._length : length], dtype=torch.long)
            self._length = length
        ids = torch.cat([self._ids[:length], torch.tensor(path, dtype=torch.long)])  # [L]
        return ids.to(device)[None]


class LawMaker:
    """Makes the laws of one lane, step after step.

    Args:
        sampler: the lane's sampling settings.
        grammar: the lane's place in its grammar, or None.
    """

    def __init__(self, sampler: Sampler, grammar: GrammarState | None = None) -> None:
        self.sampler = sampler
        self.grammar = grammar
        self._prefix = PrefixBuffer()

    def laws(
        self, draft: DraftTree, committed: Sequence[int], logits: Tensor, best: Sequence[int] | None = None
    ) -> TreeLaw:
        """The laws of one step's draft; arguments as for `TreeLaw`."""
        return TreeLaw(draft, committed, logits, self.sampler, self._prefix, self.grammar, best)


class TreeLaw:
    """The law at every node of one draft; call it with a node number (it is the ``law`` that a rule is given).

    Args:
        draft: the draft tree.
        committed: the lane's committed tokens without padding, root included (the last one).
        logits: ``[N, V]`` of the target at every node. Never written to.
        sampler: the sampling settings.
        prefix: the lane's buffer, for a lane of many steps; see `LawMaker`.
        grammar: which tokens are legal. Its committed tokens must be those of the step: a law that nobody asked for is
            gone when the grammar moves on.
        best_of_logits: of every node, the lowest id among its largest logits, where somebody knows it; -1 for a node of
            which nobody does.

    Raises:
        ValueError: the shapes do not fit, or the last committed token is not the root.
    """

    def __init__(
        self,
        draft: DraftTree,
        committed: Sequence[int],
        logits: Tensor,
        sampler: Sampler,
        prefix: PrefixBuffer | None = None,
        grammar: GrammarState | None = None,
        best_of_logits: Sequence[int] | None = None,
    ) -> None:
        if logits.ndim != 2 or len(logits) < len(draft.tree):
            raise ValueError(f"a tree of {len(draft.tree)} nodes needs logits [N, V], got {list(logits.shape)}")
        if not committed or committed[-1] != draft.tree.tokens[0]:
            raise ValueError(
                f"the last committed token must be the root {draft.tree.tokens[0]}, got {list(committed[-1:])}"
            )
        self._tree = draft.tree
        self._committed = committed
        self._length = len(committed)  # the list may grow while these laws are still read
        self._logits = logits.detach()
        self._sampler = sampler
        self._prefix = prefix if prefix is not None else PrefixBuffer()
        self._grammar = grammar
        self._best_of_logits = best_of_logits
        self._scores: dict[int, Tensor] = {}
        self._laws: dict[int, Tensor] = {}
        self._bests: dict[int, int] = {}

    def __call__(self, node: int) -> Tensor:
        """Probability vector ``[V]`` of the token after ``node``. Shared between calls: not to be written to.

        Raises:
            ValueError: the scores of the node hold NaN, or (when sampling) forbid every token. Names the node.
        """
        law = self._laws.get(node)
        if law is None:
            law = self._laws[node] = self._sampled(node) if self._sampler.do_sample else self._one_hot(node)
        return law

    def best(self, node: int) -> int:
        """The most probable token after ``node``: what `best_token` says of its law, at less cost where that is greedy.

        Raises:
            ValueError: as for the law itself.
        """
        if self._sampler.do_sample:
            return best_token(self(node))
        best = self._bests.get(node)
        if best is None:
            best = self._bests[node] = self._find_best(node)
        return best

    def logits(self, node: int) -> Tensor:
        """The node's raw scores ``[V]``, a copy: what transformers returns as ``logits``."""
        return self._row(node).clone()

    def scores(self, node: int) -> Tensor:
        """The node's processed scores ``[V]``, a copy: what transformers returns as ``scores``."""
        return self._processed(node).clone()

    def probabilities(self) -> tuple[float | None, ...]:
        """The target's probability of every drafted node given its own prefix, in the layout of ``draft.proposals``.

        The softmax of the processed scores: when sampling that is the law; greedy decoding takes the largest. Made for
        showing: it evaluates every processor at every node that has children, visited or not. None where the scores
        hold no law (NaN, or nothing is allowed) and below a token that the grammar forbids.
        """
        found: list[float | None] = [None] * len(self._tree)
        dead = [False] * len(self._tree)
        for parent in range(len(self._tree)):
            children = self._tree.children(parent)
            if not children or dead[parent]:
                for child in children:
                    dead[child] = True
                continue
            law = torch.softmax(self._processed(parent), 0)  # [V]
            for child in children:
                token = self._tree.tokens[child]
                probability = float(law[token])
                found[child] = None if math.isnan(probability) else probability
                dead[child] = self._grammar is not None and not self._grammar.allows(self._path_tokens(parent), token)
        return tuple(found[1:])

    @property
    def visited(self) -> tuple[int, ...]:
        """Nodes whose law or best token was asked for so far, in that order."""
        return tuple(dict.fromkeys((*self._bests, *self._laws)))

    def _row(self, node: int) -> Tensor:
        row = self._logits[node]  # [V]
        if self._sampler.do_sample and row.dtype == torch.float64:
            return row
        return row.float()

    def _processed(self, node: int) -> Tensor:
        scores = self._scores.get(node)
        if scores is None:
            scores = self._scores[node] = self._process(node)
        return scores

    def _process(self, node: int) -> Tensor:
        scores = self._row(node)  # may be the target's own storage
        illegal = self._illegal(node)
        if illegal is not None:
            scores = scores.masked_fill(illegal, -math.inf)
        elif self._sampler.may_write:
            scores = scores.clone()
        ids: Tensor | None = None
        for stage in self._sampler.stages:
            if stage.fast is not None:
                scores = stage.fast(scores)
                continue
            if ids is None:
                ids = self._input_ids(node)
            scores = stage.processor(ids, scores[None])[0]
        if illegal is not None and self._sampler.may_write:
            scores = scores.masked_fill(illegal, -math.inf)
        return scores

    def _illegal(self, node: int) -> Tensor | None:
        """Bool ``[V]``, True for what the grammar forbids after ``node``; None where it has nothing to say."""
        if self._grammar is None:
            return None
        legal = self._grammar.mask(self._path_tokens(node))
        return None if legal is None else ~legal.to(self._logits.device)

    def _path_tokens(self, node: int) -> tuple[int, ...]:
        return tuple(self._tree.tokens[i] for i in self._tree.path(node)[1:])

    def _input_ids(self, node: int) -> Tensor:
        if not self._sampler.reads_prefix:  # nobody looks: any tensor of the right shape does
            return torch.zeros(1, 1, dtype=torch.long, device=self._logits.device)
        return self._prefix.below(self._committed, self._length, self._path_tokens(node), self._logits.device)

    def _find_best(self, node: int) -> int:
        scores = self._processed(node)
        best = -1
        if self._best_of_logits is not None and self._grammar is None and not self._sampler.stages:
            best = self._best_of_logits[node]  # the scores are the logits
        if best < 0:
            best = best_token(scores)
        score = float(scores[best])
        # without a grammar the best of nothing is token 0, as in transformers; with one it would be illegal
        if math.isnan(score) or (self._grammar is not None and score == -math.inf):
            raise ValueError(self._nan_message(node))
        return best

    def _one_hot(self, node: int) -> Tensor:
        law = torch.zeros_like(self._processed(node))
        law[self.best(node)] = 1.0
        return law

    def _sampled(self, node: int) -> Tensor:
        law = torch.softmax(self._processed(node), 0)
        # one NaN, one plus infinity or nothing but minus infinity makes every entry NaN
        if math.isnan(float(law[0])):
            raise ValueError(self._nan_message(node))
        return law

    def _nan_message(self, node: int) -> str:
        where = f"node {node} (token {self._tree.tokens[node]}, position {self._length - 1 + self._tree.depth[node]})"
        if bool(self._logits[node].isnan().any()):
            return f"the logits of {where} held NaN: the model's output is not usable; no token was chosen"
        if bool(self._logits[node].isposinf().any()):
            return f"the logits of {where} held plus infinity: there is no law to sample from; no token was chosen"
        if bool(self._processed(node).isnan().any()):
            return f"the processors made NaN of the logits of {where}; no token was chosen"
        illegal = self._illegal(node)
        if illegal is None:
            return f"the processors forbade every token after {where}; no token was chosen"
        if bool(illegal.all()):
            return f"the grammar leaves no token of this vocabulary after {where}: its text cannot be completed"
        return f"the processors forbade every token that the grammar allows after {where}; no token was chosen"
