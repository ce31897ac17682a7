"""A batch on a Ray cluster: waves go to workers with a model each, answers come back in order.

Ray Data streams the waves through a pool of actors, starts an actor anew that dies and repeats its wave. Workers read
their rows from the input's path themselves, so on several machines it must lie where all of them see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..serve.ray_connection import connect, require_ray
from .answer import Answer
from .source import Wave
from .worker import Work, Worker


@dataclass(frozen=True)
class Cluster:
    """Where and how wide.

    Attributes:
        address: of a running cluster; None starts one on this machine.
        workers: models at work at once.
        cpus, gpus: of each.
        init: further arguments of ``ray.init`` for a cluster of this machine.

    Raises:
        ValueError: a number is out of range.
        ImportError: Ray is not installed.
    """

    address: str | None = None
    workers: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    init: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"replicas must be >= 1, got {self.workers}")
        if self.cpus < 0 or self.gpus < 0:
            raise ValueError(f"CPUs and GPUs of a replica must be >= 0, got {self.cpus} and {self.gpus}")
        require_ray()

    def answers(self, work: Work, waves: Sequence[Wave]) -> Iterator[Answer]:
        """The answers of the waves' rows, in order.

        Raises:
            ConnectionError: there is no cluster at the address.
            Exception: what a worker raised.
        """
        import ray

        connect(self.address, self.init)
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        places = ray.data.from_items([asdict(wave) for wave in waves], override_num_blocks=len(waves))
        answered = places.map_batches(
            _WaveActor,
            fn_constructor_args=(work,),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=self.workers, max_tasks_in_flight_per_actor=2),
            num_cpus=self.cpus,
            num_gpus=self.gpus,
        )
        for row in answered.iter_rows():
            yield Answer(row["line"], int(row["tokens"]), bool(row["failed"]))


class _WaveActor:
    """One model on the cluster."""

    def __init__(self, work: Work) -> None:
        self._worker = Worker.load(work)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        answers: list[Answer] = []
        for values in zip(*batch.values(), strict=True):
            wave = Wave(**{name: _plain(value) for name, value in zip(batch, values, strict=True)})
            answers.extend(self._worker.answers(wave))
        return {
            "line": np.array([answer.line for answer in answers], dtype=object),
            "tokens": np.array([answer.tokens for answer in answers]),
            "failed": np.array([answer.failed for answer in answers]),
        }


def _plain(value: Any) -> Any:
    """A number or a string that numpy wraps."""
    return value.item() if isinstance(value, np.generic) else value
