"""Every Python block of the README and of docs/ runs, from the top of its page, in an empty folder.

Pages may take for granted what the README's example makes: ``model``, ``tokenizer`` and ``input_ids``. Pages on small
models also know ``small``, pages on heads find an untrained one in the folder they name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from branchwise.hub import load
from branchwise.train.block import BlockMethod, BlockOptions
from branchwise.train.draft_vocabulary import DraftVocabulary
from branchwise.train.eagle3 import Eagle3Method, Eagle3Options
from branchwise.train.medusa import MedusaMethod, MedusaOptions
from branchwise.train.method import Method

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


def labelled_blocks(page: Path) -> list[tuple[str, str]]:
    """Every block with the word behind its fence."""
    blocks: list[tuple[str, str]] = []
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            inside = not inside
            if inside:
                blocks.append((fence.group(1), ""))
        elif inside:
            label, text = blocks.pop()
            blocks.append((label, f"{text}{line}\n"))
    assert not inside, f"{page.name}: the last block is not closed, and the rest of the page is in it"
    return blocks


def test_no_block_hides_behind_another_name() -> None:
    """Python that is run elsewhere: one script for torchrun, in tests/target/test_tensor_parallel.py."""
    blocks = [(page.name, label, text) for page in PAGES for label, text in labelled_blocks(page)]
    assert {label for _, label, _ in blocks} <= {"python", "py", "sh", "json", ""}
    assert [page for page, label, _ in blocks if label == "py"] == ["serving.md"]
    python = re.compile(r"^(import|from) \w+|^\w+ = \w+[.(]", re.MULTILINE)
    for page, label, text in blocks:
        assert label in ("python", "py") or not python.search(text), f"{page}: Python that is not run: {text[:60]}"


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    model, tokenizer = load("default")
    input_ids = tokenizer("The quick brown fox jumps over the lazy dog.", return_tensors="pt").input_ids
    return {"__name__": "__main__", "model": model, "small": model, "tokenizer": tokenizer, "input_ids": input_ids}


def untrained_head(page: str, model: PreTrainedModel) -> Method | None:
    def vocabulary(size: int) -> DraftVocabulary:
        return DraftVocabulary(np.arange(size), model.config.vocab_size, 1.0, 1.0)

    if page in ("eagle", "head"):
        return Eagle3Method(model, vocabulary(1000), Eagle3Options())
    if page == "block":
        return BlockMethod(model, vocabulary(model.config.vocab_size), BlockOptions(layers=1))
    if page == "medusa":
        return MedusaMethod(model, vocabulary(model.config.vocab_size), MedusaOptions(heads=1))
    return None


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks_of(page).strip()], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_blocks_run(given: dict[str, Any], page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    head = untrained_head(page.stem, given["model"])
    if head is not None:
        head.export(tmp_path / "path" / "to" / ("medusa-heads" if page.stem == "medusa" else "head"))
    exec(compile(blocks_of(page), str(page), "exec"), dict(given))
