"""How long a connection may stay without saying something, and how many there may be.

    open ── head within header_s ──→ request ──→ answer ── idle for keep_alive_s at most ──→ closed, or the next head

uvicorn waits forever for the head of a first request and for a client that does not read its answer. Here every wait
has an end, so that sockets which say nothing cannot keep out those which do.
"""

from __future__ import annotations

import asyncio
import http
import resource
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dragoman.serve.middleware import SECURITY, headers_of, written
from dragoman.serve.schema import Refused

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from dragoman.serve.settings import Serving

READ = 32 * 1024  # bytes taken from a socket at once; asyncio's 256 KiB would overshoot the limit on bodies
RESERVED = 64  # descriptors for all but connections: models, pipes of workers, logs, the event loop


class Connection(H11Protocol):
    """One of at most `most`; `wait` is the timer of what is waited for, None while a request is answered."""

    def __init__(
        self,
        serving: Serving,
        most: int,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.serving, self.most = serving, most
        self.conn = h11.Connection(h11.SERVER, serving.max_head)
        self.timeout_keep_alive = serving.keep_alive_s  # type: ignore[assignment]  # it takes fractions, too
        self.wait: asyncio.TimerHandle | None = None
        self.stall: asyncio.TimerHandle | None = None

    # -- the head of a request -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        full = len(self.connections) >= self.most
        super().connection_made(transport)
        if full:
            sentence = f"{self.most} connections are open, and there is room for no more; try again in a second"
            self.answer(Refused(503, "too_many_connections", sentence, retry_after=1))
            return
        transport.max_size = READ  # type: ignore[attr-defined]
        self.wait = self.loop.call_later(self.serving.header_s, self.head_is_late)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.stop_waiting()  # the head is whole; the body is the guard's matter
        elif self.wait is None and not self.transport.is_closing():
            self.wait = self.loop.call_later(self.serving.header_s, self.head_is_late)

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which begins to count the idle time, and may begin the next request
        self.stop_waiting()

    def head_is_late(self) -> None:
        self.wait = None
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            sentence = f"the head of the request did not arrive within {self.serving.header_s:g} s; send it faster"
            self.answer(Refused(408, "slow_head", sentence))
        else:
            self.transport.close()  # which said nothing and hears nothing

    def stop_waiting(self) -> None:
        if self.wait is not None:
            self.wait.cancel()
            self.wait = None

    # -- a client that does not read -----------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stall = self.loop.call_later(self.serving.body_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stop_stall()

    def stop_stall(self) -> None:
        if self.stall is not None:
            self.stall.cancel()
            self.stall = None

    # -- the end -------------------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting()
        self.stop_stall()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()  # a body that goes wrong while its answer is on the way
            return
        sentence = f"this is no HTTP request, or its head has more than {self.serving.max_head:,} bytes; send another"
        self.answer(Refused(400, "bad_request", sentence))

    def answer(self, refused: Refused) -> None:
        """Answer without the app, and close."""
        body = written(refused, "")
        fixed = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        lines = [f"{name}: {value}" for name, value in (fixed | SECURITY | headers_of(refused)).items()]
        status = f"HTTP/1.1 {refused.status} {http.HTTPStatus(refused.status).phrase}"
        self.transport.write("\r\n".join([status, *lines, "", ""]).encode() + body)
        self.transport.close()

    def _should_upgrade(self) -> bool:
        return False  # there is nothing here to speak WebSocket with


def protocol(serving: Serving) -> Any:
    """uvicorn's HTTP protocol with the limits of these settings, for `uvicorn.Config(http=…)`."""
    return partial(Connection, serving, room(serving.max_connections))


def room(asked: int) -> int:
    """How many connections there may be: those asked for, or as many as the process has descriptors for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return asked if soft == resource.RLIM_INFINITY else max(min(asked, soft - RESERVED), 1)
