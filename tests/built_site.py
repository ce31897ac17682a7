"""Checks the built documentation: nothing is fetched from elsewhere. Links inside are checked by mkdocs itself.

Not a test of pytest: ``make docs`` runs it on the folder that mkdocs has written.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

#: what a browser fetches by itself when it opens a page; a link that a reader may click is none of these
FETCHED = (
    re.compile(r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//", re.I),
    re.compile(
        r"<link\b(?=[^>]*rel=[\"']?(?:stylesheet|icon|preload|preconnect|modulepreload))[^>]*href=[\"']?(?:https?:)?//",
        re.I,
    ),
    re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", re.I),
)


def check(folder: Path) -> int:
    pages = sorted(folder.rglob("*.html"))
    assert len(pages) > 30, f"{folder} holds {len(pages)} pages only"
    for path in (*pages, *sorted(folder.rglob("*.css"))):
        text = path.read_text(encoding="utf-8")
        for pattern in FETCHED:
            found = pattern.search(text)
            assert found is None, f"{path.relative_to(folder)} fetches from elsewhere: {text[found.start() :][:160]}"
    return len(pages)


if __name__ == "__main__":
    print(f"{check(Path(sys.argv[1]))} pages, nothing from elsewhere")
