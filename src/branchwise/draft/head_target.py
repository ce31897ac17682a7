"""Whether a trained head belongs to the target it is given: what its checkpoint recorded against what the target is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from transformers import PreTrainedModel

from .head_config import HeadCheckpointError


@dataclass(frozen=True)
class RecordedTarget:
    """What a checkpoint says about the target its head was trained for; None where it says nothing.

    Attributes:
        hidden_size: width of the hidden states.
        vocab_size: rows of the output layer.
        layers: decoder layers.
        name: name or path it was loaded from.
    """

    hidden_size: int | None = None
    vocab_size: int | None = None
    layers: int | None = None
    name: str | None = None

    def check(self, model: PreTrainedModel, where: str) -> None:
        """Refuses a target that differs in anything that was recorded.

        Names are compared by their last part, since one model may lie under many paths.

        Args:
            model: the target.
            where: what to call the head in messages.

        Raises:
            HeadCheckpointError: gives both values.
        """
        output = model.get_output_embeddings()
        pairs = (
            ("hidden size", self.hidden_size, output.in_features),
            ("vocabulary size", self.vocab_size, output.out_features),
            ("number of layers", self.layers, model.config.get_text_config(decoder=True).num_hidden_layers),
        )
        for what, recorded, actual in pairs:
            if recorded is not None and recorded != actual:
                raise HeadCheckpointError(
                    f"{where} was trained for a target of {what} {recorded}, this one has {actual}; use the head that "
                    "was trained for it"
                )
        if self.name and model.name_or_path and _last_part(self.name) != _last_part(model.name_or_path):
            raise HeadCheckpointError(
                f"{where} was trained for {self.name!r}, the target is {model.name_or_path!r}; use the head that was "
                "trained for it, or, if they are the same model, take the name out of the head's config.json"
            )


def _last_part(name: str) -> str:
    return PurePath(name).name.lower()
