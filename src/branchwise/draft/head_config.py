"""The config of a draft head, read key by key so that nothing in it goes unnoticed.

Knows types, defaults and which keys were read. Does not know what any key means to a head: the head reads all it
honours and then calls `finish`, which refuses the rest by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from transformers import PretrainedConfig

#: keys that say nothing about how a head computes: provenance, storage, training and what a tokenizer or sampler reads
IRRELEVANT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "hidden_dropout",
        "initializer_range",
        "pad_token_id",
        "resid_pdrop",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)

_REQUIRED = object()


class HeadCheckpointError(ValueError):
    """A head's folder cannot be used; the message names the file and the key or tensor, and what to do."""


class HeadConfig:
    """One JSON object whose keys are taken one by one.

    Args:
        values: the object.
        where: what to call it in messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._values = dict(values)
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = _REQUIRED) -> Any:
        """The value of ``key``, and notes that it was read.

        Args:
            key: the key.
            kind: type or types it must have; an integer passes where ``float`` is asked for, a bool never as a number.
            default: what an absent key means; without one the key must be there. A null is an absent key.

        Raises:
            HeadCheckpointError: the key is missing or of another type.
        """
        self._read.add(key)
        value = self._values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise HeadCheckpointError(f"{self.where} lacks the key {key!r}: this head cannot be built without it")
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        accepted = (*kinds, int) if float in kinds else kinds
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(each.__name__ for each in kinds)
            raise HeadCheckpointError(f"{self.where} has {key!r} = {value!r}, which must be of type {wanted}")
        return value

    def require(self, key: str, wanted: Any, default: Any = None) -> None:
        """Insists on the one value of ``key`` that the head can honour; an absent key stands for ``default``.

        Raises:
            HeadCheckpointError: it has another value.
        """
        self._read.add(key)
        value = self._values.get(key)
        value = default if value is None else value
        if value != wanted:
            raise HeadCheckpointError(f"{self.where} has {key!r} = {value!r}; only {wanted!r} is supported")

    def nested(self, key: str, default: Any = _REQUIRED) -> HeadConfig:
        """The object under ``key`` as a config of its own; the caller finishes it."""
        return HeadConfig(self.take(key, dict, default), f"{self.where} [{key!r}]")

    def finish(self, ignored: Collection[str] = ()) -> None:
        """Refuses every key that was not read, unless it says nothing about the computation.

        Keys in `IRRELEVANT` and ``ignored`` are left aside, and so are values that are transformers' own defaults for
        any model: a config written out in full lists dozens of them.

        Raises:
            HeadCheckpointError: a key is left over.
        """
        left = {
            key: value
            for key, value in self._values.items()
            if key not in self._read | IRRELEVANT | set(ignored) and value is not None and not _is_default(key, value)
        }
        if left:
            shown = ", ".join(f"{key!r} = {value!r}" for key, value in left.items())
            raise HeadCheckpointError(
                f"{self.where} sets {shown}, which branchwise does not honour for this head; if that does not change "
                "what the head computes, remove it from the file"
            )


@cache
def _defaults() -> Mapping[str, Any]:
    return PretrainedConfig().to_dict()


def _is_default(key: str, value: Any) -> bool:
    defaults = _defaults()
    return key in defaults and defaults[key] == value
