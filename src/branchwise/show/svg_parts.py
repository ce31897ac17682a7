"""What every SVG drawing is made of: colours, fonts, rectangles, text, and the element around them.

Presentation attributes hold the light colours, for renderers without style sheets; where there are style sheets,
``tree.css`` overrides them by class. All text is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from .asset import asset

THEMES = ("auto", "light", "dark")
MONO = "ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace"
SANS = "system-ui,'DejaVu Sans',sans-serif"

#: those of the light theme in tree.css
BACK, PANEL, INK, SOFT, LINE = "#ffffff", "#f6f8fa", "#1b1f24", "#57606a", "#afb8c1"
LIT, LIT_BACK, BONUS, BONUS_BACK = "#0550ae", "#ddebff", "#7d4e00", "#fff1c2"

#: characters that no XML document may hold, not even escaped
_NO_XML = dict.fromkeys(
    [*range(9), 11, 12, *range(14, 32), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF], "\N{REPLACEMENT CHARACTER}"
)


def document(width: float, height: float, title: str, theme: str, parts: Iterable[str]) -> str:
    """The ``svg`` element around ``parts``.

    Raises:
        ValueError: there is no such theme.
    """
    if theme not in THEMES:
        raise ValueError(f"theme must be one of {', '.join(THEMES)}, got {theme!r}")
    fixed = "" if theme == "auto" else f' data-theme="{theme}"'
    w, h, said = n(width), n(height), escaped(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bw bw-svg"{fixed} role="img" aria-label="{said}" '
        f'width="{w}" height="{h}" viewBox="0 0 {w} {h}"><title>{said}</title>'
        f"<style>{asset('tree.css')}</style>"
        f'<rect class="bw-back" width="{w}" height="{h}" rx="10" fill="{BACK}"/>{"".join(parts)}</svg>'
    )


def escaped(text: str) -> str:
    """Text as it may stand in an element or an attribute."""
    return escape(text.translate(_NO_XML))


def rect(name: str, x: float, y: float, width: float, height: float, fill: str, stroke: str | None) -> str:
    """A rectangle; ``name`` is its class."""
    line = f' stroke="{stroke}"' if stroke else ""
    return f'<rect class="{name}" x="{n(x)}" y="{n(y)}" width="{n(width)}" height="{n(height)}" fill="{fill}"{line}/>'


def text(
    name: str, x: float, y: float, said: str, fill: str, size: float, family: str, anchor: str, weight: str = ""
) -> str:
    """One line of text; ``x`` is its start, middle or end, as ``anchor`` says, ``y`` its base line."""
    bold = f' font-weight="{weight}"' if weight else ""
    # isolated, so that a token written from right to left stays in its place
    return (
        f'<text class="{name}" x="{n(x)}" y="{n(y)}" fill="{fill}" font-size="{size}" font-family="{family}" '
        f'text-anchor="{anchor}"{bold} direction="ltr" unicode-bidi="isolate" xml:space="preserve">'
        f"{escaped(said)}</text>"
    )


def n(value: float) -> str:
    """A number as short as it can be written."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
