"""The loop: propose a tree, score it in one forward, keep the path the target itself would have written.

Knows lanes and the order of a step. It knows no model (that is the target), no drafter's trick and no rule's
arithmetic.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isnan

import torch

from ..draft.parts import drafter_parts
from ..draft.protocol import DraftContext, Drafter, StepRecord, TargetLane
from ..target.protocol import Target
from ..tune.budget import BudgetPolicy
from ..tune.shared import SharedBudget
from ..verify.coins import SeededCoins
from ..verify.law import LawMaker
from ..verify.proposal import DraftTree
from ..verify.registry import is_lossless
from ..verify.rule import Rule
from ..warning import BranchwiseWarning
from .drafting import Drafting, levels_to_the_user, lone_root
from .lane import Decision, Lane, Turn
from .logprobs import token_logprobs
from .request import Request
from .statistics import Generation, StepClock, StepSeconds
from .stopping import StopWatch
from .text import TextStream, first_stop


@contextmanager
def _own_grad_mode() -> Iterator[None]:
    """No gradients, as in transformers, and no inference tensors.

    A lane may be opened inside `torch.inference_mode` and step outside, where what was made inside is read-only.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


class Session:
    """Runs requests side by side until each has stopped. One forward per step for all of them.

    `add` and `step` are all that a fixed set of requests needs. Who moves requests in and out between steps uses the
    parts of `add`: `make`, `open`, `read`, `start`; and `suspend`, after which a lane may be opened again.

    Args:
        target: scores trees and keeps the cache.
        drafter: proposes trees; serves all lanes.
        budget: decides how large each lane's tree may be.
        tokenizer: needed for text and for stop strings.
        isolates: an exception that concerns one lane ends that lane alone, and is kept in `Lane.error`. Otherwise the
            step raises it.
        clock: seconds, as `time.perf_counter` gives them.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        budget: BudgetPolicy | SharedBudget,
        tokenizer=None,
        *,
        isolates: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.budget = budget
        self.tokenizer = tokenizer
        # a drafter may work inside the target, and fail with rows in flight there
        self._drafting = Drafting(drafter, isolates, on_failure=target.rollback)
        self.isolates = isolates
        self.clock = clock
        self.active: list[Lane] = []

    # a lane's way in and out

    @_own_grad_mode()
    def add(self, request: Request, rule: Rule) -> Lane:
        """Checks and prefills one request; it takes part from the next `step` on."""
        lane = self.make(request, rule)
        began = self.clock()
        self.open(lane)
        with self._freed_on_error(lane):
            features = self.target.prefill(lane.number, lane.context.tokens, self.drafter.feature_layers)
            lane.features = {layer: [rows] for layer, rows in features.items()}
            lane.read += lane.unread
        self.start(lane)
        lane.prefill_seconds = self.clock() - began
        return lane

    @_own_grad_mode()
    def make(self, request: Request, rule: Rule) -> Lane:
        """Checks one request; the lane has no place in the target yet.

        Raises:
            ValueError: the request cannot run; says why.
        """
        request.check(self.target.vocab_size, self.target.context_limit)
        if not is_lossless(rule):
            message = f"rule {rule.name!r} is lossy: the output does not have the target's law"
            warnings.warn(message, BranchwiseWarning, stacklevel=levels_to_the_user())
        prompt = list(request.prompt)
        # a stop string may be, or hold, a special token
        text = TextStream(self.tokenizer, skip_special_tokens=False) if self.tokenizer is not None else None
        coins = SeededCoins(request.seed, request.return_index)
        watch = StopWatch(request.stop, (*request.padding, *prompt), len(prompt), text)
        context = DraftContext(prompt, self.target.vocab_size)
        context.grammar = request.grammar.start() if request.grammar is not None else None
        context.sampler = request.sampler
        return Lane(request, rule, LawMaker(request.sampler, context.grammar), coins, context, watch)

    @_own_grad_mode()
    def open(self, lane: Lane) -> None:
        """Gives the lane a place in the target, with nothing read."""
        tokens = len(lane.context.tokens)
        lane.place = self.target.open(tokens + self.budget.largest, longest=tokens + lane.watch.left)
        lane.context.place = TargetLane(self.target, lane.place)
        lane.read = 0
        lane.has_stepped = False
        lane.features = {}

    @_own_grad_mode()
    def read(self, lane: Lane, count: int) -> None:
        """Reads the next ``count`` of the tokens before the root, in one forward.

        Raises:
            Exception: whatever the target raised; the lane has lost its place.
        """
        began = self.clock()
        tokens = lane.context.tokens[lane.read : min(lane.read + count, len(lane.context.tokens) - 1)]
        with self._freed_on_error(lane):
            features = self.target.feed(lane.number, tokens, self.drafter.feature_layers)
            self._synchronize()
        lane.read += len(tokens)
        for layer, rows in features.items():
            lane.features.setdefault(layer, []).append(rows)
        lane.prefill_seconds += self.clock() - began

    @_own_grad_mode()
    def start(self, lane: Lane) -> None:
        """Lets a lane that has read all of its tokens take part in steps.

        Raises:
            Exception: whatever the drafter raised; the lane has lost its place.
        """
        assert not lane.unread, f"{lane.unread} tokens of the lane are unread"
        lane.context.features = {layer: torch.cat(parts) for layer, parts in lane.features.items()}
        lane.features = {}
        with self._freed_on_error(lane):
            if lane.request.budget != 1:
                self._drafting.start(lane)
        self.active.append(lane)

    def suspend(self, lane: Lane) -> None:
        """Takes a lane out and frees everything it holds in target and drafter. What it has generated stays."""
        if lane in self.active:
            self.active.remove(lane)
        if lane.place is not None:
            if lane.error is not None or not lane.has_stepped:
                # its rows may hold NaN, and somebody else will lie in their place
                self.target.clear(lane.place)
                self.target.scrub(lane.place)
            self.target.free(lane.place)
            lane.place = lane.context.place = None
        self._drafting.finish(lane)

    @contextmanager
    def _freed_on_error(self, lane: Lane) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.target.rollback()
            self.suspend(lane)
            raise

    def step(self) -> list[Lane]:
        """One step of every active lane; returns the lanes that took part. Those that stopped have left."""
        with _own_grad_mode():
            return self._step()

    def _step(self) -> list[Lane]:
        lanes = list(self.active)
        if not lanes:
            return []
        clock = StepClock(self.clock)
        turns = [Turn(*row) for row in zip(lanes, self._propose(lanes), strict=True)]
        clock.lap("draft")
        self._forward(turns)
        if _is_spoiled(turns):
            self.target.rollback()
            for turn in turns:
                self.target.scrub(turn.number)
                turn.draft = lone_root(turn.lane)
            self._forward(turns)
        clock.lap("forward")
        turns = self._survivors(turns, self._decide)
        clock.lap("verify")
        self.target.commit({turn.number: turn.decision.verdict.path for turn in turns})
        clock.lap("commit")
        for turn in turns:
            turn.lane.read += len(turn.decision.verdict.path)
            turn.lane.has_stepped = True
        turns = self._survivors(turns, self._emit)
        clock.lap("other")
        self._drafting.observe(turns)
        clock.lap("draft")
        self._close_stopped(lanes)
        clock.lap("other")
        self._learn_cost(turns, clock.read())
        clock.lap("other")
        seconds = clock.read()
        for turn in turns:
            turn.lane.records.append(replace(turn.record, output=None))
            turn.lane.seconds.append(seconds)
        self._survivors(turns, _hand_out)
        return lanes

    def _survivors(self, turns: Sequence[Turn], part: Callable[[Turn], None]) -> list[Turn]:
        """Runs one part of the step for every turn; those that got through it."""
        survivors = []
        for turn in turns:
            try:
                part(turn)
            except Exception as error:
                if not self.isolates:
                    raise
                turn.lane.error = error
                if turn.lane in self.active and part is _hand_out:
                    self.suspend(turn.lane)
            else:
                survivors.append(turn)
        return survivors

    def close(self) -> None:
        """Frees every lane; for the end and for interruptions."""
        self.target.rollback()
        for lane in list(self.active):
            self.suspend(lane)

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
            prompt=lane.request.prompt,
            tokenizer=self.tokenizer,
            drafter_parts=drafter_parts(self.drafter),
        )

    # the parts of a step

    def _propose(self, lanes: Sequence[Lane]) -> list[DraftTree]:
        for lane in lanes:
            # a run longer than what may still be emitted would be cut: do not draft it
            room = lane.watch.left - 1
            limit = self.target.depth_limit(lane.number)
            lane.context.max_depth = room if limit is None else min(room, limit)
            lane.context.coins = lane.coins.at(lane.position).drafting()
        drafts = self._drafting.propose(lanes, self._budgets)
        return self.budget.divide(_numbers(lanes), drafts) if isinstance(self.budget, SharedBudget) else drafts

    def _budgets(self, lanes: Sequence[Lane]) -> list[int]:
        if isinstance(self.budget, SharedBudget):
            # the step is that of all lanes: who is not drafted for takes part with a root
            everybody = _numbers(self.active)
            context = sum(len(lane.context.tokens) for lane in self.active) / len(self.active)
            shares = dict(zip(everybody, self.budget.ceilings(everybody, context), strict=True))
            budgets = [shares[lane.number] for lane in lanes]
        else:
            budgets = self.budget.choose(len(lanes))
        return [min(budget, lane.request.budget or budget) for lane, budget in zip(lanes, budgets, strict=True)]

    def _forward(self, turns: Sequence[Turn]) -> None:
        layers = self.drafter.feature_layers if any(turn.lane.is_drafting for turn in turns) else ()
        outputs = self.target.forward({turn.lane.number: turn.draft.tree for turn in turns}, layers)
        self._synchronize()
        for turn in turns:
            turn.scored = outputs[turn.lane.number]

    def _synchronize(self) -> None:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)  # so that the forward's time is booked as the forward's

    def _decide(self, turn: Turn) -> None:
        lane = turn.lane
        law = lane.laws.laws(turn.draft, lane.row, turn.output.logits, turn.output.best)
        turn.decided = Decision(lane.rule.accept(turn.draft, law, lane.coins.at(lane.position)), law)

    def _emit(self, turn: Turn) -> None:
        lane, output, decision = turn.lane, turn.output, turn.decision
        verdict = decision.verdict
        scores = [decision.law.scores(node) for node in verdict.path] if lane.request.keep_scores else []
        tokens, lane.stop = lane.watch.take(decision.tokens(turn.draft), scores)
        lane.extend(tokens)
        if lane.request.keep_scores:
            lane.scores.extend(scores[: len(tokens)])
            lane.raw_logits.extend(decision.law.logits(node) for node in verdict.path[: len(tokens)])
        if lane.request.logprobs is not None:
            rows = output.logits[list(verdict.path[: len(tokens)])]  # [n, V]
            lane.logprobs.extend(token_logprobs(rows, tokens, lane.request.logprobs))
        # before the grammar moves on, and after the verdict, which they cannot change any more
        probabilities = decision.law.probabilities() if lane.request.target_probabilities else ()
        if lane.context.grammar is not None:
            lane.context.grammar.advance(tokens)
        lane.context.features = {layer: rows[list(verdict.path)] for layer, rows in output.features.items()}
        turn.recorded = StepRecord(turn.draft, verdict, tokens, output, probabilities)

    def _learn_cost(self, turns: Sequence[Turn], seconds: StepSeconds) -> None:
        if not isinstance(self.budget, SharedBudget):
            # trees that were kept small say nothing about what large ones give
            turns = [turn for turn in turns if turn.lane.request.budget is None]
        if not turns:
            return
        verdicts = [turn.decision.verdict for turn in turns]
        drafts = [turn.draft for turn in turns]
        if isinstance(self.budget, SharedBudget):
            self.budget.learn_shares([turn.number for turn in turns], drafts, verdicts, seconds)
        else:
            self.budget.learn([len(draft.tree) for draft in drafts], [verdict.path for verdict in verdicts], seconds)

    def _close_stopped(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            if lane.stop is not None or lane.error is not None:
                self.suspend(lane)

    def _text(self, lane: Lane) -> str | None:
        if self.tokenizer is None:
            return None
        text = self.tokenizer.decode(lane.generated, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if lane.stop is None or lane.stop.cause != "stop_string":
            return text
        return text[: first_stop(text, lane.request.stop.stop_strings)]


def _is_spoiled(turns: Sequence[Turn]) -> bool:
    """Whether a root's logits are NaN that may be finite without drafts.

    A drafted token can be one that the model computes NaN for (float16 overflows, rows of the embedding never trained).
    Attention hides it from the others with a weight of zero, but zero times NaN is NaN. Plain decoding never meets it.
    """
    if all(len(turn.draft.tree) == 1 for turn in turns):
        return False
    firsts = [turn.output.logits[0, 0] for turn in turns]
    if len(firsts) == 1:
        return isnan(firsts[0])  # a tenth of the time of the line below
    return bool(torch.stack(firsts).isnan().any())


def _numbers(lanes: Sequence[Lane]) -> list[int]:
    return [lane.number for lane in lanes]


def _hand_out(turn: Turn) -> None:
    if turn.lane.request.on_tokens is not None:
        turn.lane.request.on_tokens(turn.record.tokens)
