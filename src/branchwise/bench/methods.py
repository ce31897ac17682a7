"""The methods a benchmark compares, each a name and a way to run one prompt.

    plain        this library with drafter "none": its own loop, one token per forward
    tree-N       this library with a drafter and a budget of N nodes, one drafter kept for the whole run
    tree:SPEC-N  the same with the drafter of SPEC: a name, then +model to give it the draft model (drafter "model" has
                 it anyway), +head to give it the trained head (drafters made from one have it anyway) and + a kind of
                 tree: tree:ngram+chain-9, tree:mixed+head-33, tree:mixed+model-33, tree:model+sampled-17
    hf-plain     transformers' generate, as the model was loaded (its own attention, DynamicCache)
    hf-lookup    transformers' generate with prompt lookup

Knows both libraries' ``generate``; what is done with the times is the `runner`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from ..decode import Generation, Speculator
from ..decode.statistics import StepSeconds
from ..draft import Drafter, NoneDrafter, make_drafter
from ..draft.registry import HEAD_DRAFTERS
from ..target.protocol import Target
from .sampling import Sampling
from .stopwatch import Stopwatch, Timing

METHODS = ("plain", "tree", "hf-plain", "hf-lookup")


@dataclass(frozen=True, eq=False)
class Run:
    """One prompt through one method.

    Attributes:
        tokens: generated ids, the stopping token included.
        timing: see `stopwatch`.
        generation: this library's own statistics; None for transformers.
    """

    tokens: tuple[int, ...]
    timing: Timing
    generation: Generation | None = None

    @property
    def decode_steps(self) -> tuple[StepSeconds, ...]:
        """The parts of the steps that the decoding time covers; empty for transformers."""
        return self.generation.seconds[1:] if self.generation is not None else ()


class Method(Protocol):
    """Something that generates."""

    name: str
    #: most nodes of a forward, root included; 1 for methods without trees
    nodes: int

    def run(self, prompt: Sequence[int], max_new_tokens: int, seed: int) -> Run:
        """Generates from one prompt."""
        ...


@dataclass(frozen=True)
class TreeSpec:
    """A method of this library taken apart.

    Attributes:
        drafter: its name.
        with_model: whether it gets the draft model.
        with_head: whether it gets the trained head.
        kind: how its drafts grow, or None for the drafter's own way.
        budget: nodes, or "auto".
    """

    drafter: str
    with_model: bool
    with_head: bool
    kind: str | None
    budget: str

    @classmethod
    def of(cls, name: str, default: str) -> TreeSpec | None:
        """The spec in a method's name, or None for other methods.

        Args:
            name: as `method_names` gives it.
            default: spec of the drafter of ``tree-N``.

        Raises:
            ValueError: more than one kind of tree.
        """
        if not name.startswith("tree"):
            return None
        method, _, budget = name.rpartition("-")
        drafter, *parts = (method.removeprefix("tree").removeprefix(":") or default).split("+")
        kinds = [part for part in parts if part not in ("model", "head")]
        if len(kinds) > 1:
            raise ValueError(f"method {name!r} names {len(kinds)} kinds of tree: {', '.join(kinds)}")
        with_model, with_head = drafter == "model" or "model" in parts, drafter in HEAD_DRAFTERS or "head" in parts
        return cls(drafter, with_model, with_head, next(iter(kinds), None), budget)

    def options(self, draft_model: Mapping[str, Any], head: str | None) -> dict[str, Any]:
        """Of the drafter, ``draft_model`` being those that bring the draft model."""
        kind = {} if self.kind is None else {"tree": self.kind}
        return {**(draft_model if self.with_model else {}), **({"head": head} if self.with_head else {}), **kind}


class BranchwiseMethod:
    """This library. The speculator, and with it what the drafter has learned, is kept from prompt to prompt."""

    def __init__(
        self,
        name: str,
        target: Target,
        sampling: Sampling,
        drafter: Drafter,
        budget: int | str,
        rule: str = "auto",
    ) -> None:
        self.name = name
        self._speculator = Speculator(target, drafter=drafter, budget=budget, rule=rule)
        self._sampling = sampling
        self.nodes = self._speculator.budget.largest

    def run(self, prompt: Sequence[int], max_new_tokens: int, seed: int) -> Run:
        """See `Method.run`."""
        ids = torch.tensor([list(prompt)])
        watch = Stopwatch()
        output = self._speculator.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            streamer=watch,
            seed=None if self._sampling.is_greedy else seed,
            max_new_tokens=max_new_tokens,
            return_dict_in_generate=True,
            **self._sampling.as_transformers(),
        )
        assert not isinstance(output, torch.Tensor)
        generation = output.branchwise
        assert isinstance(generation, Generation)
        timing = watch.read([len(record.tokens) for record in generation.records])
        return Run(generation.tokens, timing, generation)


class TransformersMethod:
    """transformers' own generate."""

    nodes = 1

    def __init__(self, name: str, model: PreTrainedModel, sampling: Sampling, **options: Any) -> None:
        self.name = name
        self._model = model
        self._sampling = sampling
        self._options = options

    def run(self, prompt: Sequence[int], max_new_tokens: int, seed: int) -> Run:
        """See `Method.run`; the seed is transformers' own (its random stream is not this library's)."""
        ids = torch.tensor([list(prompt)], device=self._model.device)
        if not self._sampling.is_greedy:
            torch.manual_seed(seed)
        watch = Stopwatch()
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            streamer=watch,
            max_new_tokens=max_new_tokens,
            pad_token_id=_pad_token(self._model),
            **self._sampling.as_transformers(),
            **self._options,
        )
        return Run(tuple(output[0, len(prompt) :].tolist()), watch.read())


def method_names(names: Sequence[str], budgets: Sequence[int | str]) -> list[str]:
    """The methods of a run, ``tree`` and ``tree:SPEC`` once per budget.

    Raises:
        ValueError: a name is unknown or comes twice; the message lists those that exist.
    """
    if not names:
        raise ValueError(f"name at least one method; there are {', '.join(METHODS)}")
    expanded: list[str] = []
    for name in names:
        is_tree = name == "tree" or name.startswith("tree:")
        if name not in METHODS and not is_tree:
            raise ValueError(f"no method is named {name!r}; there are {', '.join(METHODS)}, tree:DRAFTER")
        if is_tree and not budgets:
            raise ValueError(f"method {name!r} needs at least one budget")
        expanded.extend([f"{name}-{budget}" for budget in budgets] if is_tree else [name])
    twice = sorted({name for name in expanded if expanded.count(name) > 1})
    if twice:
        raise ValueError(f"given twice: {', '.join(twice)}")
    return expanded


def make_method(
    name: str,
    model: PreTrainedModel,
    target: Target,
    sampling: Sampling,
    drafter: str,
    lookup_tokens: int,
    draft_model: Mapping[str, Any],
    head: str | None = None,
    rule: str = "auto",
) -> Method:
    """The method with one of the names that `method_names` gives.

    Args:
        name: of the method.
        model: the target's model.
        target: the target.
        sampling: how the next token is chosen.
        drafter: spec of the drafter of ``tree-N``.
        lookup_tokens: of ``hf-lookup``.
        draft_model: options of drafters that get the draft model.
        head: folder of the trained head of drafters that have one.
        rule: of this library's methods.
    """
    if name == "plain":
        return BranchwiseMethod(name, target, sampling, NoneDrafter(), 1, rule)
    spec = TreeSpec.of(name, drafter)
    if spec is not None:
        made = make_drafter(spec.drafter, target=target, **spec.options(draft_model, head))
        return BranchwiseMethod(name, target, sampling, made, spec.budget, rule)
    if name == "hf-lookup":
        return TransformersMethod(name, model, sampling, prompt_lookup_num_tokens=lookup_tokens)
    return TransformersMethod(name, model, sampling)


def _pad_token(model: PreTrainedModel) -> int:
    """Any id: one sequence has no padding, but transformers warns when it must pick the id itself."""
    pad = model.generation_config.pad_token_id
    return 0 if pad is None else pad
