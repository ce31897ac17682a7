"""The target behind one small protocol: whatever runs the model, the loop sees only this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..cache import Snapshot
from ..tree import TokenTree

#: logits of `TargetOutput.top`, or all where there are fewer: as many as `draft.recycling` files
TOP_LOGITS = 8


@dataclass(frozen=True, eq=False)
class TargetOutput:
    """What one lane gets from one forward.

    Attributes:
        logits: ``[N, V]``, one row per node of the tree, in the model's own dtype.
        features: hidden states the drafter asked for, by layer: ``{layer: [N, h]}``. Layer i is the input of decoder
            layer i (i = number of layers: the last layer's output after the final norm), as ``hidden_states[i]``.
        top: values and tokens ``[N, k]`` of every node's `TOP_LOGITS` largest logits, falling, of equal ones the lowest
            id first; in a row that holds a NaN the first value is one and its token -1. None from a target that does
            not tell.
    """

    logits: Tensor
    features: Mapping[int, Tensor] = field(default_factory=dict)
    top: tuple[Tensor, Tensor] | None = None

    @property
    def best(self) -> list[int] | None:
        """Every node's best token by its logits, -1 where one is NaN; None from a target that does not tell."""
        return None if self.top is None else self.top[1][:, 0].tolist()


class Target(Protocol):
    """The model being sped up. Its law is the truth.

    A lane is one sequence's slot. The life of a lane: `open`, `prefill` of the prompt (all of it but the last token,
    which is the first root) or several `feed`, then `forward` and `commit` once per step, then `free`.
    """

    vocab_size: int
    device: torch.device
    #: tokens a lane may hold in all, or None when the model sets no bound
    context_limit: int | None

    def open(self, expected_rows: int = 0, longest: int | None = None) -> int:
        """Takes a free lane and returns its number.

        Args:
            expected_rows: rows to allocate at first (prompt and one tree), a hint.
            longest: tokens the lane may reach in all. A target whose positions depend on the length refuses here what
                it cannot keep exact.
        """
        ...

    def prefill(self, lane: int, prompt: Sequence[int], feature_layers: tuple[int, ...] = ()) -> Mapping[int, Tensor]:
        """Commits ``prompt[:-1]`` to an empty lane, in chunks; returns their features ``{layer: [P - 1, h]}``."""
        ...

    def feed(self, lane: int, tokens: Sequence[int], feature_layers: tuple[int, ...] = ()) -> Mapping[int, Tensor]:
        """Commits the next tokens of a prompt to a lane in one forward; returns their features ``{layer: [n, h]}``."""
        ...

    def forward(self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...] = ()) -> dict[int, TargetOutput]:
        """Scores every node of one tree per lane in one forward; the rows stay in flight until `commit`."""
        ...

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """Keeps the rows of each lane's path (root first, in order) and drops every other row in flight."""
        ...

    def rollback(self) -> None:
        """Drops all rows in flight; nothing to do when none are."""
        ...

    def clear(self, lane: int) -> None:
        """Forgets all committed tokens of a lane, which stays open."""
        ...

    def scrub(self, lane: int) -> None:
        """Says that rows of a lane that were dropped may hold NaN, which later forwards must never meet."""
        ...

    def free(self, lane: int) -> None:
        """Gives the lane's rows back."""
        ...

    def length(self, lane: int) -> int:
        """Committed tokens of the lane whose keys and values are in the cache."""
        ...

    def depth_limit(self, lane: int) -> int | None:
        """Deepest node a tree of this lane may have now (positional limits), or None when nothing limits it."""
        ...

    def snapshot(self, lane: int) -> Snapshot:
        """A copy of the lane's committed rows, to serve other lanes with the same first tokens."""
        ...

    def restore(self, lane: int, snapshot: Snapshot, tokens: Sequence[int]) -> None:
        """Gives an empty lane the rows of ``tokens``, the first of a snapshot."""
        ...

    def limit_rows(self, rows: int) -> None:
        """Bounds the rows that all lanes together may take; a lane takes as many as the longest."""
        ...

    @property
    def solo_beyond(self) -> int | None:
        """A request that may grow past so many tokens can only run alone; None when requests never mind each other."""
        ...


@runtime_checkable
class InPasses(Protocol):
    """What a target has beside `Target` where forwards cost by passes over the weights, each for so many nodes.

    Without it, a node more is taken to cost little wherever it falls.
    """

    rows_at_once: int


class GrowingTarget(Target, Protocol):
    """A target that a drafter can run: its trees grow level by level, and each level is a forward of the new nodes."""

    model: PreTrainedModel

    def for_drafting(self) -> GrowingTarget:
        """The same model on the same engine, with lanes and trees in flight of its own."""
        ...

    def forward(
        self,
        trees: Mapping[int, TokenTree],
        feature_layers: tuple[int, ...] = (),
        wanted: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, TargetOutput]:
        """As `Target.forward`.

        Args:
            trees: by lane.
            feature_layers: hidden states to give, of all nodes.
            wanted: by lane, the nodes whose logits are given, in this order; of all nodes if absent.
        """
        ...

    def extend(
        self,
        trees: Mapping[int, TokenTree],
        feature_layers: tuple[int, ...] = (),
        wanted: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, TargetOutput]:
        """Scores only the nodes that trees have grown by since `forward`; all rows stay in flight until `commit`.

        Args:
            trees: for lanes in flight, trees that begin with the nodes in flight. Lanes that are not named do not grow.
            feature_layers: hidden states to give, of the new nodes.
            wanted: as for `forward`, among the new nodes, numbered in the whole tree.
        """
        ...

    def shorten(self, lane: int, length: int) -> None:
        """Forgets committed tokens from ``length`` on, maybe all of them: look at `length`."""
        ...
