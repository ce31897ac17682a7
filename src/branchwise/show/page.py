"""The page of one generation: one HTML file without outside assets.

Knows how text gets into markup safely. Does not know where the page goes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from string import Template
from typing import TYPE_CHECKING, Any

from .asset import asset
from .page_data import page_data

if TYPE_CHECKING:
    from ..decode.statistics import Generation


def page_html(
    generation: Generation,
    *,
    title: str = "branchwise show",
    facts: Mapping[str, str] | None = None,
    budget: int | None = None,
    first: int = 0,
) -> str:
    """The page; arguments as for `page_data`."""
    data = page_data(generation, title=title, facts=facts, budget=budget, first=first)
    return Template(asset("page.html")).substitute(
        title=escape(title),
        data=script_json(data),
        **{name.replace(".", "_"): asset(name) for name in ("tree.css", "page.css", "tree.js", "page.js")},
    )


def script_json(data: Any) -> str:
    """JSON that may stand inside a ``script`` element: ASCII, without a character that markup knows."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
