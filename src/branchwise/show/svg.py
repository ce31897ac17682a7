"""Steps and masks as SVG text, without a browser.

Stable functions, used by the page, the report of `branchwise compare` and notebooks:

    tree_svg(step, title="", theme="auto") -> str                        # step: step_json(...) or tree_json(...)
    mask_svg(matrix, labels=(), committed=None, title="", theme="auto")  # bool [N, N], row i = what query i sees
    step_mask_svg(step, title="", theme="auto")                          # the mask of a step
    ancestor_matrix(step) -> list[list[bool]]

Each is one ``<svg>`` element that may stand alone in a file or inside an HTML page. Colours follow the reader's light
or dark setting, or ``theme`` fixes them; a renderer without style sheets gets the light ones. All text is escaped.

Knows steps as JSON objects and their layout. Does not know models or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import count
from typing import Any

from .asset import asset
from .layout import BADGE_WIDTH, BOX_PADDING, COLUMN_GAP, MOST_CELLS, Box, Layout, has_probabilities, lay_out
from .sources import COLOURS, badge
from .token_text import shortened

THEMES = ("auto", "light", "dark")
MONO = "ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace"
SANS = "system-ui,'DejaVu Sans',sans-serif"

#: colours for renderers without style sheets: those of the light theme in tree.css
BACK, PANEL, INK, SOFT, LINE = "#ffffff", "#f6f8fa", "#1b1f24", "#57606a", "#afb8c1"
LIT, LIT_BACK, BONUS, BONUS_BACK = "#0550ae", "#ddebff", "#7d4e00", "#fff1c2"

_numbers = count(1)


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
    return _svg(layout.width, layout.height, title or describe(step), theme, parts)


def describe(step: Mapping[str, Any]) -> str:
    """A step in one line."""
    nodes = len(step["nodes"])
    heading = f"{nodes} {'node' if nodes == 1 else 'nodes'}"
    if step["bonus"] is None:
        return f"Token tree of {heading}"
    return f"Draft tree of {heading}, {len(step['path']) - 1} accepted, bonus token {step['bonus']['text']}"


def ancestor_matrix(step: Mapping[str, Any]) -> list[list[bool]]:
    """Bool ``[N, N]``: row i marks the ancestors of node i and itself, which is all it sees of the tree."""
    rows: list[list[bool]] = []
    for node, entry in enumerate(step["nodes"]):
        row = [False] * len(step["nodes"])
        for parent in entry.get("parents", [entry["parent"]]) if node else []:
            row = [seen or above for seen, above in zip(row, rows[parent], strict=True)]
        row[node] = True
        rows.append(row)
    return rows


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
    grid = MaskGrid.of(len(rows), bool(labels), committed)
    title = title or f"Attention mask, {len(rows)} queries by {len(rows)} keys of the tree"
    return _svg(grid.width, grid.height, title, theme, _mask_parts(rows, labels, committed, grid))


class MaskGrid:
    """Measures of a drawn mask in pixels."""

    def __init__(self, nodes: int, cell: float, left: float, top: float, committed_width: float) -> None:
        self.cell, self.left, self.top, self.committed_width = cell, left, top, committed_width
        self.start = left + committed_width
        self.width = self.start + nodes * cell + 12
        self.height = top + nodes * cell + 12

    @classmethod
    def of(cls, nodes: int, labelled: bool, committed: int | None) -> MaskGrid:
        """Squares shrink with their number; labels stand only beside squares that are high enough."""
        cell = 22 if nodes <= 12 else 16 if nodes <= 34 else 9 if nodes <= 80 else 4
        has_labels = cell >= 16
        return cls(nodes, cell, 108 if labelled and has_labels else 34, 34, 0 if committed is None else 58)


def _mask_parts(
    rows: Sequence[Sequence[bool]], labels: Sequence[str], committed: int | None, grid: MaskGrid
) -> Iterator[str]:
    cell, nodes = grid.cell, len(rows)
    bottom, right = grid.top + nodes * cell, grid.start + nodes * cell
    yield _rect("bw-grid", grid.left, grid.top, right - grid.left, bottom - grid.top, PANEL, LINE)
    if cell >= 9:
        lines = "".join(
            f"M{_n(grid.start + i * cell)} {_n(grid.top)}V{_n(bottom)}"
            f"M{_n(grid.start)} {_n(grid.top + i * cell)}H{_n(right)}"
            for i in range(nodes)
        )
        yield f'<path class="bw-gridline" d="{lines}" fill="none" stroke="{LINE}" stroke-width=".5"/>'
    if committed is not None:
        yield _rect("bw-seen", grid.left + 1, grid.top + 1, grid.committed_width - 2, bottom - grid.top - 2, LIT, None)
        middle = grid.left + grid.committed_width / 2
        yield _text("bw-small", middle, grid.top - 18, f"{committed}", SOFT, 10, SANS, "middle")
        yield _text("bw-small", middle, grid.top - 6, "committed", SOFT, 10, SANS, "middle")
    for query, row in enumerate(rows):
        y = grid.top + query * cell
        for key, seen in enumerate(row):
            if seen:
                name, fill = ("bw-self", INK) if key == query else ("bw-seen", LIT)
                yield _rect(
                    name,
                    grid.start + key * cell + 1,
                    y + 1,
                    cell - 2 if cell > 4 else 3,
                    cell - 2 if cell > 4 else 3,
                    fill,
                    None,
                )
        if cell >= 16:
            middle = y + cell / 2 + 3.5
            yield _text("bw-small", grid.left - 6, middle, str(query), SOFT, 10, SANS, "end")
            if labels:
                yield _text("bw-word", grid.left - 24, middle, shortened(labels[query], 11), INK, 11, MONO, "end")
            x = grid.start + (query + 0.5) * cell
            yield _text("bw-small", x, grid.top - 6, str(query), SOFT, 9 if cell < 20 else 10, SANS, "middle")


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
        return f"M{_n(x1)} {_n(parent.middle)}H{_n(x2)}"
    return (
        f"M{_n(x1)} {_n(parent.middle)}C{_n(x1 + bend)} {_n(parent.middle)} {_n(x2 - bend)} {_n(child.middle)} "
        f"{_n(x2)} {_n(child.middle)}"
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
        f'<g class="bw-node bw-{kind}"><title>{escape(node_title(entry, kind))}</title>',
        f'<rect class="bw-box" x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" height="{_n(box.height)}" '
        f'rx="{_n(radius)}" fill="{fill}" stroke="{border}" stroke-width="{width}"{dash}/>',
    ]
    indent = BOX_PADDING + (box.height / 4 if kind == "bonus" else 0)
    source = entry["source"] if kind != "bonus" else None
    if source is not None:
        mark = badge(source)
        colour, letters_ink = COLOURS[mark.slot]
        x, y = box.x + 5, box.y + 5
        parts.append(
            f'<rect class="bw-badge bw-s{mark.slot}" x="{_n(x)}" y="{_n(y)}" width="{BADGE_WIDTH - 3}" height="16" '
            f'rx="4" fill="{colour}"/>'
        )
        parts.append(
            _text(
                f"bw-letters bw-i{mark.slot}",
                x + (BADGE_WIDTH - 3) / 2,
                y + 11.5,
                mark.letters,
                letters_ink,
                9.5,
                SANS,
                "middle",
            )
        )
        indent = BADGE_WIDTH + BOX_PADDING
    baseline = box.y + 18
    weight = "bold" if kind in ("root", "accepted", "bonus") else ""
    label = shortened(entry["text"], MOST_CELLS)
    parts.append(_text("bw-word", box.x + indent, baseline, label, ink, 13, MONO, "start", weight))
    if facts:
        below = box.y + box.height - 8
        if len(facts) == 1:
            parts.append(
                _text(
                    "bw-small", box.x + max(indent - BADGE_WIDTH, BOX_PADDING), below, facts[0], SOFT, 10, SANS, "start"
                )
            )
        else:
            parts.append(_text("bw-small", box.x + BOX_PADDING, below, facts[0], SOFT, 10, SANS, "start"))
            parts.append(_text("bw-small", box.x + box.width - BOX_PADDING, below, facts[1], SOFT, 10, SANS, "end"))
    return "".join([*parts, "</g>"])


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


def _svg(width: float, height: float, title: str, theme: str, parts: Any) -> str:
    if theme not in THEMES:
        raise ValueError(f"theme must be one of {', '.join(THEMES)}, got {theme!r}")
    fixed = "" if theme == "auto" else f' data-theme="{theme}"'
    name = f"bw-title-{next(_numbers)}"
    w, h = _n(width), _n(height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bw bw-svg"{fixed} role="img" aria-labelledby="{name}" '
        f'width="{w}" height="{h}" viewBox="0 0 {w} {h}"><title id="{name}">{escape(title)}</title>'
        f"<style>{asset('tree.css')}</style>"
        f'<rect class="bw-back" width="{w}" height="{h}" rx="10" fill="{BACK}"/>{"".join(parts)}</svg>'
    )


def _rect(name: str, x: float, y: float, width: float, height: float, fill: str, stroke: str | None) -> str:
    line = f' stroke="{stroke}"' if stroke else ""
    return (
        f'<rect class="{name}" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" fill="{fill}"{line}/>'
    )


def _text(
    name: str, x: float, y: float, text: str, fill: str, size: float, family: str, anchor: str, weight: str = ""
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    # isolated, so that a token written from right to left stays in its place
    return (
        f'<text class="{name}" x="{_n(x)}" y="{_n(y)}" fill="{fill}" font-size="{size}" font-family="{family}" '
        f'text-anchor="{anchor}"{bold} direction="ltr" unicode-bidi="isolate" xml:space="preserve">'
        f"{escape(text)}</text>"
    )


def _n(value: float) -> str:
    """A number as short as it can be written."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
