"""Every Python block of the README and of docs/ runs, from the top of its page, in an empty folder.

Pages may take for granted what the README's example makes: ``model``, ``tokenizer`` and ``input_ids``. Pages on small
models also know ``small``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from branchwise.hub import load

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


@pytest.fixture(scope="module")
def given() -> dict[str, object]:
    model, tokenizer = load("default")
    input_ids = tokenizer("The quick brown fox jumps over the lazy dog.", return_tensors="pt").input_ids
    return {"__name__": "__main__", "model": model, "small": model, "tokenizer": tokenizer, "input_ids": input_ids}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page).strip()], ids=lambda page: page.stem)
def test_the_blocks_run(given: dict[str, object], page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks_of(page), str(page), "exec"), dict(given))
