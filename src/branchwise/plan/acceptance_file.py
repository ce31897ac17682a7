"""Acceptance from files: what `branchwise bench --json` or `branchwise train evaluate` writes, or a form of its own.

The form of its own is one object with ``"format": "branchwise-acceptance"``, ``"version": 1``, ``"source"`` (a text)
and one of

    "tokens_per_step": {"9": 2.27, "33": 2.97}   by budget, root included
    "by_rank": [0.6, 0.2]                        at every depth, as `branchwise.tune.sequoia.acceptance_by_rank`
    "by_depth": [[0.6, 0.1], [0.5, 0.1]]         by depth and rank: the child is accepted where its parent is

and, if it was measured, ``"host_seconds": {"9": {"draft": 0.001, "other": 0.001}}``: seconds per step and lane outside
the forward, by budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..tree.static_shape import rank_chances
from .acceptance import Acceptance, HostSeconds, from_chances, from_tokens_per_step
from .fields import Fields, read_json

FORMAT, VERSION = "branchwise-acceptance", 1
#: nodes of the largest tree made from chances, root included
LARGEST = 65
#: depth that chances by rank alone are repeated to
DEEPEST = 16
_WAYS = ("tokens_per_step", "by_rank", "by_depth")


def read_acceptance(path: Path, method: str | None = None) -> Acceptance:
    """Reads a file of one of the three forms.

    Args:
        path: of the file.
        method: in a record of `branchwise bench` with several kinds of trees, the one that counts: ``tree``,
            ``tree:mixed+model``, ...

    Raises:
        ValueError: the file has none of the forms, or something in it is wrong; says what.
    """
    record = read_json(path, "acceptance")
    if isinstance(record, Mapping) and record.get("bench") == "branchwise":
        return _from_bench(record, path.name, method)
    if method is not None:
        raise ValueError(f"{path.name} is no record of branchwise bench: there is no method {method!r} to choose in it")
    if isinstance(record, Mapping) and "settings" in record and "format" not in record:
        return _from_evaluation(record, path.name)
    return _from_own_form(record, path.name)


def _from_own_form(record: Any, where: str) -> Acceptance:
    fields = Fields(record, where)
    fields.expect(FORMAT, VERSION)
    source = fields.text("source")
    given = [way for way in _WAYS if way in fields]
    if len(given) != 1:
        raise ValueError(f"{where} needs one of {', '.join(_WAYS)}, got {', '.join(given) or 'none'}")
    try:
        made = _MAKE[given[0]](source, fields)
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    host = _own_host(fields) if "host_seconds" in fields else {}
    fields.done()
    return replace(made, host=host)


def _by_budget(source: str, fields: Fields) -> Acceptance:
    return from_tokens_per_step(
        source, {_budget(key, fields.where): value for key, value in fields.numbers("tokens_per_step").items()}
    )


def _by_rank(source: str, fields: Fields) -> Acceptance:
    return from_chances(source, [rank_chances(_numbers(fields.items("by_rank"), "by_rank"))] * DEEPEST, LARGEST)


def _by_depth(source: str, fields: Fields) -> Acceptance:
    rows = [_numbers(row, f"by_depth[{at}]") for at, row in enumerate(fields.items("by_depth"))]
    return from_chances(source, rows, LARGEST)


_MAKE = {"tokens_per_step": _by_budget, "by_rank": _by_rank, "by_depth": _by_depth}


def _own_host(fields: Fields) -> dict[int, HostSeconds]:
    inner = fields.object("host_seconds")
    found = {}
    for key in fields.take("host_seconds"):
        seconds = inner.object(key)
        found[_budget(key, inner.where)] = HostSeconds(seconds.number("draft"), seconds.number("other"))
        seconds.done()
    return found


def _from_bench(record: Mapping[str, Any], where: str, method: str | None) -> Acceptance:
    """From tokens per step and shares of the time of every ``tree-N``; plain decoding's, too, where it ran."""
    methods = {name: entry["overall"] for name, entry in record["methods"].items() if entry.get("overall")}
    kinds = dict.fromkeys(name.rpartition("-")[0] for name in methods if name.startswith("tree"))
    chosen = method or next(iter(kinds), None)
    if chosen not in kinds or (method is None and len(kinds) > 1):
        said = "name one with --method" if kinds else "run it with --methods plain,tree --budgets 9,17,33"
        raise ValueError(f"{where} has the trees {', '.join(kinds) or 'of no method'}; {said}")
    trees = {
        int(name.rpartition("-")[2]): figures
        for name, figures in methods.items()
        if name.rpartition("-")[0] == chosen and name.rpartition("-")[2].isdigit()
    }
    measured = trees | ({1: methods["plain"]} if "plain" in methods else {})
    host = {budget: _host(figures) for budget, figures in measured.items() if "outside_share" in figures}
    model = record.get("provenance", {}).get("model", {}).get("name", "a model")
    tokens = {budget: figures["tokens_per_step"] for budget, figures in trees.items()}
    try:
        return from_tokens_per_step(f"{chosen} on {model}, measured in {where}", tokens, host)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _host(figures: Mapping[str, Any]) -> HostSeconds:
    step = figures["decode_seconds"] / figures["steps"]
    draft = figures["share_draft"] * step
    return HostSeconds(draft, figures["outside_share"] * step - draft)


def _from_evaluation(record: Mapping[str, Any], where: str) -> Acceptance:
    """From tokens per step of every ``tree-N``."""
    tokens = {
        int(name.removeprefix("tree-")): figures["tokens_per_step"]
        for name, figures in record["settings"].items()
        if name.startswith("tree-")
    }
    if not tokens:
        raise ValueError(f"{where} has no settings tree-N; make it with branchwise train evaluate")
    return from_tokens_per_step(f"the head evaluated in {where}", tokens)


def _numbers(values: Any, where: str) -> list[float]:
    if not isinstance(values, list) or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise ValueError(f"{where} must be a list of numbers, got {values!r}")
    return [float(value) for value in values]


def _budget(key: str, where: str) -> int:
    if not key.isdigit() or int(key) < 1:
        raise ValueError(f"{where}: budgets are whole numbers from 1 on, got {key!r}")
    return int(key)
