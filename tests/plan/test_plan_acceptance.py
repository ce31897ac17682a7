"""What drafts are worth: from chances, from tokens per step, and from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.plan.acceptance import Acceptance, HostSeconds, from_chances, from_tokens_per_step
from branchwise.plan.acceptance_file import read_acceptance
from branchwise.tree.static_shape import rank_chances
from branchwise.tune.sequoia import sequoia

pytestmark = pytest.mark.core


def test_the_likeliest_paths_come_first():
    r"""Two ranks at depth 1, one at depth 2.

          0           chances of paths: 1 has .6, 2 has .3, 3 has .3 (.6 x .5), 4 has .15;
        /   \         of two equal ones the one that was met first
    .6 1     2 .3
       |     |
    .5 3     4 .5
    """
    made = from_chances("hand", [[0.6, 0.3], [0.5]], 9)
    assert made.gains == pytest.approx((1, 0.6, 0.3, 0.3, 0.15))
    assert made.parents == (-1, 0, 0, 1, 2)
    assert made.expected_tokens(1) == 1
    assert made.expected_tokens(3) == pytest.approx(1.9)
    assert made.expected_tokens(5) == made.expected_tokens(50) == pytest.approx(2.35)
    assert made.level_widths(1) == [] and made.level_widths(5) == [1, 2]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.05, 0.9), min_size=1, max_size=4), st.integers(1, 24))
def test_no_tree_is_better(acceptance, budget):
    """The oracle is Sequoia's dynamic programme, which knows nothing of this order of nodes."""
    made = from_chances("x", [rank_chances(acceptance)] * 24, 24)
    assert made.expected_tokens(budget) == pytest.approx(sequoia(acceptance, budget).expected_tokens(acceptance))


def check_is_a_tree(made: Acceptance) -> None:
    assert list(made.gains) == sorted(made.gains, reverse=True)
    below = [0.0] * len(made.gains)
    for node, parent in enumerate(made.parents[1:], start=1):
        assert parent < node
        below[parent] += made.gains[node]
    assert all(sum_ <= gain + 1e-9 for sum_, gain in zip(below, made.gains, strict=True))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.integers(2, 65), st.floats(0, 1), min_size=1, max_size=5))
def test_tokens_per_step_become_a_tree_that_gives_them(shares):
    """Any measurement, also one whose tokens per step fall from budget to budget."""
    tokens = {budget: 1 + share * (budget - 1) for budget, share in shares.items()}
    made = from_tokens_per_step("x", tokens)
    check_is_a_tree(made)
    largest = max(tokens)
    assert made.largest == largest
    assert 1 <= made.expected_tokens(largest) <= largest
    if all(tokens[b] <= tokens[c] for b in tokens for c in tokens if b < c):
        assert made.expected_tokens(largest) == pytest.approx(tokens[largest])


def test_measured_points_that_fall_off_are_kept():
    made = from_tokens_per_step("x", {5: 2.2, 17: 2.9, 33: 3.2})
    assert [made.expected_tokens(budget) for budget in (1, 5, 17, 33)] == pytest.approx([1, 2.2, 2.9, 3.2])
    check_is_a_tree(made)


def test_the_hosts_time_lies_on_lines_between_what_was_measured():
    made = from_tokens_per_step("x", {9: 2.0}, {1: HostSeconds(0, 1), 9: HostSeconds(8, 3)})
    assert made.host_seconds(5) == HostSeconds(4, 2)
    assert made.host_seconds(9) == made.host_seconds(33) == HostSeconds(8, 3)
    assert from_chances("x", [[0.5]], 3).host_seconds(2).total == 0


# files


def write(folder: Path, record: object) -> Path:
    path = folder / "acceptance.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def own(**rest: object) -> dict[str, object]:
    return {"format": "branchwise-acceptance", "version": 1, "source": "here", **rest}


def test_the_three_ways_of_the_own_form(tmp_path):
    budgets = read_acceptance(write(tmp_path, own(tokens_per_step={"9": 2.0})))
    assert (budgets.source, budgets.largest, budgets.expected_tokens(9)) == ("here", 9, pytest.approx(2.0))
    ranks = read_acceptance(write(tmp_path, own(by_rank=[0.5, 0.5])))
    assert ranks.gains[:4] == pytest.approx((1, 0.5, 0.25, 0.25))
    depths = read_acceptance(
        write(tmp_path, own(by_depth=[[0.6], [0.5]], host_seconds={"3": {"draft": 1, "other": 2}}))
    )
    assert depths.gains == pytest.approx((1, 0.6, 0.3))
    assert depths.host_seconds(2) == HostSeconds(1, 2)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([], "must be a JSON object"),
        (own(), "needs one of tokens_per_step, by_rank, by_depth, got none"),
        (own(by_rank=[0.5], by_depth=[[0.5]]), "got by_rank, by_depth"),
        (own(by_rank=[1.5]), r"acceptance.json: acceptance\[0\] must be a probability"),
        (own(by_rank="high"), "by_rank must be a list"),
        (own(by_depth=[[0.7, 0.5]]), "depth 1: chances of one node's children"),
        (own(by_depth=[["a"]]), r"by_depth\[0\] must be a list of numbers"),
        (own(tokens_per_step={"9": 10}), "a budget of 9 cannot give 10"),
        (own(tokens_per_step={"many": 2}), "budgets are whole numbers from 1 on, got 'many'"),
        (own(tokens_per_step={}), "tokens_per_step is empty"),
        (own(tokens_per_step={"1": 1}), "at least one budget above 1"),
        (own(by_rank=[0.5], temperature=1), "keys that nobody reads: temperature"),
        (own(by_rank=[0.5], host_seconds={"9": {"draft": -1, "other": 0}}), "draft must be a number >= 0, got -1"),
        ({**own(by_rank=[0.5]), "version": 2}, '"version": 1'),
        ({"settings": {"plain": {}}}, "no settings tree-N"),
        ({"bench": "branchwise", "methods": {"plain": {"overall": None}}}, "run it with --methods plain,tree"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, record, said):
    with pytest.raises(ValueError, match=said):
        read_acceptance(write(tmp_path, record))


def test_a_file_that_is_not_there_or_no_json(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.json cannot be read as acceptance: No such file"):
        read_acceptance(tmp_path / "nothing.json")
    (tmp_path / "text.json").write_text("tokens", encoding="utf-8")
    with pytest.raises(ValueError, match=r"text\.json is no acceptance: it holds no JSON"):
        read_acceptance(tmp_path / "text.json")


def figures(tokens: float, steps: int, seconds: float, draft: float, outside: float) -> dict[str, dict[str, float]]:
    return {
        "overall": {
            "tokens_per_step": tokens,
            "steps": steps,
            "decode_seconds": seconds,
            "share_draft": draft,
            "outside_share": outside,
        }
    }


def test_a_record_of_the_bench(tmp_path):
    record = {
        "bench": "branchwise",
        "provenance": {"model": {"name": "some-model"}},
        "methods": {
            "plain": figures(1.0, 100, 10.0, 0.0, 0.1),
            "tree-9": figures(2.0, 50, 5.0, 0.1, 0.3),
            "tree-auto": figures(2.1, 50, 5.0, 0.1, 0.3),
            "tree-33": {"overall": None},
        },
    }
    made = read_acceptance(write(tmp_path, record))
    assert made.source == "tree on some-model, measured in acceptance.json"
    assert made.largest == 9 and made.expected_tokens(9) == pytest.approx(2.0)
    assert made.host_seconds(1) == HostSeconds(0.0, pytest.approx(0.01))
    assert made.host_seconds(9) == HostSeconds(pytest.approx(0.01), pytest.approx(0.02))
    record["methods"]["tree:model-9"] = figures(4.0, 50, 5.0, 0.1, 0.3)
    with pytest.raises(ValueError, match="has the trees tree, tree:model; name one with --method"):
        read_acceptance(write(tmp_path, record))
    assert read_acceptance(write(tmp_path, record), "tree:model").expected_tokens(9) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="has the trees tree, tree:model"):
        read_acceptance(write(tmp_path, record), "tree:eagle")


def test_an_evaluation_of_a_head(tmp_path):
    record = {"settings": {"plain": {"tokens_per_step": 1.0}, "tree-9": {"tokens_per_step": 2.5}}}
    assert read_acceptance(write(tmp_path, record)).expected_tokens(9) == pytest.approx(2.5)
    with pytest.raises(ValueError, match="no record of branchwise bench"):
        read_acceptance(write(tmp_path, record), "tree")


def test_the_results_in_the_documentation_can_be_planned_with():
    path = Path(__file__).resolve().parents[2] / "docs/results/2026-11-29-smollm2-135m-bfloat16.json"
    made = read_acceptance(path)
    check_is_a_tree(made)
    assert made.largest == 33 and made.expected_tokens(33) == pytest.approx(2.9709)
    assert 0 < made.host_seconds(1).total < made.host_seconds(33).total < 0.01
