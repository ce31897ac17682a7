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
from .mask import MaskGrid, ancestor_matrix, mask_parts
from .sources import COLOURS, badge
from .svg_parts import (
    BACK,
    BONUS,
    BONUS_BACK,
    INK,
    LINE,
    LIT,
    LIT_BACK,
    MONO,
    PANEL,
    SANS,
    SOFT,
    document,
    escaped,
    n,
    text,
)
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


def describe(step: Mapping[str, Any]) -> str:
    """A step in one line."""
    nodes = len(step["nodes"])
    heading = f"{nodes} {'node' if nodes == 1 else 'nodes'}"
    if step["bonus"] is None:
        return f"Token tree of {heading}"
    return f"Draft tree of {heading}, {len(step['path']) - 1} accepted, bonus token {step['bonus']['text']}"


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
    key, key_width = _key(step)
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
        f'</g><g transform="translate({GAP} {n(bottom)})">{key}</g>',
    ]
    return document(width, bottom + KEY_HEIGHT, heading, theme, parts)


def _key(step: Mapping[str, Any]) -> tuple[str, float]:
    """The drafters' marks and what the looks mean, in one line; with its width."""
    parts, x = [], 0.0
    for source in sorted({node["source"] for node in step["nodes"]} - {None}):
        mark = badge(source)
        parts.append(_badge(mark.slot, mark.letters, x, 6))
        parts.append(text("bw-ink", x + BADGE_WIDTH + 3, 18, source, INK, 12, SANS, "start"))
        x += BADGE_WIDTH + 3 + 7.5 * len(source) + 18
    for kind, word in (("accepted", "committed in this step"), ("rejected", "rejected"), ("bonus", "bonus token")):
        if not step["path"]:
            break
        fill, border, thickness, dashes, _ = _LOOKS[kind]
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(
            f'<g class="bw-{kind}"><rect class="bw-box" x="{n(x)}" y="6" width="24" height="16" '
            f'rx="{8 if kind == "bonus" else 4}" fill="{fill}" stroke="{border}" stroke-width="{thickness}"{dash}/></g>'
        )
        parts.append(text("bw-ink", x + 31, 18, word, INK, 12, SANS, "start"))
        x += 31 + 7.2 * len(word) + 18
    return "".join(parts), x


def _edges(step: Mapping[str, Any], layout: Layout) -> Iterator[str]:
    lit = {*step["path"], len(step["nodes"])} if step["path"] else set()
    thin, thick = [], []
    for node, box in enumerate(layout.boxes):
        for parent in _parents(step, node):
            (thick if node in lit else thin).append(_curve(layout.boxes[parent], box))
    if thin:
        yield f'<path class="bw-edge" d="{"".join(thin)}" fill="none" stroke="{LINE}" stroke-width="1.5"/>'
    if thick:
        yield f'<path class="bw-edge-lit" d="{"".join(thick)}" fill="none" stroke="{LIT}" stroke-width="3.5"/>'


def _parents(step: Mapping[str, Any], node: int) -> Sequence[int]:
    if node == 0:
        return ()
    if node == len(step["nodes"]):
        return (step["path"][-1],)
    entry = step["nodes"][node]
    return entry.get("parents", (entry["parent"],))


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
    judged = bool(step["path"])
    for node, entry in enumerate(step["nodes"]):
        kind = "plain" if not judged else "root" if node == 0 else "accepted" if entry["accepted"] else "rejected"
        yield _box(entry, kind, layout.boxes[node], _facts(entry, node) if two_lines else [])
    if step["bonus"] is not None:
        yield _box(step["bonus"], "bonus", layout.boxes[-1], ["bonus token"] if two_lines else [])


def _facts(entry: Mapping[str, Any], node: int) -> list[str]:
    if node == 0:
        return ["root"]
    return [f"{name} {entry[name]:.2f}" for name in ("draft", "target") if entry[name] is not None]


#: fill, border, its width, dashes, ink
_LOOKS = {
    "plain": (BACK, SOFT, 1.2, "", INK),
    "root": (LIT_BACK, LIT, 2.5, "", INK),
    "accepted": (LIT_BACK, LIT, 2.5, "", INK),
    "rejected": (PANEL, LINE, 1.2, "4 3", SOFT),
    "bonus": (BONUS_BACK, BONUS, 2.5, "", INK),
}


def _box(entry: Mapping[str, Any], kind: str, box: Box, facts: Sequence[str]) -> str:
    fill, border, width, dashes, ink = _LOOKS[kind]
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    radius = box.height / 2 if kind == "bonus" else 7
    parts = [
        f'<g class="bw-node bw-{kind}"><title>{escaped(node_title(entry, kind))}</title>',
        f'<rect class="bw-box" x="{n(box.x)}" y="{n(box.y)}" width="{n(box.width)}" height="{n(box.height)}" '
        f'rx="{n(radius)}" fill="{fill}" stroke="{border}" stroke-width="{width}"{dash}/>',
    ]
    indent = BOX_PADDING + (box.height / 4 if kind == "bonus" else 0)
    source = entry["source"] if kind != "bonus" else None
    if source is not None:
        mark = badge(source)
        parts.append(_badge(mark.slot, mark.letters, box.x + 5, box.y + 5))
        indent = BADGE_WIDTH + BOX_PADDING
    baseline = box.y + 18
    weight = "bold" if kind in ("root", "accepted", "bonus") else ""
    label = shortened(entry["text"], MOST_CELLS)
    parts.append(text("bw-word", box.x + indent, baseline, label, ink, 13, MONO, "start", weight))
    if facts:
        below = box.y + box.height - 8
        if len(facts) == 1:
            parts.append(
                text(
                    "bw-small", box.x + max(indent - BADGE_WIDTH, BOX_PADDING), below, facts[0], SOFT, 10, SANS, "start"
                )
            )
        else:
            parts.append(text("bw-small", box.x + BOX_PADDING, below, facts[0], SOFT, 10, SANS, "start"))
            parts.append(text("bw-small", box.x + box.width - BOX_PADDING, below, facts[1], SOFT, 10, SANS, "end"))
    return "".join([*parts, "</g>"])


def _badge(slot: int, letters: str, x: float, y: float) -> str:
    colour, ink = COLOURS[slot]
    width = BADGE_WIDTH - 3
    return (
        f'<rect class="bw-badge bw-s{slot}" x="{n(x)}" y="{n(y)}" width="{width}" height="16" rx="4" fill="{colour}"/>'
        + text(f"bw-letters bw-i{slot}", x + width / 2, y + 11.5, letters, ink, 9.5, SANS, "middle")
    )


def node_title(entry: Mapping[str, Any], kind: str) -> str:
    """What a screen reader or a tooltip says about a node."""
    said = [f"{entry['text']} (token {entry['id']})"]
    said.append({"plain": "node", "root": "root: the last committed token"}.get(kind, kind))
    if kind == "bonus":
        said[-1] = "bonus token, drawn from the target"
    elif entry["source"] is not None:
        said.append(f"drafted by {entry['source']}")
    for name in ("draft", "target"):
        if entry.get(name) is not None:
            said.append(f"{name} probability {entry[name]:g}")
    return ", ".join(said)
