"""How scores become a law: greedy or sampling, and the chain of logits processors in between.

Knows transformers' processors by exact type, to tell which of them read the prefix and which have an equal that is
faster. Knows no tree and no lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

from torch import Tensor

from . import truncation

#: transformers' own calling convention: (input_ids [1, L], scores [1, V]) -> scores [1, V]
Processor = Any


@dataclass(frozen=True)
class Stage:
    """One processor of the chain.

    Attributes:
        processor: the object that transformers would call.
        reads_prefix: False only for transformers' own classes that never look at ``input_ids``.
        fast: the same function of scores ``[V]`` alone, which leaves its input as it was; None when there is none.
    """

    processor: Processor
    reads_prefix: bool
    fast: Callable[[Tensor], Tensor] | None


@dataclass(frozen=True)
class Sampler:
    """The sampling settings of one lane.

    Attributes:
        do_sample: False: the law puts all mass on the best processed score, the lowest id among equals.
        processors: transformers' `LogitsProcessorList`, or any sequence of processors, in the order transformers'
            ``generate`` would apply them (temperature and truncation included).

    Raises:
        ValueError: a processor keeps a state of its own from call to call, or wants arguments beyond ``input_ids`` and
            ``scores``: it has no value on a tree of prefixes.
    """

    do_sample: bool = False
    processors: Sequence[Processor] = ()

    def __post_init__(self) -> None:
        for processor in self.processors:
            _refuse(processor)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The chain, each processor with what is known about it."""
        if not self.processors:
            return ()
        blind = _own_types(_PREFIX_BLIND)
        return tuple(
            Stage(processor, type(processor) not in blind, truncation.fast_equal(processor))
            for processor in self.processors
        )

    @cached_property
    def reads_prefix(self) -> bool:
        """Whether any processor must be given the node's prefix."""
        return any(stage.reads_prefix for stage in self.stages)

    @cached_property
    def bans(self) -> tuple[Processor, ...]:
        """transformers' own processors that forbid tokens by the prefix alone, whatever the scores are."""
        banning = _own_types(_BANNING)
        return tuple(processor for processor in self.processors if type(processor) in banning)

    @cached_property
    def may_write(self) -> bool:
        """Whether a processor might write into the scores it is given."""
        return any(stage.fast is None for stage in self.stages)


#: transformers' processors whose result is a function of the scores alone
_PREFIX_BLIND = (
    "TemperatureLogitsWarper TopKLogitsWarper TopPLogitsWarper MinPLogitsWarper TopHLogitsWarper TypicalLogitsWarper "
    "EpsilonLogitsWarper EtaLogitsWarper LogitNormalization InfNanRemoveLogitsProcessor SuppressTokensLogitsProcessor"
)
#: transformers' processors that put minus infinity where the prefix alone says so
_BANNING = (
    "SuppressTokensLogitsProcessor SuppressTokensAtBeginLogitsProcessor NoBadWordsLogitsProcessor "
    "SequenceBiasLogitsProcessor MinLengthLogitsProcessor MinNewTokensLengthLogitsProcessor "
    "NoRepeatNGramLogitsProcessor ForcedBOSTokenLogitsProcessor ForcedEOSTokenLogitsProcessor"
)


def _own_types(names: str) -> frozenset[type]:
    """The classes of transformers with these names, as far as the installed version has them."""
    from transformers.generation import logits_process as own

    return frozenset(getattr(own, name) for name in names.split() if hasattr(own, name))


#: transformers' own classes that remember earlier calls, and what to do instead
_STATEFUL = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "leave guidance_scale at 1",
    "SynthIDTextWatermarkLogitsProcessor": "leave watermarking_config unset",
}


def _refuse(processor: Processor) -> None:
    name = type(processor).__name__
    if name in _STATEFUL and type(processor).__module__.startswith("transformers."):
        raise ValueError(
            f"{name} keeps a state from call to call, so it has no law at a node that is not committed yet; "
            f"{_STATEFUL[name]} or use the model's own generate"
        )
    try:
        parameters = list(signature(processor.__call__).parameters.values())
    except (TypeError, ValueError):  # a builtin or a C function: no signature to look at
        return
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    extra = [p.name for p in positional[2:] if p.default is p.empty]
    if extra:
        raise ValueError(f"processor {name} needs arguments beyond input_ids and scores: {', '.join(extra)}")
