"""How close attention comes to the limit of the machine: every way, as a multiple of the least possible time.

All ways of a shape run in turns on the same keys and values. These rotate through enough copies that none is still in a
cache when its turn comes again: in a forward, a layer's keys were last read a whole model ago. The median counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from statistics import median
from typing import Any

import torch

from ..attention import TreeLayout, get_backend
from .attention_calls import Call, Shape, prepare
from .limits import Limits, dtype_name, measure_limits, once
from .provenance import provenance

_ROTATED_BYTES = 2**28
_CHECKED_CONTEXT = 2048
"""Up to this context outputs are compared with float64; beyond, scores would not fit."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@dataclass(frozen=True)
class Sweep:
    """What to measure: all combinations.

    Attributes:
        heads: triples of query heads, key/value heads and width.
        nodes: tree sizes.
        contexts: committed tokens.
        dtypes: of everything.
        ways: see `attention_calls`.
        repeats: calls per way and shape.
    """

    heads: Sequence[tuple[int, int, int]]
    nodes: Sequence[int]
    contexts: Sequence[int]
    dtypes: Sequence[torch.dtype]
    ways: Sequence[str]
    repeats: int = 9

    def shapes(self) -> Iterator[Shape]:
        """Every combination."""
        for dtype, (heads, kv_heads, dim), context, nodes in product(
            self.dtypes, self.heads, self.contexts, self.nodes
        ):
            yield Shape(heads, kv_heads, dim, nodes, context, dtype)


def run_sweep(
    sweep: Sweep, device: torch.device, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measures limits and ways; returns the record.

    Raises:
        ValueError: a way that does not exist.
        ImportError: a way whose package is missing.
    """
    first = next(sweep.shapes())
    for way in sweep.ways:  # a wrong name is found before the first measurement
        prepare(way, first, first.query(device))
    limits = measure_limits(tuple(sweep.dtypes), device)
    progress(describe(limits))
    rows: list[dict[str, Any]] = []
    for shape in sweep.shapes():
        row = measure(shape, sweep.ways, limits, device, sweep.repeats)
        rows.append(row)
        progress(_line(row))
    return {
        "bench": "attention",
        "device": str(device),
        "limits": limits.as_dict(),
        "rows": rows,
        "wrong": sum(not way["equal"] for row in rows for way in row["ways"].values()),
        "provenance": provenance(),
    }


@torch.no_grad()
def measure(shape: Shape, ways: Iterable[str], limits: Limits, device: torch.device, repeats: int) -> dict[str, Any]:
    """One shape in every way."""
    query = shape.query(device)
    calls = {way: prepare(way, shape, query) for way in ways}
    copies = max(2, min(64, _ROTATED_BYTES // shape.read_bytes))
    buffers = [(shape.rows(device), shape.rows(device)) for _ in range(copies)]
    differences = {way: _difference(call, shape, query, *buffers[0]) for way, call in calls.items()}
    timers = {}
    for index, (way, call) in enumerate(calls.items()):
        # each begins elsewhere, or it would find in the cache what the way before it has just read
        shift = index * copies // len(calls)
        timers[way] = timer(call, buffers[shift:] + buffers[:shift], device)
    seconds: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(repeats):
        for way, run in timers.items():
            seconds[way].append(run())
    least = limits.seconds(shape.read_bytes, shape.operations, shape.dtype)
    reading = shape.read_bytes / limits.bytes_per_second
    return {
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "dim": shape.dim,
        "nodes": shape.nodes,
        "context": shape.context,
        "dtype": dtype_name(shape.dtype),
        "limit_ms": round(1000 * least, 6),
        "limited_by": "reading" if least == reading else "arithmetic",
        "ways": {
            way: {
                "ms": round(1000 * median(times), 4),
                "best_ms": round(1000 * min(times), 4),
                "x_limit": round(median(times) / least, 3),
                "difference": differences[way],
                "equal": differences[way] is None or differences[way] <= TOLERANCE.get(shape.dtype, 1e-4),
            }
            for way, times in seconds.items()
        },
    }


def timer(
    call: Call, buffers: Sequence[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> Callable[[], float]:
    """A function that runs ``call`` and returns its seconds; on a GPU the mean over all buffers.

    There the calls are replayed from a CUDA graph: launching a kernel from Python takes longer than many a kernel does,
    and in a forward it hides behind the kernels before it.
    """
    if device.type != "cuda":
        turns = cycle(buffers)
        return lambda: once(lambda: call(*next(turns)), device)

    def run() -> None:
        for key, value in buffers:
            call(key, value)

    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return lambda: once(graph.replay, device) / len(buffers)


def _difference(call: Call, shape: Shape, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    """Greatest difference from float64; None for a context where that is too large to compute. Warms up as well."""
    output = call(key, value)
    if shape.context > _CHECKED_CONTEXT:
        return None
    layout = TreeLayout.from_trees(shape.tree(), device=query.device)
    exact = get_backend("reference")(
        query.double(), key.double(), value.double(), layout, (shape.context,), scale=shape.dim**-0.5
    )
    return float((output.double() - exact).abs().max())


def misses(rows: Sequence[dict[str, Any]], bar: float) -> list[str]:
    """Where the first way takes more than ``bar`` times the limit, or longer than sdpa; one line each."""
    found = []
    for row in rows:
        first, way = next(iter(row["ways"].items()))
        kind = f"{row['dtype']} {row['heads']}x{row['kv_heads']}x{row['dim']}"
        shape = f"{kind}, context {row['context']}, {row['nodes']} nodes"
        if way["x_limit"] > bar:
            found.append(f"{first} at {shape}: {way['x_limit']:.2f}x the limit, the bar is {bar}x")
        if "sdpa" in row["ways"] and way["ms"] > row["ways"]["sdpa"]["ms"]:
            found.append(f"{first} at {shape}: {way['ms']} ms, slower than sdpa ({row['ways']['sdpa']['ms']} ms)")
    return found


def describe(limits: Limits) -> str:
    """The limits in words."""
    rates = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {name}" for name, rate in limits.operations_per_second.items())
    return f"limits: reads {limits.bytes_per_second / 1e9:.1f} GB/s, multiplies {rates}"


def heading() -> str:
    """Names of the columns that `_line` fills."""
    return f"{'dtype':9} {'H':>3} {'K':>3} {'D':>4} {'S':>6} {'N':>4} {'limit ms':>9} {'by':>11}"


def _line(row: dict[str, Any]) -> str:
    start = (
        f"{row['dtype']:9} {row['heads']:3} {row['kv_heads']:3} {row['dim']:4} {row['context']:6} {row['nodes']:4} "
        f"{row['limit_ms']:9.3f} {row['limited_by']:>11}"
    )
    ways = (
        f"{name} {way['ms']:.3f} ms = {way['x_limit']:.2f}x{'' if way['equal'] else ' WRONG'}"
        for name, way in row["ways"].items()
    )
    return f"{start}   {'   '.join(ways)}"
