"""Measurements that nobody made: one per claim, with numbers as they are expected, to be changed by the tests."""

from __future__ import annotations

from typing import Any

from branchwise.compare import best_branch, bound, cost, inputs, logits, masks, parallel, reuse, rows, shares, steps
from branchwise.compare.claims import CLAIMS
from branchwise.compare.effort import QUICK
from branchwise.compare.finding import Finding
from branchwise.compare.report import missing_record, row_record, side_record
from branchwise.compare.runs import Figures, Method
from branchwise.show.step_json import tree_json
from branchwise.tree import TokenGraph, TokenTree


def figures(name: str, budget: int, steps_taken: int, forward: float, draft: float = 0.02) -> Figures:
    """128 tokens of one prompt."""
    return Figures(
        method=Method(name, budget),
        tokens=128,
        steps=steps_taken,
        nodes=steps_taken * budget,
        inner_stops=steps_taken // 2 if name != "plain" else 0,
        over_bound=0,
        off_path=0,
        seconds={"draft": draft, "forward": forward, "verify": 0.03, "commit": 0.01, "other": 0.02},
        equal_prompts=1,
        prompts=1,
    )


PLAIN = figures("plain", 1, 128, 2.6, 0.0)
CHAIN = figures("chain", 9, 70, 1.7)
TREE = figures("tree", 9, 60, 1.6)

INPUTS = inputs.Inputs(
    inputs=(
        inputs.Input("line", 8, 1, 1e-7),
        inputs.Input("tree", 8, 4, 2e-7),
        inputs.Input("graph", 8, 2, 2e-7),
    ),
    drawings=tuple(
        inputs.TreePicture(f"A {name}", tree_json(shape))
        for name, shape in (
            ("line", TokenTree.from_chain(0, (1, 2))),
            ("tree", TokenTree((0, 1, 2), (-1, 0, 0))),
            ("graph", TokenGraph((0, 1, 2, 3), [(0, 1), (0, 2), (1, 3), (2, 3)])),
        )
    ),
    rounding=1e-5,
    heads=(4, 2, 8),
    backend="native: it is quick",
    graph_refusal="a graph has no law",
)
PARALLEL = parallel.Parallel(
    chain_drafted=8,
    chain_scored=9,
    chain_difference=1e-6,
    tree_nodes=16,
    tree_branches=6,
    tree_scored=16,
    tree_difference=1e-6,
    tolerance=1e-3,
    own_attention="sdpa",
)
# node 0, its children 1 and 2, and node 3 below 1
MASKS = masks.Masks(
    committed=20,
    chain=((True, False, False), (True, True, False), (True, True, True)),
    chain_labels=("a", "b", "c"),
    tree=(
        (True, False, False, False),
        (True, True, False, False),
        (True, False, True, False),
        (True, True, False, True),
    ),
    tree_parents=(-1, 0, 0, 1),
    tree_labels=("a", "b", "c", "d"),
    drawing=tree_json(TokenTree((0, 1, 2, 3), (-1, 0, 0, 1))),
    sees_all_committed=True,
    other=2,
    outside=3,
    exchanged=0.0,
    alone=1e-6,
    crossed=0.4,
    crossed_best=2,
    crossed_exchanged=0.3,
    tolerance=1e-3,
)
COST = cost.Cost(
    by_nodes={1: 10.0, 2: 10.5, 4: 11.0, 8: 13.0, 16: 19.0, 32: 33.0, 64: 60.0},
    by_branches={1: 33.0, 8: 34.0, 32: 32.5},
    branch_nodes=33,
    context=191,
    trie_ms=40.0,
    batch_ms=75.0,
    trie_nodes=37,
    batch_nodes=72,
    trie_bytes=1_000_000,
    batch_bytes=8_000_000,
    repeats=3,
)
STEPS = steps.Steps(verified=(steps.Verified(2, 4, 1), steps.Verified(8, 8, 1)), figures=(PLAIN, CHAIN, TREE))
BOUND = bound.Bound(
    right={1: bound.Right(2, 1.9, 1.7), 4: bound.Right(5, 4.5, 3.6)},
    wrong_tokens_per_step=1.0,
    by_width={1: {1: 1.3, 4: 1.6}, 3: {1: 1.5, 4: 1.9}},
    tokens=40,
)
ROWS = rows.Rows(
    chain=(rows.Step(9, 2, 22, 22), rows.Step(9, 1, 23, 23)),
    tree=(rows.Step(9, 3, 23, 23), rows.Step(9, 1, 24, 24)),
    budget=9,
    in_flight={(width, depth): 1 + width * depth for width in rows.WIDTHS for depth in rows.DEPTHS},
    shared=16,
    apart=28,
    row_bytes=23_000.0,
)
REUSE = reuse.Reuse(
    reuse=reuse.Mode(7.5, 7.0, 6.0, 24.0, 20),
    recompute=reuse.Mode(14.5, 7.0, 6.0, 32.0, 20),
    ngrams=reuse.Mode(7.0, 7.0, 0.2, 32.0, 16),
    layers=30,
    exit_layer=8,
    agree=True,
    agreement="all 24 tokens",
)
LOGITS = logits.Logits(
    nodes=16,
    leaves=6,
    rows=16,
    vocabulary=100,
    inner_difference=1e-6,
    tolerance=1e-3,
    steps=60,
    inner_stops=30,
    budget=9,
)
BEST_BRANCH = best_branch.BestBranch(
    naive=(best_branch.Enumerated("best path judged with the raw law", 0.2, 2.2),),
    lossless=(best_branch.Enumerated("rule match", 0.0, 2.1),),
    off_path=0,
    runs=258,
    pairs=2,
)
SHARES = shares.Shares(
    chain=CHAIN,
    tree=TREE,
    chain_forwards=1.0,
    tree_forwards=1.0,
    chain_drafter="mixed",
    tree_drafter="mixed",
    wants_features=False,
    stock_difference=1e-6,
    tolerance=1e-3,
    model_class="LlamaForCausalLM",
)


def findings() -> dict[str, Finding]:
    """What these say, by claim."""
    return {
        "inputs": inputs.finding(INPUTS),
        "parallel": parallel.finding(PARALLEL),
        "standard_mask": masks.standard_finding(MASKS),
        "tree_mask": masks.tree_finding(MASKS),
        "siblings": masks.sibling_finding(MASKS),
        "cost": cost.finding(COST),
        "steps": steps.finding(STEPS),
        "bound": bound.finding(BOUND),
        "cache": rows.finding(ROWS),
        "reuse": reuse.finding(REUSE),
        "logits": logits.finding(LOGITS),
        "best_branch": best_branch.finding(BEST_BRANCH),
        "coupling": shares.coupling_finding(SHARES),
        "overhead": shares.overhead_finding(SHARES),
    }


def record(model: str = "made up", without: str = "", **other: Finding) -> dict[str, Any]:
    """A whole record: the findings above, some of them replaced, and one claim that could not be measured."""
    found = findings() | other
    listed = [
        missing_record(claim, "layers cannot be run apart", failed=False)
        if claim.key == without
        else row_record(claim, found[claim.key], 1.0)
        for claim in CLAIMS
    ]
    return {
        "format": "branchwise-comparison",
        "version": 1,
        "effort": {"name": QUICK.name},
        "new_tokens": 128,
        "seconds": 42.0,
        "verdicts": {},
        "unexpected": [],
        "side_by_side": [side_record(one, PLAIN) for one in (PLAIN, CHAIN, TREE)],
        "rows": listed,
        "provenance": {
            "command": "branchwise compare --quick",
            "date_utc": "2026-01-01T00:00:00+00:00",
            "commit": None,
            "versions": {"python": "3.12"},
            "cpu": "a processor",
            "logical_cpus": 2,
            "load_average": 0.1,
            "threads": 2,
            "device": "cpu",
            "model": {"name": model, "architecture": "LlamaForCausalLM", "dtype": "float32", "attention": "sdpa"},
        },
    }
