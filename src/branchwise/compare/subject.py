"""The model under measurement: its target, its prompts, and ways to run it. Knows no claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..bench.prompts import encode_prompt
from ..decode import Generation
from ..decode.lane import Lane
from ..decode.request import Request
from ..decode.session import Session
from ..decode.stopping import StopRules
from ..draft import Drafter
from ..show.token_text import TokenLabels
from ..target.huggingface import HuggingFaceTarget
from ..target.probe import TOLERANCE
from ..tree import TokenTree
from ..tune.budget import make_budget
from ..verify import Greedy
from ..verify.rule import Rule
from ..verify.sampler import Sampler
from .effort import Effort

PROMPTS = (
    "Explain in five short steps how to bake bread, then repeat the steps as a numbered list.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring, and then a test for it.",
    "What is the difference between weather and climate? Give three examples of each.",
)
#: of a run that nobody counts
WARM_UP_TOKENS = 4


class Subject:
    """A model and what it is run on.

    Args:
        model: in eval mode; left as found.
        tokenizer: of the model.
        effort: how much is measured.

    Raises:
        ValueError: the model's context is too short to measure anything in.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any, effort: Effort) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.effort = effort
        self.target = HuggingFaceTarget(model)
        self.device = self.target.device
        #: a token as a label for drawings
        self.word = TokenLabels(tokenizer)
        self.prompts = [self._fitting(encode_prompt(tokenizer, text)) for text in PROMPTS[: effort.prompts]]

    def _fitting(self, prompt: list[int]) -> tuple[int, ...]:
        """The prompt, or its end where the context leaves room for no more than that."""
        limit = self.target.context_limit
        if limit is not None and limit < 64:
            raise ValueError(f"the model's context ends at {limit} tokens; comparing needs at least 64")
        return tuple(prompt if limit is None else prompt[-(limit // 4) :])

    def new_tokens(self, wanted: int) -> int:
        """Tokens that every prompt has room for, at most ``wanted``."""
        limit = self.target.context_limit
        return wanted if limit is None else min(wanted, limit - max(map(len, self.prompts)) - 1)

    def text(self, length: int) -> list[int]:
        """The first prompt over and over, ``length`` tokens of it or as many as leave room for large trees."""
        limit = self.target.context_limit
        length = length if limit is None else min(length, limit // 2)
        prompt = list(self.prompts[0])
        return (prompt * (length // len(prompt) + 1))[:length]

    def run(
        self,
        drafter: Drafter,
        budget: int,
        new_tokens: int,
        prompt: int = 0,
        *,
        rule: Rule | None = None,
        after_step: Callable[[Lane], None] = lambda lane: None,
    ) -> Generation:
        """Greedy decoding of exactly so many tokens (an end-of-text token does not end it).

        Args:
            drafter: proposes.
            budget: most nodes per tree.
            new_tokens: to emit.
            prompt: index of the prompt.
            rule: decides; greedy when None.
            after_step: called while the lane is open.
        """
        session = Session(self.target, drafter, make_budget(budget))
        request = Request(self.prompts[prompt], Sampler(), StopRules(new_tokens))
        with closing(session):
            lane = session.add(request, rule or Greedy())
            while session.active:
                session.step()
                if lane.place is not None:
                    after_step(lane)
            return session.generation(lane)

    def warm_up(self, drafter: Drafter, budget: int) -> None:
        """A short run that nobody counts."""
        self.run(drafter, budget, self.new_tokens(WARM_UP_TOKENS))

    @contextmanager
    def lane(self, tokens: Sequence[int], longest_tree: int = 512) -> Iterator[int]:
        """A lane with all but the last of ``tokens`` committed; that one is the root of the trees to come."""
        limit = self.target.context_limit
        longest = len(tokens) + longest_tree
        number = self.target.open(longest, longest=longest if limit is None else min(longest, limit))
        try:
            self.target.prefill(number, tokens)
            yield number
        finally:
            self.target.rollback()
            self.target.free(number)

    def logits(self, lane: int, tree: TokenTree) -> Tensor:
        """Logits ``[N, V]`` of a tree whose rows are then dropped."""
        logits = self.target.forward({lane: tree})[lane].logits
        self.target.rollback()
        return logits

    def chain_logits(self, lane: int, tree: TokenTree, path: Sequence[int]) -> Tensor:
        """Logits of one path of a tree, run alone as a chain: ``[len(path), V]``."""
        tokens = [tree.tokens[node] for node in path]
        return self.logits(lane, TokenTree.from_chain(tokens[0], tokens[1:]))

    def likely_tree(self, lane: int, root: int, branching: Sequence[int]) -> TokenTree:
        """A tree of the target's own best tokens, ``branching[d]`` below every node at depth d."""
        paths: list[tuple[int, ...]] = [()]
        tree = TokenTree.from_chain(root)
        for width in branching:
            best = self.logits(lane, tree).topk(width).indices.tolist()
            node_of = {tuple(tree.tokens[node] for node in tree.path(i)[1:]): i for i in range(len(tree))}
            paths = [(*path, token) for path in paths for token in best[node_of[path]]]
            tree = TokenTree.from_paths(root, paths)
        return tree

    @property
    def tolerance(self) -> float:
        """Largest difference of logits, relative to their spread, that rounding explains in this model's dtype."""
        return TOLERANCE.get(self.model.dtype, 1e-2)


def relative_difference(one: Tensor, other: Tensor) -> float:
    """Greatest difference of any entry, relative to the spread of the first tensor's entries."""
    one, other = one.double(), other.double()
    return float((one - other).abs().max() / ((one.max() - one.min()) + 1e-30))
