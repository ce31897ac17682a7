"""One prompt with and without drafts: is it faster, and is the output the same?

Knows one prompt. Many prompts, other libraries and shares of time are the `runner`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..decode import Generation, Speculator
from ..draft import Drafter
from ..target.protocol import Target
from ..verify.grammar import Grammar
from .agreement import Divergence, explain_difference, first_difference
from .sampling import Sampling

WARM_UP_TOKENS = 8
#: who runs when: each goes first and last once, so that a machine that warms up or slows down favours neither
ORDER = ("drafts", "plain", "plain", "drafts")


@dataclass(frozen=True, eq=False)
class Order:
    """What to generate; the same for both.

    Attributes:
        prompt: token ids.
        sampling: how the next token is chosen.
        max_new_tokens: most tokens.
        stop_strings: what ends the text.
        seed: of the coins; needed when sampling, else both would draw differently.
        grammar: what the text must look like, or None.
        logprobs: alternatives per token whose log-probabilities are kept, or None.
        target_probabilities: keep the target's probability of every drafted node.
    """

    prompt: Sequence[int]
    sampling: Sampling
    max_new_tokens: int
    stop_strings: tuple[str, ...] = ()
    seed: int | None = None
    grammar: Grammar | None = None
    logprobs: int | None = None
    target_probabilities: bool = False

    def run(self, speculator: Speculator, streamer: Any = None, max_new_tokens: int | None = None) -> Generation:
        """Generates once."""
        ids = torch.tensor([list(self.prompt)])
        output = speculator.generate(
            ids,
            # without a mask transformers would take prompt tokens that equal the pad token for padding
            attention_mask=torch.ones_like(ids),
            streamer=streamer,
            seed=self.seed,
            max_new_tokens=max_new_tokens or self.max_new_tokens,
            stop_strings=list(self.stop_strings) or None,
            return_dict_in_generate=True,
            grammar=self.grammar,
            logprobs=self.logprobs,
            target_probabilities=self.target_probabilities,
            **self.sampling.as_transformers(),
        )
        assert not isinstance(output, torch.Tensor) and isinstance(output.branchwise, Generation)
        return output.branchwise


@dataclass(frozen=True, eq=False)
class Comparison:
    """What came out.

    Attributes:
        drafts: the first run with drafts.
        plain: the first run without.
        speed_up: tokens per second with drafts over those without, both runs of each together, prefill not included.
        drafts_tokens_per_second, plain_tokens_per_second: the two.
        position: first token that differs, or None.
        divergence: gap and rounding there, for greedy output.
    """

    drafts: Generation
    plain: Generation
    drafts_tokens_per_second: float
    plain_tokens_per_second: float
    position: int | None
    divergence: Divergence | None

    @property
    def speed_up(self) -> float:
        """See above."""
        return self.drafts_tokens_per_second / self.plain_tokens_per_second if self.plain_tokens_per_second else 0.0

    def line(self) -> str:
        """For a reader."""
        return (
            f"{self.speed_up:.2f}x plain decoding ({self.drafts_tokens_per_second:.1f} against "
            f"{self.plain_tokens_per_second:.1f} tokens/s), {self._agreement()}"
        )

    def _agreement(self) -> str:
        if self.position is None:
            return "all tokens agree"
        found = f"tokens differ from token {self.position + 1} on"
        if self.divergence is None:
            return found
        kind = "a near-tie" if self.divergence.is_near_tie else "NOT a near-tie"
        gap, rounding = self.divergence.gap, self.divergence.rounding
        return f"{found}: {kind} (gap of the two best logits {gap:.3g}, rounding {rounding:.3g})"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "speed_up": round(self.speed_up, 4),
            "tokens_per_second": round(self.drafts_tokens_per_second, 3),
            "plain_tokens_per_second": round(self.plain_tokens_per_second, 3),
            "tokens_agree": self.position is None,
            "first_difference": self.position,
            "difference": self.divergence.as_dict() if self.divergence is not None else None,
        }


def compare(
    order: Order,
    target: Target,
    tokenizer: Any,
    drafter: Callable[[], Drafter],
    rule: str,
    budget: str | int,
    streamer: Any = None,
) -> Comparison:
    """Runs the prompt twice with drafts and twice without, in turns.

    Every run with drafts starts with a drafter that has seen nothing, so that none profits from the other's output.

    Args:
        order: what to generate.
        target: the model.
        tokenizer: its tokenizer.
        drafter: makes the drafter of a run with drafts.
        rule: of all runs.
        budget: of the runs with drafts.
        streamer: gets the tokens of the first run with drafts.
    """

    def speculator(kind: str) -> Speculator:
        if kind == "plain":
            return Speculator(target, tokenizer, drafter="none", rule=rule, budget=1)
        return Speculator(target, tokenizer, drafter=drafter(), rule=rule, budget=budget)

    for kind in ("plain", "drafts"):
        order.run(speculator(kind), max_new_tokens=min(WARM_UP_TOKENS, order.max_new_tokens))
    runs: dict[str, list[Generation]] = {"plain": [], "drafts": []}
    for place, kind in enumerate(ORDER):
        runs[kind].append(order.run(speculator(kind), streamer if place == 0 else None))
    drafts, plain = runs["drafts"][0], runs["plain"][0]
    position = first_difference(plain.tokens, drafts.tokens)
    divergence = None
    # under a grammar the two best logits may both be illegal: their gap would say nothing
    if position is not None and order.sampling.is_greedy and order.grammar is None:
        nodes = max(len(record.draft.tree) for record in drafts.records)
        divergence = explain_difference(target, order.prompt, plain.tokens, drafts.tokens, nodes)
    return Comparison(drafts, plain, _rate(runs["drafts"]), _rate(runs["plain"]), position, divergence)


def _rate(runs: Sequence[Generation]) -> float:
    seconds = sum(run.decode_seconds for run in runs)
    return sum(len(run.tokens) for run in runs) / seconds if seconds else 0.0
