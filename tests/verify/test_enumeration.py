"""Exact enumeration: every rule is lossless where it says so and refuses elsewhere, and every mistake is found out."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from branchwise.losslessness import (
    CONTROLS,
    KINDS,
    SHAPES,
    EnumeratingCoins,
    Plain,
    Report,
    check_rule,
    expectation,
    kary,
    outcomes,
    random_pair,
    render,
    run_grid,
    run_table,
    toy_pairs,
)
from branchwise.losslessness.check import distance, law_written
from branchwise.losslessness.drafts import BINARY, CHAIN, EARLY_STOPPED, RAGGED
from branchwise.verify import RULES, Block, DraftTree, Match, Rejection, Traversal, Verdict

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def table() -> list:
    started = time.perf_counter()
    rows = list(run_table())
    assert time.perf_counter() - started < 60, "the printed table has a minute"
    return rows


def test_the_printed_table_comes_out_to_its_digits(table: list) -> None:
    wrong = [row for row in table if not (row.ok and row.reproduces)]
    assert not wrong, wrong
    assert sum(row.expectation == "lossless" for row in table) >= 35
    assert all(row.total_variation == 0 for row in table if row.expectation == "lossless")


def test_every_control_is_found_out(table: list) -> None:
    found = [row for row in table if row.expectation == "biased"]
    assert len(found) == len(CONTROLS) == 13
    for row in found:
        assert float(row.total_variation) >= 0.8 * float(row.printed_distance) >= 0.03, row


def test_the_table_renders_one_line_per_row(table: list) -> None:
    lines = list(render(table))
    assert len(lines) == len(table) + 1
    assert not any("FAILED" in line for line in lines)
    broken = [type(table[0])("mine", "x", "(2,2)", "lossless", Fraction(1, 10), Fraction(2))]
    assert "FAILED" in list(render(broken))[1]


@pytest.mark.parametrize("arithmetic", ["rational", "tensor"])
def test_small_grid_of_rules_kinds_and_shapes(arithmetic: str) -> None:
    pairs = [toy_pairs()[0], toy_pairs()[4]]
    rows = list(run_grid(shapes=(CHAIN, BINARY, RAGGED, EARLY_STOPPED), arithmetics=(arithmetic,), pairs=pairs))
    assert not [row for row in rows if not row.ok]
    assert {row.expectation for row in rows} == {"lossless", "refused", "lossy"}
    assert len(rows) == len(pairs) * len(RULES) * len(KINDS) * 4


def test_four_tokens() -> None:
    rows = list(
        run_grid(("multiround", "rejection", "traversal", "match"), shapes=(BINARY, RAGGED), pairs=[random_pair(1)])
    )
    assert not [row for row in rows if not row.ok]


@pytest.mark.parametrize("rule", ["match", "block", "best_path"])
def test_refusals_name_the_rule_and_what_the_draft_is(rule: str) -> None:
    refused = 0
    for kind in KINDS:
        for shape in SHAPES:
            if expectation(rule, kind, shape) != "refused" or shape.name in ("(2,2,1)", "(3,1,1)"):
                continue
            with pytest.raises(ValueError, match=rf"rule '{rule}'.*node|node.*rule '{rule}'|rollouts.*rule '{rule}'"):
                check_rule(RULES[rule].make(), KINDS[kind], shape, toy_pairs()[:1], "float")
            refused += 1
    assert refused


def test_typical_is_reported_with_its_distance() -> None:
    report = check_rule(RULES["typical"].make(), KINDS["deterministic"], BINARY)
    assert not report.is_lossless()
    assert report.total_variation > Fraction(1, 10)
    assert not RULES["typical"].lossless
    assert "LOSSY" in RULES["typical"].summary
    assert sum(not entry.lossless for entry in RULES.values()) == 1


def test_traversal_is_block_verification_on_a_chain() -> None:
    for pair in toy_pairs():
        for kind in KINDS.values():
            runs = [law_written(rule.accept, kind, CHAIN, pair)[0] for rule in (Traversal(), Block())]
            assert runs[0] == runs[1]


def test_traversal_has_the_law_of_match_on_deterministic_trees() -> None:
    for pair in toy_pairs():
        runs = [law_written(rule.accept, KINDS["deterministic"], RAGGED, pair)[0] for rule in (Traversal(), Match())]
        assert runs[0] == runs[1]


@pytest.mark.parametrize("name", ["match", "multiround", "rejection", "traversal", "typical"])
def test_at_temperature_0_every_rule_writes_the_greedy_tokens(name: str) -> None:
    pair = random_pair(3).cold()
    law, _ = law_written(RULES[name].make().accept, KINDS["without replacement"], BINARY, pair)
    assert distance(law, pair, 3) == 0


def test_a_callable_of_ones_own_can_be_checked() -> None:
    def never_accepts(draft: DraftTree, law: object, coins: EnumeratingCoins) -> Verdict:
        return Verdict((0,), coins.choice(law(0)))

    assert check_rule(never_accepts, KINDS["mixed"], BINARY) == Report(0, 1)

    def accepts_all(draft: DraftTree, law: object, coins: EnumeratingCoins) -> Verdict:
        last = draft.tree.leaves[0]  # looks at the tree as a whole
        return Verdict(draft.tree.path(last), coins.choice(law(last)))

    assert check_rule(accepts_all, KINDS["mixed"], BINARY).total_variation > 0.5


def test_trees_that_grow_on_demand_have_the_law_of_trees_drawn_first() -> None:
    class Hasty(Rejection):
        def accept(self, draft, law, coins):
            assert len(draft.tree) >= 2  # draws everything before the first coin of the rule
            return super().accept(draft, law, coins)

    for pair in toy_pairs()[:3]:
        lazy = law_written(Rejection().accept, KINDS["without replacement"], RAGGED, pair)
        assert law_written(Hasty().accept, KINDS["without replacement"], RAGGED, pair) == lazy


def test_enumerated_weights_sum_to_one_and_visit_each_outcome_once() -> None:
    def play(coins: EnumeratingCoins) -> tuple:
        first = coins.choice(Plain([Fraction(1, 2), 0, Fraction(1, 2)]))
        return (first, coins.bernoulli(Fraction(1, 3)) if first else None, coins.bernoulli(0), coins.bernoulli(1))

    seen = list(outcomes(play))
    assert len({result for result, _ in seen}) == len(seen) == 3
    assert sum(weight for _, weight in seen) == 1
    assert all(result[2:] == (False, True) for result, _ in seen)


def test_shapes_say_what_they_are() -> None:
    assert [shape.name for shape in SHAPES] == ["chain 3", "(2,2)", "(3,1,1)", "(2,2,1)", "ragged", "early-stopped"]
    assert [shape.is_chain for shape in SHAPES] == [True] + [False] * 5
    assert [shape.rollouts for shape in SHAPES] == [True, False, True, False, False, False]
    assert kary(1).is_chain
