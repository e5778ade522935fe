"""A server's life: bind, start the workers, say where it is, answer until a signal, drain, end.

    bind ─→ workers load the models ─→ "http://127.0.0.1:8000" ─→ … ─SIGTERM or Ctrl-C→ no new connections ─→
    what is in flight is finished, for drain_s at most ─→ the workers end ─→ exit code 0

What is still in flight then, or at a second signal, is answered with 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
import signal
import socket
from collections.abc import Callable, Iterator, Mapping

import uvicorn

from dragoman.core.errors import UserError
from dragoman.serve.connections import protocol
from dragoman.serve.middleware import Guard
from dragoman.serve.settings import Serving
from dragoman.serve.uploads import reads_media
from dragoman.serve.worker_pool import Workers


class Server(uvicorn.Server):
    """uvicorn's, which would raise a signal again after it has drained: the exit code would not be 0."""

    def __init__(self, config: uvicorn.Config, drain_s: float, give_up: Callable[[], None]) -> None:
        super().__init__(config)
        self.drain_s, self.give_up = drain_s, give_up

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        yield

    def stop(self) -> None:
        wait = 0.0 if self.should_exit else self.drain_s
        asyncio.get_running_loop().call_later(wait, self.give_up)
        self.should_exit = True


def run(serving: Serving, models: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Serve until a signal; `say` is told the server's address when it is ready."""
    asyncio.run(serve(serving, models, say))


async def serve(serving: Serving, models: Mapping[str, str], say: Callable[[str], None]) -> None:
    listener = bind(serving.host, serving.port)
    workers = Workers(serving, models)
    try:
        starting = asyncio.create_task(workers.start())
        app_module = await asyncio.to_thread(
            importlib.import_module, "dragoman.serve.app"
        )  # torch: as long as they take
        await starting
        app = app_module.build(serving, workers)
        config = uvicorn.Config(
            Guard(app, serving, any(map(reads_media, workers.models.values()))),
            http=protocol(serving),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=math.ceil(serving.drain_s) + 1,
        )
        app.state.batcher.start()
        server = Server(config, serving.drain_s, app.state.batcher.give_up)
        answering = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not answering.done():
            await asyncio.sleep(0.01)
        host = f"[{serving.host}]" if ":" in serving.host else serving.host
        say(f"http://{host}:{listener.getsockname()[1]}")
        await answering
        await app.state.batcher.end()
    finally:
        listener.close()
        await workers.end()


def bind(host: str, port: int) -> socket.socket:
    """The socket to listen on; nobody is heard until the server starts."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; take another with --host and --port"
        ) from None
    return listener
