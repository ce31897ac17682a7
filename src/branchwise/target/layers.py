"""A model's decoder layers, and forwards that run only some of them.

The model's own forward runs, with its own embeddings, positions, masks, final norm and head; for its length the model
is handed another list of layers, of the same length and with the same layers in it except where a stand-in takes a
place:

    whole model     L0  L1  L2  L3  L4  L5
    first two       L0  L1  C   s   s   s       C catches what would enter L2, s passes its input on
    the others      s   I   L2  L3  L4  L5      I gives out what C caught, whatever comes in

So nothing that a model does around its layers is done twice or left out (scaled embeddings, learned positions, masks
and rotary tables by layer type), and the model's own list is never touched. Knows modules; knows no tree and no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from .support import UnsupportedModel


class UnsupportedSplit(UnsupportedModel):
    """The model's layers cannot be run apart; the message says which model and why."""

    def __init__(self, model_type: str, reason: str) -> None:
        ValueError.__init__(
            self,
            f"branchwise cannot run some layers of {model_type!r} without the others: {reason}. Instead: choose a "
            "drafter other than 'early_exit'.",
        )


class StandIn(nn.Module):
    """Takes a layer's place and passes hidden states ``[B, N, h]`` on.

    The layer stays within reach as a child: models ask their layers for attributes, and transformers walks over them
    when it installs hooks.
    """

    def __init__(self, layer: nn.Module, in_tuple: bool) -> None:
        super().__init__()
        self.layer = layer
        self.in_tuple = in_tuple
        self.training = False

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor]:
        """As a layer is called; the answer has the form of a layer's."""
        passed = self.pass_on(hidden_states)
        return (passed,) if self.in_tuple else passed

    def pass_on(self, hidden_states: Tensor) -> Tensor:
        """What the next layer gets."""
        return hidden_states

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


class Watch(StandIn):
    """Lets its layer work and notes whether it answers with a tuple around the hidden states."""

    saw_tuple = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own answer."""
        answer = self.layer(*args, **kwargs)
        self.saw_tuple = isinstance(answer, tuple)
        return answer


class Catch(StandIn):
    """Keeps what would enter the layer, and passes it on, through an adapter if there is one."""

    def __init__(self, layer: nn.Module, in_tuple: bool, adapter: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__(layer, in_tuple)
        self.caught: Tensor | None = None
        # hidden from nn.Module, which would take it for a part of the model
        self.__dict__["adapter"] = adapter

    def pass_on(self, hidden_states: Tensor) -> Tensor:
        """See `StandIn.pass_on`."""
        self.caught = hidden_states
        adapter = self.__dict__["adapter"]
        if adapter is None:
            return hidden_states
        adapted = adapter(hidden_states)
        if adapted.shape != hidden_states.shape or adapted.dtype != hidden_states.dtype:
            raise ValueError(
                f"the adapter must keep shape and dtype of hidden states: it made {list(adapted.shape)} "
                f"{adapted.dtype} of {list(hidden_states.shape)} {hidden_states.dtype}"
            )
        return adapted

    def take(self) -> Tensor:
        """Hands over what the last forward left here, ``[B, N, h]``."""
        caught, self.caught = self.caught, None
        assert caught is not None, "no forward has come by"
        return caught


class Insert(StandIn):
    """Passes on what it was given instead of what comes in."""

    given: Tensor | None = None

    def pass_on(self, hidden_states: Tensor) -> Tensor:
        """See `StandIn.pass_on`."""
        given, self.given = self.given, None
        assert given is not None and given.shape == hidden_states.shape, "nothing fitting was given"
        return given


@dataclass(frozen=True, eq=False)
class DecoderLayers:
    """Where a model keeps its decoder layers.

    Attributes:
        parent: the module that loops over them.
        name: its attribute that holds them.
    """

    parent: nn.Module
    name: str

    @property
    def own(self) -> nn.ModuleList:
        """The model's own list."""
        # found as a ModuleList
        return self.parent._modules[self.name]  # type: ignore[return-value]

    @contextmanager
    def replaced(self, stand_ins: Mapping[int, nn.Module]) -> Iterator[None]:
        """Hands the model a list with stand-ins, and its own back on the way out, whatever happens."""
        own = self.own
        layers = [stand_ins.get(index, layer) for index, layer in enumerate(own)]
        self.parent._modules[self.name] = nn.ModuleList(layers)
        try:
            yield
        finally:
            self.parent._modules[self.name] = own


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the layers, as one forward runs them.

    Attributes:
        layers: all of them.
        runs: indices of those that run, rising.
        stand_ins: index -> what takes the place of each other one.
        wants_logits: whether anybody reads the logits; the head costs as much as some layers.
    """

    layers: DecoderLayers
    runs: tuple[int, ...]
    stand_ins: Mapping[int, nn.Module] = field(repr=False)
    wants_logits: bool = True

    def installed(self) -> AbstractContextManager[None]:
        """The model as this part alone."""
        return self.layers.replaced(self.stand_ins)


def find_layers(model: PreTrainedModel, count: int) -> DecoderLayers:
    """The list of ``count`` layers, each with an attention that knows its index.

    Raises:
        UnsupportedSplit: there is no such list, or more than one.
    """
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent._modules.items()
        if isinstance(child, nn.ModuleList) and len(child) == count and all(map(_has_index, child, range(count)))
    ]
    if len(found) != 1:
        raise UnsupportedSplit(
            model.config.model_type,
            f"it has {len(found)} lists of {count} layers with an attention of their index in each",
        )
    return DecoderLayers(*found[0])


def _has_index(layer: nn.Module, index: int) -> bool:
    return {getattr(module, "layer_idx", None) for module in layer.modules()} - {None} == {index}
