"""The public face: a model, a drafter, a rule and a budget, ready to generate.

What transformers' ``generate`` does before its loop (merging generation configs, building processors and criteria,
checking arguments) is left to transformers itself; see `orders`. Here the orders become requests, run side by side, and
the outputs take the form transformers users know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from ..draft.protocol import Drafter
from ..target.protocol import Target
from ..tune.budget import BudgetPolicy, make_budget
from ..tune.shared import SharedBudget
from ..verify.grammar import Grammar
from ..verify.registry import DraftKind, check_rule, resolve_rule
from ..verify.rule import Rule
from .attach import as_target, drafter_for
from .grammar import under_grammar
from .lane import Lane
from .logprobs import with_logprobs
from .orders import Order, orders_from_arguments, orders_from_callback
from .prompt_ids import prompt_ids
from .session import Session
from .statistics import Generation
from .text import ShownText


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """transformers' output record with branchwise's statistics.

    Attributes:
        branchwise: one `Generation` for a single sequence, otherwise a tuple with one per row of ``sequences``.
    """

    branchwise: Generation | tuple[Generation, ...] | None = None


class Speculator:
    """Generates from ``model`` with draft trees; the output is the model's own.

    A Speculator may be kept: its drafter then learns across requests, which never changes the output.

    Args:
        model: an ``AutoModelForCausalLM`` in eval mode (left exactly as found), or a ready `Target`.
        tokenizer: needed for text streams and stop strings only.
        drafter: ``"auto"``, a name (see ``branchwise.draft``) or a `Drafter`.
        drafter_options: for a drafter given by name, for example ``{"draft_model": "qwen2.5-coder-0.5b-instruct"}``.
            With a draft model the target's tokenizer and device are handed on unless they are given here.
        rule: ``"auto"``, a name (see ``branchwise.verify``) or a `Rule`.
        budget: most nodes of a tree, root included; 1 is plain decoding. ``"auto"`` chooses at every step (see
            `SharedBudget`), from the first one on where ``branchwise tune`` or an earlier run has measured costs.
        engine: what runs the model: ``"transformers"``; ``"native"`` or ``"openvino"``, for CPUs
            (docs/performance.md); or ``"auto"``, the fastest of them that runs the model exactly.
        weights: in the engines for CPUs, what the weights are kept in: "f32", "bf16", "int8" or "int4"; the model's own
            format if absent. With fewer bits, the output is that of plain decoding with these weights.

    Raises:
        UnsupportedModel: the model cannot be kept exact; says why and what to do.
        TypeError: ``model`` is neither; says what to give instead.
        ValueError: a name or number is not known; says which are.
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
        engine: str = "transformers",
        weights: str | None = None,
    ) -> None:
        check_rule(rule)
        self.target: Target = as_target(model, engine, weights)
        self.drafter = drafter_for(self.target, tokenizer, drafter, drafter_options)
        self.budget = make_budget(budget, self.target)
        self.rule = rule
        self.tokenizer = tokenizer
        self.model = getattr(self.target, "model", None)

    def generate(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        generation_config: Any = None,
        streamer: BaseStreamer | None = None,
        *,
        seed: int | None = None,
        grammar: Grammar | None = None,
        logprobs: int | None = None,
        target_probabilities: bool = False,
        **kwargs: Any,
    ) -> Tensor | SpeculativeOutput:
        """As transformers' ``generate``: the same arguments, defaults and return values.

        Args:
            input_ids: ``[B, L]`` prompts, padded left or right, or ``[L]`` for one.
            attention_mask: ``[B, L]``, 0 where padding is; guessed from the pad token as transformers does when absent.
            generation_config: as in transformers; the model's own is the default.
            streamer: a transformers streamer, for a single sequence.
            seed: seed of the coins; fresh entropy without one.
            grammar: what the text must look like; needs a tokenizer. It masks the logits before every processor.
            logprobs: keep the log-probability of every new token and of so many alternatives (0: of the token alone),
                see `TokenLogprobs`; they come back in the `Generation`, so ``return_dict_in_generate`` must be set.
            target_probabilities: keep the target's probability of every drafted node, for `Generation.show`; they come
                back in the records of the `Generation`. Never changes the output.
            kwargs: everything else that transformers' ``generate`` takes.

        Returns:
            LongTensor ``[B * num_return_sequences, L + new]``, or with ``return_dict_in_generate`` a
            `SpeculativeOutput`.

        Raises:
            ValueError: an argument cannot be honoured (beams, a foreign cache, ...) or is out of range; names it.
        """
        orders = self._orders(input_ids, attention_mask, generation_config, seed, kwargs)
        _check_returned(orders, logprobs, target_probabilities)
        return self._run(self._extended(orders, grammar, logprobs, target_probabilities), streamer)

    def stream(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        generation_config: Any = None,
        *,
        seed: int | None = None,
        grammar: Grammar | None = None,
        **kwargs: Any,
    ) -> Iterator[str] | Iterator[tuple[int, ...]]:
        """Yields the output of one sequence as it comes: text with a tokenizer, runs of token ids without.

        Text never ends in half a character, and the pieces add up to `Generation.text` (a stop string is not part of
        it). Leaving the iterator frees everything. Arguments are as for `generate` and are checked before the first
        piece is asked for.
        """
        for kept, off in (("logprobs", None), ("target_probabilities", False)):
            if kwargs.pop(kept, off) is not off:
                raise ValueError(f"{kept} come with a finished Generation, not with a stream: use complete()")
        orders = self._orders(input_ids, attention_mask, generation_config, seed, kwargs)
        _one_only(orders, "stream")
        orders = self._extended(orders, grammar)
        pieces = self._pieces(orders)
        next(pieces)  # from here on, dropping the iterator unread frees its lane, too
        return pieces

    def complete(
        self,
        prompt: Sequence[int],
        *,
        seed: int | None = None,
        grammar: Grammar | None = None,
        logprobs: int | None = None,
        target_probabilities: bool = False,
        **kwargs: Any,
    ) -> Generation:
        """One prompt as token ids in, one `Generation` out; arguments as for `generate`."""
        ids = prompt_ids(prompt).long()
        if len(ids) != 1:
            raise ValueError(f"complete serves one sequence at a time, got {len(ids)}; use generate() for a batch")
        orders = self._orders(ids, torch.ones_like(ids), None, seed, kwargs)
        _one_only(orders, "complete")
        orders = self._extended(orders, grammar, logprobs, target_probabilities)
        session, (lane,) = self._start(orders)
        with closing(session):
            while session.active:
                session.step()
        return session.generation(lane)

    # from orders to outputs

    def _orders(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        generation_config: Any,
        seed: int | None,
        kwargs: dict[str, Any],
    ) -> list[Order]:
        if self.model is None:
            raise ValueError(f"{type(self.target).__name__} has no transformers model to read generation settings from")
        return orders_from_arguments(
            self.model,
            input_ids,
            attention_mask,
            generation_config=generation_config,
            tokenizer=kwargs.pop("tokenizer", None) or self.tokenizer,
            context_limit=self.target.context_limit,
            seed=seed,
            **kwargs,
        )

    def _extended(
        self,
        orders: list[Order],
        grammar: Grammar | None,
        logprobs: int | None = None,
        target_probabilities: bool = False,
    ) -> list[Order]:
        """The orders with what transformers has no name for."""
        if grammar is not None:
            orders = under_grammar(orders, grammar, self.target.vocab_size)
        if logprobs is not None:
            orders = with_logprobs(orders, logprobs, self.target.vocab_size)
        if target_probabilities:
            requests = [replace(order.request, target_probabilities=True) for order in orders]
            orders = [replace(order, request=request) for order, request in zip(orders, requests, strict=True)]
        return orders

    def _start(self, orders: Sequence[Order]) -> tuple[Session, list[Lane]]:
        requests = [order.request for order in orders]
        kind = DraftKind.of(self.drafter)
        rules = [resolve_rule(self.rule, r.sampler, kind, seeded=r.seed is not None) for r in requests]
        for request in requests:
            request.check(self.target.vocab_size, self.target.context_limit)
        tokenizer = orders[0].tokenizer
        session = Session(self.target, self.drafter, self.budget, tokenizer)
        try:
            lanes = [session.add(request, rule) for request, rule in zip(requests, rules, strict=True)]
        except BaseException:
            session.close()
            raise
        return session, lanes

    def _run(self, orders: list[Order], streamer: BaseStreamer | None = None) -> Tensor | SpeculativeOutput:
        if streamer is not None:
            _one_only(orders, "a streamer")
            if isinstance(streamer, type) or not (hasattr(streamer, "put") and hasattr(streamer, "end")):
                raise ValueError(
                    f"streamer must be an object with put() and end(), got {streamer!r}; for instance "
                    "transformers.TextStreamer(tokenizer), or iterate over stream()"
                )
        session, lanes = self._start(orders)
        with closing(session):
            if streamer is not None:
                streamer.put(orders[0].row[None])
            while session.active:
                session.step()
                if streamer is not None:
                    for token in lanes[0].records[-1].tokens:
                        streamer.put(torch.tensor([token]))
        if streamer is not None:
            streamer.end()
        return self._assemble(orders, session, lanes)

    def _pieces(self, orders: list[Order]) -> Iterator[Any]:
        """Yields None once the request is checked and prefilled, then the pieces."""
        session, (lane,) = self._start(orders)
        stops = lane.request.stop.stop_strings
        text = ShownText(session.tokenizer, stops) if session.tokenizer is not None else None
        with closing(session):
            yield None
            while session.active:
                session.step()
                run = lane.records[-1].tokens
                if text is None:
                    yield run
                    continue
                piece = text.push(run)
                if piece:
                    yield piece
            rest = text.flush() if text is not None else ""
            if rest:
                yield rest

    def _assemble(self, orders: list[Order], session: Session, lanes: list[Lane]) -> Tensor | SpeculativeOutput:
        new = max(len(lane.generated) for lane in lanes)
        rows = []
        for order, lane in zip(orders, lanes, strict=True):
            padding = [order.pad_token] * (new - len(lane.generated))
            tail = torch.tensor([*lane.generated, *padding], dtype=torch.long)
            rows.append(torch.cat([order.row, tail.to(order.row.device)]))
        sequences = torch.stack(rows)  # [B, L + new]
        if not orders[0].returns_dict:
            return sequences
        generations = tuple(session.generation(lane) for lane in lanes)
        return SpeculativeOutput(
            sequences=sequences,
            scores=_by_step([lane.scores for lane in lanes]) if orders[0].returns_scores else None,
            logits=_by_step([lane.raw_logits for lane in lanes]) if orders[0].returns_logits else None,
            branchwise=generations[0] if len(generations) == 1 else generations,
        )


def _by_step(lanes: list[list[Tensor]]) -> tuple[Tensor, ...]:
    """Vectors per lane and token to one ``[B, V]`` per token; a lane that ended early has zeros there."""
    longest = max(map(len, lanes))
    blank = torch.zeros_like(lanes[0][0])
    return tuple(torch.stack([lane[i] if i < len(lane) else blank for lane in lanes]) for i in range(longest))


def _check_returned(orders: Sequence[Order], logprobs: int | None, target_probabilities: bool = False) -> None:
    for name, asked in (("logprobs", logprobs is not None), ("target_probabilities", target_probabilities)):
        if asked and not orders[0].returns_dict:
            raise ValueError(
                f"{name} come back in the Generation: pass return_dict_in_generate=True, or use complete()"
            )


def _one_only(orders: Sequence[Order], what: str) -> None:
    if len(orders) != 1:
        raise ValueError(f"{what} serves one sequence at a time, got {len(orders)}; call it once per sequence")


def generate(
    model: PreTrainedModel,
    input_ids: Tensor | None = None,
    *,
    drafter: str | Drafter = "auto",
    drafter_options: Mapping[str, Any] | None = None,
    rule: str | Rule = "auto",
    budget: int | str | BudgetPolicy = "auto",
    engine: str = "transformers",
    weights: str | None = None,
    seed: int | None = None,
    grammar: Grammar | None = None,
    logprobs: int | None = None,
    **as_transformers: Any,
) -> Tensor | SpeculativeOutput:
    """Generates as ``model.generate(input_ids, ...)`` would, faster and with the same output.

    The one-call form of `Speculator`, which keeps its drafter between calls and is the better choice for many.

    Args:
        model: an ``AutoModelForCausalLM`` in eval mode; left exactly as found.
        input_ids: ``[B, L]`` prompts.
        drafter: see `Speculator`; ``"none"`` is plain decoding through the same loop.
        drafter_options: see `Speculator`.
        rule: see `Speculator`.
        budget: see `Speculator`.
        engine: see `Speculator`; compiling takes seconds, so keep a `Speculator` instead.
        weights: see `Speculator`.
        seed: seed of the coins; fresh entropy without one.
        grammar: what the text must look like, see `Speculator.generate`; needs ``tokenizer=...``.
        logprobs: see `Speculator.generate`.
        as_transformers: everything else, as for transformers' ``generate``.

    Returns:
        what transformers returns: a LongTensor ``[B, L + new]``, or with ``return_dict_in_generate`` a record with
        ``.sequences`` and ``.branchwise``.
    """
    tokenizer = as_transformers.pop("tokenizer", None)
    speculator = Speculator(
        model,
        tokenizer,
        drafter=drafter,
        drafter_options=drafter_options,
        rule=rule,
        budget=budget,
        engine=engine,
        weights=weights,
    )
    return speculator.generate(input_ids, seed=seed, grammar=grammar, logprobs=logprobs, **as_transformers)


def custom_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    drafter: str | Drafter = "auto",
    rule: str | Rule = "auto",
    budget: int | str | BudgetPolicy = "auto",
    seed: int | None = None,
    grammar: Grammar | None = None,
    logprobs: int | None = None,
    branchwise_streamer: BaseStreamer | None = None,
    branchwise_tokenizer: Any = None,
    **model_kwargs: Any,
) -> Tensor | SpeculativeOutput:
    """For ``model.generate(..., custom_generate=branchwise.custom_generate)``.

    transformers prepares everything and calls this instead of its own loop. The options of `generate` may be given to
    ``model.generate`` by name. transformers drops ``streamer`` and ``tokenizer`` before a callable sees them (and says
    nothing), so here they are called ``branchwise_streamer`` and ``branchwise_tokenizer``.
    """
    speculator = Speculator(model, branchwise_tokenizer, drafter=drafter, rule=rule, budget=budget)
    orders = orders_from_callback(
        model,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        model_kwargs,
        tokenizer=branchwise_tokenizer,
        context_limit=speculator.target.context_limit,
        seed=seed,
    )
    _check_returned(orders, logprobs)
    return speculator._run(speculator._extended(orders, grammar, logprobs), branchwise_streamer)
