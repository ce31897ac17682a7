"""Command lines in texts: finding them, and asking the parser about them without running anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from branchwise.cli import app

#: what ends a command, as far as the shell is concerned
SHELL = ("|", "<", ">", ">>", "&&", "||", ";", "&", "2>&1")


@cache
def whole_command() -> Any:
    """The command line as its parser knows it."""
    return typer.main.get_command(app)


def in_blocks(page: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and words of every `branchwise ...` in a fenced block of a page that is not Python or JSON."""
    fenced, inside, whole, first = False, False, "", 0
    variables: dict[str, str] = {}  # the page's own, such as FILE=results.json
    for number, line in enumerate(page.splitlines(), start=1):
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            fenced, whole = not fenced, ""
            inside = fenced and fence.group(1) in ("", "sh", "bash", "console")
            continue
        if not inside:
            continue
        first = first if whole else number
        whole += line.removesuffix("\\")
        if not line.endswith("\\"):
            for name, value in variables.items():
                whole = whole.replace(f"${name}", value)
            assigned = re.fullmatch(r"(\w+)=(\S+|\"[^\"]*\")", whole.strip())
            if assigned:
                variables[assigned.group(1)] = assigned.group(2).strip('"')
            words = words_of(whole)
            if words is not None:
                yield first, words
            whole = ""


def in_sentences(page: str) -> Iterator[list[str]]:
    """Words of every `branchwise ...` between backticks in running text."""
    text = re.sub(r"```.*?```", "", page, flags=re.S)
    for span in re.findall(r"`([^`]+)`", text):
        words = words_of(" ".join(span.split()))
        if words:
            yield words


def words_of(line: str) -> list[str] | None:
    """The words behind `branchwise`, up to what belongs to the shell; None for another program."""
    if not re.match(r"\s*(\w+=\S+\s+)*(torchrun\s.*\s-m\s+)?branchwise(\s|$)", line):
        return None
    words = shlex.split(line, comments=True)
    words = words[words.index("branchwise") + 1 :]
    end = next((place for place, word in enumerate(words) if word in SHELL), len(words))
    return words[:end]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words lead to, and what is left for it."""
    command, rest = whole_command(), list(words)
    while hasattr(command, "commands"):
        if rest and rest[0] in command.commands:
            command = command.commands[rest.pop(0)]
        elif rest and command.name == "bench" and not rest[0].startswith("-"):
            command = command.commands["prompts"]  # `bench FILE` is short for `bench prompts FILE`
        else:
            break
    return command, rest


def parse(words: list[str]) -> None:
    """Raises what the user would be told; runs no command."""
    command, rest = command_of(words)
    if hasattr(command, "commands"):
        unknown = [word for word in rest if word not in options_of(command)]
        assert not unknown, f"no such command or option: {unknown}"
        return
    if "--help" not in rest:
        command.make_context("branchwise", list(rest))


def options_of(command: Any) -> set[str]:
    """All options of a command."""
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return known | {"--help"}
