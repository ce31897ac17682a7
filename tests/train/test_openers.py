"""Openers: varied, seeded, finished or not as they say."""

from __future__ import annotations

from collections import Counter

import pytest

from branchwise.train.openers import KINDS, OpenerBook

pytestmark = pytest.mark.core


def test_an_opener_depends_on_seed_and_number_alone() -> None:
    one, same, other = OpenerBook(1), OpenerBook(1), OpenerBook(2)
    assert [one.opener(i) for i in (5, 3, 5)] == [same.opener(i) for i in (5, 3, 5)]
    assert [one.opener(i) for i in range(30)] != [other.opener(i) for i in range(30)]


def test_every_kind_has_its_share_and_texts_are_varied() -> None:
    openers = [OpenerBook(0, lambda chance, count: ["A passage."] * count).opener(i) for i in range(4000)]
    found = Counter(opener.kind for opener in openers)
    assert sum(weight for weight, _ in KINDS.values()) == 100
    for kind, (weight, _) in KINDS.items():
        # a binomial count of 4000 draws lies within 5 standard deviations but for one case in a million
        expected = 40 * weight
        assert abs(found[kind] - expected) < 5 * expected**0.5, kind
    assert len({opener.text for opener in openers}) > 1600


def test_passages_make_finished_questions_and_without_them_the_target_writes_the_text() -> None:
    def passages(chance, count):
        return ["First text.", "Second text.", "Third text."][:count]

    with_texts = [OpenerBook(0, passages).opener(i) for i in range(500)]
    bare = [OpenerBook(0).opener(i) for i in range(500)]
    for opener in with_texts:
        if opener.kind in ("summarise", "rework"):
            assert opener.is_complete and "\n\nFirst text." in opener.text and opener.text.endswith(" text.")
    for opener in bare:
        if opener.kind in ("summarise", "documents"):
            assert not opener.is_complete and opener.most_tokens > 200


def test_nothing_is_left_of_the_building() -> None:
    for i in range(2000):
        text = OpenerBook(3).opener(i).text
        assert text == text.lstrip() and "  " not in text and "{" not in text and " a a " not in text, text
