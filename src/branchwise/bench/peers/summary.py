"""The arithmetic of a comparison with peers.

Figures per configuration are those of `bench.summary`, and:

    ratio_to_best   median tokens per second / that of this library's best configuration, in the same group of prompts
    equal           outputs equal to the same peer's own plain output, of those compared (greedy decoding only)

This library's best configuration is the one with the highest median over all prompts; it is the same in every category.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..runner import Results, Row
from ..summary import figures, pairs_of
from .configuration import Configuration
from .remote import PeerFailed

MEDIAN = "median_tokens_per_second"


def summarise_peers(results: Results, asked: Sequence[Configuration], *, is_greedy: bool) -> dict[str, Any]:
    """One record per configuration, under its name: peer, error, figures overall and per category.

    Args:
        results: of `run_methods`.
        asked: all configurations.
        is_greedy: whether outputs can be compared.
    """
    groups: dict[str | None, list[Row]] = {None: results.rows}
    for row in results.rows:
        groups.setdefault(row.prompt.category, []).append(row)
    by_group = {group: _figures(rows, asked, is_greedy) for group, rows in groups.items()}
    best = _fastest(by_group[None], [one for one in asked if one.is_own and one.name not in results.errors])
    for found in by_group.values():
        base = found[best][MEDIAN] if best in found else 0
        for values in found.values():
            values["ratio_to_best"] = round(values[MEDIAN] / base, 4) if base else None
    fastest_peer = _fastest(by_group[None], [one for one in asked if not one.is_own and one.name not in results.errors])
    return {
        "best": best,
        "fastest_peer": fastest_peer,
        "methods": {
            one.name: {
                "peer": one.peer,
                "error": _error(results, one.name),
                "overall": by_group[None].get(one.name),
                "categories": {
                    group: found[one.name] for group, found in by_group.items() if group and one.name in found
                },
            }
            for one in asked
        },
    }


def _figures(rows: Sequence[Row], asked: Sequence[Configuration], is_greedy: bool) -> dict[str, dict[str, Any]]:
    """By name; nothing of configurations without a row."""
    of = {one.name: [row for row in rows if row.method == one.name] for one in asked}
    found = {}
    for one in asked:
        plain = of.get(Configuration(one.peer, "plain").name, []) if is_greedy else []
        values = figures(of[one.name], {}, pairs_of(plain, of[one.name]))
        if values is not None:
            found[one.name] = values
    return found


def _fastest(overall: dict[str, dict[str, Any]], among: Sequence[Configuration]) -> str | None:
    names = [one.name for one in among if one.name in overall]
    return max(names, key=lambda name: overall[name][MEDIAN], default=None)


def _error(results: Results, name: str) -> str | None:
    error = results.errors.get(name)
    return None if error is None else error.removeprefix(f"{PeerFailed.__name__}: ")
