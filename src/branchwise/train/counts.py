"""What one setting of an evaluation came to: tokens, steps and seconds, and what was accepted by depth and rank.

Knows runs of the benchmark's methods; knows no head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..bench.methods import Run
from ..draft.protocol import StepRecord

#: ranks that are told apart; the rest is lumped together
RANKS = 8


@dataclass
class Counts:
    """Sums over prompts.

    Attributes:
        prompts, equal: how many, and those whose output was plain decoding's.
        tokens, steps: emitted tokens, and forwards that emitted them.
        decode_tokens, decode_seconds: those after the first run of tokens, see `bench.stopwatch`.
        draft_seconds, forward_seconds: of every step; empty for transformers.
        asked: per depth, steps whose path reached the depth before and whose tree went that deep there.
        accepted: per depth and rank of the accepted child among its siblings, from 0.
        proposed: steps by the depth of their tree.
    """

    prompts: int = 0
    equal: int = 0
    tokens: int = 0
    steps: int = 0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    draft_seconds: list[float] = field(default_factory=list)
    forward_seconds: list[float] = field(default_factory=list)
    asked: dict[int, int] = field(default_factory=dict)
    accepted: dict[tuple[int, int], int] = field(default_factory=dict)
    proposed: dict[int, int] = field(default_factory=dict)

    def add(self, run: Run, is_equal: bool) -> None:
        """Counts one more output."""
        self.prompts += 1
        self.equal += is_equal
        self.tokens += len(run.tokens)
        self.steps += run.timing.runs
        self.decode_tokens += run.timing.decode_tokens
        self.decode_seconds += run.timing.decode_seconds
        self.draft_seconds += [step.draft for step in run.decode_steps]
        self.forward_seconds += [step.forward for step in run.decode_steps]
        if run.generation is not None:
            for record in run.generation.records:
                self._add_step(record)

    def _add_step(self, record: StepRecord) -> None:
        tree, path = record.draft.tree, record.verdict.path
        self.proposed[tree.height] = self.proposed.get(tree.height, 0) + 1
        for depth, node in enumerate(path, start=1):
            children = tree.children(node)
            if not children:
                return
            self.asked[depth] = self.asked.get(depth, 0) + 1
            if depth == len(path):
                return
            key = (depth, min(RANKS, children.index(path[depth])))
            self.accepted[key] = self.accepted.get(key, 0) + 1

    @property
    def tokens_per_second(self) -> float:
        """Of decoding, prefill not included."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON: figures, and per depth the share of asked steps that each rank was accepted in.

        ``draft_of_forward`` is the time of drafting as a share of that of the target's forwards.
        """
        figures: dict[str, Any] = {
            "prompts": self.prompts,
            "equal": self.equal,
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_step": round(self.tokens / max(1, self.steps), 4),
            "tokens_per_second": round(self.tokens_per_second, 3),
        }
        if self.forward_seconds:
            drafting, forwards = sum(self.draft_seconds), sum(self.forward_seconds)
            figures |= {
                "draft_ms": round(1e3 * median(self.draft_seconds), 3),
                "forward_ms": round(1e3 * median(self.forward_seconds), 3),
                "draft_of_forward": round(drafting / forwards, 4),
                "forward_share": round(forwards / self.decode_seconds, 4) if self.decode_seconds else 0.0,
            }
        return figures | {"depths": self._depths(), "tree_heights": dict(sorted(self.proposed.items()))}

    def _depths(self) -> list[dict[str, Any]]:
        depths = []
        for depth, asked in sorted(self.asked.items()):
            ranks = [self.accepted.get((depth, rank), 0) for rank in range(RANKS + 1)]
            depths.append(
                {
                    "depth": depth,
                    "asked": asked,
                    "accepted": round(sum(ranks) / asked, 4),
                    "by_rank": [round(count / asked, 4) for count in ranks],
                }
            )
        return depths
