"""All claims measured: one record for JSON, terminal and page. Knows which measurement settles which claim."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch

from ..bench.provenance import provenance
from ..target.support import UnsupportedModel
from . import best_branch, bound, cost, inputs, logits, masks, parallel, reuse, rows, shares, steps
from .claims import CLAIMS, Claim
from .exhibits import exhibit_record
from .finding import Finding
from .runs import PARTS, Figures, Runs, run_all
from .subject import Subject

FORMAT = "branchwise-comparison"
VERSION = 1
#: a verdict of the record beside those of `verdicts`
NOT_MEASURED = "not measured"

Progress = Callable[[str], None]


class Measurements:
    """What several claims look at is measured once."""

    def __init__(self, subject: Subject, runs: Runs, progress: Progress) -> None:
        self.subject = subject
        self.runs = runs
        self.progress = progress

    @cached_property
    def masks(self) -> masks.Masks:
        """Of a chain and a tree."""
        return masks.measure(self.subject)

    @cached_property
    def shares(self) -> shares.Shares:
        """Of a step."""
        return shares.measure(self.subject, self.runs)


#: claim -> what settles it
SETTLED_BY: dict[str, Callable[[Measurements], Finding]] = {
    "inputs": lambda m: inputs.finding(inputs.measure(m.subject)),
    "parallel": lambda m: parallel.finding(parallel.measure(m.subject)),
    "standard_mask": lambda m: masks.standard_finding(m.masks),
    "tree_mask": lambda m: masks.tree_finding(m.masks),
    "siblings": lambda m: masks.sibling_finding(m.masks),
    "cost": lambda m: cost.finding(cost.measure(m.subject)),
    "steps": lambda m: steps.finding(steps.measure(m.subject, m.runs)),
    "bound": lambda m: bound.finding(bound.measure(m.subject, m.runs, m.progress)),
    "cache": lambda m: rows.finding(rows.measure(m.subject)),
    "reuse": lambda m: reuse.finding(reuse.measure(m.subject)),
    "logits": lambda m: logits.finding(logits.measure(m.subject, m.runs)),
    "best_branch": lambda m: best_branch.finding(best_branch.measure(m.subject, m.runs)),
    "coupling": lambda m: shares.coupling_finding(m.shares),
    "overhead": lambda m: shares.overhead_finding(m.shares),
}


def compare(subject: Subject, model_facts: Mapping[str, Any], progress: Progress = lambda line: None) -> dict[str, Any]:
    """Measures everything.

    Args:
        subject: what is measured.
        model_facts: what the record says of the model.
        progress: is told what is done, a line at a time.

    Returns:
        the record: see docs/compare.md.
    """
    began = time.perf_counter()
    with torch.inference_mode(False), torch.no_grad():
        runs = run_all(subject, progress)
        measurements = Measurements(subject, runs, progress)
        rows = [_row(claim, measurements) for claim in CLAIMS]
    return {
        "format": FORMAT,
        "version": VERSION,
        "effort": asdict(subject.effort),
        "new_tokens": runs.plain.tokens // runs.plain.prompts,
        "seconds": round(time.perf_counter() - began, 1),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "unexpected": [row["key"] for row in rows if not row["as_expected"]],
        "side_by_side": [side_record(figures, runs.plain) for figures in runs.all],
        "rows": rows,
        "provenance": provenance(model=dict(model_facts), device=_device(subject.device)),
    }


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _row(claim: Claim, measurements: Measurements) -> dict[str, Any]:
    measurements.progress(claim.topic)
    began = time.perf_counter()
    try:
        return row_record(claim, SETTLED_BY[claim.key](measurements), time.perf_counter() - began)
    except UnsupportedModel as refusal:
        return missing_record(claim, str(refusal), failed=False)
    except Exception as error:
        # the other rows are worth having; the command's exit code tells
        measurements.subject.target.rollback()
        return missing_record(claim, f"{type(error).__name__}: {' '.join(str(error).split())}", failed=True)


def row_record(claim: Claim, finding: Finding, seconds: float) -> dict[str, Any]:
    """One row that was measured."""
    checks = [{"group": "says", **asdict(check)} for check in finding.says]
    checks += [{"group": "instead", **asdict(check)} for check in finding.instead]
    return {
        **_claim_record(claim),
        "verdict": finding.verdict,
        "as_expected": finding.verdict == claim.expected,
        "headline": finding.headline,
        "checks": checks,
        "how": finding.how,
        "exhibits": [exhibit_record(exhibit) for exhibit in finding.exhibits],
        "seconds": round(seconds, 2),
        "reason": None,
        "failed": False,
    }


def missing_record(claim: Claim, reason: str, failed: bool) -> dict[str, Any]:
    """One row that was not; ``failed`` unless it is the model that does not allow it."""
    return {
        **_claim_record(claim),
        "verdict": NOT_MEASURED,
        "as_expected": False,
        "headline": f"Not measured: {reason}",
        "checks": [],
        "how": "",
        "exhibits": [],
        "seconds": 0.0,
        "reason": reason,
        "failed": failed,
    }


def _claim_record(claim: Claim) -> dict[str, Any]:
    return {
        "key": claim.key,
        "topic": claim.topic,
        "said": claim.said,
        "expected": claim.expected,
        "instead": claim.instead,
    }


def side_record(figures: Figures, plain: Figures) -> dict[str, Any]:
    """One method in the comparison side by side."""
    return {
        "method": figures.method.name,
        "label": figures.method.label,
        "budget": figures.method.budget,
        "steps_per_prompt": round(figures.steps / figures.prompts, 2),
        "nodes_per_step": round(figures.nodes / figures.steps, 3),
        "tokens_per_step": round(figures.tokens_per_step, 4),
        "tokens_per_second": round(figures.tokens_per_second, 3),
        "x_plain": round(figures.tokens_per_second / plain.tokens_per_second, 4),
        "shares": {part: round(figures.share(part), 5) for part in PARTS},
        "equal_prompts": figures.equal_prompts,
        "prompts": figures.prompts,
    }
