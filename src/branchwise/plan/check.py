"""The cost model against this machine: forwards of a real model, predicted from parts and timed.

Nothing of the prediction comes from a forward of that model: `measure` times attention of another shape and models of
other sizes, and the config says the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel

from ..bench.roofline_forward import run_forward_sweep
from ..target.support import context_limit
from .forward_cost import ForwardCost, Lanes
from .hardware import Hardware
from .model_config import shape_of

NODES, CONTEXTS = (1, 8, 16, 32, 64), (256, 2048)
#: a prediction may be off by so much
TOLERANCE = 0.2


def check_forwards(
    model: PreTrainedModel,
    hardware: Hardware,
    facts: dict[str, Any],
    repeats: int,
    progress: Callable[[str], None] = lambda line: None,
    nodes: Sequence[int] = NODES,
    contexts: Sequence[int] = CONTEXTS,
) -> dict[str, Any]:
    """Times forwards and predicts them; returns the record.

    Args:
        model: in eval mode, on the device that was measured.
        hardware: as `measure.measure_hardware` gives it.
        facts: what the record says of the model.
        repeats: forwards per combination; the least counts, as in `measure`.
        progress: is told every line.
        nodes: tree sizes.
        contexts: committed tokens; those that the model does not have are skipped.

    Raises:
        ValueError: the model has none of the contexts.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    cost = ForwardCost(shape_of(model, facts["name"]), hardware, dtype, "eager")
    limit = context_limit(model)
    fits = [context for context in contexts if limit is None or context + max(nodes) <= limit]
    if not fits:
        raise ValueError(f"contexts {list(contexts)} do not fit the {limit} positions of {facts['name']}")
    record = run_forward_sweep(model, nodes, fits, ["auto"], repeats, facts)
    rows = []
    for row in record["rows"]:
        parts = cost.seconds([Lanes(row["nodes"], row["context"])])
        measured = row["ways"]["auto"]["best_ms"]
        rows.append(
            {
                "nodes": row["nodes"],
                "context": row["context"],
                "measured_ms": measured,
                "model_ms": round(1000 * parts.total, 4),
                "ratio": round(1000 * parts.total / measured, 4),
                "parts_ms": {
                    part: round(1000 * getattr(parts, part), 4) for part in ("linear", "attention", "small", "launch")
                },
            }
        )
        progress(_line(rows[-1]))
    skipped = [context for context in contexts if context not in fits]
    if skipped:
        progress(f"contexts {skipped} were skipped: the model has {limit} positions")
    return {
        "bench": "plan",
        "hardware": hardware.as_dict(),
        "rows": rows,
        "skipped_contexts": skipped,
        "tolerance": TOLERANCE,
        "met": all(abs(row["ratio"] - 1) <= TOLERANCE for row in rows),
        "provenance": record["provenance"],
    }


def _line(row: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {ms:.2f}" for name, ms in row["parts_ms"].items())
    mark = "" if abs(row["ratio"] - 1) <= TOLERANCE else "  OFF"
    return (
        f"context {row['context']:5} nodes {row['nodes']:3}  measured {row['measured_ms']:8.2f} ms  model "
        f"{row['model_ms']:8.2f} ms  ratio {row['ratio']:.2f}{mark}  ({parts})"
    )
