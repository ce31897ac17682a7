"""How long a machine takes for bytes and operations of one kind: from its data sheet, or from what was measured.

Knows bytes and operations; knows no model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from .hardware import Hardware, LinearPoint, Measured


class Rates(Protocol):
    """Seconds of one kind of work."""

    def linear(self, rows: float, weight_bytes: float, operations: float) -> tuple[float, bool]:
        """Seconds of linear layers, and whether they wait for their weights rather than for their arithmetic."""
        ...

    def attention(self, kv_bytes: float, operations: float) -> float:
        """Attention over keys and values."""
        ...

    def small(self, moved_bytes: float) -> float:
        """Norms, rotations, activations."""
        ...

    def launch(self, layers: int, kernels: int) -> float:
        """Starting everything."""
        ...


class DataSheetRates:
    """Peaks times the stated shares of them."""

    def __init__(self, hardware: Hardware, rate: float, kernel_seconds: float) -> None:
        self._bandwidth = hardware.bytes_per_second * hardware.bandwidth_share
        self._rate = rate * hardware.arithmetic_share
        self._kernel_seconds = kernel_seconds

    def linear(self, rows: float, weight_bytes: float, operations: float) -> tuple[float, bool]:
        """See `Rates.linear`."""
        reading, working = weight_bytes / self._bandwidth, operations / self._rate
        return max(reading, working), reading >= working

    def attention(self, kv_bytes: float, operations: float) -> float:
        """See `Rates.attention`."""
        return max(kv_bytes / self._bandwidth, operations / self._rate)

    def small(self, moved_bytes: float) -> float:
        """See `Rates.small`."""
        return moved_bytes / self._bandwidth

    def launch(self, layers: int, kernels: int) -> float:
        """See `Rates.launch`."""
        return kernels * self._kernel_seconds


class MeasuredRates:
    """Every kind as it was timed."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def linear(self, rows: float, weight_bytes: float, operations: float) -> tuple[float, bool]:
        """See `Rates.linear`. Operations follow from rows and bytes."""
        seconds = seconds_per_byte(self._measured.linear, rows)
        # twice the time of the fewest rows: by then arithmetic is what counts
        return weight_bytes * seconds, seconds < 2 * self._measured.linear[0].seconds_per_byte

    def attention(self, kv_bytes: float, operations: float) -> float:
        """See `Rates.attention`."""
        reading = kv_bytes / self._measured.kv_bytes_per_second
        return max(reading, operations / self._measured.attention_operations_per_second)

    def small(self, moved_bytes: float) -> float:
        """See `Rates.small`."""
        return moved_bytes / self._measured.elementwise_bytes_per_second

    def launch(self, layers: int, kernels: int) -> float:
        """See `Rates.launch`. How many kernels a layer has is part of what was timed."""
        return self._measured.forward_seconds + layers * self._measured.layer_seconds


def rates_of(hardware: Hardware, dtype: str, engine: str) -> Rates:
    """The rates of a machine.

    Raises:
        ValueError: it knows no such dtype or engine.
    """
    if engine not in hardware.kernel_seconds:
        raise ValueError(f"{hardware.name} is known for engine {', '.join(hardware.kernel_seconds)}, not {engine!r}")
    measured = hardware.measured
    if measured is not None:
        if dtype != measured.dtype:
            raise ValueError(f"{hardware.name} was measured in {measured.dtype}, not in {dtype}; measure it again")
        return MeasuredRates(measured)
    rate = hardware.operations_per_second.get(dtype)
    if rate is None:
        raise ValueError(f"{hardware.name} has rates for {', '.join(hardware.operations_per_second)}, not for {dtype}")
    return DataSheetRates(hardware, rate, hardware.kernel_seconds[engine])


def seconds_per_byte(points: Sequence[LinearPoint], rows: float) -> float:
    """Between measured points a straight line; beyond the last one every row costs the same."""
    at = bisect_left([point.rows for point in points], rows)
    if at == 0:
        return points[0].seconds_per_byte
    if at == len(points):
        return points[-1].seconds_per_byte * rows / points[-1].rows
    left, right = points[at - 1], points[at]
    share = (rows - left.rows) / (right.rows - left.rows)
    return left.seconds_per_byte + share * (right.seconds_per_byte - left.seconds_per_byte)
