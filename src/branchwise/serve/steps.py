"""Steps for those who ask for them: what was drafted, what was kept, and the text that came of it.

Knows a handle's finished steps; knows no stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..decode.handle import Handle
from ..show.step_json import step_json
from ..show.token_text import TokenLabels


class StepTeller:
    """Makes the ``step`` of each chunk of one choice.

    Args:
        handle: whose steps; it has one for every run of tokens.
        labels: of tokens.
    """

    def __init__(self, handle: Handle, labels: TokenLabels) -> None:
        self._handle = handle
        self._labels = labels
        self._steps = 0
        self._committed = len(handle.request.prompt) - 1

    def tell(self, pieces: Sequence[str]) -> dict[str, Any]:
        """The next step as `step_json` has it, with its number from 1 and ``pieces``.

        Args:
            pieces: the shown text of each emitted token: of the path's accepted nodes, then of the bonus token. One is
                empty where text is shown with a later token: a part of a character, or of what may be a stop string.
        """
        record, seconds = self._handle.records[self._steps], self._handle.seconds[self._steps]
        step = step_json(
            record,
            self._labels,
            seconds=seconds,
            budget=self._handle.request.budget,
            committed=self._committed,
        )
        self._steps += 1
        self._committed += len(record.tokens)
        return {"number": self._steps, **step, "pieces": list(pieces)}
