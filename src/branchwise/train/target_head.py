"""The target's output layer, cut to a draft vocabulary: what the target itself would say at a hidden state.

Reads the target's weights and never writes them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

#: largest difference between the model's own logits and the output layer applied to its last hidden state, in shares of
#: the largest logit; bfloat16 rounds to one part in 256
PROBE_TOLERANCE = 0.02


class TargetHead:
    """Logits of the target over some of its tokens.

    Args:
        model: the target.
        ids: int64 ``[D]`` of the draft vocabulary.

    Raises:
        ValueError: the target does more to its logits than its output layer, or the layer is quantised.
    """

    def __init__(self, model: PreTrainedModel, ids: Tensor) -> None:
        layer = model.get_output_embeddings()
        if not layer.weight.is_floating_point():
            raise ValueError(f"the target's output layer holds {layer.weight.dtype}: load it unquantised for training")
        _probe(model)
        device = layer.weight.device
        self.ids = ids.to(device)
        self.weight = layer.weight.detach()[self.ids]  # [D, h]
        bias = getattr(layer, "bias", None)
        self.bias = None if bias is None else bias.detach()[self.ids]
        vocab_size = int(layer.weight.shape[0])
        #: row of every target token, -1 where it has none: int64 [V]
        self.row_of = torch.full((vocab_size,), -1, dtype=torch.long, device=device)
        self.row_of[self.ids] = torch.arange(len(self.ids), device=device)

    @torch.no_grad()
    def logits(self, final: Tensor, count: int | None = None) -> Tensor:
        """Of the draft vocabulary's first ``count`` tokens, or all D.

        Args:
            final: hidden states ``[n, h]``.
            count: how many tokens.

        Returns:
            ``[n, count]``, in the target's own dtype.
        """
        bias = None if self.bias is None else self.bias[:count]
        return functional.linear(final.to(self.weight.dtype), self.weight[:count], bias)


@torch.no_grad()
def _probe(model: PreTrainedModel) -> None:
    device = model.get_input_embeddings().weight.device
    output = model(input_ids=torch.arange(4, device=device)[None], use_cache=False, output_hidden_states=True)
    own = output.logits.float()
    again = model.get_output_embeddings()(output.hidden_states[-1]).float()
    if float((own - again).abs().max()) > PROBE_TOLERANCE * float(own.abs().max()):
        raise ValueError(
            f"{type(model).__name__} does more to its logits than its output layer (a soft cap or a scale), which "
            "training cannot follow yet: choose another target"
        )
