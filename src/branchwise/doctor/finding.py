"""One line of `branchwise doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "absent", "broken"]


@dataclass(frozen=True)
class Finding:
    """What was found about one topic.

    Attributes:
        topic: a word or two.
        state: "ok"; "absent" for something that is not there and need not be; "broken" for what keeps branchwise from
            working, which makes the command fail.
        says: one sentence, with the remedy where there is something to do.
    """

    topic: str
    state: State
    says: str

    def line(self, topic_width: int) -> str:
        """For a terminal; what is broken catches the eye without colours."""
        mark = {"ok": "ok", "absent": "-", "broken": "BROKEN"}[self.state]
        return f"{mark:<7}{self.topic:<{topic_width}}  {self.says}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
