"""Whether the server can listen where it is told to, asked before a model is loaded."""

from __future__ import annotations

import errno
import socket


def check_address(host: str, port: int) -> None:
    """Binds and lets go again.

    Raises:
        ValueError: the port is taken or not allowed, or the host is not one of this machine; says what to do.
    """
    if not 0 <= port <= 65_535:
        raise ValueError(f"a port is a number from 0 to 65535, got {port}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server: what just ended does not count
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} on {host} is taken; choose another with --port, or 0 for a free one"
        elif error.errno == errno.EACCES:
            reason = f"port {port} needs rights that this process lacks; choose one above 1023 with --port"
        else:
            reason = f"cannot listen on host {host!r} ({error.strerror}); 127.0.0.1 is this machine, 0.0.0.0 everywhere"
        raise ValueError(reason) from None
