"""An app behind a real uvicorn with our protocol, on a free port of this machine; and plain sockets to it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from dragoman.serve.connections import http_protocol
from dragoman.serve.settings import ServerSettings


@contextmanager
def served(app: Any, settings: ServerSettings) -> Iterator[tuple[int, uvicorn.Server]]:
    """The port and the server, for as long as it runs."""
    server = uvicorn.Server(
        uvicorn.Config(
            app, port=0, http=http_protocol(settings), lifespan="off", log_config=None, timeout_graceful_shutdown=1
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1], server
    finally:
        server.should_exit = True
        thread.join(10)


def wait_for(condition: Callable[[], Any], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10)
