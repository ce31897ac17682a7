"""A machine as the cost model sees it: how fast it reads, multiplies and starts work, and where that is known from.

Two kinds. One is written down from data sheets, with stated shares of the peaks that kernels really reach. The other is
measured (`Measured`), part by part. Knows files; knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from .fields import Fields, read_json

FORMAT, VERSION = "branchwise-hardware", 1
#: how the forward is run: as transformers does, one kernel after the other from Python; or compiled and replayed
ENGINES = ("eager", "compiled")


@dataclass(frozen=True)
class Link:
    """Between the devices of one machine.

    Attributes:
        bytes_per_second: that a device sends, and receives at the same time.
        seconds: before the first byte of a collective operation arrives.
    """

    bytes_per_second: float
    seconds: float


@dataclass(frozen=True)
class LinearPoint:
    """Linear layers with so many rows of input take so long per byte of their weights, in the midst of a model."""

    rows: int
    seconds_per_byte: float


@dataclass(frozen=True)
class Measured:
    """A machine's parts as they were timed.

    Attributes:
        dtype: of everything; nothing is known of others.
        linear: by rising rows, never falling.
        kv_bytes_per_second: attention of one node: keys and values once.
        attention_operations_per_second: attention of many nodes.
        elementwise_bytes_per_second: norms and the like.
        layer_seconds: what a decoder layer costs however small it is: Python, and starting its operations.
        forward_seconds: the same of a forward without its layers.
    """

    dtype: str
    linear: tuple[LinearPoint, ...]
    kv_bytes_per_second: float
    attention_operations_per_second: float
    elementwise_bytes_per_second: float
    layer_seconds: float
    forward_seconds: float


@dataclass(frozen=True)
class Hardware:
    """One device, of which a machine may have several.

    Attributes:
        name: for tables.
        memory_bytes: of the device.
        bytes_per_second: reading memory, peak.
        operations_per_second: multiplications and additions of dense matrix products, peak, by dtype.
        bandwidth_share, arithmetic_share: parts of the peaks that real kernels reach.
        kernel_seconds: starting one kernel, by engine.
        overlaps_launch: whether kernels are started while earlier ones run.
        link: to the other devices, or None.
        sources: where the figures come from, and which of them are assumptions.
        measured: the parts, where they were timed; they replace peaks and shares.
    """

    name: str
    memory_bytes: float
    bytes_per_second: float
    operations_per_second: dict[str, float]
    bandwidth_share: float
    arithmetic_share: float
    kernel_seconds: dict[str, float]
    overlaps_launch: bool
    link: Link | None
    sources: tuple[str, ...]
    measured: Measured | None = None

    def as_dict(self) -> dict[str, Any]:
        """For a file that `read_hardware` takes."""
        link, measured = self.link, self.measured
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "sources": list(self.sources),
            "memory_bytes": self.memory_bytes,
            "bytes_per_second": self.bytes_per_second,
            "operations_per_second": self.operations_per_second,
            "bandwidth_share": self.bandwidth_share,
            "arithmetic_share": self.arithmetic_share,
            "kernel_seconds": self.kernel_seconds,
            "overlaps_launch": self.overlaps_launch,
            "link": None if link is None else {"bytes_per_second": link.bytes_per_second, "seconds": link.seconds},
            "measured": None if measured is None else _measured_dict(measured),
        }

    @classmethod
    def from_dict(cls, record: Any, where: str) -> Hardware:
        """Back from what `as_dict` made.

        Args:
            record: as read from JSON.
            where: what messages call it.

        Raises:
            ValueError: names the key that is missing, wrong or unknown.
        """
        fields = Fields(record, where)
        fields.expect(FORMAT, VERSION)
        made = cls(
            name=fields.text("name"),
            memory_bytes=fields.number("memory_bytes", above=0),
            bytes_per_second=fields.number("bytes_per_second", above=0),
            operations_per_second=fields.numbers("operations_per_second"),
            bandwidth_share=fields.number("bandwidth_share", above=0, most=1),
            arithmetic_share=fields.number("arithmetic_share", above=0, most=1),
            kernel_seconds=_kernel_seconds(fields),
            overlaps_launch=fields.flag("overlaps_launch"),
            link=_link(fields),
            sources=tuple(str(source) for source in fields.items("sources")),
            measured=_measured(fields),
        )
        fields.done()
        return made


def machine_names() -> list[str]:
    """Machines that come with the package."""
    found = files(__package__).joinpath("machines").iterdir()
    return sorted(entry.name.removesuffix(".json") for entry in found if entry.name.endswith(".json"))


def read_hardware(name: str) -> Hardware:
    """A machine by name, or from a file.

    Raises:
        ValueError: neither is there, or the file is not of the form; says what is wrong.
    """
    if name in machine_names():
        path = files(__package__).joinpath("machines").joinpath(f"{name}.json")
        return Hardware.from_dict(read_json(Path(str(path)), "hardware"), name)
    if not name.endswith(".json"):
        raise ValueError(f"no machine is named {name!r}; there are this, {', '.join(machine_names())}, or a .json file")
    path = Path(name).expanduser()
    return Hardware.from_dict(read_json(path, "hardware"), path.name)


def _kernel_seconds(fields: Fields) -> dict[str, float]:
    inner = fields.object("kernel_seconds")
    found = {engine: inner.number(engine) for engine in ENGINES if engine in inner}
    inner.done()
    if not found:
        raise ValueError(f"{inner.where} names no engine; there are {', '.join(ENGINES)}")
    return found


def _link(fields: Fields) -> Link | None:
    if fields.take("link") is None:
        return None
    inner = fields.object("link")
    link = Link(inner.number("bytes_per_second", above=0), inner.number("seconds"))
    inner.done()
    return link


def _measured(fields: Fields) -> Measured | None:
    if fields.take("measured") is None:
        return None
    inner = fields.object("measured")
    made = Measured(
        dtype=inner.text("dtype"),
        linear=_points(inner),
        kv_bytes_per_second=inner.number("kv_bytes_per_second", above=0),
        attention_operations_per_second=inner.number("attention_operations_per_second", above=0),
        elementwise_bytes_per_second=inner.number("elementwise_bytes_per_second", above=0),
        layer_seconds=inner.number("layer_seconds"),
        forward_seconds=inner.number("forward_seconds"),
    )
    inner.done()
    return made


def _points(fields: Fields) -> tuple[LinearPoint, ...]:
    points: list[LinearPoint] = []
    for number, item in enumerate(fields.items("linear")):
        inner = Fields(item, f"{fields.where}: linear[{number}]")
        points.append(LinearPoint(inner.whole("rows"), inner.number("seconds_per_byte", above=0)))
        inner.done()
        if len(points) > 1 and (
            points[-2].rows >= points[-1].rows or points[-2].seconds_per_byte > points[-1].seconds_per_byte
        ):
            raise ValueError(f"{inner.where}: rows must rise from point to point, and seconds_per_byte never fall")
    return tuple(points)


def _measured_dict(measured: Measured) -> dict[str, Any]:
    return {
        "dtype": measured.dtype,
        "linear": [{"rows": point.rows, "seconds_per_byte": point.seconds_per_byte} for point in measured.linear],
        "kv_bytes_per_second": measured.kv_bytes_per_second,
        "attention_operations_per_second": measured.attention_operations_per_second,
        "elementwise_bytes_per_second": measured.elementwise_bytes_per_second,
        "layer_seconds": measured.layer_seconds,
        "forward_seconds": measured.forward_seconds,
    }
