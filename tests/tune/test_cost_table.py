"""The measured curve: straight lines by hand, and what is no curve is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.tune.cost_table import SCHEMA, Column, CostTable

pytestmark = pytest.mark.core

SHORT = Column(100, (1, 4, 8), (1.0, 1.0, 3.0))
LONG = Column(300, (1, 8), (2.0, 5.5))


def test_straight_lines_between_nodes_and_the_last_one_goes_on():
    table = CostTable((SHORT,))
    assert [table.seconds(nodes, 100) for nodes in (1, 2, 4, 6, 8, 10)] == [1.0, 1.0, 1.0, 2.0, 3.0, 4.0]
    assert table.seconds(6, 9_999) == 2.0, "one column is the curve of every context"


def test_straight_lines_between_contexts_go_on_beyond_but_never_fall():
    table = CostTable((SHORT, LONG))
    assert [table.seconds(1, context) for context in (0, 100, 200, 300, 500)] == [1.0, 1.0, 1.5, 2.0, 3.0]
    # at 6 nodes: 2 at context 100, 4.5 at 300
    assert [table.seconds(6, context) for context in (50, 200, 400)] == [2.0, 3.25, 5.75]


def test_noise_that_makes_more_nodes_cheaper_is_levelled():
    column = Column(10, (1, 2, 4, 8), (2.0, 1.5, 3.0, 2.5))
    assert list(column.at([1, 2, 3, 4, 8, 16])) == [2.0, 2.0, 2.5, 3.0, 3.0, 3.0]
    table = CostTable((column, Column(20, (1, 8), (1.0, 9.0))))
    assert table.seconds(1, 20) == 2.0, "a longer context is never cheaper"


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.floats(1e-4, 10), min_size=8, max_size=8),
    nodes=st.floats(1, 200),
    context=st.floats(0, 900),
)
def test_never_falling_in_nodes_and_contexts(times, nodes, context):
    table = CostTable((Column(64, (1, 3, 9, 20), tuple(times[:4])), Column(1024, (1, 2, 30, 64), tuple(times[4:]))))
    here = table.seconds(nodes, context)
    assert here <= table.seconds(nodes + 3, context) + 1e-9
    assert here <= table.seconds(nodes, context + 100) + 1e-9


def test_a_column_replaces_one_of_its_context():
    table = CostTable((SHORT,)).with_column(LONG).with_column(Column(100, (1,), (7.0,)))
    assert table.contexts == (100, 300) and table.seconds(5, 100) == 7.0


def test_json_and_back():
    table = CostTable((SHORT, LONG))
    record = table.as_dict({"engine": "transformers"})
    assert record["key"] == {"engine": "transformers"} and record["schema"] == SCHEMA
    assert CostTable.from_dict(json.loads(json.dumps(record))) == table


@pytest.mark.parametrize(
    "damage",
    [
        None,
        [],
        {},
        {"schema": "other"},
        {"schema": SCHEMA},
        {"schema": SCHEMA, "columns": 3},
        {"schema": SCHEMA, "columns": []},
        {"schema": SCHEMA, "columns": [{"context": 1}]},
        {"schema": SCHEMA, "columns": [{"context": 1, "nodes": [1, 2], "seconds": [1.0]}]},
        {"schema": SCHEMA, "columns": [{"context": 1, "nodes": [2, 1], "seconds": [1.0, 1.0]}]},
        {"schema": SCHEMA, "columns": [{"context": 1, "nodes": [0, 1], "seconds": [1.0, 1.0]}]},
        {"schema": SCHEMA, "columns": [{"context": 1, "nodes": [1], "seconds": [float("nan")]}]},
        {"schema": SCHEMA, "columns": [{"context": 1, "nodes": [1], "seconds": [-1.0]}]},
        {"schema": SCHEMA, "columns": [{"context": 1, "nodes": [1], "seconds": ["x"]}]},
        {"schema": SCHEMA, "columns": [{"context": 1.5, "nodes": [1], "seconds": [1.0]}]},
        {"schema": SCHEMA, "columns": [{"context": -1, "nodes": [1], "seconds": [1.0]}]},
        {"schema": SCHEMA, "columns": [{"context": True, "nodes": [1], "seconds": [1.0]}]},
        {"schema": SCHEMA, "columns": [{"context": 5, "nodes": [1], "seconds": [1.0]}] * 2},
    ],
    ids=str,
)
def test_what_is_no_table_is_refused_whole(damage):
    with pytest.raises(ValueError):
        CostTable.from_dict(damage)
