"""The arithmetic of a benchmark: from rows to figures per category and overall.

Definitions (times are as in `stopwatch`: nothing before the first run of tokens counts):

    tokens_per_second      decoded tokens of all prompts / decoding seconds of all prompts (a ratio of totals)
    median_...             median over prompts of the same quantity per prompt
    cpu_seconds            processor time within the decoding seconds, all threads: about threads x if quiet
    tokens_per_step        all tokens / all steps; a step is one forward that emitted tokens: accepted drafts plus one
    ratio_to_X             tokens_per_second / that of method X on the same prompts
    outside_share          share of the decoding time that is not inside the target's forward, of which
    share_draft, ...       draft, verify, commit as the loop books them, other = the rest
    outside_ms_*_context   median milliseconds per step outside the forward, in the quarter of the steps with the
                           shortest and in the quarter with the longest context
    acceptance             see `acceptance`; of methods that draft
    equal                  prompts whose tokens are those of plain decoding (or of hf-plain where plain did not run)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from .acceptance import count_acceptance
from .agreement import Divergence, first_difference
from .runner import Results, Row, rate

#: the methods that others are set against, the first that ran being the reference for equal tokens
BASELINES = ("plain", "hf-plain")

Explain = Callable[[Row, Row], Divergence | None]


def summarise(
    results: Results, *, is_greedy: bool, explain: Explain | None = None, keeps_tokens: bool = True
) -> dict[str, Any]:
    """One record per method: figures overall and per category, its error if it failed, where it left plain decoding.

    Args:
        results: of `run_methods`.
        is_greedy: under sampling only this library's own methods share coins and can be compared token by token.
        explain: measures the place where a row (second) leaves the reference row (first).
        keeps_tokens: False when the rule promises the law of the output and not its tokens: nothing is compared then.
    """
    baselines = {name: results.of(name) for name in BASELINES if results.of(name)}
    reference = next(iter(baselines), None)
    summary: dict[str, Any] = {}
    for name in results.methods:
        rows = results.of(name)
        comparable = reference is not None and keeps_tokens and (is_greedy or not name.startswith("hf-"))
        pairs = pairs_of(baselines[reference], rows) if reference is not None and comparable else []
        summary[name] = {
            "error": results.errors.get(name),
            "overall": figures(rows, baselines, pairs),
            "categories": {
                category: figures(
                    [row for row in rows if row.prompt.category == category],
                    baselines,
                    [pair for pair in pairs if pair[1].prompt.category == category],
                )
                for category in dict.fromkeys(row.prompt.category for row in rows)
            },
            "acceptance": count_acceptance(
                record for row in rows if row.run.generation is not None for record in row.run.generation.records
            ),
            "differences": _differences(pairs, explain) if name != reference else [],
        }
    return summary


def figures(
    rows: Sequence[Row], baselines: Mapping[str, Sequence[Row]], pairs: Sequence[tuple[Row, Row]]
) -> dict[str, Any] | None:
    """The figures of one group of rows, all of one method; None when there are none."""
    if not rows:
        return None
    tokens, steps = sum(len(row.run.tokens) for row in rows), sum(row.run.timing.runs for row in rows)
    found: dict[str, Any] = {
        "prompts": len(rows),
        "new_tokens": tokens,
        "steps": steps,
        "tokens_per_step": round(tokens / steps, 4),
        "decode_seconds": round(sum(row.run.timing.decode_seconds for row in rows), 4),
        "cpu_seconds": round(sum(row.run.timing.cpu_seconds for row in rows), 4),
        "tokens_per_second": round(_total_rate(rows), 3),
        "median_tokens_per_second": round(median(map(_row_rate, rows)), 3),
        "median_first_run_seconds": round(median(row.run.timing.first_run_seconds for row in rows), 4),
    }
    for name, others in baselines.items():
        found[f"ratio_to_{name}"], found[f"median_ratio_to_{name}"] = _ratios(pairs_of(others, rows))
    found.update(_shares(rows))
    if pairs:
        found["equal"] = sum(one.run.tokens == other.run.tokens for one, other in pairs)
        found["compared"] = len(pairs)
    return found


def _row_rate(row: Row) -> float:
    return rate(row.run.timing.decode_tokens, row.run.timing.decode_seconds)


def _total_rate(rows: Sequence[Row]) -> float:
    return rate(sum(r.run.timing.decode_tokens for r in rows), sum(r.run.timing.decode_seconds for r in rows))


def pairs_of(reference: Sequence[Row], rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows of the same prompt, those of the reference first, in the order of ``rows``."""
    by_prompt = {row.prompt.question_id: row for row in reference}
    return [(by_prompt[r.prompt.question_id], r) for r in rows if r.prompt.question_id in by_prompt]


def _ratios(pairs: Sequence[tuple[Row, Row]]) -> tuple[float | None, float | None]:
    base, own = _total_rate([one for one, _ in pairs]), _total_rate([other for _, other in pairs])
    each = [_row_rate(other) / _row_rate(one) for one, other in pairs if _row_rate(one) and _row_rate(other)]
    return (round(own / base, 4) if base else None), (round(median(each), 4) if each else None)


def _shares(rows: Sequence[Row]) -> dict[str, float]:
    """How the decoding time divides; nothing for methods that do not say."""
    seconds = sum(row.run.timing.decode_seconds for row in rows)
    steps = [step for row in rows for step in row.run.decode_steps]
    if not steps or not seconds:
        return {}
    parts = {part: sum(getattr(step, part) for step in steps) for part in ("forward", "draft", "verify", "commit")}
    parts["other"] = seconds - sum(parts.values())
    shares = {"outside_share": 1 - parts["forward"] / seconds}
    shares.update({f"share_{part}": parts[part] / seconds for part in ("draft", "verify", "commit", "other")})
    shares["forward_ms_per_step"] = 1000 * parts["forward"] / len(steps)
    shares["outside_ms_short_context"], shares["outside_ms_long_context"] = _outside_by_context(rows)
    return {name: round(value, 4) for name, value in shares.items()}


def _outside_by_context(rows: Sequence[Row]) -> tuple[float, float]:
    points: list[tuple[int, float]] = []
    for row in rows:
        generation = row.run.generation
        assert generation is not None
        context = row.prompt_tokens
        for record, step in zip(generation.records, generation.seconds, strict=True):
            points.append((context, step.total - step.forward))
            context += len(record.tokens)
    points.sort()
    quarter = max(1, len(points) // 4)
    ends = points[:quarter], points[-quarter:]
    return 1000 * median(s for _, s in ends[0]), 1000 * median(s for _, s in ends[1])


def _differences(pairs: Sequence[tuple[Row, Row]], explain: Explain | None) -> list[dict[str, Any]]:
    found = []
    for one, other in pairs:
        position = first_difference(one.run.tokens, other.run.tokens)
        if position is None:
            continue
        entry: dict[str, Any] = {"question_id": other.prompt.question_id, "position": position}
        divergence = explain(one, other) if explain is not None else None
        found.append(entry | (divergence.as_dict() if divergence is not None else {}))
    return found
