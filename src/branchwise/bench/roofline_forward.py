"""How close a whole forward of a tree comes to the limit of the machine.

What has to be read once: every weight of the layers and of the output matrix, and the keys and values of the context.
What has to be multiplied: every weight with every node, every query with every key, every weight of the softmax with
every value. Contexts are filled with random rows: what a forward costs does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from ..target.huggingface import HuggingFaceTarget
from ..tree import TokenTree, kary_shape
from .limits import Limits, measure_limits, once
from .provenance import provenance
from .roofline import describe


def run_forward_sweep(
    model: PreTrainedModel,
    nodes: Sequence[int],
    contexts: Sequence[int],
    backends: Sequence[str],
    repeats: int,
    facts: dict[str, Any],
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measures limits and forwards; returns the record. Contexts beyond the model's are skipped and listed.

    Args:
        model: in eval mode.
        nodes: tree sizes.
        contexts: committed tokens.
        backends: attention backends, in turns.
        repeats: forwards per backend and combination.
        facts: what the record says of the model.
        progress: is told every result.
    """
    targets = {backend: HuggingFaceTarget(model, attention=backend) for backend in backends}
    first = next(iter(targets.values()))
    limits = measure_limits((model.dtype,), first.device)
    progress(describe(limits))
    limit = first.context_limit
    fits = [context for context in contexts if limit is None or context + max(nodes) <= limit]
    skipped = [context for context in contexts if context not in fits]
    if skipped:
        progress(f"contexts {skipped} are skipped: the model has {limit} positions")
    rows = []
    for context in fits:
        for target in targets.values():
            fill(target, context)
        for count in nodes:
            rows.append(_measure(targets, count, context, limits, repeats))
            progress(_line(rows[-1]))
        for target in targets.values():
            for lane in target.cache.lanes:
                target.free(lane)
    return {
        "bench": "forward",
        "limits": limits.as_dict(),
        "weight_bytes": weight_bytes(model),
        "skipped_contexts": skipped,
        "rows": rows,
        "provenance": provenance(model=facts),
    }


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of all weights that a forward reads in full: all but the input embeddings, unless they are tied."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    total = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return total if embedding is head else total - embedding.numel() * embedding.element_size()


@torch.no_grad()
def fill(target: HuggingFaceTarget, context: int) -> int:
    """Opens a lane with ``context`` committed rows of random numbers; returns it."""
    lane = target.open(context + 256, longest=context)
    # one real token tells every layer the shape of its rows
    target.forward({lane: TokenTree((0,), (-1,))})
    target.commit({lane: (0,)})
    if context > 1:
        target.cache.begin(range(1))
        for layer in target.cache.layers:
            assert layer.keys is not None and layer.values is not None
            layer.update(*(_random_rows(buffer, context - 1) for buffer in (layer.keys, layer.values)))
        target.cache.commit({lane: range(context - 1)})
    return lane


def _random_rows(buffer: torch.Tensor, rows: int) -> torch.Tensor:
    """Rows for slot 0 of a buffer ``[slots, K, capacity, D]``: ``[1, K, rows, D]``."""
    return torch.randn(1, buffer.shape[1], rows, buffer.shape[3], dtype=buffer.dtype, device=buffer.device)


def _measure(
    targets: dict[str, HuggingFaceTarget], nodes: int, context: int, limits: Limits, repeats: int
) -> dict[str, Any]:
    tree = TokenTree([0] * nodes, kary_shape((2,) * nodes.bit_length())[:nodes])
    seconds: dict[str, list[float]] = {backend: [] for backend in targets}

    def forward(target: HuggingFaceTarget) -> None:
        target.forward({target.cache.lanes[0]: tree})
        target.rollback()

    for repeat in range(repeats + 1):
        for backend, target in targets.items():
            took = once(lambda: forward(target), target.device)  # noqa: B023
            if repeat:  # the first warms up
                seconds[backend].append(took)
    some = next(iter(targets.values()))
    read, operations = _work(some, nodes)
    least = limits.seconds(read, operations, some.model.dtype)
    return {
        "nodes": nodes,
        "context": context,
        "limit_ms": round(1000 * least, 6),
        "limited_by": "reading" if least == read / limits.bytes_per_second else "arithmetic",
        "ways": {
            backend: {
                "ms": round(1000 * median(times), 4),
                "best_ms": round(1000 * min(times), 4),
                "x_limit": round(median(times) / least, 3),
            }
            for backend, times in seconds.items()
        },
    }


def _work(target: HuggingFaceTarget, nodes: int) -> tuple[int, int]:
    """Bytes to read and operations to do for one forward of ``nodes`` nodes behind the rows of the cache."""
    model = target.model
    weights = weight_bytes(model)
    read, operations = weights, 2 * nodes * (weights // model.dtype.itemsize)
    heads = getattr(model.config, "num_attention_heads", 1)
    for index in range(len(target.cache.layers)):
        for rows in target.cache.rows(target.cache.lanes[0], index):
            kept = rows.shape[1] + nodes
            read += rows.shape[0] * kept * rows.shape[2] * rows.element_size()
            operations += 2 * heads * nodes * kept * rows.shape[2]
    return read, operations


def _line(row: dict[str, Any]) -> str:
    ways = "   ".join(f"{name} {way['ms']:.1f} ms = {way['x_limit']:.2f}x" for name, way in row["ways"].items())
    return f"S {row['context']:6} N {row['nodes']:4}  limit {row['limit_ms']:8.2f} ms ({row['limited_by']})   {ways}"
