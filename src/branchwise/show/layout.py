"""Where the boxes of a drawn tree lie. Integers and widths only: no colours, no markup.

The root is at the left, depth goes to the right, and every leaf has a row of its own. A node lies in the row of its
first child; the child on the lit path (accepted nodes, then the bonus token) comes first, the others follow in draw
order. So the lit path is the straight line on top:

    root ── cat ── sat ══ bonus
        │        └ ran
        └── dog

`assets/tree.js` computes the same places in the browser; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: pixels
CELL_WIDTH = 7.9
MARGIN = 16
COLUMN_GAP = 34
ROW_GAP = 9
BOX_HEIGHT, LOW_BOX_HEIGHT = 42, 28
BOX_PADDING, BADGE_WIDTH = 9, 24
#: a box with probabilities is never narrower
LEAST_WIDTH, LOW_LEAST_WIDTH = 128, 58
#: longer labels are cut
MOST_CELLS = 18


@dataclass(frozen=True)
class Box:
    """One node's rectangle in pixels; ``x`` and ``y`` are its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The height of its edges."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class Layout:
    """A whole drawing.

    Attributes:
        boxes: one per node, then the bonus token's if there is one.
        width, height: of the drawing, margins included.
    """

    boxes: tuple[Box, ...]
    width: float
    height: float


def lay_out(step: Mapping[str, Any]) -> Layout:
    """Places the nodes of a step as `step_json` gives it."""
    tokens = list(step["nodes"])
    depth = [node["depth"] for node in tokens]
    if step["bonus"] is not None:
        depth.append(depth[step["path"][-1]] + 1)
        tokens.append(step["bonus"])
    height = BOX_HEIGHT if has_probabilities(step) else LOW_BOX_HEIGHT
    rows = _rows(children_of(step))
    widths = [0.0] * (max(depth) + 1)
    for node, token in enumerate(tokens):
        widths[depth[node]] = max(widths[depth[node]], box_width(token, height))
    left = [float(MARGIN)]
    for width in widths:
        left.append(left[-1] + width + COLUMN_GAP)
    boxes = tuple(
        Box(left[depth[node]], MARGIN + rows[node] * (height + ROW_GAP), widths[depth[node]], height)
        for node in range(len(tokens))
    )
    bottom = MARGIN + (max(rows) + 1) * (height + ROW_GAP) - ROW_GAP + MARGIN
    return Layout(boxes, left[-1] - COLUMN_GAP + MARGIN, bottom)


def children_of(step: Mapping[str, Any]) -> list[list[int]]:
    """Children of every node, the lit one first; the bonus token, numbered after the nodes, ends the lit path."""
    nodes = step["nodes"]
    children: list[list[int]] = [[] for _ in nodes]
    for node in range(1, len(nodes)):
        children[nodes[node]["parent"]].append(node)
    lit = [*step["path"][1:]]
    if step["bonus"] is not None:
        children.append([])
        lit.append(len(nodes))
    for parent, child in zip(step["path"], lit, strict=False):
        children[parent] = [child, *(other for other in children[parent] if other != child)]
    return children


def has_probabilities(step: Mapping[str, Any]) -> bool:
    """Whether the boxes need their second line."""
    return any(node["draft"] is not None or node["target"] is not None for node in step["nodes"])


def box_width(token: Mapping[str, Any], height: float) -> float:
    """How wide a label makes its box."""
    least = LEAST_WIDTH if height == BOX_HEIGHT else LOW_LEAST_WIDTH
    label = min(token["cells"], MOST_CELLS) * CELL_WIDTH + 2 * BOX_PADDING + BADGE_WIDTH
    return max(least, label)


def _rows(children: Sequence[Sequence[int]]) -> list[int]:
    """The row of every node: leaves in depth-first order, the others with their first child."""
    rows = [0] * len(children)
    order, stack = [], [0]
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(reversed(children[node]))
    row = 0
    for node in order:
        if not children[node]:
            rows[node] = row
            row += 1
    for node in reversed(order):  # children before their parent
        if children[node]:
            rows[node] = rows[children[node][0]]
    return rows
