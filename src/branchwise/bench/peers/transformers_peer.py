"""transformers' own ``generate``: plain, prompt lookup, and its first layers as assistant."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from ..methods import Method, TransformersMethod
from ..sampling import Sampling
from .assignment import Assignment
from .loading import dtype_name, load_with_torch

#: the exit that is taken: this share of the layers, as this library's own early exit takes by default
EXIT_SHARE = 4


class TransformersPeer:
    """See `assignment.Peer`."""

    def __init__(self, given: Assignment) -> None:
        self._model, _ = load_with_torch(given)
        self._sampling = Sampling(given.temperature)
        self.facts = {"versions": {"transformers": transformers.__version__}, "weights": dtype_name(self._model)}

    def method(self, name: str) -> Method:
        """See `assignment.Peer.method`."""
        return TransformersMethod(name, self._model, self._sampling, **self._options(name))

    def _options(self, name: str) -> dict[str, Any]:
        if name == "plain":
            return {}
        if name == "early-exit":
            return {"assistant_early_exit": exit_layer(self._model)}
        return {"prompt_lookup_num_tokens": int(name.removeprefix("lookup-"))}


def exit_layer(model: PreTrainedModel) -> int:
    """The number of first layers that draft.

    Raises:
        ValueError: transformers would run all layers: it changes ``config.num_hidden_layers`` for the assistant and
            trusts the model to look there.
    """
    config = model.base_model.config
    layers = getattr(model.base_model, "layers", None)
    if layers is None or len(layers) < 2:
        raise ValueError(
            f"assistant_early_exit does not apply: {type(model).__name__} has no two layers to leave between"
        )
    ran: list[bool] = []
    handle = layers[-1].register_forward_hook(lambda *_: ran.append(True))
    all_layers = config.num_hidden_layers
    config.num_hidden_layers = chosen = max(1, all_layers // EXIT_SHARE)
    try:
        with torch.no_grad():
            model(torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=False)
    finally:
        config.num_hidden_layers = all_layers
        handle.remove()
    if ran:
        raise ValueError(
            f"assistant_early_exit does not apply: {type(model).__name__} runs all layers whatever its config says"
        )
    return chosen
