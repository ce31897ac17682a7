"""What a head is worth: prompts it was never trained on, through the ordinary loop, plain and with trees of many sizes.

Every prompt goes through every setting in turn, so that a busy machine slows all of them alike. Knows drafters of
trained heads; the tables are made in `evaluation_report`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..decode import Generation, Speculator
from ..draft.block import BlockDrafter
from ..draft.eagle import EagleDrafter
from ..draft.medusa import MedusaDrafter
from ..draft.none import NoneDrafter
from ..draft.protocol import DraftContext, Drafter, DraftState, StepRecord
from ..target.protocol import Target
from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .corpus import Piece
from .progress import Progress
from .shards import ANSWER

#: budgets of the trees, root included: 8 to 64 drafted nodes
BUDGETS = (9, 17, 33, 65)
#: ranks that are told apart; the rest is lumped together
RANKS = 8
#: nodes that a tree is asked for where only its best chain is kept
CHAIN_BUDGET = 65


@dataclass(frozen=True)
class HeadFolder:
    """A trained head on disk.

    Attributes:
        path: its folder.
        kind: ``"eagle"``, ``"block"`` or ``"medusa"``.
    """

    path: Path
    kind: str

    @classmethod
    def open(cls, path: Path) -> HeadFolder:
        """Tells the kind by the keys of the config.

        Raises:
            ValueError: there is no config.
        """
        config = path / "config.json"
        if not config.is_file():
            raise ValueError(f"{path} holds no head (no config.json)")
        keys = json.loads(config.read_text(encoding="utf-8"))
        if "medusa_num_heads" in keys:
            return cls(path, "medusa")
        return cls(path, "block" if "block_size" in keys or "dflash_config" in keys else "eagle")

    def drafter(self, model: PreTrainedModel) -> Drafter:
        """The head's drafter."""
        load: dict[str, Callable[..., Drafter]] = {
            "eagle": EagleDrafter.load,
            "block": BlockDrafter.load,
            "medusa": MedusaDrafter.load,
        }
        return load[self.kind](self.path, model)

    def chain_drafter(self, model: PreTrainedModel) -> Drafter:
        """The same with one branch only."""
        if self.kind == "eagle":
            return EagleDrafter.load(self.path, model, width=1)
        return BestChain(self.drafter(model))


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


@dataclass
class Counts:
    """What one setting came to over all prompts.

    Attributes:
        asked: per depth, steps whose path reached the depth before and whose tree went that deep there.
        accepted: per depth and rank of the accepted child among its siblings, from 0.
    """

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    forward_seconds: float = 0.0
    asked: dict[int, int] = field(default_factory=dict)
    accepted: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, generation: Generation) -> None:
        """Counts one more output."""
        self.tokens += len(generation.tokens)
        self.steps += generation.steps
        self.seconds += generation.decode_seconds
        self.forward_seconds += sum(step.forward for step in generation.seconds)
        for record in generation.records:
            self._add_step(record)

    def _add_step(self, record: StepRecord) -> None:
        tree, path = record.draft.tree, record.verdict.path
        for depth, node in enumerate(path, start=1):
            children = tree.children(node)
            if not children:
                return
            self.asked[depth] = self.asked.get(depth, 0) + 1
            if depth == len(path):
                return
            key = (depth, min(RANKS, children.index(path[depth])))
            self.accepted[key] = self.accepted.get(key, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON: figures, and per depth the share of asked steps that each rank was accepted in."""
        depths = []
        for depth in sorted(self.asked):
            ranks = [self.accepted.get((depth, rank), 0) for rank in range(RANKS + 1)]
            asked = self.asked[depth]
            depths.append(
                {
                    "depth": depth,
                    "asked": asked,
                    "accepted": round(sum(ranks) / asked, 4),
                    "by_rank": [round(count / asked, 4) for count in ranks],
                }
            )
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_step": round(self.tokens / max(1, self.steps), 4),
            "tokens_per_second": round(self.tokens / self.seconds, 3) if self.seconds else 0.0,
            "forward_share": round(self.forward_seconds / self.seconds, 4) if self.seconds else 0.0,
            "depths": depths,
        }


def evaluate(
    folder: HeadFolder,
    target: Target,
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    budgets: Sequence[int] = BUDGETS,
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Generates greedily from every prompt with every setting.

    Args:
        folder: the head.
        target: that the head was trained for.
        model: the same as a transformers model.
        prompts: token ids each.
        max_new_tokens: per prompt.
        budgets: of the trees, root included.
        progress: told after every prompt.

    Returns:
        setting (``plain``, ``chain``, ``tree-9``, ...) -> figures, with ``equal`` (outputs that are plain decoding's).
    """
    settings: dict[str, tuple[Drafter, int]] = {
        "plain": (NoneDrafter(), 1),
        "chain": (folder.chain_drafter(model), max(budgets)),
    }
    tree = folder.drafter(model)
    settings |= {f"tree-{budget}": (tree, budget) for budget in budgets}
    runs = {
        name: Speculator(target, drafter=drafter, rule="greedy", budget=budget)
        for name, (drafter, budget) in settings.items()
    }
    counts = {name: Counts() for name in runs}
    equal = dict.fromkeys(runs, 0)
    for place, prompt in enumerate(prompts):
        outputs = {
            name: run.complete(prompt, max_new_tokens=max_new_tokens, do_sample=False) for name, run in runs.items()
        }
        for name, generation in outputs.items():
            counts[name].add(generation)
            equal[name] += generation.tokens == outputs["plain"].tokens
        progress.update((place + 1) / len(prompts), f"prompt {place + 1} of {len(prompts)}")
    return {name: {**count.as_dict(), "equal": equal[name], "prompts": len(prompts)} for name, count in counts.items()}


def held_out_prompts(pieces: Sequence[Piece], most: int) -> list[list[int]]:
    """The questions of held-out dialogues, with the template up to the answer."""
    found = []
    for piece in pieces:
        roles = piece.sequence.roles.tolist()
        if ANSWER in roles and roles.index(ANSWER) > 0:
            found.append(piece.sequence.tokens[: roles.index(ANSWER)].tolist())
    return found[:most]
