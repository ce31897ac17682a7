"""Many users, one model: requests join and leave between steps of one session.

A step of the engine, in this order:

    leave     cancelled requests, and the youngest ones where rows run short (they come back later)
    join      waiting requests that fit get a lane; the beginning of their prompt is copied if it is known
    step      one forward over the trees of all running requests (`Session.step`)
    publish   tokens to the handles, results of those that stopped
    read      the next chunk of somebody's prompt, sized so that nobody's stream stalls

Knows requests and their order. How a step works is the session's business, who fits is `LanePool`'s, how much is read
at once is `ChunkPacer`'s, what is known of a prompt is `PrefixStore`'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..draft.protocol import Drafter
from ..target.protocol import Target
from ..tune.budget import BudgetPolicy, make_budget
from ..tune.shared import SharedBudget
from ..verify.registry import DraftKind, resolve_rule
from ..verify.rule import Rule
from .admission import LanePool, QueueFull, RequestTooLarge, WaitingLine
from .attach import as_target, drafter_for
from .engine_statistics import EngineStatistics
from .handle import Handle, RequestCancelled
from .lane import Lane
from .pacing import ChunkPacer, ReadingOrder
from .prefix_reuse import Prefix, PrefixStore
from .request import Request
from .session import Session

#: seconds an idle engine sleeps before it looks around by itself
IDLE_SECONDS = 1.0


@dataclass(eq=False)
class _Ticket:
    """One request inside the engine."""

    handle: Handle
    lane: Lane
    number: int  # of its arrival
    published: int = 0  # tokens
    last_run_at: float | None = None

    @property
    def length(self) -> int:
        """Tokens its lane holds when it is read."""
        return len(self.lane.context.tokens)


class Engine:
    """Serves requests of many users from one model; every request's output is what it is alone.

    Drive it with `step`, or let a thread of its own do so (`start`, or `run_forever` in a thread of yours). Submit from
    any thread. Leaving it as a context manager ends everything.

    Args:
        model: as for `Speculator`; nobody else may run it at the same time.
        tokenizer: needed for text, stop strings and grammars only.
        drafter: as for `Speculator`; it serves all requests.
        drafter_options: as for `Speculator`.
        rule: for requests that name none.
        budget: ``"auto"`` shares one budget per step among the requests (see `SharedBudget`); a number gives every
            request that many nodes; 1 is plain decoding.
        max_lanes: most requests that run or are being read at once.
        pool_tokens: rows of keys and values over all lanes; lanes are as long as the longest.
        queue_limit: most requests that wait; None for no limit.
        prefix_bytes: memory for prompts that are kept so that others need not be read again; 0 switches this off.
        engine: as for `Speculator`.
        weights: as for `Speculator`.
        clock: seconds, as `time.perf_counter` gives them.

    Raises:
        ValueError: a number is out of range, or a name is not known.
        UnsupportedModel, TypeError: as for `Speculator`.
    """

    def __init__(
        self,
        model: PreTrainedModel | Target,
        tokenizer: Any = None,
        *,
        drafter: str | Drafter = "auto",
        drafter_options: Mapping[str, Any] | None = None,
        rule: str | Rule = "auto",
        budget: int | str | BudgetPolicy | SharedBudget = "auto",
        max_lanes: int = 16,
        pool_tokens: int = 32_768,
        queue_limit: int | None = None,
        prefix_bytes: int = 256 * 2**20,
        engine: str = "transformers",
        weights: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if max_lanes < 1:
            raise ValueError(f"max_lanes must be >= 1, got {max_lanes}")
        if queue_limit is not None and queue_limit < 1:
            raise ValueError(f"queue_limit must be >= 1, or None for no limit, got {queue_limit}")
        if prefix_bytes < 0:
            raise ValueError(f"prefix_bytes must be >= 0, got {prefix_bytes}")
        target = as_target(model, engine, weights)
        policy = make_budget(budget, target)
        own = drafter_for(target, tokenizer, drafter, drafter_options)
        self.session = Session(target, own, policy, tokenizer, isolates=True, clock=clock)
        self.statistics = EngineStatistics()
        self.max_lanes = max_lanes
        self.queue_limit = queue_limit
        self.pool = LanePool(pool_tokens, tree_rows=policy.largest)
        self.prefixes = PrefixStore(prefix_bytes)
        self._rule = rule
        self._clock = clock
        self._pacer = ChunkPacer()
        self._order = ReadingOrder()
        self._line: WaitingLine[_Ticket] = WaitingLine()
        self._reading: list[_Ticket] = []  # in order of arrival
        self._running: list[_Ticket] = []
        self._lock = threading.Lock()  # guards the three below
        self._woken = threading.Condition(self._lock)
        self._inbox: list[_Ticket] = []
        self._arrivals = 0
        self._is_closing = False
        self._cancelled_below = 0  # requests of lower numbers are cancelled
        self._thread: threading.Thread | None = None
        self._steps_alone = threading.Lock()  # one thread steps at a time
        target.limit_rows(self.pool.rows)

    @property
    def target(self) -> Target:
        """The model being sped up."""
        return self.session.target

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, or None."""
        return self.session.tokenizer

    # for users, from any thread

    def submit(self, request: Request, rule: str | Rule | None = None) -> Handle:
        """Checks a request and puts it in line.

        Args:
            request: what is asked.
            rule: how drafts are judged; the engine's own by default.

        Raises:
            ValueError: the request cannot run here; says why (`RequestTooLarge` where it is the pool).
            QueueFull: too many wait already.
            RuntimeError: the engine is shutting down.
        """
        kind = DraftKind.of(self.session.drafter)
        chosen = resolve_rule(
            self._rule if rule is None else rule, request.sampler, kind, seeded=request.seed is not None
        )
        lane = self.session.make(request, chosen)
        self._check_size(len(request.prompt), lane.watch.room)
        with self._woken:
            if self._is_closing:
                raise RuntimeError("the engine is shutting down and takes no more requests")
            if self.queue_limit is not None and len(self._inbox) + len(self._line) >= self.queue_limit:
                self.statistics.refused += 1
                raise QueueFull(f"{self.queue_limit} requests wait already; try again later")
            number, self._arrivals = self._arrivals, self._arrivals + 1
            handle = Handle(request, number, self.tokenizer, self._clock(), self._wake)
            self._inbox.append(_Ticket(handle, lane, number))
            self._woken.notify_all()
        return handle

    def start(self) -> Engine:
        """Steps in a thread of its own until `shutdown`."""
        if self._thread is not None:
            raise RuntimeError("the engine is running already")
        self._thread = threading.Thread(target=self.run_forever, name="branchwise-engine", daemon=True)
        self._thread.start()
        return self

    def shutdown(self, drain: bool = True, timeout: float | None = None) -> None:
        """Takes no more requests and ends.

        Args:
            drain: let what was submitted finish; otherwise it is cancelled.
            timeout: seconds to wait for that at most; what is left then is cancelled.
        """
        with self._woken:
            self._is_closing = True
            self._woken.notify_all()
        if self._thread is not None and drain:
            self._thread.join(timeout)
        if not drain or (self._thread is not None and self._thread.is_alive()):
            self.cancel_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        else:
            while self.step():
                pass

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown(drain=False)

    def most_new_tokens(self, prompt_tokens: int) -> int:
        """The most tokens that a request with such a prompt may ask for here; below 1 when the prompt is too long."""
        limits = (self.target.context_limit, self.target.solo_beyond, self.pool.most_tokens)
        return min(limit for limit in limits if limit is not None) - prompt_tokens

    @property
    def is_healthy(self) -> bool:
        """Whether requests are taken, and served if the engine has a thread for that."""
        return not self._is_closing and (self._thread is None or self._thread.is_alive())

    # the loop

    def run_forever(self) -> None:
        """Steps until `shutdown`, sleeping while there is nothing to do."""
        try:
            while True:
                busy = self.step()
                with self._woken:
                    if not busy and not self._inbox:
                        if self._is_closing:
                            return
                        self._woken.wait(IDLE_SECONDS)
        except BaseException as error:
            # nobody steps any more: whoever waits must not wait for ever
            self._end_everything(error)
            raise

    def step(self) -> bool:
        """One step; returns whether anything is left to do."""
        with self._steps_alone:
            self._take_inbox()
            self._drop_cancelled()
            self._make_room()
            self._let_in()
            if self._running:
                self._step_session()
            if self._reading:
                self._read()
            self._count()
            return bool(self._running or self._reading or len(self._line))

    def _take_inbox(self) -> None:
        with self._lock:
            arrived, self._inbox = self._inbox, []
        self._line.join(arrived)

    def _drop_cancelled(self) -> None:
        for ticket in [*self._line, *self._reading, *self._running]:
            if ticket.handle.is_cancelled or ticket.number < self._cancelled_below:
                self._end(ticket, RequestCancelled(f"request {ticket.number} was cancelled"))

    def _make_room(self) -> None:
        """Where rows run short the youngest lanes leave, to be read again later."""
        while not self.pool.fits(self._lengths()):
            self._preempt()

    def _preempt(self) -> None:
        youngest = max([*self._reading, *self._running], key=lambda ticket: ticket.number)
        self._take_out(youngest)
        self._line.return_to_front(youngest)
        youngest.handle.preemptions += 1
        self.statistics.preemptions += 1

    def _let_in(self) -> None:
        while len(self._reading) + len(self._running) < self.max_lanes:
            ticket = self._line.next(self._fits)
            if ticket is None:
                return
            try:
                self.session.open(ticket.lane)
            except Exception as error:
                self._end(ticket, error)
                continue
            self._reading.append(ticket)
            self._reading.sort(key=lambda reading: reading.number)

    def _fits(self, ticket: _Ticket) -> bool:
        lengths = self._lengths()
        # who joins others should not have to leave again at once: room for one more block of text
        spare = self.pool.block_rows if lengths else 0
        return self.pool.fits([*(length + spare for length in lengths), ticket.length + spare])

    def _lengths(self) -> list[int]:
        return [ticket.length for ticket in (*self._reading, *self._running)]

    def _step_session(self) -> None:
        began = self._clock()
        try:
            self.session.step()
        except Exception as error:
            self._survive(error)
            return
        self._pacer.learn_step(self._clock() - began)
        self.statistics.steps += 1
        for ticket in list(self._running):
            self._publish(ticket)

    def _survive(self, error: Exception) -> None:
        """A forward failed for all lanes: with less memory it may work, otherwise they end with its error."""
        self.target.rollback()
        if _is_out_of_memory(error) and len(self._running) > 1:
            self._preempt()
            return
        for ticket in list(self._running):
            self._end(ticket, error)

    def _publish(self, ticket: _Ticket) -> None:
        lane, handle = ticket.lane, ticket.handle
        handle.draft_error = lane.draft_error
        run = tuple(lane.generated[ticket.published :])
        if run:
            self._time_run(ticket)
            logprobs = lane.logprobs[ticket.published :]
            ticket.published += len(run)
            self.statistics.count_step(lane.records[-1])
            handle.add_run(run, logprobs, lane.records[-1], lane.seconds[-1])
        if lane.error is not None:
            self._end(ticket, lane.error)
        elif lane.stop is not None:
            self._running.remove(ticket)
            self._forget_rates(lane)
            self.statistics.finished[lane.stop.reason] += 1
            handle.finish(self.session.generation(lane), self._clock())

    def _time_run(self, ticket: _Ticket) -> None:
        now = self._clock()
        if ticket.last_run_at is None:
            ticket.handle.first_token_at = now
            self.statistics.time_to_first_token.add(now - ticket.handle.submitted_at)
        else:
            self.statistics.gaps.add(now - ticket.last_run_at)
        ticket.last_run_at = now

    # reading prompts

    def _read(self) -> None:
        """One chunk's worth of tokens: of one long prompt, or of several short ones."""
        running = bool(self._running)
        left, end = self._pacer.chunk(running), self._clock() + self._pacer.seconds(running)
        last = 0.0  # seconds of the latest forward: another one takes about as long
        while self._reading and left > 0 and self._clock() + last <= end:
            began = self._clock()
            ticket = self._reading[self._order.pick([reading.lane.unread for reading in self._reading])]
            try:
                left -= self._read_some(ticket, left)
            except Exception as error:
                self._end(ticket, error)
            last = self._clock() - began

    def _read_some(self, ticket: _Ticket, most: int) -> int:
        """Reads at most so many tokens of one prompt; returns how many it were."""
        lane = ticket.lane
        if not lane.read:
            self._reuse(ticket)
        tokens = min(most, lane.unread)
        if tokens:
            began = self._clock()
            self.session.read(lane, tokens)
            self._pacer.learn_chunk(tokens, self._clock() - began)
        if not lane.unread:
            self._begin(ticket)
        return tokens

    def _reuse(self, ticket: _Ticket) -> None:
        lane = ticket.lane
        reuse = self.prefixes.find(lane.context.tokens)
        if reuse is None:
            return
        self.target.restore(lane.number, reuse.prefix.snapshot, reuse.prefix.tokens[: reuse.count])
        lane.read = reuse.count
        lane.features = {layer: [rows[: reuse.count]] for layer, rows in reuse.prefix.features.items()}
        if not ticket.published:
            ticket.handle.reused_tokens = reuse.count
            self.statistics.reused_tokens += reuse.count

    def _begin(self, ticket: _Ticket) -> None:
        lane = ticket.lane
        if not ticket.published:
            self.statistics.prompt_tokens += len(lane.request.prompt)
        read = tuple(lane.context.tokens[:-1])
        if self.prefixes.wants(read):
            features = {layer: torch.cat(parts) for layer, parts in lane.features.items()}
            self.prefixes.put(Prefix(read, self.target.snapshot(lane.number), features))
        self._reading.remove(ticket)
        self._running.append(ticket)
        self.session.start(lane)

    # ends

    def _take_out(self, ticket: _Ticket) -> None:
        """Frees what the request holds; nobody keeps it now."""
        self._forget_rates(ticket.lane)
        self.session.suspend(ticket.lane)
        for group in (self._reading, self._running):
            if ticket in group:
                group.remove(ticket)

    def _forget_rates(self, lane: Lane) -> None:
        if isinstance(self.session.budget, SharedBudget) and lane.place is not None:
            self.session.budget.forget(lane.place)

    def _end(self, ticket: _Ticket, error: BaseException) -> None:
        if ticket in self._line:
            self._line.leave(ticket)
        self._take_out(ticket)
        self.statistics.finished["cancelled" if isinstance(error, RequestCancelled) else "error"] += 1
        ticket.handle.fail(error, self._clock())

    def _end_everything(self, error: BaseException) -> None:
        with self._woken:
            self._is_closing = True
            arrived, self._inbox = self._inbox, []
        self.target.rollback()
        self._line.join(arrived)
        for ticket in [*self._line, *self._reading, *self._running]:
            self._end(ticket, error)
        self._count()

    def cancel_all(self) -> None:
        """Cancels every request there is now, without waiting for the step in progress: the next one lets them go."""
        with self._woken:
            self._cancelled_below = self._arrivals
            self._woken.notify_all()

    # small things

    def _check_size(self, prompt_tokens: int, new_tokens: int) -> None:
        self.pool.check(prompt_tokens, new_tokens)
        alone = self.target.solo_beyond
        if alone is not None and prompt_tokens + new_tokens > alone:
            raise RequestTooLarge(
                f"{prompt_tokens} prompt tokens and up to {new_tokens} new ones may pass {alone} tokens, where this "
                "model's rotary frequencies change for a whole batch; lower max_new_tokens to at most "
                f"{alone - prompt_tokens}, or run it alone with a Speculator"
            )

    def _wake(self) -> None:
        with self._woken:
            self._woken.notify_all()

    def _count(self) -> None:
        counts = self.statistics
        counts.running, counts.reading, counts.waiting = len(self._running), len(self._reading), len(self._line)

    def check_integrity(self) -> None:
        """Raises AssertionError when requests, lanes and rows do not fit together. Not while another thread steps."""
        placed = [*self._reading, *self._running]
        everybody = [*self._line, *placed]
        assert len(set(map(id, everybody))) == len(everybody), "a request is in two places"
        assert [t.lane for t in self._running] == self.session.active, "the session runs other lanes than the engine"
        assert all(t.lane.place is None and not t.lane.is_drafting for t in self._line), "who waits holds something"
        assert not any(t.handle.is_done for t in everybody), "a request has ended and is still here"
        assert len(placed) <= self.max_lanes
        for ticket in placed:
            lane = ticket.lane
            assert self.target.length(lane.number) == lane.read, f"lane {lane.number} holds other rows than it has read"
            assert not (ticket in self._running and lane.unread), f"lane {lane.number} runs and has unread tokens"
        cache = getattr(self.target, "cache", None)
        if cache is not None:
            cache.check_integrity()
            assert sorted(cache.lanes) == sorted(ticket.lane.number for ticket in placed), "a lane has leaked"
            assert self.prefixes.nbytes <= self.prefixes.limit_bytes


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)  # what torch says on a CPU
