"""A generation as one compact JSON object for its page: words once, numbers as whole numbers, a list per column.

    {"title": ..., "facts": [["tokens", "212"], ...], "words": [[id, label, cells], ...], "sources": ["ngram", ...],
     "prompt": "...", "budget": 33, "first": 0,
     "steps": [{"words": [..], "parents": [..], "sources": [..], "draft": [..], "target": [..], "path": [..],
                "bonus": word, "pieces": ["·the", ...], "committed": 128, "ms": [..]}, ...]}

``sources``, ``draft`` and ``target`` are per drafted node, empty where nobody told (a single source stands for all
nodes), and count ten-thousandths, -1 for none. ``pieces`` are the emitted tokens as text that adds up to the whole.
`stepOf` in ``assets/page.js`` makes of a step what `step_json` would have made.

Knows generations and tokenizers. Does not know HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..decode.text import TextStream
from .step_json import DIGITS, draft_probability, milliseconds, target_probability
from .token_text import TokenLabels, cells

if TYPE_CHECKING:
    from ..decode.statistics import Generation, StepSeconds
    from ..draft.protocol import StepRecord

#: characters of the prompt's end that are shown
PROMPT_CHARACTERS = 1200


class _Index:
    """Numbers things by first appearance."""

    def __init__(self) -> None:
        self.number_of: dict[Any, int] = {}

    def __call__(self, thing: Any) -> int:
        return self.number_of.setdefault(thing, len(self.number_of))


def page_data(
    generation: Generation,
    *,
    title: str = "branchwise show",
    facts: Mapping[str, str] | None = None,
    budget: int | None = None,
    first: int = 0,
) -> dict[str, Any]:
    """The object described above.

    Args:
        generation: a finished one with at least one step.
        title: of the page.
        facts: more names and values for its head, such as the model.
        budget: most nodes of a tree, where it was fixed.
        first: the step shown first, from 0.

    Raises:
        ValueError: there is no such step.
    """
    if not 0 <= first < generation.steps:
        raise ValueError(f"there is no step {first + 1}: the generation has {generation.steps}, numbered from 1")
    labels, words, sources = TokenLabels(generation.tokenizer), _Index(), _Index()
    pieces = iter(text_pieces(generation.tokens, generation.tokenizer))
    committed, steps = generation.prompt_tokens - 1, []
    for record, seconds in zip(generation.records, generation.seconds, strict=True):
        said = [next(pieces) for _ in record.tokens]
        steps.append(_packed(record, seconds, words, sources, said, committed))
        committed += len(record.tokens)
    return {
        "title": title,
        "facts": [*_facts(generation), *map(list, (facts or {}).items())],
        "words": [[token, labels(token), cells(labels(token))] for token in words.number_of],
        "sources": list(sources.number_of),
        "prompt": _prompt(generation),
        "budget": budget,
        "first": first,
        "steps": steps,
    }


def text_pieces(tokens: Sequence[int], tokenizer: Any) -> list[str]:
    """The text each token adds: nothing while a character is unfinished. Special tokens are shown."""
    if tokenizer is None:
        return [f"{token} " for token in tokens]
    stream = TextStream(tokenizer, skip_special_tokens=False)
    pieces = [stream.push(token) for token in tokens]
    rest = stream.flush()
    if pieces:
        pieces[-1] += rest
    return pieces


def _packed(
    record: StepRecord, seconds: StepSeconds, words: _Index, sources: _Index, pieces: list[str], committed: int
) -> dict[str, Any]:
    draft = record.draft
    drafted = range(1, len(draft.tree))
    names = [sources(name) for name in draft.sources]
    return {
        "words": [words(token) for token in draft.tree.tokens],
        "parents": list(draft.tree.parents),
        "sources": names[:1] if len(set(names)) == 1 else names,
        "draft": _shares([draft_probability(draft, node) for node in drafted]),
        "target": _shares([target_probability(record, node) for node in drafted]),
        "path": list(record.verdict.path),
        "bonus": words(record.verdict.bonus),
        "pieces": pieces,
        "committed": committed,
        "ms": list(milliseconds(seconds).values()),
    }


def _shares(probabilities: Sequence[float | None]) -> list[int]:
    if all(probability is None for probability in probabilities):
        return []
    return [-1 if probability is None else round(probability * 10**DIGITS) for probability in probabilities]


def _facts(generation: Generation) -> list[list[str]]:
    return [
        ["tokens", str(len(generation.tokens))],
        ["steps", str(generation.steps)],
        ["tokens per step", f"{generation.tokens_per_step:.2f}"],
        ["tokens per second", f"{generation.tokens_per_second:.1f}"],
        ["ended by", generation.stop_cause],
    ]


def _prompt(generation: Generation) -> str:
    if generation.tokenizer is None or not generation.prompt:
        return ""
    text = generation.tokenizer.decode(
        list(generation.prompt), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text if len(text) <= PROMPT_CHARACTERS else "… " + text[-PROMPT_CHARACTERS:]
