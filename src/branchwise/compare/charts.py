"""Charts as SVG: lines over a quantity, and horizontal bars. Knows exhibit records; colours are the style sheet's.

Series differ in colour, in the shape of their marks and in their dashes, so that none of the three is needed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import pairwise
from math import ceil, floor, log2, log10
from typing import Any

WIDTH = 560
HEIGHT = 330
LEFT, RIGHT, BOTTOM = 62, 22, 52
LEGEND_ROW = 20
#: about the width of a letter of the labels
LETTER = 6.7
MOST_MARKS = 24
BAR, BAR_GAP = 22, 14
LONGEST_LABEL = 250


def chart_svg(exhibit: Mapping[str, Any]) -> str:
    """The chart of a record of kind ``lines`` or ``bars``."""
    return _lines(exhibit) if exhibit["kind"] == "lines" else _bars(exhibit)


def short(value: float) -> str:
    """A number with about three digits."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4
        text = f"{value:,.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.1e}"


def ticks(highest: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 to the first one that is not below ``highest``."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / wanted
    scale = 10 ** floor(log10(rough))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= rough * 0.999)
    return [step * place for place in range(ceil(highest / step - 1e-9) + 1)]


def axis_text(axis: Mapping[str, Any]) -> str:
    """Label and unit."""
    return f"{axis['label']} [{axis['unit']}]" if axis["unit"] else str(axis["label"])


# lines


class _Scale:
    """Numbers to pixels along one axis."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False) -> None:
        self._log = log
        self._low, high = (log2(low), log2(high)) if log else (low, high)
        self._factor = (end - start) / ((high - self._low) or 1.0)
        self._start = start

    def __call__(self, value: float) -> float:
        return self._start + ((log2(value) if self._log else value) - self._low) * self._factor


def _lines(exhibit: Mapping[str, Any]) -> str:
    series: Sequence[Mapping[str, Any]] = exhibit["series"]
    xs = sorted({x for one in series for x, _ in one["points"]})
    highest = max(y for one in series for _, y in one["points"])
    swatches = [partial(_dashes if one["dashed"] else _mark, number) for number, one in enumerate(series)]
    legend, legend_height = _legend([one["name"] for one in series], swatches)
    top = 14 + legend_height
    marked = ticks(highest)
    x = _Scale(xs[0], xs[-1], LEFT + 8, WIDTH - RIGHT, exhibit["x"]["log"])
    y = _Scale(0, marked[-1], HEIGHT - BOTTOM, top)
    parts = [*legend, *_grid(exhibit, _x_ticks(xs), marked, x, y)]
    for number, one in enumerate(series):
        parts.extend(_series(one, number, x, y))
    return _svg(WIDTH, HEIGHT, exhibit["title"], parts)


def _x_ticks(xs: Sequence[float]) -> list[float]:
    """The places themselves while they are few, else about eight of them."""
    if len(xs) <= 10:
        return list(xs)
    every = ceil(len(xs) / 8)
    return [x for place, x in enumerate(xs) if place % every == 0]


def _grid(
    exhibit: Mapping[str, Any], x_ticks: Sequence[float], y_ticks: Sequence[float], x: _Scale, y: _Scale
) -> Iterator[str]:
    low, left, right = y(y_ticks[0]), LEFT, WIDTH - RIGHT
    for value in y_ticks:
        yield _line("grid" if value else "axis", left, y(value), right + 6, y(value))
        yield _text("tick", left - 8, y(value) + 4, short(value), "end")
    last = -100.0
    for value in x_ticks:
        yield _line("axis", x(value), low, x(value), low + 5)
        if x(value) - last >= 8 + LETTER * len(short(value)):
            yield _text("tick", x(value), low + 19, short(value), "middle")
            last = x(value)
    yield _text("label", (left + right) / 2, HEIGHT - 10, axis_text(exhibit["x"]), "middle")
    middle = (low + y(y_ticks[-1])) / 2
    yield (
        f'<text class="label" transform="translate(15 {_n(middle)}) rotate(-90)" text-anchor="middle">'
        f"{escape(axis_text(exhibit['y']))}</text>"
    )


def _series(one: Mapping[str, Any], number: int, x: _Scale, y: _Scale) -> Iterator[str]:
    places = [(x(a), y(b)) for a, b in one["points"]]
    path = "M" + "L".join(f"{_n(a)} {_n(b)}" for a, b in places)
    yield f'<path class="line c{number % 6}{" dashed" if one["dashed"] else ""}" d="{path}"/>'
    if one["dashed"] or len(places) > MOST_MARKS:
        return
    for (a, b), (px, py) in zip(one["points"], places, strict=True):
        yield _mark(number, px, py, f"{one['name']}: {short(a)} → {short(b)}")


def _mark(number: int, x: float, y: float, title: str = "") -> str:
    said = f"<title>{escape(title)}</title>" if title else ""
    name = f'class="mark c{number % 6}"'
    form = number % 5
    if form == 0:
        return f'<circle {name} cx="{_n(x)}" cy="{_n(y)}" r="4.5">{said}</circle>'
    if form == 1:
        return f'<rect {name} x="{_n(x - 4)}" y="{_n(y - 4)}" width="8" height="8">{said}</rect>'
    corners = {
        2: ((0, -5.5), (5, 4), (-5, 4)),
        3: ((0, -6), (6, 0), (0, 6), (-6, 0)),
        4: ((0, 5.5), (5, -4), (-5, -4)),
    }[form]
    points = " ".join(f"{_n(x + dx)},{_n(y + dy)}" for dx, dy in corners)
    return f'<polygon {name} points="{points}">{said}</polygon>'


# bars


def _bars(exhibit: Mapping[str, Any]) -> str:
    bars: Sequence[tuple[str, Sequence[float]]] = exhibit["bars"]
    parts_names: Sequence[str] = exhibit["parts"]
    left = 16 + min(LONGEST_LABEL, LETTER * max(len(label) for label, _ in bars))
    legend, legend_height = _legend(parts_names, [partial(_square, number) for number in range(len(parts_names))])
    top = 10 + legend_height
    wrapped = [_wrapped(label, int((left - 16) / LETTER)) for label, _ in bars]
    bottom = top + len(bars) * (BAR + BAR_GAP)
    marked = ticks(max(sum(values) for _, values in bars))
    right = WIDTH - RIGHT - 34
    x = _Scale(0, marked[-1], left, right)
    parts = [*legend]
    for value in marked:
        parts.append(_line("grid" if value else "axis", x(value), top, x(value), bottom))
        parts.append(_text("tick", x(value), bottom + 17, short(value), "middle"))
    parts.append(_text("label", (left + right) / 2, bottom + 40, axis_text(exhibit["axis"]), "middle"))
    for row, (lines, (label, values)) in enumerate(zip(wrapped, bars, strict=True)):
        above = top + row * (BAR + BAR_GAP) + BAR_GAP / 2
        first = above + BAR / 2 + 4 - 6.5 * (len(lines) - 1)
        parts += [_text("name", left - 8, first + 13 * i, text, "end") for i, text in enumerate(lines)]
        parts.extend(_bar(label, values, parts_names, above, x))
    return _svg(WIDTH, bottom + 50, exhibit["title"], parts)


def _bar(label: str, values: Sequence[float], names: Sequence[str], above: float, x: _Scale) -> Iterator[str]:
    edges = [sum(values[:place]) for place in range(len(values) + 1)]
    baseline = above + BAR / 2 + 4
    for number, (start, end) in enumerate(pairwise(edges)):
        width = x(end) - x(start)
        title = f"{label}, {names[number]}: {short(values[number])}"
        yield (
            f'<rect class="bar c{number % 6}" x="{_n(x(start))}" y="{_n(above)}" width="{_n(width)}" height="{BAR}">'
            f"<title>{escape(title)}</title></rect>"
        )
        said = short(values[number])
        if len(values) > 1 and width > LETTER * len(said) + 8:
            yield _text(f"inside i{number % 6}", x(start) + width / 2, baseline, said, "middle")
    yield _text("value", x(edges[-1]) + 6, baseline, short(edges[-1]), "start")


def _wrapped(label: str, letters: int) -> list[str]:
    """A label on as many lines as it needs."""
    lines = [""]
    for word in label.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > letters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


# both


def _legend(names: Sequence[str], swatches: Sequence[Callable[[float, float], str]]) -> tuple[list[str], float]:
    """The legend in the upper left corner, and its height."""
    if len(names) < 2:
        return [], 0
    parts: list[str] = []
    x, y = 12.0, 16.0
    for name, swatch in zip(names, swatches, strict=True):
        width = 38 + LETTER * len(name)
        if x + width > WIDTH - 8 and x > 12:
            x, y = 12.0, y + LEGEND_ROW
        parts += [swatch(x + 6, y - 4), _text("key", x + 18, y, name, "start")]
        x += width
    return parts, y - 16 + LEGEND_ROW


def _dashes(number: int, x: float, y: float) -> str:
    return f'<path class="line dashes c{number % 6}" d="M{_n(x - 8)} {_n(y)}H{_n(x + 8)}"/>'


def _square(number: int, x: float, y: float) -> str:
    return f'<rect class="bar c{number % 6}" x="{_n(x - 6)}" y="{_n(y - 6)}" width="12" height="12"/>'


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" height="{_n(height)}">{"".join(parts)}</svg>'
    )


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{name}" x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"/>'


def _text(name: str, x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="{name}" x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
