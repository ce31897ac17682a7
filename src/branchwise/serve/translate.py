"""From the fields of a body to requests of the engine.

Knows the tokenizer and the model's stop tokens. Everything here may take a while for a long prompt or a large schema,
so it runs in a worker thread.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from transformers.generation import logits_process as own

from ..decode.engine import Engine
from ..decode.request import Request
from ..decode.stopping import StopRules
from ..verify.grammar import Grammar
from ..verify.law import Sampler
from .errors import ApiError, bad_field
from .penalties import LogitBias, OutputPenalty
from .schema import ChatRequest, CompletionRequest, Message, ResponseFormat, Sampling, TokenizeRequest
from .settings import ServerSettings

#: grammars are compiled once and kept, the latest so many of them
GRAMMARS_KEPT = 64


@dataclass(frozen=True, eq=False)
class Job:
    """One choice of the response.

    Attributes:
        request: for the engine.
        prompt_text: what ``echo`` puts in front.
    """

    request: Request
    prompt_text: str = ""


class Translator:
    """Makes requests for one engine.

    Args:
        engine: where they will run; it must have a tokenizer.
        settings: limits.
    """

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._tokenizer = engine.tokenizer
        self._encoding = threading.Lock()  # tokenizers change settings of their own while they encode
        self._stop_tokens = stop_tokens(getattr(engine.target, "model", None), engine.tokenizer)
        self._grammar = lru_cache(GRAMMARS_KEPT)(_grammar)

    # prompts

    def encode(self, text: str, add_special_tokens: bool = True, param: str = "prompt") -> list[int]:
        """Token ids of a text."""
        try:
            with self._encoding:
                return list(self._tokenizer(text, add_special_tokens=add_special_tokens).input_ids)
        except (TypeError, ValueError, UnicodeError) as error:
            raise bad_field(param, f"{param} cannot be tokenized: {error}") from None

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        self._check_tokens(tokens, "tokens")
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def tokenize(self, body: TokenizeRequest) -> list[int]:
        """Token ids that `complete` or `chat` would start from."""
        if body.messages is not None:
            return self._chat_prompt(body.messages)
        return self.encode(body.prompt or "", body.add_special_tokens)

    def _chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        if not getattr(self._tokenizer, "chat_template", None):
            raise bad_field("messages", "this model has no chat template: use /v1/completions with a prompt")
        turns = [
            {"role": "system" if turn.role == "developer" else turn.role, "content": turn.text} for turn in messages
        ]
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError) as error:
            raise bad_field("messages", f"the model's chat template refuses these messages: {error}") from None
        # the template writes every special token itself
        return self.encode(text, add_special_tokens=False, param="messages")

    def _prompts(self, body: CompletionRequest) -> list[list[int]]:
        prompt = body.prompt
        if isinstance(prompt, str):
            return [self.encode(prompt)]
        if isinstance(prompt[0], int):
            return [list(prompt)]
        return [self.encode(one) if isinstance(one, str) else list(one) for one in prompt]

    # requests

    def chat(self, body: ChatRequest) -> list[Job]:
        """The choices of a chat completion."""
        count = (body.top_logprobs or 0) if body.logprobs else None
        limit = body.max_completion_tokens or body.max_tokens
        request = self._request(body, self._chat_prompt(body.messages), "messages", limit, count, body.response_format)
        return self._choices([Job(request)], body.n or 1)

    def complete(self, body: CompletionRequest) -> list[Job]:
        """The choices of a completion, prompt by prompt."""
        jobs = []
        for prompt in self._prompts(body):
            text = self.decode(prompt) if body.echo else ""
            request = self._request(body, prompt, "prompt", body.max_tokens, body.logprobs, body.response_format)
            jobs.append(Job(request, text))
        return self._choices(jobs, body.n or 1)

    def _choices(self, jobs: list[Job], n: int) -> list[Job]:
        if len(jobs) * n > self._settings.choices:
            raise bad_field("n", f"{len(jobs) * n} choices in one request, {self._settings.choices} are allowed")
        return [replace(job, request=replace(job.request, return_index=index)) for job in jobs for index in range(n)]

    def _request(
        self,
        body: Sampling,
        prompt: list[int],
        param: str,
        new_tokens: int | None,
        logprobs: int | None,
        response_format: ResponseFormat | None,
    ) -> Request:
        room = self._room(prompt, param)
        if new_tokens is not None and new_tokens > room:
            fit = len(prompt) + room
            raise ApiError(
                400,
                f"{len(prompt)} tokens in {param} and {new_tokens} new ones are more than the {fit} that fit here; ask "
                f"for at most {room}",
                "max_tokens",
                "context_length_exceeded",
            )
        stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        stop = StopRules(new_tokens or room, self._engine.target.context_limit, self._stop_tokens, stops)
        budget = None if body.branchwise is None else body.branchwise.budget
        sampler = self._sampler(body, len(prompt))
        request = Request(tuple(prompt), sampler, stop, body.seed, logprobs=logprobs, budget=budget)
        grammar = self._read_format(response_format)
        if grammar is None:
            return request
        try:
            compiled = grammar.compile(self._tokenizer, self._engine.target.vocab_size, self._stop_tokens)
        except ValueError as error:
            raise bad_field("response_format", str(error)) from None
        stop = replace(stop, stop_tokens=stop.stop_tokens | compiled.stop_tokens)
        return replace(request, stop=stop, grammar=compiled)

    def _room(self, prompt: list[int], param: str) -> int:
        """Tokens that may follow the prompt, at least one."""
        if not prompt:
            raise bad_field(param, f"{param} is empty: the model needs at least one token to go on from")
        self._check_tokens(prompt, param)
        room = self._engine.most_new_tokens(len(prompt))
        limit = self._settings.prompt_tokens
        most = len(prompt) + room - 1 if limit is None else min(limit, len(prompt) + room - 1)
        if len(prompt) > most:
            raise ApiError(
                400,
                f"{param} has {len(prompt)} tokens and at most {most} are taken here; shorten it",
                param,
                "context_length_exceeded",
            )
        return room

    def _check_tokens(self, tokens: Sequence[int], param: str) -> None:
        vocab_size = self._engine.target.vocab_size
        wrong = next((token for token in tokens if token >= vocab_size), None)
        if wrong is not None:
            raise bad_field(param, f"token {wrong} is outside the model's vocabulary of {vocab_size} ids")

    def _sampler(self, body: Sampling, prompt_tokens: int) -> Sampler:
        """Processors in transformers' order: penalties, biases, temperature, truncation."""
        processors: list[Any] = []
        if (body.repetition_penalty or 1.0) != 1.0:
            processors.append(own.RepetitionPenaltyLogitsProcessor(body.repetition_penalty))
        frequency, presence = body.frequency_penalty or 0.0, body.presence_penalty or 0.0
        if frequency or presence:
            processors.append(OutputPenalty(prompt_tokens, frequency, presence))
        if body.logit_bias:
            processors.append(LogitBias(self._bias(body.logit_bias)))
        temperature = 1.0 if body.temperature is None else body.temperature
        if temperature == 0:
            return Sampler(False, processors)
        if temperature != 1:
            processors.append(own.TemperatureLogitsWarper(temperature))
        if body.top_k:
            processors.append(own.TopKLogitsWarper(body.top_k))
        if (body.top_p or 1.0) < 1:
            processors.append(own.TopPLogitsWarper(body.top_p))
        if body.min_p:
            processors.append(own.MinPLogitsWarper(body.min_p))
        return Sampler(True, processors)

    def _bias(self, given: dict[str, float]) -> dict[int, float]:
        bias = {}
        for name, value in given.items():
            if not (name.isascii() and name.isdigit()):
                raise bad_field("logit_bias", f"logit_bias maps token ids to numbers, got the key {name!r}")
            bias[int(name)] = value
        self._check_tokens(list(bias), "logit_bias")
        return bias

    def _read_format(self, response_format: ResponseFormat | None) -> Grammar | None:
        if response_format is None or response_format.type == "text":
            return None
        schema: Any = {"type": "object"}
        if response_format.json_schema is not None:
            schema = response_format.json_schema.schema_
        try:
            return self._grammar(json.dumps(schema))
        except ImportError as error:
            raise ApiError(501, str(error), "response_format") from None
        except (ValueError, RecursionError) as error:
            raise bad_field("response_format", str(error)) from None


def _grammar(schema: str) -> Grammar:
    return Grammar.from_json_schema(schema)


def stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a text: the model's own and the tokenizer's."""
    config = getattr(model, "generation_config", None)
    eos = getattr(config, "eos_token_id", None)
    found = set() if eos is None else set(torch.as_tensor(eos).flatten().tolist())
    own_eos = getattr(tokenizer, "eos_token_id", None)
    return frozenset(found | ({own_eos} if own_eos is not None else set()))
