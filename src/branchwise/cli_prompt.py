"""What is generated, and how it is sampled: the options that commands share, and reading what they name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .verify import Grammar

Chat = Annotated[
    bool | None,
    typer.Option("--chat/--raw", help="Use the chat template or not.", show_default="chat if there is a template"),
]
Temperature = Annotated[float, typer.Option(help="0 is greedy decoding.")]
MaxNewTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Prompt = Annotated[str | None, typer.Argument(help="The prompt; '-' or nothing reads it from stdin.")]
PromptFile = Annotated[Path | None, typer.Option(help="Read the prompt from a file.")]
System = Annotated[str | None, typer.Option(help="System message of the chat.")]
TopK = Annotated[int | None, typer.Option(help="Sample from the k best tokens. Needs --temperature.")]
TopP = Annotated[float | None, typer.Option(help="Sample from the best of this mass. Needs --temperature.")]
MinP = Annotated[float | None, typer.Option(help="Drop all below this part of the best. Needs --temperature.")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Above 1 makes seen tokens less likely.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same sample; greedy output needs none.")]
Stop = Annotated[list[str] | None, typer.Option(help="End the text before this string; may be repeated.")]
JsonSchema = Annotated[
    str | None, typer.Option(help="Write JSON that is valid for this schema: a file or the schema itself.")
]
Regex = Annotated[str | None, typer.Option(help="Write text that matches this regular expression.")]
Ebnf = Annotated[str | None, typer.Option(help="Write text of this grammar: a file or the grammar itself.")]


def stop_strings(stop: list[str] | None) -> tuple[str, ...]:
    """The strings that end the text.

    Raises:
        ValueError: one of them is empty.
    """
    if "" in (stop or ()):
        raise ValueError("a stop string must not be empty")
    return tuple(stop or ())


def check_new_tokens(max_new_tokens: int) -> None:
    """Raises ValueError unless something is to be generated."""
    if max_new_tokens < 1:
        raise ValueError(f"max-new-tokens must be >= 1, got {max_new_tokens}")


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from whichever place it was given; one newline at the end of a file or of stdin does not count."""
    if prompt is not None and file is not None:
        raise ValueError("give the prompt either as an argument or with --file, not both")
    if file is not None:
        text = read_text(file).removesuffix("\n")
    elif prompt is None or prompt == "-":
        if prompt is None and sys.stdin.isatty():
            raise ValueError("no prompt: give it as an argument, with --file, or on stdin")
        text = _as_text(sys.stdin.buffer.read(), "stdin").removesuffix("\n")
    else:
        # bytes of an argument that are no UTF-8 arrive as lone surrogates
        text = _as_text(prompt.encode("utf-8", "surrogateescape"), "the prompt")
    if not text:
        raise ValueError("the prompt is empty: give at least one character as an argument, with --file, or on stdin")
    return text


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text (byte {error.start}); convert it first") from None


def _as_text(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is not UTF-8 text (byte {error.start}); convert it first") from None


def read_grammar(json_schema: str | None, regex: str | None, ebnf: str | None) -> Grammar | None:
    """The grammar from whichever option was given."""
    options = {"json-schema": json_schema, "regex": regex, "ebnf": ebnf}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"--{given[0]} and --{given[1]} are two grammars; give one")
    if not given:
        return None
    from .verify.grammar import Grammar

    if json_schema is not None:
        return Grammar.from_json_schema(_text_or_file(json_schema, "JSON schema", "{"))
    if ebnf is not None:
        return Grammar.from_ebnf(_text_or_file(ebnf, "grammar", "::="))
    assert regex is not None
    return Grammar.from_regex(regex)


def _text_or_file(word: str, what: str, sign: str) -> str:
    """What stands in the file called ``word``; without one, ``word`` itself. A grammar is hardly a file's name.

    Raises:
        ValueError: there is no such file, and ``word`` lacks the ``sign`` without which it cannot be ``what``.
    """
    try:
        is_file = Path(word).expanduser().is_file()
    except OSError:  # longer than a name may be
        is_file = False
    if not is_file and sign not in word and word not in ("true", "false"):
        raise ValueError(f"there is no file {word!r}, and it is no {what} itself (that would have a {sign!r} in it)")
    return read_text(Path(word).expanduser()) if is_file else word
