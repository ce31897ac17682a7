"""Every Python block of the README and of docs/ runs, from the top of its page, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> str:
    """The page with everything but its blocks blanked out, so that an error names the page's own line."""
    inside = False
    lines = []
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            inside = not inside and fence.group(1) == "python"
            line = ""
        lines.append(line if inside else "")
    return "\n".join(lines)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page).strip()], ids=lambda page: page.stem)
def test_the_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks_of(page), str(page), "exec"), {"__name__": "__main__"})
