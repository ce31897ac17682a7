"""Drawings compared with drawings made by hand."""

from __future__ import annotations

import pytest

from branchwise.draft.protocol import StepRecord
from branchwise.show import draw_step, draw_tree
from branchwise.show.text import ASCII
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict

pytestmark = pytest.mark.core

WORDS = ["the", " cat", " dog", " ran", " sat", "\n", 'say "hi"', "\\"]


class Words:
    """Decodes ids by looking them up."""

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(WORDS[token] for token in ids)


# node:           0  1   2  3   4
TREE = TokenTree((0, 1, 2, 3, 4), (-1, 0, 0, 1, 1))
SOURCES = ("ngram", "recycling", "recycling", "ngram")
DRAFT = DraftTree.deterministic(TREE, SOURCES, (0.9, 0.25, 0.125, 0.5))


def test_the_accepted_path_and_the_bonus_token() -> None:
    drawing = draw_tree(DRAFT, Verdict(path=(0, 1, 4), bonus=5), Words())
    assert drawing == "\n".join(
        [
            '● "the"',
            '├─● " cat"    ngram      0.90',
            '│ ├─○ " ran"  recycling  0.12',
            '│ └─● " sat"  ngram      0.50',
            '│   └─→ "\\n"  bonus',
            '└─○ " dog"    recycling  0.25',
        ]
    )


def test_a_bonus_token_stands_after_the_rejected_children() -> None:
    drawing = draw_tree(DRAFT, Verdict(path=(0,), bonus=6), Words())
    assert drawing == "\n".join(
        [
            '● "the"',
            '├─○ " cat"        ngram      0.90',
            '│ ├─○ " ran"      recycling  0.12',
            '│ └─○ " sat"      ngram      0.50',
            '├─○ " dog"        recycling  0.25',
            '└─→ "say \\"hi\\""  bonus',
        ]
    )


def test_ids_without_a_tokenizer_and_plain_characters() -> None:
    draft = DraftTree.deterministic(TREE)
    assert draw_tree(draft, Verdict(path=(0, 2), bonus=7), marks=ASCII) == "\n".join(
        [
            "* 0",
            "|-o 1",
            "| |-o 3",
            "| `-o 4",
            "`-* 2",
            "  `-> 7  bonus",
        ]
    )


def test_a_lone_root() -> None:
    lone = DraftTree.deterministic(TokenTree((0,), (-1,)))
    assert draw_tree(lone, Verdict(path=(0,), bonus=7), Words()) == '● "the"\n└─→ "\\\\"  bonus'


def test_a_deep_chain_is_drawn_without_recursion() -> None:
    chain = DraftTree.deterministic(TokenTree.from_chain(0, [1] * 3000))
    assert draw_tree(chain, Verdict(path=(0,), bonus=2)).count("\n") == 3001


def test_a_step_has_a_heading() -> None:
    record = StepRecord(DRAFT, Verdict((0, 1), 4), (1, 4))
    assert draw_step(record, 3, Words()).startswith('step 3: 5 nodes, 1 accepted, 2 tokens\n● "the"\n')
    cut = StepRecord(DRAFT, Verdict((0, 1, 4), 5), (1,))
    assert draw_step(cut, 1).startswith("step 1: 5 nodes, 2 accepted, 1 token (generation ended inside the path)\n")
