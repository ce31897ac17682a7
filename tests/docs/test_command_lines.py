"""Every `branchwise ...` in the README, the documentation, the examples and the helps is one that the parser takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from branchwise.cli_examples import EXAMPLES
from command_lines import command_of, in_blocks, in_sentences, options_of, parse, whole_command, words_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}".strip())


COMMANDS = dict(commands(whole_command()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_pages_are_command_lines(page: Path) -> None:
    for line, words in in_blocks(page.read_text(encoding="utf-8")):
        try:
            parse(words)
        except Exception as error:
            raise AssertionError(f"{page.name}:{line}: {' '.join(words)}: {error}") from error


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_sentences_exist(page: Path) -> None:
    for words in in_sentences(page.read_text(encoding="utf-8")):
        command, rest = command_of(words)
        for word in rest:
            if word.startswith("--"):
                assert word.partition("=")[0] in options_of(command), f"{page.name}: {' '.join(words)}"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_help_has_examples_that_work(path: str) -> None:
    command = COMMANDS[path]
    assert path in EXAMPLES, f"branchwise {path} --help has no example: add one to cli_examples.py"
    assert command.epilog and command.epilog.startswith("Example")
    for line in command.epilog.splitlines()[1:]:
        words = words_of(line)
        assert words is not None and " ".join(words).startswith(path)
        parse(words)


def test_no_example_is_left_over() -> None:
    assert set(EXAMPLES) == set(COMMANDS)


def test_the_reading_of_pages() -> None:
    page = (
        "text `branchwise doctor --json`\n```\nbranchwise generate a \\\n  --raw | head # x\nls\n```\n"
        "```python\nbranchwise x\n```\nbranchwise y"
    )
    assert list(in_blocks(page)) == [(3, ["generate", "a", "--raw"])]
    variables = '```sh\nF=a.json\nALL="--budgets 17 --json $F"\nbranchwise bench p.jsonl $ALL\n```'
    assert list(in_blocks(variables)) == [(4, ["bench", "p.jsonl", "--budgets", "17", "--json", "a.json"])]
    assert list(in_sentences(page)) == [["doctor", "--json"]]
    assert words_of("KEY=1 branchwise serve > log") == ["serve"]
    assert words_of("python -m branchwise") is None
    assert words_of("torchrun --nproc-per-node 2 -m branchwise serve") == ["serve"]
    parse(["bench", "file.jsonl", "--budgets", "17"])
    parse(["--install-completion"])
    for wrong in (
        ["generate", "x", "--buget", "3"],
        ["benhc"],
        ["import-tree"],
        ["generate", "--seed", "x"],
    ):
        with pytest.raises(Exception, match=r"(?i)no such|missing|valid|unexpected"):
            parse(wrong)
