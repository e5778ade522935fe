"""The server's lifecycle: bind, start the workers, announce the address, serve until a signal, drain, stop.

    bind ─→ workers load the models ─→ "http://127.0.0.1:8000" ─→ … ─SIGTERM or Ctrl-C→ no new connections ─→
    requests in flight are finished, for drain_s at most ─→ the workers stop ─→ exit code 0

Requests still in flight then, or at a second signal, are answered with 503. Every response after the first signal says
`Connection: close`, so that no client sends another request on its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import math
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import uvicorn

from dragoman.core.errors import UserError
from dragoman.serve import background
from dragoman.serve.connections import LogThrottle, http_protocol
from dragoman.serve.middleware import RequestLimitMiddleware
from dragoman.serve.settings import ServerSettings
from dragoman.serve.uploads import reads_media
from dragoman.serve.worker_pool import WorkerPool

logger = logging.getLogger("dragoman.serve.lifecycle")


class DrainingServer(uvicorn.Server):
    """A uvicorn server that exits with code 0 after a signal; uvicorn itself raises the signal again."""

    def __init__(
        self,
        config: uvicorn.Config,
        middleware: RequestLimitMiddleware,
        drain_s: float,
        abort_requests: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.middleware, self.drain_s, self.abort_requests = middleware, drain_s, abort_requests

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Call `shut_down` on SIGINT and SIGTERM, instead of uvicorn's handlers."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.shut_down)
        yield

    def shut_down(self) -> None:
        """Accept no more connections; abort the requests in flight after drain_s, or at once at the second signal."""
        wait = 0.0 if self.should_exit else self.drain_s
        asyncio.get_running_loop().call_later(wait, self.abort_requests)
        self.should_exit = self.middleware.is_draining = True


async def serve(settings: ServerSettings, models: Mapping[str, str], on_ready: Callable[[str], None]) -> None:
    """Serve until a signal. `models` maps names to paths; `on_ready` gets the server's URL once it is ready."""
    listener = bind(settings.host, settings.port)
    pool = WorkerPool(settings, models)
    try:
        pool_start = asyncio.create_task(pool.start())
        # It imports torch, which takes as long as the workers take to start.
        app_module = await asyncio.to_thread(importlib.import_module, "dragoman.serve.app")
        await pool_start
        app = app_module.build_app(settings, pool)
        on_refused = app.state.metrics.observe_refusal
        middleware = RequestLimitMiddleware(app, settings, any(map(reads_media, pool.models.values())), on_refused)
        config = uvicorn.Config(
            middleware,
            http=http_protocol(settings, on_refused),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=math.ceil(settings.drain_s) + 1,
        )
        for throttled in (logging.getLogger("uvicorn.error"), logging.getLogger("asyncio"), logger):
            throttled.addFilter(LogThrottle())
        asyncio.get_running_loop().set_exception_handler(log_exception)
        sys.setswitchinterval(background.SWITCH_INTERVAL_S)
        gc.freeze()  # a full collection stops all threads; what is here now, torch above all, need not be searched
        app.state.batcher.start()
        server = DrainingServer(config, middleware, settings.drain_s, app.state.batcher.abort_all)
        server_task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not server_task.done():
            await asyncio.sleep(0.01)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        on_ready(f"http://{host}:{listener.getsockname()[1]}")
        await server_task
        await app.state.batcher.stop()
    finally:
        listener.close()
        await pool.stop()


def log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a failed call on a connection in one sentence; of any other exception, asyncio logs the traceback.

    Without free descriptors, asyncio logs 2,048 failures at once.
    """
    error = context.get("exception")
    if isinstance(error, OSError) and not {"future", "task"} & context.keys():
        logger.warning("the system refused a call on a connection: %s; the server goes on", error.strerror or error)
    else:
        loop.default_exception_handler(context)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, not yet listening; raise UserError if that fails."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --host and --port"
        ) from None
    return listener
