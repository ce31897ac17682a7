"""What `branchwise plan` does: puts the parts of this room together and gives back lines and a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..bench.provenance import model_facts, provenance
from ..hub import load, resolve
from .acceptance import Acceptance
from .acceptance_file import read_acceptance
from .batches import Planner, parse_batches
from .check import check_forwards
from .fleet import FleetSettings, simulate
from .forward_cost import ForwardCost
from .hardware import Hardware, read_hardware
from .measure import measure_hardware
from .model_config import read_shape
from .model_shape import ModelShape
from .report import LEFT_OUT, batch_lines, batch_record, fleet_lines, fleet_record
from .step_cost import StepModel
from .trace import Lengths, parse_trace

Say = Callable[[str], None]


@dataclass(frozen=True)
class MachineOrder:
    """Which machine.

    Attributes:
        name: of one that comes with the package, a file, or ``this`` to measure the one this runs on.
        dtype: of weights, keys and values.
        device: where ``this`` measures; None for the first GPU, or the CPU.
        threads: of ``this``; None for torch's own choice.
    """

    name: str
    dtype: str
    device: str | None = None
    threads: int | None = None

    def read(self, say: Say) -> Hardware:
        """The machine.

        Raises:
            ValueError: there is none of that name, or the options do not fit it.
        """
        if self.name != "this":
            if self.device is not None or self.threads is not None:
                raise ValueError("--device and --threads are for measuring: they go with --hardware this or --check")
            return read_hardware(self.name)
        return measure_hardware(self.place(), self.torch_dtype(), lambda line: say(f"measuring: {line}"))

    def place(self) -> torch.device:
        """Where to measure, with torch set to the threads that were asked for."""
        if self.threads is not None:
            if self.threads < 1:
                raise ValueError(f"threads must be >= 1, got {self.threads}")
            torch.set_num_threads(self.threads)
        where = torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        try:
            torch.empty(1, device=where)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"device {self.device!r} cannot be used here: {str(error).strip().splitlines()[0]}"
            ) from None
        return where

    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's own."""
        dtypes = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
        if self.dtype not in dtypes:
            raise ValueError(f"this machine is measured in {', '.join(dtypes)}, not in {self.dtype!r}")
        return dtypes[self.dtype]


@dataclass(frozen=True)
class ModelOrder:
    """Which model, drafted for by what, run how.

    Attributes:
        config: of the target, see `read_shape`.
        acceptance: file, see `acceptance_file`.
        method: in it, or None.
        draft: ``lookup``, ``layers:N``, or the config of a model that drafts.
        engine: see `hardware.ENGINES`.
        devices: that share every layer.
        with_host: whether the host's measured time counts.
    """

    config: str
    acceptance: Path
    method: str | None
    draft: str
    engine: str
    devices: int
    with_host: bool

    def read(self) -> ModelParts:
        """Everything that can be wrong with names and files, before a machine is measured for minutes.

        Raises:
            ValueError: a name, a file or a number does not fit; says which.
        """
        acceptance, shape = read_acceptance(self.acceptance, self.method), read_shape(self.config)
        if self.draft == "lookup":
            return ModelParts(acceptance, shape, None)
        if not self.draft.startswith("layers:"):
            return ModelParts(acceptance, shape, read_shape(self.draft))
        count = self.draft.removeprefix("layers:")
        if not count.isdigit():
            raise ValueError(f"--draft layers:N needs a number of layers, got {count!r}")
        return ModelParts(acceptance, shape, shape.first_layers(int(count)))


@dataclass(frozen=True)
class ModelParts:
    """What a `ModelOrder` names.

    Attributes:
        acceptance: of the drafter.
        shape: of the target.
        drafter: shape of a model that drafts, or None.
    """

    acceptance: Acceptance
    shape: ModelShape
    drafter: ModelShape | None

    def step_model(self, order: ModelOrder, hardware: Hardware, dtype: str) -> StepModel:
        """What steps cost on a machine.

        Raises:
            ValueError: the machine does not fit the order.
        """

        def cost(shape: ModelShape) -> ForwardCost:
            return ForwardCost(shape, hardware, dtype, order.engine, order.devices)

        drafter = None if self.drafter is None else cost(self.drafter)
        return StepModel(cost(self.shape), self.acceptance, drafter, order.with_host)


@dataclass(frozen=True)
class TraceOrder:
    """What to simulate.

    Attributes:
        trace: see `trace.parse_trace`.
        duration: seconds, or None for a whole file.
        lengths: of requests that are made by chance.
        settings: of the replicas.
        price_per_hour: of one device, or None.
    """

    trace: str
    duration: float | None
    lengths: Lengths
    settings: FleetSettings
    price_per_hour: float | None


def plan_batches(
    machine: MachineOrder, model: ModelOrder, batch: str, context: int, largest: int | None, say: Say
) -> dict[str, Any]:
    """Plans batch sizes; says the table and returns the record.

    Raises:
        ValueError: as for the parts.
    """
    batches, parts = parse_batches(batch), model.read()
    hardware = machine.read(say)
    steps = parts.step_model(model, hardware, machine.dtype)
    planner = Planner(steps, context, largest)
    plans = [planner.plan(size) for size in batches]
    crossover = planner.crossover(batches)
    _say_heading(hardware, model, machine.dtype, steps, say)
    say(f"context of {context} tokens\n")
    for line in batch_lines(planner, plans, crossover):
        say(line)
    _say_left_out(model, say)
    return _record(hardware, model, machine.dtype, steps) | batch_record(plans, crossover, planner.most_lanes())


def plan_trace(machine: MachineOrder, model: ModelOrder, order: TraceOrder, say: Say) -> dict[str, Any]:
    """Simulates a trace; says the results and returns the record.

    Raises:
        ValueError: as for the parts.
    """
    arrivals = parse_trace(order.trace, order.duration, order.lengths, order.settings.seed)
    parts = model.read()
    hardware = machine.read(say)
    steps = parts.step_model(model, hardware, machine.dtype)
    run = simulate(arrivals, steps, order.settings)
    record = fleet_record(run, model.devices, order.price_per_hour)
    _say_heading(hardware, model, machine.dtype, steps, say)
    settings = order.settings
    say(
        f"{order.trace} on {settings.replicas} replicas of up to {settings.max_lanes} lanes, budget {settings.budget}, "
        f"seed {settings.seed}\n"
    )
    for line in fleet_lines(record):
        say(line)
    _say_left_out(model, say)
    return _record(hardware, model, machine.dtype, steps) | record


def check_machine(machine: MachineOrder, model: str, repeats: int, say: Say) -> tuple[dict[str, Any], Hardware]:
    """Measures this machine and a model's forwards on it, and compares; returns the record and the machine.

    Raises:
        ValueError: as for the parts.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be >= 1, got {repeats}")
    place, dtype = machine.place(), machine.torch_dtype()
    loaded, _ = load(model, dtype=dtype, device=place)
    hardware = measure_hardware(place, dtype, lambda line: say(f"measuring: {line}"))
    record = check_forwards(loaded, hardware, model_facts(model, resolve(model), loaded), repeats, say)
    say(
        f"{'within' if record['met'] else 'NOT within'} {record['tolerance']:.0%}. Measured: every kind of work by "
        "itself. Predicted: these forwards."
    )
    return record, hardware


def _say_heading(hardware: Hardware, model: ModelOrder, dtype: str, steps: StepModel, say: Say) -> None:
    shape = steps.target.shape
    active = shape.active_parameters + shape.head_parameters
    say(f"{shape.name}: {shape.parameters / 1e9:.2f} billion parameters, {active / 1e9:.2f} active, {dtype}")
    together = f"{model.devices} x " if model.devices > 1 else ""
    say(f"{together}{hardware.name}, engine {model.engine}")
    if hardware.measured is None:
        say(
            f"  assumed: {hardware.bandwidth_share:.0%} of its bandwidth, {hardware.arithmetic_share:.0%} of its "
            f"matrix rate, {1e6 * hardware.kernel_seconds[model.engine]:.0f} us per kernel"
        )
    drafts = model.draft if steps.drafter is None else steps.drafter.shape.name
    say(f"drafts: {drafts}; acceptance: {steps.acceptance.source}")
    if not model.with_host:
        say("  the host's time is left out")
    elif not steps.acceptance.host:
        say("  the host's time is not in the acceptance file: it counts as nothing")
    else:
        say("  the host's time per lane is as it was measured there, whatever the processor here")


def _say_left_out(model: ModelOrder, say: Say) -> None:
    say("\nA prediction by a model, not a measurement. Left out:")
    for line in LEFT_OUT:
        say(f"  {line}")
    if model.engine == "compiled":
        say("  engine compiled is what fused kernels in a CUDA graph would do; branchwise itself runs eager on GPUs")


def _record(hardware: Hardware, model: ModelOrder, dtype: str, steps: StepModel) -> dict[str, Any]:
    return {
        "plan": "branchwise",
        "hardware": hardware.as_dict(),
        "model": steps.target.shape.name,
        "parameters": steps.target.shape.parameters,
        "dtype": dtype,
        "engine": model.engine,
        "devices": model.devices,
        "drafts": model.draft,
        "acceptance": steps.acceptance.source,
        "with_host": model.with_host,
        "left_out": list(LEFT_OUT),
        "provenance": provenance(),
    }
