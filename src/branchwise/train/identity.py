"""Which model and which tokenizer something was made with or for, as short checksums."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from ..target.fingerprint import checksum


class TargetMismatch(ValueError):
    """Data, features or a checkpoint belong to another target than the one at hand."""


@dataclass(frozen=True)
class Identity:
    """A target as data and checkpoints remember it.

    Attributes:
        weights: checksum of the weights, the same whatever type they were loaded in.
        tokens: checksum of what every token id stands for.
        hidden_size: width of the hidden states.
        layers: decoder layers.
        vocab_size: rows of the output layer.
    """

    weights: str
    tokens: str
    hidden_size: int
    layers: int
    vocab_size: int

    @classmethod
    def of(cls, model: Any, tokenizer: Any) -> Identity:
        """The identity of a loaded target."""
        config = model.config.get_text_config()
        return cls(
            weights=weights_checksum(model),
            tokens=tokens_checksum(tokenizer),
            hidden_size=int(config.hidden_size),
            layers=int(config.num_hidden_layers),
            vocab_size=int(model.get_output_embeddings().out_features),
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Identity:
        """From `as_dict`."""
        return cls(**fields)

    def require_same_tokens(self, other: Identity, what: str) -> None:
        """Raises TargetMismatch unless the token ids of ``what`` (made for ``other``) are this target's."""
        if self.tokens != other.tokens or self.vocab_size != other.vocab_size:
            raise TargetMismatch(
                f"{what} was written with another tokenizer ({other.tokens}, {other.vocab_size} ids; the target has "
                f"{self.tokens}, {self.vocab_size} ids): generate data with this target"
            )

    def require_same(self, other: Identity, what: str) -> None:
        """Raises TargetMismatch unless ``what`` was made for this very target; says what differs."""
        for field, unit in (("hidden_size", "hidden size"), ("layers", "number of layers")):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                raise TargetMismatch(f"{what} is for a target whose {unit} is {theirs}, this one's is {mine}")
        self.require_same_tokens(other, what)
        if self.weights != other.weights:
            raise TargetMismatch(
                f"{what} is for a target with other weights ({other.weights}, this one has {self.weights}): use the "
                "same checkpoint, or start in a new folder"
            )


def weights_checksum(model: nn.Module) -> str:
    """A checksum over names, shapes and values of all parameters, values rounded to bfloat16.

    So a checkpoint has one checksum, whether it is loaded in float32 or in bfloat16.
    """
    return checksum(model, lambda values: values)


def tokens_checksum(tokenizer: Any) -> str:
    """A checksum over the vocabulary: every token and its id."""
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]
