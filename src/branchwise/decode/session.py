"""The loop: propose a tree, score it in one forward, keep the path the target itself would have written.

Knows lanes and the order of a step. It knows no model (that is the target), no drafter's trick and no rule's
arithmetic.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..draft.grammar import prune
from ..draft.none import NoneDrafter
from ..draft.protocol import DraftContext, Drafter, DraftState, StepRecord, TargetLane
from ..target.protocol import Target, TargetOutput
from ..tune.budget import BudgetPolicy
from ..verify.coins import SeededCoins
from ..verify.law import LawMaker, TreeLaw
from ..verify.proposal import DraftTree
from ..verify.rule import Rule, Verdict
from ..warning import BranchwiseWarning
from .logprobs import TokenLogprobs, token_logprobs
from .request import Request
from .statistics import Generation, StepClock, StepSeconds
from .stopping import Stop, StopWatch
from .text import TextStream


@dataclass(eq=False)
class Lane:
    """One request on its way through the loop."""

    request: Request
    number: int  # the target's lane
    rule: Rule
    laws: LawMaker
    coins: SeededCoins
    context: DraftContext
    draft_state: DraftState
    watch: StopWatch
    prefill_seconds: float
    generated: list[int] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)
    seconds: list[StepSeconds] = field(default_factory=list)
    raw_logits: list[Tensor] = field(default_factory=list)  # [V] per emitted token, if asked for
    scores: list[Tensor] = field(default_factory=list)  # [V] per emitted token, if asked for
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # per emitted token, if asked for
    stop: Stop | None = None

    def __post_init__(self) -> None:
        padding = self.request.padding
        #: the committed tokens as processors see them: one list with the context's unless there is padding
        self.row = [*padding, *self.context.tokens] if padding else self.context.tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes emitted tokens in."""
        self.generated.extend(tokens)
        self.context.tokens.extend(tokens)
        if self.row is not self.context.tokens:
            self.row.extend(tokens)

    @property
    def position(self) -> int:
        """Committed tokens, the root included, without padding: the position of the next token."""
        return len(self.context.tokens)


@dataclass(frozen=True, eq=False)
class Decision:
    """What one lane's step came to before stopping: the verdict and the law behind it."""

    verdict: Verdict
    law: TreeLaw

    def tokens(self, draft: DraftTree) -> tuple[int, ...]:
        """The run: accepted tokens, then the bonus token."""
        return (*(draft.tree.tokens[node] for node in self.verdict.path[1:]), self.verdict.bonus)


class Session:
    """Runs requests side by side until each has stopped. One forward per step for all of them.

    Args:
        target: scores trees and keeps the cache.
        drafter: proposes trees; serves all lanes.
        budget: decides how large each lane's tree may be.
        tokenizer: needed for text and for stop strings.
    """

    def __init__(self, target: Target, drafter: Drafter, budget: BudgetPolicy, tokenizer=None) -> None:
        self.target = target
        self.drafter = drafter
        self.budget = budget
        self.tokenizer = tokenizer
        self.active: list[Lane] = []

    def add(self, request: Request, rule: Rule) -> Lane:
        """Checks and prefills one request; it takes part from the next `step` on."""
        with _own_grad_mode():
            return self._add(request, rule)

    def _add(self, request: Request, rule: Rule) -> Lane:
        began = time.perf_counter()
        request.check(self.target.vocab_size, self.target.context_limit)
        prompt = list(request.prompt)
        # a stop string may be, or hold, a special token
        text = TextStream(self.tokenizer, skip_special_tokens=False) if self.tokenizer is not None else None
        coins = SeededCoins(request.seed, request.return_index)
        watch = StopWatch(request.stop, (*request.padding, *prompt), len(prompt), text)
        number = self.target.open(len(prompt) + self.budget.largest, longest=len(prompt) + watch.room)
        try:
            features = self.target.prefill(number, prompt, self.drafter.feature_layers)
            context = DraftContext(prompt, self.target.vocab_size, dict(features))
            context.place = TargetLane(self.target, number)
            context.grammar = request.grammar.start() if request.grammar is not None else None
            context.sampler = request.sampler
            state = self.drafter.start(context)
        except BaseException:
            self.target.rollback()
            self.target.free(number)
            raise
        seconds = time.perf_counter() - began
        laws = LawMaker(request.sampler, context.grammar)
        lane = Lane(request, number, rule, laws, coins, context, state, watch, seconds)
        self.active.append(lane)
        return lane

    def step(self) -> list[Lane]:
        """One step of every active lane; returns the lanes that took part. Those that stopped have left."""
        with _own_grad_mode():
            return self._step()

    def _step(self) -> list[Lane]:
        lanes = list(self.active)
        if not lanes:
            return []
        clock = StepClock()
        drafts = self._propose(lanes)
        clock.lap("draft")
        outputs = self._forward(lanes, drafts)
        if _is_spoiled(drafts, outputs):
            self.target.rollback()
            drafts = NoneDrafter().propose([None] * len(lanes), [lane.context for lane in lanes], [1] * len(lanes))
            outputs = self._forward(lanes, drafts)
        clock.lap("forward")
        decisions = [self._decide(*row) for row in zip(lanes, drafts, outputs, strict=True)]
        clock.lap("verify")
        self.target.commit({lane.number: d.verdict.path for lane, d in zip(lanes, decisions, strict=True)})
        clock.lap("commit")
        records = [self._emit(*row) for row in zip(lanes, drafts, decisions, outputs, strict=True)]
        clock.lap("other")
        self._observe(lanes, records)
        clock.lap("draft")
        self._close_stopped(lanes)
        clock.lap("other")
        seconds = clock.read()
        for lane, record in zip(lanes, records, strict=True):
            lane.records.append(replace(record, output=None))
            lane.seconds.append(seconds)
        self.budget.learn([len(draft.tree) for draft in drafts], [d.verdict.path for d in decisions], seconds)
        for lane, record in zip(lanes, records, strict=True):
            if lane.request.on_tokens is not None:
                lane.request.on_tokens(record.tokens)
        return lanes

    def close(self) -> None:
        """Frees every lane; for the end and for interruptions."""
        self.target.rollback()
        for lane in self.active:
            self._leave(lane)
        self.active = []

    def generation(self, lane: Lane) -> Generation:
        """The finished lane's output and statistics."""
        assert lane.stop is not None, "the lane is still running"
        return Generation(
            tokens=tuple(lane.generated),
            prompt_tokens=len(lane.request.prompt),
            finish_reason=lane.stop.reason,
            stop_cause=lane.stop.cause,
            text=self._text(lane),
            records=tuple(lane.records),
            seconds=tuple(lane.seconds),
            prefill_seconds=lane.prefill_seconds,
            logprobs=None if lane.request.logprobs is None else tuple(lane.logprobs),
        )

    # the parts of a step

    def _propose(self, lanes: Sequence[Lane]) -> list[DraftTree]:
        for lane in lanes:
            # a run longer than what may still be emitted would be cut: do not draft it
            room = lane.watch.left - 1
            limit = self.target.depth_limit(lane.number)
            lane.context.max_depth = room if limit is None else min(room, limit)
            lane.context.coins = lane.coins.at(lane.position).drafting()
        budgets = self.budget.choose(len(lanes))
        states, contexts = [lane.draft_state for lane in lanes], [lane.context for lane in lanes]
        try:
            drafts = self.drafter.propose(states, contexts, budgets)
        except Exception as error:
            self._give_up_drafting(error)
            return self.drafter.propose([None] * len(lanes), contexts, budgets)
        if len(drafts) != len(lanes):
            raise ValueError(f"drafter {self.drafter.name!r} proposed {len(drafts)} trees for {len(lanes)} lanes")
        for lane, draft, budget in zip(lanes, drafts, budgets, strict=True):
            self._check_draft(lane, draft, budget)
        return [self._legal(lane, draft) for lane, draft in zip(lanes, drafts, strict=True)]

    def _legal(self, lane: Lane, draft: DraftTree) -> DraftTree:
        grammar = lane.context.grammar
        return draft if grammar is None else prune(draft, grammar)

    def _check_draft(self, lane: Lane, draft: DraftTree, budget: int) -> None:
        if not isinstance(draft, DraftTree):
            raise TypeError(f"drafter {self.drafter.name!r} proposed a {type(draft).__name__}, not a DraftTree")
        tree, context = draft.tree, lane.context
        fault = None
        if tree.tokens[0] != context.tokens[-1]:
            fault = f"root {tree.tokens[0]}, not the last token {context.tokens[-1]}"
        elif len(tree) > budget:
            fault = f"{len(tree)} nodes under a budget of {budget}"
        elif context.max_depth is not None and tree.height > context.max_depth:
            fault = f"depth {tree.height} where {context.max_depth} is the limit"
        elif max(tree.tokens) >= context.vocab_size:
            fault = f"token {max(tree.tokens)} in a vocabulary of {context.vocab_size}"
        if fault is not None:
            raise ValueError(f"drafter {self.drafter.name!r} proposed a tree with {fault}")

    def _forward(self, lanes: Sequence[Lane], drafts: Sequence[DraftTree]) -> list[TargetOutput]:
        trees = {lane.number: draft.tree for lane, draft in zip(lanes, drafts, strict=True)}
        outputs = self.target.forward(trees, self.drafter.feature_layers)
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)  # so that the forward's time is booked as the forward's
        return [outputs[lane.number] for lane in lanes]

    def _decide(self, lane: Lane, draft: DraftTree, output: TargetOutput) -> Decision:
        law = lane.laws.laws(draft, lane.row, output.logits)
        return Decision(lane.rule.accept(draft, law, lane.coins.at(lane.position)), law)

    def _emit(self, lane: Lane, draft: DraftTree, decision: Decision, output: TargetOutput) -> StepRecord:
        verdict = decision.verdict
        scores = [decision.law.scores(node) for node in verdict.path] if lane.request.keep_scores else []
        tokens, lane.stop = lane.watch.take(decision.tokens(draft), scores)
        lane.extend(tokens)
        if lane.request.keep_scores:
            lane.scores.extend(scores[: len(tokens)])
            lane.raw_logits.extend(decision.law.logits(node) for node in verdict.path[: len(tokens)])
        if lane.request.logprobs is not None:
            rows = output.logits[list(verdict.path[: len(tokens)])]  # [n, V]
            lane.logprobs.extend(token_logprobs(rows, tokens, lane.request.logprobs))
        if lane.context.grammar is not None:
            lane.context.grammar.advance(tokens)
        lane.context.features = {layer: rows[list(verdict.path)] for layer, rows in output.features.items()}
        return StepRecord(draft, verdict, tokens, output)

    def _observe(self, lanes: Sequence[Lane], records: Sequence[StepRecord]) -> None:
        try:
            self.drafter.observe([lane.draft_state for lane in lanes], records)
        except Exception as error:
            self._give_up_drafting(error)

    def _give_up_drafting(self, error: Exception) -> None:
        """The output does not depend on drafts, so a broken drafter costs speed and one warning, not the text."""
        warnings.warn(
            f"drafter {self.drafter.name!r} failed ({type(error).__name__}: {error}); continuing with plain decoding",
            BranchwiseWarning,
            stacklevel=_levels_to_the_user(),
        )
        for lane in self.active:
            with suppress(Exception):  # it is broken already
                self._finish_drafting(lane)
        self.drafter = NoneDrafter()

    def _close_stopped(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            if lane.stop is not None:
                self._leave(lane)
                self.active.remove(lane)

    def _leave(self, lane: Lane) -> None:
        self.target.free(lane.number)
        self._finish_drafting(lane)

    def _finish_drafting(self, lane: Lane) -> None:
        if hasattr(self.drafter, "finish"):
            self.drafter.finish(lane.draft_state)

    def _text(self, lane: Lane) -> str | None:
        if self.tokenizer is None:
            return None
        text = self.tokenizer.decode(lane.generated, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if lane.stop is None or lane.stop.cause != "stop_string":
            return text
        starts = [text.find(stop) for stop in lane.request.stop.stop_strings]
        return text[: min((start for start in starts if start >= 0), default=len(text))]


@contextmanager
def _own_grad_mode() -> Iterator[None]:
    """No gradients, as in transformers, and no inference tensors.

    A lane may be opened inside `torch.inference_mode` and step outside, where what was made inside is read-only.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


def _levels_to_the_user() -> int:
    """For a warning of the calling function: how far up the stack this package was called."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("branchwise"):
        frame, level = frame.f_back, level + 1
    return level


def _is_spoiled(drafts: Sequence[DraftTree], outputs: Sequence[TargetOutput]) -> bool:
    """Whether a root's logits are NaN that may be finite without drafts.

    A drafted token can be one that the model computes NaN for (float16 overflows, rows of the embedding never trained).
    Attention hides it from the others with a weight of zero, but zero times NaN is NaN. Plain decoding never meets it.
    """
    drafted = any(len(draft.tree) > 1 for draft in drafts)
    return drafted and bool(torch.stack([output.logits[0, 0] for output in outputs]).isnan().any())
