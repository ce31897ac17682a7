"""A step as text: its tree with tokens and sources, the accepted path and the bonus token.

Knows a draft and a verdict. Does not know how either came about, nor where the text is printed. A drawing reads

    ● "the"
    ├─● " cat"          ngram      0.81
    │ ├─○ " ran"        recycling  0.20
    │ └─→ " sat"        bonus
    └─○ " dog"          recycling  0.33

with ● for what is committed now (the root and the accepted path), ○ for drafted nodes that were not kept, → for the
bonus token. Behind a node stand the drafter that proposed it and that drafter's estimate that it will be accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..draft.protocol import StepRecord
    from ..verify.proposal import DraftTree
    from ..verify.rule import Verdict


@dataclass(frozen=True)
class Marks:
    """The characters of a drawing."""

    kept: str
    dropped: str
    bonus: str
    tee: str
    corner: str
    bar: str


UNICODE = Marks("●", "○", "→", "├─", "└─", "│ ")
#: for terminals and files that cannot hold the others
ASCII = Marks("*", "o", ">", "|-", "`-", "| ")


def marks_for(encoding: str | None) -> Marks:
    """The characters that a stream of this encoding can hold."""
    return UNICODE if (encoding or "ascii").lower().replace("-", "").startswith("utf") else ASCII


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})


@dataclass(frozen=True)
class _Line:
    """One node's line before the columns are aligned."""

    left: str
    source: str
    score: str


def draw_tree(draft: DraftTree, verdict: Verdict, tokenizer: Any = None, *, marks: Marks = UNICODE) -> str:
    """Draws one step's tree.

    Args:
        draft: the tree that was verified.
        verdict: what the rule decided about it.
        tokenizer: shows tokens as quoted text; without one they are shown as ids.
        marks: the characters to draw with.

    Returns:
        One line per node and one for the bonus token, no newline at the end.
    """
    lines = list(_lines(draft, verdict, tokenizer, marks))
    left_width = max(len(line.left) for line in lines)
    source_width = max(len(line.source) for line in lines)
    return "\n".join(f"{x.left:<{left_width}}  {x.source:<{source_width}}  {x.score}".rstrip() for x in lines)


def draw_step(record: StepRecord, number: int, tokenizer: Any = None, *, marks: Marks = UNICODE) -> str:
    """Draws a step under a heading that counts its nodes and tokens; `number` is the step's place, from 1."""
    nodes, accepted = len(record.draft.tree), len(record.verdict.path) - 1
    heading = f"step {number}: {_count(nodes, 'node')}, {accepted} accepted, {_count(len(record.tokens), 'token')}"
    if len(record.tokens) < len(record.verdict.path):
        heading += " (generation ended inside the path)"
    return f"{heading}\n{draw_tree(record.draft, record.verdict, tokenizer, marks=marks)}"


def _lines(draft: DraftTree, verdict: Verdict, tokenizer: Any, marks: Marks) -> Iterator[_Line]:
    tree, kept = draft.tree, set(verdict.path)
    yield _Line(f"{marks.kept} {_word(tree.tokens[0], tokenizer)}", "", "")
    # depth first, children in draw order; the bonus token is the last child of the last node kept
    bonus = -1
    stack = [(child, "") for child in _children(draft, verdict, 0, bonus)[::-1]]
    while stack:
        node, indent = stack.pop()
        siblings = _children(draft, verdict, _parent(draft, verdict, node, bonus), bonus)
        last = siblings[-1] == node
        branch = indent + (marks.corner if last else marks.tee)
        if node == bonus:
            yield _Line(f"{branch}{marks.bonus} {_word(verdict.bonus, tokenizer)}", "bonus", "")
            continue
        mark = marks.kept if node in kept else marks.dropped
        source = draft.sources[node - 1] if draft.sources else ""
        score = f"{draft.scores[node - 1]:.2f}" if draft.scores else ""
        yield _Line(f"{branch}{mark} {_word(tree.tokens[node], tokenizer)}", source, score)
        deeper = indent + (" " * len(marks.bar) if last else marks.bar)
        stack.extend((child, deeper) for child in _children(draft, verdict, node, bonus)[::-1])


def _children(draft: DraftTree, verdict: Verdict, node: int, bonus: int) -> list[int]:
    children = list(draft.tree.children(node))
    return [*children, bonus] if node == verdict.path[-1] else children


def _parent(draft: DraftTree, verdict: Verdict, node: int, bonus: int) -> int:
    return verdict.path[-1] if node == bonus else draft.tree.parents[node]


def _word(token: int, tokenizer: Any) -> str:
    """A token as a reader can tell it from its neighbours: quoted, with line breaks and quotes escaped."""
    if tokenizer is None:
        return str(token)
    text = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return f'"{text.translate(_ESCAPES)}"'


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
