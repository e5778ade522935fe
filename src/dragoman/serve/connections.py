"""uvicorn's HTTP protocol with timeouts and a cap on connections.

    open ── head within header_s ──→ request ──→ response ── idle for keep_alive_s at most ──→ closed, or the next head

uvicorn waits forever for the head of the first request, and for a client that does not read its response. Here every
wait has a timeout, so silent sockets cannot keep out other clients.

A client that shuts down its sending side after its request (a half-close) still gets its response. To the server this
looks like a client that is gone, whose work must stop; so it sends what means nothing, to which the system of a client
that is gone replies with a reset: an interim response, 100 Continue, or within a stream of events a comment.
"""

from __future__ import annotations

import asyncio
import http
import logging
import resource
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dragoman.serve.middleware import SECURITY_HEADERS, error_response
from dragoman.serve.schema import APIError

if TYPE_CHECKING:
    from dragoman.serve.settings import ServerSettings

READ_BYTES = 32 * 1024  # read from a socket at once; asyncio's 256 KiB would overshoot the limit on bodies
FREE_CHUNKS = 200  # of a body; beyond them chunks must have MIN_CHUNK_BYTES on average: h11 takes 5 µs for each
MIN_CHUNK_BYTES = 64
INTERIM_RESPONSE = b"HTTP/1.1 100 Continue\r\n\r\n"
COMMENT_CHUNK = b"3\r\n:\n\n\r\n"  # of server-sent events, as a chunk of its own
RESET_CHECK_S = 0.05  # between two looks whether a half-closed connection was reset
LOG_INTERVAL_S = 60.0  # between two log lines about malformed requests
RESERVED_DESCRIPTORS = 64  # not for connections: models, pipes to workers, logs, the event loop


class BoundedConnection(h11.Connection):
    """h11's parser, which refuses bodies of tiny chunks: a megabyte in chunks of a byte keeps it busy for 5 s."""

    chunk_count = body_bytes = 0  # of the current request
    is_event_stream = False  # whether the current response is one

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunk_count = self.body_bytes = 0
        elif isinstance(event, h11.Data):
            self.chunk_count += 1
            self.body_bytes += len(event.data)
            if self.chunk_count > FREE_CHUNKS + self.body_bytes // MIN_CHUNK_BYTES:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event

    def send(self, event: Any) -> Any:
        if isinstance(event, h11.Response):
            types = [value for name, value in event.headers if name == b"content-type"]
            self.is_event_stream = any(value.startswith(b"text/event-stream") for value in types)
        return super().send(event)


class LimitedH11Protocol(H11Protocol):
    """One client connection, with a timeout on every wait. `head_timer` is None while a request is processed."""

    conn: BoundedConnection

    def __init__(
        self, settings: ServerSettings, max_connections: int, on_refused: Callable[[str], None], **options: Any
    ) -> None:
        super().__init__(**options)  # as uvicorn passes them
        self.settings, self.max_connections, self.on_refused = settings, max_connections, on_refused
        self.conn = BoundedConnection(h11.SERVER, settings.max_head)
        self.timeout_keep_alive = settings.keep_alive_s  # type: ignore[assignment]  # uvicorn says int; floats work
        self.head_timer: asyncio.TimerHandle | None = None
        self.write_timer: asyncio.TimerHandle | None = None
        self.is_half_closed = False

    # -- the head of a request -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Answer 503 and close if `max_connections` are open, else start the timeout on the first head."""
        full = len(self.connections) >= self.max_connections
        super().connection_made(transport)
        if full:
            message = f"all {self.max_connections} connections are in use; try again in a second"
            self.send_error(APIError(503, "too_many_connections", message, retry_after=1))
            return
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        self.head_timer = self.loop.call_later(self.settings.header_s, self.on_head_timeout)

    def data_received(self, data: bytes) -> None:
        """Pass data to uvicorn; start or stop the timeout on the request's head."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cancel_head_timer()  # the head is complete; RequestLimitMiddleware limits the body
        elif self.head_timer is None and not self.transport.is_closing():
            self.head_timer = self.loop.call_later(self.settings.header_s, self.on_head_timeout)

    def on_response_complete(self) -> None:
        """Let uvicorn go on to keep-alive or the next pipelined request; stop the timeout on the head."""
        super().on_response_complete()
        self.cancel_head_timer()
        if self.is_half_closed and self.cycle.response_complete:  # no next request can come
            self.transport.close()

    def on_head_timeout(self) -> None:
        """Close the connection; answer 408 first if part of a head has arrived."""
        self.head_timer = None
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            message = f"the head of the request did not arrive within {self.settings.header_s:g} s; send it faster"
            self.send_error(APIError(408, "slow_head", message))
        else:
            self.transport.close()

    def cancel_head_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    # -- a client that does not read -----------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Called when the send buffer is full: abort the connection if the client does not read within body_s."""
        super().pause_writing()
        self.write_timer = self.loop.call_later(self.settings.body_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Called when the client reads again: cancel the timeout of `pause_writing`."""
        super().resume_writing()
        if self.write_timer is not None:
            self.write_timer.cancel()

    # -- a client that sends no more -----------------------------------------------------------------------------------

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open for the response to a complete request, unless the client is gone."""
        cycle = self.cycle
        is_waiting = cycle is not None and not cycle.more_body and not cycle.response_complete
        if not is_waiting or cycle.scope["http_version"] == "1.0":  # which knows neither interim responses nor chunks
            return False
        if not self.is_half_closed:
            self.is_half_closed = True
            if not cycle.response_started:
                self.transport.write(INTERIM_RESPONSE)
            elif self.conn.is_event_stream:
                self.transport.write(COMMENT_CHUNK)
            self.abort_if_reset()
        return True

    def abort_if_reset(self) -> None:
        """Abort a half-closed connection once its client is gone; look again later while the response is pending."""
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        elif not self.cycle.response_complete:
            self.loop.call_later(RESET_CHECK_S, self.abort_if_reset)

    # -- the end -------------------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self.cancel_head_timer()
        if self.write_timer is not None:
            self.write_timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer 400 in our JSON, or abort if a response has started: h11 cannot parse a request; `msg` is ignored."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()  # the body is malformed, but the response has started
            return
        limit = f"{self.settings.max_head:,}"
        message = f"the request is not valid HTTP, or its head has more than {limit} bytes; send a smaller, valid one"
        self.send_error(APIError(400, "bad_request", message))

    def send_error(self, error: APIError) -> None:
        """Write an error response directly, without the app, then close the connection."""
        self.on_refused(error.code)
        headers, body = error_response(error, "")
        lines = [f"{name}: {value}" for name, value in (headers | SECURITY_HEADERS).items()]
        status = f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}"
        self.transport.write("\r\n".join([status, *lines, "", ""]).encode() + body)
        self.transport.close()

    def _should_upgrade(self) -> bool:
        return False  # no WebSockets here


class LogThrottle(logging.Filter):
    """Lets a warning of uvicorn's through once in LOG_INTERVAL_S: a stranger must not fill the log."""

    def __init__(self) -> None:
        super().__init__()
        self.next_times: dict[object, float] = {}  # by the message; uvicorn has a handful

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if record.levelno > logging.WARNING or now >= self.next_times.get(record.msg, 0.0):
            self.next_times[record.msg] = now + LOG_INTERVAL_S
            return True
        return False


def http_protocol(settings: ServerSettings, on_refused: Callable[[str], None] = lambda code: None) -> Any:
    """Build the factory of connections for `uvicorn.Config(http=…)`; `on_refused` gets the code of each error."""
    return partial(LimitedH11Protocol, settings, connection_limit(settings.max_connections), on_refused)


def connection_limit(requested: int) -> int:
    """Return the requested number of connections, or fewer if the process has too few file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return requested if soft == resource.RLIM_INFINITY else max(min(requested, soft - RESERVED_DESCRIPTORS), 1)
