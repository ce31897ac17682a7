"""The server on a Ray cluster: as many replicas as there is work for, behind one address.

Every replica is a process with a model and an engine of its own; inside it runs the same application as in a server on
one machine. Ray's proxy takes the requests and gives each to a replica with room. Knows Ray; knows no route.

`build` is for Ray's own tools: ``serve run branchwise.serve.cluster:build model=default replicas=1:4``.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..decode.recipe import EngineRecipe
from .ray_connection import connect, require_ray
from .settings import ServerSettings

if TYPE_CHECKING:
    from ray.serve import Application

#: the application's name on the cluster
NAME = "branchwise"

_COUNTS = (
    *("threads", "max_lanes", "pool_tokens", "queue_limit", "prefix_bytes"),
    *("open_requests", "body_bytes", "prompt_tokens"),
)
_SHARES = ("cpus", "gpus")


@dataclass(frozen=True)
class Replicas:
    """How many replicas, and what each takes of the cluster.

    Attributes:
        least, most: Ray keeps their number between these, so that each has about as many requests as lanes.
        cpus, gpus: of each.

    Raises:
        ValueError: a number is out of range.
    """

    least: int = 1
    most: int = 1
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"replicas are MIN:MAX with 1 <= MIN <= MAX, got {self.least}:{self.most}")
        if self.cpus < 0 or self.gpus < 0:
            raise ValueError(f"CPUs and GPUs of a replica must be >= 0, got {self.cpus} and {self.gpus}")

    @classmethod
    def parse(cls, text: str, cpus: float = 1.0, gpus: float = 0.0) -> Replicas:
        """From ``MIN:MAX``, or one number for both."""
        parts = text.split(":")
        if len(parts) > 2 or not all(part.isdigit() for part in parts):
            raise ValueError(f"replicas are MIN:MAX or one number, got {text!r}")
        return cls(int(parts[0]), int(parts[-1]), cpus, gpus)


def application(recipe: EngineRecipe, settings: ServerSettings, replicas: Replicas) -> Application:
    """What Ray Serve runs.

    Raises:
        ImportError: Ray is not installed.
    """
    require_ray()
    from ray import serve

    def build_app() -> Any:
        """In the replica: everything is loaded, and the engine runs."""
        import logging

        from .app import create_app

        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        logging.getLogger("branchwise").setLevel(logging.INFO)
        target, tokenizer = recipe.target()
        return create_app(recipe.engine(target, tokenizer, recipe.drafter_options(target)).start(), settings)

    @serve.ingress(build_app)
    class Replica:
        """One model behind the application."""

        app: Any  # the application; Ray puts it here

        def check_health(self) -> None:
            """Asked by Ray now and then; a replica that raises is replaced."""
            if not self.app.state.service.engine.is_healthy:
                raise RuntimeError("the engine has stopped")

    scaling: dict[str, Any] = {"num_replicas": replicas.least}
    if replicas.least < replicas.most:
        scaling = {
            "autoscaling_config": {
                "min_replicas": replicas.least,
                "max_replicas": replicas.most,
                "target_ongoing_requests": recipe.max_lanes,
            }
        }
    deployed: Any = serve.deployment(
        Replica,
        name=NAME,
        max_ongoing_requests=settings.open_requests,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        graceful_shutdown_timeout_s=settings.grace_seconds,
        **scaling,
    )
    return deployed.bind()


def build(arguments: Mapping[str, Any]) -> Application:
    """The application from words, for ``serve run`` and Ray's configuration files.

    Args:
        arguments: fields of `EngineRecipe`; ``replicas`` (``MIN:MAX``), ``cpus`` and ``gpus`` of each; ``served_name``,
            and other fields of `ServerSettings`.

    Raises:
        ValueError: there is no such field, or its value is out of range.
    """
    given = {name: _number(name, value) for name, value in arguments.items()}
    replicas = Replicas.parse(str(given.pop("replicas", "1")), given.pop("cpus", 1.0), given.pop("gpus", 0.0))
    own = {name: given.pop(name) for name in _names(EngineRecipe) if name in given}
    if str(own.get("budget", "")).isdigit():
        own["budget"] = int(own["budget"])
    recipe = EngineRecipe(**own)
    given["model_name"] = given.pop("served_name", Path(recipe.model).name)
    unknown = sorted(given.keys() - set(_names(ServerSettings)))
    if unknown:
        known = sorted({*_names(EngineRecipe), *_names(ServerSettings), "replicas", "cpus", "gpus", "served_name"})
        raise ValueError(f"there is no {unknown[0]!r} here; there are {', '.join(known)}")
    return application(recipe, ServerSettings(**given), replicas)


def _number(name: str, value: Any) -> Any:
    """A word as the number it stands for, where the field is one."""
    if name in _COUNTS:
        return int(value)
    return float(value) if name in _SHARES else value


def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


class ClusterServer:
    """The application on a cluster, from its start to its end.

    Args:
        app: from `application`.
        host, port: where Ray's proxies listen.
        address: of a running cluster; None starts one on this machine.
        init: further arguments of ``ray.init`` for one of this machine.
    """

    def __init__(
        self,
        app: Application,
        host: str = "127.0.0.1",
        port: int = 8000,
        address: str | None = None,
        init: dict[str, Any] | None = None,
    ) -> None:
        self._app = app
        self._http = {"host": host, "port": port}
        self._address = address
        self._init = init
        self._is_own = False

    def start(self) -> None:
        """Returns when the first replicas answer.

        Raises:
            ConnectionError: there is no cluster at the address.
            RuntimeError: the replicas did not come up; Ray's log says why.
        """
        from ray import serve

        self._is_own = connect(self._address, self._init)
        serve.start(http_options=self._http, logging_config={"log_level": "WARNING"})
        serve.run(self._app, name=NAME, route_prefix="/")

    def stop(self) -> None:
        """Takes the application off the cluster, running requests first, and ends a cluster that `start` started."""
        import ray
        from ray import serve

        serve.delete(NAME)
        if self._is_own:
            serve.shutdown()
            ray.shutdown()

    def run(self) -> None:
        """Serves until Ctrl-C or SIGTERM."""
        told = threading.Event()
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: told.set())
        self.start()
        try:
            told.wait()
        finally:
            self.stop()
