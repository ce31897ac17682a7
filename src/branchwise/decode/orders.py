"""From transformers' arguments to branchwise's requests.

transformers itself does the preparing: its ``generate`` merges the generation configs, builds the logits processors and
stopping criteria, checks arguments, and then calls a decoding function. Ours only writes down what it is given. Every
row is prepared alone and without its padding, so that a prompt's output never depends on what it is batched with.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
)

from ..verify.sampler import Sampler
from .prompt_ids import prompt_ids
from .request import Request
from .stopping import StopRules

#: arguments of transformers' ``generate`` that name another decoding method or another cache: why they cannot be
#: honoured
_REFUSED = {
    "assistant_model": "branchwise drafts itself; choose drafter=... instead",
    "assistant_tokenizer": "branchwise drafts itself; choose drafter=... instead",
    "prompt_lookup_num_tokens": "use drafter='ngram'",
    "assistant_early_exit": "branchwise drafts itself; choose drafter=... instead",
    "use_mtp": "branchwise drafts itself; choose drafter=... instead",
    "speculation_type": "branchwise drafts itself; choose drafter=... instead",
    "cache_implementation": "branchwise keeps its own cache, which rolls back; leave it out",
    "cache_config": "branchwise keeps its own cache, which rolls back; leave it out",
    "penalty_alpha": "contrastive search has no tree form; use transformers' generate",
    "dola_layers": "DoLa has no tree form; use transformers' generate",
    "constraints": "constrained beams have no tree form; use transformers' generate",
    "force_words_ids": "constrained beams have no tree form; use transformers' generate",
    "token_healing": "heal the prompt before generating",
    "inputs_embeds": "give token ids: drafts are tokens",
    "position_ids": "positions follow from the prompt and its attention mask",
    "past_key_values": "branchwise fills its own cache; give the whole prompt instead",
    "cache": "branchwise fills its own cache; give the whole prompt instead",
    "streamer": "only generate() takes one; iterate over stream() instead",
    "custom_generate": "this already is a custom generate",
    "synced_gpus": "run one process per model",
    "negative_prompt_ids": "classifier-free guidance runs a second model pass per token; use transformers' generate",
    "guidance_scale": "classifier-free guidance runs a second model pass per token; use transformers' generate",
}


@dataclass(frozen=True, eq=False)
class Order:
    """One row of the output: the request behind it and how the output is to be returned.

    Attributes:
        request: what its lane does.
        row: the prompt row as given, padding included, ``[L]``; the output starts with it.
        pad_token: fills the row when others are longer.
        returns_dict, returns_scores, returns_logits: as asked of transformers.
        tokenizer: for text and stop strings, or None.
    """

    request: Request
    row: Tensor
    pad_token: int
    returns_dict: bool
    returns_scores: bool
    returns_logits: bool
    tokenizer: Any = None


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What transformers hands to a decoding function."""

    input_ids: Tensor
    logits_processor: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    generation_config: GenerationConfig
    model_kwargs: dict[str, Any]


def orders_from_arguments(
    model: PreTrainedModel,
    input_ids: Tensor | None,
    attention_mask: Tensor | None = None,
    *,
    generation_config: GenerationConfig | None = None,
    tokenizer: Any = None,
    context_limit: int | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> list[Order]:
    """Orders for the arguments of transformers' ``generate``, ``num_return_sequences`` per row.

    Raises:
        ValueError: an argument cannot be honoured or is malformed; names it and the remedy.
    """
    if "inputs" in kwargs:
        if input_ids is not None:
            raise ValueError("got both inputs and input_ids; they are the same argument, give one")
        input_ids = kwargs.pop("inputs")
    _check_types(generation_config, kwargs, seed)
    _refuse_arguments(model, generation_config, kwargs)
    stop_strings = _setting("stop_strings", model, generation_config, kwargs)
    if stop_strings:
        # transformers would ask for a tokenizer that it drops before our callable; stop strings are ours
        if generation_config is not None:
            generation_config = copy.copy(generation_config)
            generation_config.stop_strings = None
        if model.generation_config.stop_strings or "stop_strings" in kwargs:
            kwargs["stop_strings"] = None  # only a keyword outranks the model's own config
    returns = _setting("num_return_sequences", model, generation_config, kwargs) or 1

    rows, masks = _rows(model, input_ids, attention_mask, generation_config, kwargs)
    orders: list[Order] = []
    for index, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        prompt = row[mask.bool()] if row is not None else None
        pads = 0 if row is None or prompt is None else len(row) - len(prompt)
        lengths = _without_padding(model, generation_config, kwargs, pads)
        for return_index in range(returns):
            prepared = _prepare(model, prompt, generation_config, {**kwargs, **lengths})
            given = prepared.input_ids[0] if row is None else row
            batch_row = index * returns + return_index
            order = _order(prepared, batch_row, given, tokenizer, context_limit, seed, stop_strings)
            orders.append(replace(order, request=replace(order.request, return_index=return_index)))
    return orders


def _without_padding(
    model: PreTrainedModel, config: GenerationConfig | None, kwargs: dict[str, Any], pads: int
) -> dict[str, int]:
    """The limits that count a row's padding in transformers, less the padding: rows are prepared without it."""
    lengths = {}
    for limit in ("max", "min"):
        total = _setting(f"{limit}_length", model, config, kwargs)
        if pads and total and _setting(f"{limit}_new_tokens", model, config, kwargs) is None:
            lengths[f"{limit}_length"] = max(0, total - pads)
    return lengths


def orders_from_callback(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    model_kwargs: dict[str, Any],
    *,
    tokenizer: Any = None,
    context_limit: int | None = None,
    seed: int | None = None,
) -> list[Order]:
    """Orders for what transformers hands to a ``custom_generate`` callable: rows already padded and repeated.

    Processors and criteria were built for padded rows, so that is what they are called with.
    """
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    if cache is not None and cache.get_seq_length() > 0:
        raise ValueError(f"cache: {_REFUSED['cache']}")
    _refuse_config(generation_config, {})
    _refuse_model_arguments(model_kwargs)
    mask = model_kwargs.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask
    _refuse_positions(model_kwargs.get("position_ids"), mask)
    returns = generation_config.num_return_sequences or 1
    orders = []
    for index, (row, keep) in enumerate(zip(input_ids, mask.bool(), strict=True)):
        padding, prompt = row[~keep].tolist(), row[keep]
        config = generation_config
        prepared = _Prepared(prompt[None], logits_processor, stopping_criteria, config, model_kwargs)
        order = _order(prepared, index, row, tokenizer, context_limit, seed, config.stop_strings, padding)
        orders.append(replace(order, request=replace(order.request, return_index=index % returns)))
    return orders


def _prepare(
    model: PreTrainedModel,
    prompt: Tensor | None,
    generation_config: GenerationConfig | None,
    kwargs: dict[str, Any],
) -> _Prepared:
    """Lets transformers prepare one row and writes down what it hands over."""
    taken: list[_Prepared] = []

    def take(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        taken.append(_Prepared(input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs))
        return input_ids

    arguments = dict(kwargs)
    if prompt is not None:
        arguments["attention_mask"] = torch.ones_like(prompt)[None]
    inputs = None if prompt is None else prompt[None]
    model.generate(inputs, generation_config=generation_config, custom_generate=take, **arguments)
    prepared = taken[0]
    _refuse_config(prepared.generation_config, kwargs)
    _refuse_model_arguments(prepared.model_kwargs)
    return prepared


def _order(
    prepared: _Prepared,
    batch_row: int,
    row: Tensor,
    tokenizer: Any,
    context_limit: int | None,
    seed: int | None,
    stop_strings: Any,
    padding: Sequence[int] = (),
) -> Order:
    config = prepared.generation_config
    prompt = tuple(prepared.input_ids[0].tolist())
    stop = _stop_rules(prepared, len(prompt) + len(padding), context_limit, stop_strings)
    sampler = Sampler(bool(config.do_sample), _for_row(prepared.logits_processor or (), batch_row))
    returns_dict = bool(config.return_dict_in_generate)
    scores, logits = bool(config.output_scores), bool(config.output_logits)
    request = Request(
        prompt=prompt,
        sampler=sampler,
        stop=stop,
        seed=seed,
        padding=tuple(padding),
        keep_scores=returns_dict and (scores or logits),
    )
    return Order(request, row, _pad_token(config), returns_dict, scores, logits, tokenizer)


def _stop_rules(prepared: _Prepared, prompt_tokens: int, context_limit: int | None, stop_strings: Any) -> StopRules:
    """Sorts transformers' criteria into what is checked cheaply here and what must be called."""
    max_length: int | None = None
    stop_tokens: set[int] = set()
    rest = StoppingCriteriaList()
    for criterion in prepared.stopping_criteria or ():
        if type(criterion) is MaxLengthCriteria:
            max_length = min(max_length or criterion.max_length, criterion.max_length)
        elif type(criterion) is EosTokenCriteria:
            stop_tokens.update(torch.as_tensor(criterion.eos_token_id).flatten().tolist())
        else:
            rest.append(criterion)
    if max_length is None:
        raise ValueError("no length limit reached branchwise: give max_new_tokens")
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings or ())
    return StopRules(max_length - prompt_tokens, context_limit, frozenset(stop_tokens), strings, rest)


def _pad_token(config: GenerationConfig) -> int:
    for name in ("_pad_token_tensor", "pad_token_id"):
        value = getattr(config, name, None)
        if value is not None:
            return int(torch.as_tensor(value).flatten()[0])
    return 0  # no pad and no stop token: all rows end at the same length


def _rows(
    model: PreTrainedModel,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    generation_config: GenerationConfig | None,
    kwargs: dict[str, Any],
) -> tuple[list[Tensor | None], list[Tensor]]:
    if input_ids is None:
        return [None], [torch.ones(0)]  # transformers starts from the bos token
    ids = prompt_ids(input_ids)
    if attention_mask is None:
        attention_mask = _guessed_mask(model, ids, generation_config, kwargs)
    mask = torch.as_tensor(attention_mask, device=ids.device)
    mask = mask[None] if mask.ndim == 1 else mask
    if mask.shape != ids.shape:
        raise ValueError(f"attention_mask must have the shape of input_ids {list(ids.shape)}, got {list(mask.shape)}")
    for row, keep in enumerate(mask.bool()):
        if not bool(keep.any()):
            raise ValueError(f"row {row} of the batch is all padding")
    return list(ids), list(mask)


def _setting(name: str, model: PreTrainedModel, config: GenerationConfig | None, kwargs: dict[str, Any]) -> Any:
    """A generation setting where it was given: by keyword, else in the config of the call, else in the model's own."""
    given = (kwargs.get(name), getattr(config, name, None), getattr(model.generation_config, name, None))
    return next((value for value in given if value is not None), None)


def _guessed_mask(model: PreTrainedModel, ids: Tensor, generation_config: Any, kwargs: dict[str, Any]) -> Tensor:
    """As transformers guesses: the pad token is padding where it occurs, unless it also is a stop token."""
    pad = _setting("pad_token_id", model, generation_config, kwargs)
    eos = _setting("eos_token_id", model, generation_config, kwargs)
    stops = [] if eos is None else torch.as_tensor(eos).flatten().tolist()
    if pad is None or pad in stops or not bool((ids == pad).any()):
        return torch.ones_like(ids)
    return (ids != pad).long()


def _refuse_arguments(model: PreTrainedModel, config: GenerationConfig | None, kwargs: dict[str, Any]) -> None:
    for name, remedy in _REFUSED.items():
        if _asks_for(name, kwargs.pop(name, None)):
            raise ValueError(f"{name} cannot be honoured: {remedy}")
    # before transformers builds such a cache; it drops "hybrid", which old checkpoints still name
    cache = _setting("cache_implementation", model, config, kwargs)
    if cache not in (None, "hybrid"):
        remedy = _REFUSED["cache_implementation"]
        raise ValueError(f"cache_implementation={cache!r} in the generation config cannot be honoured: {remedy}")


def _check_types(config: Any, kwargs: dict[str, Any], seed: Any) -> None:
    """What would else fail deep inside, with a message about something other than the argument."""
    if config is not None and not isinstance(config, GenerationConfig):
        raise ValueError(
            f"generation_config must be a transformers GenerationConfig, got {type(config).__name__}; write "
            "GenerationConfig(max_new_tokens=...), or give the settings by name"
        )
    for name in ("max_new_tokens", "min_new_tokens", "max_length", "min_length", "top_k", "num_return_sequences"):
        if isinstance(kwargs.get(name), (str, bytes)):
            raise ValueError(f"{name} must be a whole number, got the text {kwargs[name]!r}")
    for name in ("logits_processor", "stopping_criteria"):
        if callable(kwargs.get(name)) and not isinstance(kwargs[name], (list, tuple)):
            raise ValueError(f"{name} must be a list, got one {type(kwargs[name]).__name__}; write {name}=[...]")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
        raise ValueError(f"a seed must be a whole number in [0, 2**64), got {seed!r}")


def _asks_for(name: str, value: Any) -> bool:
    """Whether an argument's value switches anything on."""
    if isinstance(value, Tensor):
        return True
    return value not in (None, False) and not (name == "guidance_scale" and value == 1)


def _refuse_config(config: GenerationConfig, kwargs: dict[str, Any]) -> None:
    for name, remedy in _REFUSED.items():
        value = getattr(config, name, None)
        if _asks_for(name, value):
            raise ValueError(f"{name}={value!r} in the generation config cannot be honoured: {remedy}")
    if (config.num_beams or 1) > 1:
        raise ValueError(f"num_beams={config.num_beams} cannot be honoured: a beam has no single committed text; use 1")
    if kwargs.get("use_cache") is False or config.use_cache is False:
        raise ValueError("use_cache=False cannot be honoured: a tree is verified against cached keys and values")
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False):
            raise ValueError(f"{name}=True cannot be honoured: run the model on the finished sequence to get them")


def _refuse_model_arguments(model_kwargs: dict[str, Any]) -> None:
    """What is left for the model's forward must be what transformers itself put there."""
    own = {
        "attention_mask",
        "position_ids",
        "cache",
        "past_key_values",
        "use_cache",
        "logits_to_keep",
        "cache_position",
    }
    foreign = sorted(set(model_kwargs) - own)
    if foreign:
        raise ValueError(f"branchwise does not hand {foreign} to the model; leave them out or use model.generate")


def _refuse_positions(position_ids: Tensor | None, mask: Tensor) -> None:
    """transformers hands over positions of its own making, or the user's; only those that follow from the mask fit."""
    if position_ids is None or position_ids.shape != mask.shape:
        return
    kept = mask.bool()
    if not torch.equal(position_ids[kept], (mask.long().cumsum(-1) - 1)[kept]):
        raise ValueError(f"position_ids: {_REFUSED['position_ids']}")


def _for_row(processors: Sequence[Any], row: int) -> tuple[Any, ...]:
    """transformers' processors for a lane that calls them with one row instead of the batch they were built for.

    Some of its own classes tell the rows apart: a prefix constraint is called with the number of the row's prompt, (in
    newer versions) a repetition penalty skips each row's padding, and two processors hold every row's prompt.
    """
    alone: list[Any] = []
    for processor in processors:
        if type(processor) is PrefixConstrainedLogitsProcessor:
            allowed, prompt = processor._prefix_allowed_tokens_fn, row // processor._num_beams
            processor = PrefixConstrainedLogitsProcessor(partial(_with_prompt, allowed, prompt), num_beams=1)
        elif type(processor) is RepetitionPenaltyLogitsProcessor and isinstance(processor.prompt_ignore_length, Tensor):
            pads = int(processor.prompt_ignore_length[row])
            processor = RepetitionPenaltyLogitsProcessor(processor.penalty, prompt_ignore_length=pads)
        elif type(processor) is EncoderRepetitionPenaltyLogitsProcessor and len(processor.encoder_input_ids) > 1:
            processor = copy.copy(processor)
            processor.encoder_input_ids = processor.encoder_input_ids[row : row + 1]
        elif type(processor) is EncoderNoRepeatNGramLogitsProcessor and processor.batch_size > 1:
            processor = copy.copy(processor)
            processor.batch_size, processor.generated_ngrams = 1, [processor.generated_ngrams[row]]
        alone.append(processor)
    return tuple(alone)


def _with_prompt(allowed: Any, prompt: int, _: int, tokens: Tensor) -> Any:
    return allowed(prompt, tokens)
