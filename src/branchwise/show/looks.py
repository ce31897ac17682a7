"""What a node of a drawn step is, how it looks and what is said about it; shared by SVG, PNG and (as a twin) tree.js.

Knows steps as JSON objects. Does not know markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .svg_parts import BACK, BONUS, BONUS_BACK, INK, LIT, LIT_BACK, PANEL, SOFT


@dataclass(frozen=True)
class Look:
    """A kind of box: colours, thickness of its border in pixels, and whether its words are bold."""

    fill: str
    border: str
    thickness: float
    ink: str
    is_dashed: bool = False
    is_bold: bool = False


LOOKS = {
    "plain": Look(BACK, SOFT, 1.2, INK),
    "root": Look(LIT_BACK, LIT, 2.5, INK, is_bold=True),
    "accepted": Look(LIT_BACK, LIT, 2.5, INK, is_bold=True),
    "rejected": Look(PANEL, SOFT, 1.2, SOFT, is_dashed=True),
    "bonus": Look(BONUS_BACK, BONUS, 2.5, INK, is_bold=True),
}


def kind_of(step: Mapping[str, Any], node: int) -> str:
    """The key of a node in `LOOKS`; the bonus token is numbered after the nodes."""
    if node == len(step["nodes"]):
        return "bonus"
    if not step["path"]:
        return "plain"
    return "root" if node == 0 else "accepted" if step["nodes"][node]["accepted"] else "rejected"


def entry_of(step: Mapping[str, Any], node: int) -> Mapping[str, Any]:
    """The object of a node or of the bonus token."""
    return step["bonus"] if node == len(step["nodes"]) else step["nodes"][node]


def parents_of(step: Mapping[str, Any], node: int) -> Sequence[int]:
    """All parents of a node or of the bonus token."""
    if node == 0:
        return ()
    if node == len(step["nodes"]):
        return (step["path"][-1],)
    entry = step["nodes"][node]
    return entry.get("parents", (entry["parent"],))


def facts_of(step: Mapping[str, Any], node: int) -> list[str]:
    """The second line of a node's box: at most two facts."""
    entry, kind = entry_of(step, node), kind_of(step, node)
    if kind == "bonus":
        return ["bonus token"]
    if node == 0:
        return ["root"]
    return [f"{name} {entry[name]:.2f}" for name in ("draft", "target") if entry[name] is not None]


def describe(step: Mapping[str, Any]) -> str:
    """A step in one line."""
    nodes = len(step["nodes"])
    heading = f"{nodes} {'node' if nodes == 1 else 'nodes'}"
    if step["bonus"] is None:
        return f"Token tree of {heading}"
    return f"Draft tree of {heading}, {len(step['path']) - 1} accepted, bonus token {step['bonus']['text']}"


def describe_node(step: Mapping[str, Any], node: int) -> str:
    """What a tooltip says about a node."""
    entry, kind = entry_of(step, node), kind_of(step, node)
    names = {"plain": "node", "root": "root: the last committed token", "bonus": "bonus token, drawn from the target"}
    said = [f"{entry['text']} (token {entry['id']})", names.get(kind, kind)]
    if kind != "bonus" and entry["source"] is not None:
        said.append(f"drafted by {entry['source']}")
    for name in ("draft", "target"):
        if kind != "bonus" and entry[name] is not None:
            said.append(f"{name} probability {entry[name]:g}")
    return ", ".join(said)


#: width of a key's samples in pixels
SAMPLE_WIDTH = 24


@dataclass(frozen=True)
class KeyItem:
    """One entry of a drawing's key.

    Attributes:
        x: where its sample begins, in pixels.
        word: what stands beside it.
        source: the drafter whose mark it explains, or empty.
        kind: the key in `LOOKS` that it explains, or empty.
    """

    x: float
    word: str
    source: str = ""
    kind: str = ""


def key_items(step: Mapping[str, Any]) -> tuple[list[KeyItem], float]:
    """The key of a step in one line: its drafters, then the looks of its boxes; and how wide it is."""
    entries = [(source, source, "") for source in sorted({node["source"] for node in step["nodes"]} - {None})]
    if step["path"]:
        entries += [
            ("committed in this step", "", "accepted"),
            ("rejected", "", "rejected"),
            ("bonus token", "", "bonus"),
        ]
    items, x = [], 0.0
    for word, source, kind in entries:
        items.append(KeyItem(x, word, source, kind))
        x += SAMPLE_WIDTH + 6 + 7.5 * len(word) + 18
    return items, x
