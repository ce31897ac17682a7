"""Static trees of ranks: which candidate of which position every node takes, fixed before the run.

Knows index paths and marginals. The format is Medusa's ``medusa_choices`` (Cai et al. 2024, section 2.1.2): ``(0, 2)``
is the third-likeliest token of position 1 below the likeliest one of position 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..tree import TokenTree
from ..tree.shapes import index_path_shape
from ..verify.proposal import DraftTree
from .best_first import check_budget
from .marginals import Marginals
from .protocol import DraftContext


class IndexTree:
    """A tree of ranks that a step's marginals turn into a draft.

    Args:
        choices: index paths, in any order.

    Attributes:
        depth: of the deepest node.

    Raises:
        ValueError: a path is malformed; see `index_path_shape`. Or there is none.
    """

    def __init__(self, choices: Iterable[Sequence[int]]) -> None:
        self._parents, self._ranks = index_path_shape(choices)
        if len(self._parents) == 1:
            raise ValueError("an index tree needs at least one path, got none")
        depths = [0]
        for parent in self._parents[1:]:
            depths.append(depths[parent] + 1)
        self._depths = depths
        self.depth = max(depths)
        self._highest = max(self._ranks)

    def check(self, positions: int, vocab_size: int) -> None:
        """Raises ValueError when a node asks for more positions or ranks than there are."""
        if self.depth > positions:
            raise ValueError(
                f"the deepest choice has {self.depth} indices but there are {positions} heads; leave out the choices "
                f"longer than {positions}"
            )
        if self._highest >= vocab_size:
            raise ValueError(f"a choice has index {self._highest} but there are only {vocab_size} tokens")

    def filled(self, marginals: Marginals, context: DraftContext, budget: int, source: str) -> DraftTree:
        """The draft of one step.

        Nodes deeper than the marginals or the context allow are left out, and of the others the best ones kept when the
        budget is smaller than the tree. What a grammar forbids is left to the loop, which prunes it.

        Raises:
            ValueError: ``budget`` is below 1.
        """
        check_budget(budget)
        limit = min(self.depth, marginals.depth)
        if context.max_depth is not None:
            limit = min(limit, context.max_depth)
        scores, tokens = [1.0], [context.tokens[-1]]
        for parent, rank, depth in zip(self._parents[1:], self._ranks[1:], self._depths[1:], strict=True):
            if depth > limit:
                break  # nodes are in order of depth
            token, probability = marginals.at(depth - 1, rank)
            tokens.append(token)
            scores.append(scores[parent] * probability)
        # a child is never better than its parent and comes after it, so the best nodes hang together
        kept = sorted(range(1, len(tokens)), key=lambda node: -scores[node])[: budget - 1]
        number = {0: 0} | {node: index for index, node in enumerate(kept, start=1)}
        parents = [-1, *(number[self._parents[node]] for node in kept)]
        tree = TokenTree([tokens[0], *(tokens[node] for node in kept)], parents)
        return DraftTree.deterministic(tree, source, [scores[node] for node in kept])
