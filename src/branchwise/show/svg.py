"""Steps and masks as SVG text, without a browser.

Stable functions, used by the page, the report of `branchwise compare` and notebooks:

    tree_svg(step, title="", theme="auto") -> str                        # step: step_json(...) or tree_json(...)
    mask_svg(matrix, labels=(), committed=None, title="", theme="auto")  # bool [N, N], row i = what query i sees
    step_mask_svg(step, title="", theme="auto")                          # the mask of a step
    step_svg(step, title="", theme="auto")                               # tree and mask side by side, with a key
    ancestor_matrix(step) -> list[list[bool]]

Each is one ``<svg>`` element that may stand alone in a file or inside an HTML page. Colours follow the reader's light
or dark setting, or ``theme`` fixes them; a renderer without style sheets gets the light ones. All text is escaped.

Knows steps as JSON objects and their layout. Does not know models or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .layout import BADGE_WIDTH, BOX_PADDING, COLUMN_GAP, MOST_CELLS, Box, Layout, has_probabilities, lay_out
from .looks import (
    LOOKS,
    SAMPLE_WIDTH,
    KeyItem,
    Look,
    describe,
    describe_node,
    entry_of,
    facts_of,
    key_items,
    kind_of,
    parents_of,
)
from .mask import MaskGrid, ancestor_matrix, mask_parts
from .sources import COLOURS, badge
from .svg_parts import INK, LINE, LIT, MONO, SANS, SOFT, document, escaped, n, text
from .token_text import shortened

#: between the parts of a drawn step, and of its heading and its key, in pixels
GAP, HEADING_HEIGHT, KEY_HEIGHT = 14, 34, 34


def tree_svg(step: Mapping[str, Any], title: str = "", theme: str = "auto") -> str:
    """The tree of a step.

    Args:
        step: as `step_json` or `tree_json` gives it.
        title: read by screen readers; by default it counts nodes and accepted tokens.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.

    Raises:
        ValueError: there is no such theme.
    """
    layout = lay_out(step)
    parts = [*_edges(step, layout), *_boxes(step, layout)]
    return document(layout.width, layout.height, title or describe(step), theme, parts)


def step_mask_svg(step: Mapping[str, Any], title: str = "", theme: str = "auto") -> str:
    """The mask that the target's forward used for a step."""
    labels = [node["text"] for node in step["nodes"]]
    return mask_svg(ancestor_matrix(step), labels, step["committed"], title, theme)


def mask_svg(
    matrix: Sequence[Sequence[bool]],
    labels: Sequence[str] = (),
    committed: int | None = None,
    title: str = "",
    theme: str = "auto",
) -> str:
    """A mask as squares: a filled one means that the query of its row sees the key of its column.

    Args:
        matrix: ``[N, N]`` over the nodes (a tensor is taken, too).
        labels: of the nodes.
        committed: number of committed tokens, drawn as one wide column that every query sees; None leaves it out.
        title: read by screen readers.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.

    Raises:
        ValueError: the matrix is not square, the labels do not match, or there is no such theme.
    """
    rows = [[bool(seen) for seen in row] for row in matrix]
    if any(len(row) != len(rows) for row in rows):
        raise ValueError(f"a mask over {len(rows)} nodes needs rows of that length, got {list(map(len, rows))}")
    if labels and len(labels) != len(rows):
        raise ValueError(f"a mask over {len(rows)} nodes needs as many labels, got {len(labels)}")
    grid = MaskGrid.of(len(rows), committed)
    title = title or f"Attention mask, {len(rows)} queries by {len(rows)} keys of the tree"
    return document(grid.width, grid.height, title, theme, mask_parts(rows, labels, committed, grid))


def step_svg(step: Mapping[str, Any], title: str = "", theme: str = "auto") -> str:
    """A whole step: a heading, its tree and its mask side by side, and a key.

    Raises:
        ValueError: there is no such theme.
    """
    layout, grid = lay_out(step), MaskGrid.of(len(step["nodes"]), step["committed"])
    heading = title or describe(step)
    key, key_width = key_items(step)
    width = max(layout.width + GAP + grid.width, key_width + 2 * GAP)
    top = float(HEADING_HEIGHT)
    bottom = top + max(layout.height, grid.height)
    labels = [node["text"] for node in step["nodes"]]
    parts = [
        text("bw-ink", GAP, 23, heading, INK, 15, SANS, "start", "bold"),
        f'<g transform="translate(0 {n(top)})">',
        *_edges(step, layout),
        *_boxes(step, layout),
        f'</g><g transform="translate({n(layout.width + GAP)} {n(top)})">',
        *mask_parts(ancestor_matrix(step), labels, step["committed"], grid),
        f'</g><g transform="translate({GAP} {n(bottom)})">{_key(key)}</g>',
    ]
    return document(width, bottom + KEY_HEIGHT, heading, theme, parts)


def _key(items: Sequence[KeyItem]) -> str:
    parts = []
    for item in items:
        if item.source:
            mark = badge(item.source)
            parts.append(_badge(mark.slot, mark.letters, item.x, 6))
        else:
            parts.append(
                f'<g class="bw-{item.kind}"><rect class="bw-box" x="{n(item.x)}" y="6" width="{SAMPLE_WIDTH}" '
                f'height="16" rx="{8 if item.kind == "bonus" else 4}" {_paint(LOOKS[item.kind])}/></g>'
            )
        parts.append(text("bw-ink", item.x + SAMPLE_WIDTH + 6, 18, item.word, INK, 12, SANS, "start"))
    return "".join(parts)


def _edges(step: Mapping[str, Any], layout: Layout) -> Iterator[str]:
    lit = {*step["path"], len(step["nodes"])} if step["path"] else set()
    thin: list[str] = []
    thick: list[str] = []
    for node, box in enumerate(layout.boxes):
        for parent in parents_of(step, node):
            (thick if node in lit else thin).append(_curve(layout.boxes[parent], box))
    if thin:
        yield f'<path class="bw-edge" d="{"".join(thin)}" fill="none" stroke="{LINE}" stroke-width="1.5"/>'
    if thick:
        yield f'<path class="bw-edge-lit" d="{"".join(thick)}" fill="none" stroke="{LIT}" stroke-width="3.5"/>'


def _curve(parent: Box, child: Box) -> str:
    x1, x2 = parent.x + parent.width, child.x
    bend = COLUMN_GAP / 2
    if parent.middle == child.middle:
        return f"M{n(x1)} {n(parent.middle)}H{n(x2)}"
    return (
        f"M{n(x1)} {n(parent.middle)}C{n(x1 + bend)} {n(parent.middle)} {n(x2 - bend)} {n(child.middle)} "
        f"{n(x2)} {n(child.middle)}"
    )


def _boxes(step: Mapping[str, Any], layout: Layout) -> Iterator[str]:
    two_lines = has_probabilities(step)
    for node, box in enumerate(layout.boxes):
        facts = facts_of(step, node) if two_lines else []
        yield _box(entry_of(step, node), kind_of(step, node), box, facts, describe_node(step, node))


def _box(entry: Mapping[str, Any], kind: str, box: Box, facts: Sequence[str], said: str) -> str:
    look = LOOKS[kind]
    parts = [
        f'<g class="bw-node bw-{kind}"><title>{escaped(said)}</title>',
        f'<rect class="bw-box" x="{n(box.x)}" y="{n(box.y)}" width="{n(box.width)}" height="{n(box.height)}" '
        f'rx="{n(box.height / 2 if kind == "bonus" else 7)}" {_paint(look)}/>',
    ]
    edge = BOX_PADDING + (box.height / 4 if kind == "bonus" else 0)
    indent = edge
    if kind != "bonus" and entry["source"] is not None:
        mark = badge(entry["source"])
        parts.append(_badge(mark.slot, mark.letters, box.x + 5, box.y + 5))
        indent = BADGE_WIDTH + BOX_PADDING
    label, weight = shortened(entry["text"], MOST_CELLS), "bold" if look.is_bold else ""
    parts.append(text("bw-word", box.x + indent, box.y + 18, label, look.ink, 13, MONO, "start", weight))
    for place, fact in enumerate(facts):
        x, anchor = (box.x + edge, "start") if place == 0 else (box.x + box.width - BOX_PADDING, "end")
        parts.append(text("bw-small", x, box.y + box.height - 8, fact, SOFT, 10, SANS, anchor))
    return "".join([*parts, "</g>"])


def _paint(look: Look) -> str:
    dash = ' stroke-dasharray="4 3"' if look.is_dashed else ""
    return f'fill="{look.fill}" stroke="{look.border}" stroke-width="{look.thickness}"{dash}'


def _badge(slot: int, letters: str, x: float, y: float) -> str:
    colour, ink = COLOURS[slot]
    width = BADGE_WIDTH - 3
    return (
        f'<rect class="bw-badge bw-s{slot}" x="{n(x)}" y="{n(y)}" width="{width}" height="16" rx="4" fill="{colour}"/>'
        + text(f"bw-letters bw-i{slot}", x + width / 2, y + 11.5, letters, ink, 9.5, SANS, "middle")
    )
