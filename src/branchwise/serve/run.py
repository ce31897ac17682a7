"""Running the server until it is told to end, and ending it without cutting anybody off.

On SIGTERM or Ctrl-C no new requests are taken and running ones finish. What still runs after the grace period is
cancelled in the engine: its streams then end with an error event and ``[DONE]``, not in the middle of a line.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import uvicorn

from ..decode.engine import Engine
from .app import create_app
from .settings import ServerSettings

#: seconds that responses get to end by themselves once their requests were cancelled
ENDING_SECONDS = 5


class Server(uvicorn.Server):
    """One application on one socket; starts and ends its engine.

    Args:
        engine: not started yet.
        settings: limits and names.
        host, port: where to listen; port 0 takes a free one.
    """

    def __init__(self, engine: Engine, settings: ServerSettings, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.engine = engine
        self.settings = settings
        self.app = create_app(engine, settings)
        super().__init__(
            uvicorn.Config(
                self.app,
                host=host,
                port=port,
                log_level="warning",
                access_log=False,  # `Gate` writes a line per response
                lifespan="off",
                timeout_graceful_shutdown=int(settings.grace_seconds) + ENDING_SECONDS,
            )
        )

    @property
    def url(self) -> str:
        """Where it listens, once `started`."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until told to end."""
        self.engine.start()
        try:
            super().run(sockets)
        finally:
            self.engine.shutdown(drain=False)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See the module."""
        self.app.state.service.is_draining = True
        end = asyncio.get_running_loop().call_later(self.settings.grace_seconds, self.engine.cancel_all)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()


def start_in_background(engine: Engine, settings: ServerSettings) -> Server:
    """A server on a free port of this machine, in a thread, once it listens; ``should_exit = True`` ends it."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = Server(engine, settings, port=0)
    threading.Thread(target=server.run, args=([listening],), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return server
