"""The two limits of a machine, measured: how fast it reads memory and how fast it multiplies matrices.

A computation that reads B bytes and does F operations takes at least ``max(B / bandwidth, F / rate)`` seconds
(Williams, Waterman and Patterson 2009, "Roofline"). Both limits come from torch's best operations, in the process
and with the threads of what is judged by them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

_READ_BYTES = 2**28
"""More than a cache that a few cores may count on."""
_SIDES = {"cpu": (768, 1536), "cuda": (4096, 8192)}
_REPEATS = 5


@dataclass(frozen=True)
class Limits:
    """What the machine can do at best.

    Attributes:
        bytes_per_second: reading memory once.
        operations_per_second: multiplications and additions of a large matrix product, by dtype name.
    """

    bytes_per_second: float
    operations_per_second: dict[str, float]

    def seconds(self, read_bytes: float, operations: float, dtype: torch.dtype) -> float:
        """The least time for so much reading and so much arithmetic."""
        return max(read_bytes / self.bytes_per_second, operations / self.operations_per_second[dtype_name(dtype)])

    def as_dict(self) -> dict[str, object]:
        """For the record."""
        return asdict(self)


def measure_limits(dtypes: tuple[torch.dtype, ...], device: torch.device) -> Limits:
    """Measures both limits on ``device``, with torch's current number of threads."""
    return Limits(_bandwidth(device), {dtype_name(dtype): _matrix_rate(dtype, device) for dtype in dtypes})


def _bandwidth(device: torch.device) -> float:
    words = torch.ones(_READ_BYTES // 4, dtype=torch.float32, device=device)
    seconds = min(seconds_of(call, device, _REPEATS) for call in (words.sum, words.amax))
    return _READ_BYTES / seconds


def _matrix_rate(dtype: torch.dtype, device: torch.device) -> float:
    rates = []
    for side in _SIDES.get(device.type, _SIDES["cpu"]):
        one, other = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
        out = torch.empty_like(one)
        rates.append(2 * side**3 / seconds_of(lambda: torch.mm(one, other, out=out), device, _REPEATS))  # noqa: B023
    return max(rates)


def seconds_of(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The least of several times: others on the machine can only add to it. One more call before warms up."""
    call()
    return min(once(call, device) for _ in range(repeats))


def best_ms(call: Callable[[], object], repeats: int) -> float:
    """The same on a CPU in milliseconds; of one thread processor time, which others on the machine change little."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    call()
    times = []
    for _ in range(repeats):
        start = clock()
        call()
        times.append(clock() - start)
    return min(times) * 1e3


def once(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call; on a GPU those of the GPU."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.float32`` as "float32"."""
    return str(dtype).removeprefix("torch.")
