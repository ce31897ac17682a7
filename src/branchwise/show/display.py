"""Where drawings go: below a notebook's cell, into a file, to a desktop's browser.

Knows notebooks, files and desktops. What is drawn is the business of `page` and `svg`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ..tree import TokenGraph, TokenTree
from ..verify.proposal import DraftTree
from .generation import generation_line
from .page import page_html
from .step_json import tree_json
from .svg import step_mask_svg, tree_svg

if TYPE_CHECKING:
    from ..decode.statistics import Generation

#: a page above this is not put into a notebook's file
NOTEBOOK_BYTES = 4 * 2**20
FRAME_PIXELS = 860
#: a tree above this is drawn without its mask below a cell
NOTEBOOK_NODES = 80


def show(generation: Generation, path: str | Path | None = None) -> Path | None:
    """What `Generation.show` does."""
    if path is not None:
        if Path(path).suffix.lower() not in ("", ".html", ".htm"):
            raise ValueError(
                f"show() writes one HTML page, got {str(path)!r}: name it .html; one step as a picture is "
                "branchwise.show.step_svg (docs/show.md)"
            )
        return write_page(page_html(generation), path)
    if in_notebook():
        from IPython.display import HTML, display

        display(HTML(generation_html(generation)))
        return None
    written = write_page(page_html(generation))
    open_on_desktop(written)
    return written


def write_page(page: str, path: str | Path | None = None) -> Path:
    """Writes a page to ``path``, or to a new temporary file; returns where it lies."""
    if path is None:
        handle, name = tempfile.mkstemp(prefix="branchwise-", suffix=".html")
        os.close(handle)
        path = name
    path = Path(path).expanduser()
    path.write_text(page, encoding="utf-8")
    return path


def open_on_desktop(path: Path) -> bool:
    """Asks the desktop's browser to open a file; False where there is no desktop (a console's browser is not used)."""
    has_desktop = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return has_desktop and webbrowser.open(path.resolve().as_uri())


def in_notebook() -> bool:
    """Whether the caller is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def generation_html(generation: Generation) -> str:
    """A generation below a notebook's cell: its page in a frame, or one line where that would be too large."""
    line = f"<p>{escape(generation_line(generation))}</p>"
    if not generation.records:
        return line
    page = page_html(generation)
    if len(page) > NOTEBOOK_BYTES:
        return f"{line}<p>The page has {len(page) / 1e6:.0f} MB: write it with <code>show('FILE.html')</code>.</p>"
    return (
        f'<iframe title="Generation, step by step" sandbox="allow-scripts" srcdoc="{escape(page)}" '
        f'style="width:100%;height:{FRAME_PIXELS}px;border:0"></iframe>'
    )


def tree_html(tree: TokenTree | TokenGraph | DraftTree) -> str:
    """A tree, a graph or a draft below a notebook's cell, with the mask beside it where that is legible."""
    step = tree_json(tree)
    drawings = [tree_svg(step)]
    if len(step["nodes"]) <= NOTEBOOK_NODES:
        drawings.append(step_mask_svg(step))
    inside = "".join(f'<div style="overflow:auto;max-height:600px">{drawing}</div>' for drawing in drawings)
    return f'<div style="display:flex;flex-wrap:wrap;gap:8px">{inside}</div>'
