"""Reading a JSON object whose every key is accounted for: what is missing, wrong or unknown is named.

Knows JSON values; knows nothing of what they mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_json(path: Path, what: str) -> Any:
    """The content of a file.

    Args:
        path: of the file.
        what: it should be, for the message.

    Raises:
        ValueError: there is no such file, or it is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read as {what}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no {what}: it holds no JSON ({error})") from None


class Fields:
    """One JSON object on its way into a dataclass. Take every key, then call `done`.

    Args:
        record: the object.
        where: what messages call it.

    Raises:
        ValueError: it is no object.
    """

    def __init__(self, record: Any, where: str) -> None:
        if not isinstance(record, Mapping):
            raise ValueError(f"{where} must be a JSON object, got {type(record).__name__}")
        self.where = where
        self._record = record
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._record.get(key) is not None

    def take(self, key: str) -> Any:
        """The value as it is.

        Raises:
            ValueError: there is none.
        """
        self._taken.add(key)
        if key not in self._record:
            raise ValueError(f"{self.where} has no {key!r}")
        return self._record[key]

    def number(self, key: str, above: float | None = None, least: float = 0.0, most: float = math.inf) -> float:
        """A finite number: above ``above`` where that is given, else at least ``least``; at most ``most``."""
        value = self.take(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not (value > above if above is not None else value >= least) or value > most:
            bound = f"> {above}" if above is not None else f">= {least:g}"
            upper = f" and <= {most:g}" if most != math.inf else ""
            raise ValueError(f"{self.where}: {key} must be a number {bound}{upper}, got {value!r}")
        return float(value)

    def whole(self, key: str) -> int:
        """A whole number of at least 1."""
        value = self.number(key, least=1)
        if value != int(value):
            raise ValueError(f"{self.where}: {key} must be a whole number, got {value!r}")
        return int(value)

    def text(self, key: str) -> str:
        """A string that is not empty."""
        value = self.take(key)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{self.where}: {key} must be a text, got {value!r}")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.take(key)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {key} must be true or false, got {value!r}")
        return value

    def items(self, key: str) -> list[Any]:
        """A list that is not empty."""
        value = self.take(key)
        if not isinstance(value, list) or not value:
            raise ValueError(f"{self.where}: {key} must be a list with something in it, got {value!r}")
        return value

    def object(self, key: str) -> Fields:
        """A JSON object inside this one."""
        return Fields(self.take(key), f"{self.where}: {key}")

    def numbers(self, key: str) -> dict[str, float]:
        """An object of numbers above 0, not empty."""
        inner = self.object(key)
        if not inner._record:
            raise ValueError(f"{inner.where} is empty")
        return {name: inner.number(name, above=0) for name in inner._record}

    def expect(self, form: str, version: int) -> None:
        """Checks ``format`` and ``version``."""
        found, number = self.take("format"), self.take("version")
        if found != form or number != version:
            raise ValueError(
                f'{self.where} must have "format": "{form}" and "version": {version}, got {found!r} and {number!r}'
            )

    def done(self) -> None:
        """Raises ValueError for keys that nobody took."""
        unknown = sorted(set(self._record) - self._taken)
        if unknown:
            raise ValueError(f"{self.where} has keys that nobody reads: {', '.join(unknown)}")
