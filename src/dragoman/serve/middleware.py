"""ASGI middleware: checks on requests before the app runs, headers on every response, cancellation on disconnect.

    request → framing → host → site → API key → encoding → body (complete, small, in time) → app → response + headers
                               └ preflight of a listed origin (origins.py) → response

A request that is refused for its head costs no read of its body. The body is read here completely, so the app never
waits for one: a client that sends too much, too slowly or compressed data costs a bounded number of bytes and seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders

from dragoman.serve import origins
from dragoman.serve.schema import APIError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dragoman.serve.settings import ServerSettings

logger = logging.getLogger("dragoman.serve")

MAX_LARGE_BODIES = 32  # of the largest size in memory at a time: 1,024 connections could bring 12 GB of images
MAX_BODY_WITHOUT_KEY = 65_536  # bytes of a body that may contain the API key: it is parsed before the key is checked
MAX_QUERY_FIELDS = 300
DRAIN_S = 1.0  # seconds that a refused client may go on sending before it reads the error

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
KEY_IN_BODY_PATHS = ("/translate", "/detect", "/translate_file")  # LibreTranslate's clients may send theirs there
LIBRETRANSLATE_PATHS = (*KEY_IN_BODY_PATHS, "/languages", "/frontend/settings")  # errors in LibreTranslate's format

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")  # client ids that are accepted: they go into log lines


def error_response(error: APIError, path: str) -> tuple[dict[str, str], bytes]:
    """Return headers and body of an error that closes the connection; LibreTranslate's paths have its format."""
    body = json.dumps({"error": error.message} if path in LIBRETRANSLATE_PATHS else error.body()).encode()
    fixed = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    return fixed | error.headers(), body


class APIKeys:
    """The API keys that the server accepts; without any, everyone is admitted."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def accepts(self, offered: Sequence[bytes]) -> bool:
        """Whether one of the offered keys is valid; compares all, by digest: the time reveals nothing about a key."""
        is_valid = not self._digests
        for key in offered:
            digest = hashlib.sha256(key).digest()
            for valid in self._digests:
                is_valid |= hmac.compare_digest(digest, valid)
        return is_valid

    def check(self, offered: Sequence[bytes]) -> None:
        """Raise a 401 unless one of the offered keys is valid. The message repeats no key."""
        if self.accepts(offered):
            return
        what = "the API key is not valid" if any(offered) else "an API key is missing"
        remedy = "send a valid one as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
        raise APIError(401, "unauthorized", f"{what}; {remedy}")


def request_keys(headers: Headers) -> list[bytes]:
    """Return the API keys in a request's headers: Authorization: Bearer, and X-API-Key."""
    schemes = (value.partition(" ") for value in headers.getlist("authorization"))
    bearers = [key.strip() for scheme, _, key in schemes if scheme.lower() == "bearer"]
    return [key.encode("latin-1") for key in [*bearers, *headers.getlist("x-api-key")]]


def is_public(path: str) -> bool:
    """Whether no key is needed: health checks, files under secret names, the pages, which ask for the key."""
    return path in ("/", "/simple") or path.startswith(("/health/", "/static/", "/download_file/"))


class BodyReader:
    """Reads the body of a request from `receive`, up to `limit` bytes and what connections.py reads at once."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self.receive, self.limit = receive, limit
        self.bytes_read = 0
        self.is_complete = self.is_disconnected = False

    async def _read_chunk(self) -> bytes:
        message = await self.receive()
        self.is_disconnected = message["type"] == "http.disconnect"
        self.is_complete = self.is_disconnected or not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        self.bytes_read += len(data)
        return data

    async def read(self, seconds: float) -> bytes:
        """Return the complete body; raise APIError if it exceeds the limit or takes more than `seconds`."""
        parts = []
        try:
            async with asyncio.timeout(seconds):
                while not self.is_complete:
                    parts.append(await self._read_chunk())
                    if self.bytes_read > self.limit:
                        raise body_too_large(self.limit)
        except TimeoutError:
            raise APIError(408, "slow_body", f"the body did not arrive within {seconds:g} s; send it faster") from None
        return b"".join(parts)

    async def drain(self) -> None:
        """Read and discard for up to DRAIN_S: closing a connection with unread data may lose the response."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while not self.is_complete and self.bytes_read < self.limit:
                    await self._read_chunk()


def body_too_large(limit: int) -> APIError:
    """Build the 413 for a body of more than `limit` bytes."""
    remedy = ", or the API key in a header" if limit == MAX_BODY_WITHOUT_KEY else ""
    return APIError(413, "too_large", f"the body is larger than {limit:,} bytes; send less at a time{remedy}")


class RequestLimitMiddleware:
    """Outermost ASGI middleware: checks host, API key and body of a request, adds security headers to its response."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        reads_media: bool = False,
        on_refused: Callable[[str], None] = lambda code: None,
    ) -> None:
        self.app, self.settings = app, settings
        self.reads_media = reads_media  # a model reads images or sounds, so bodies may be larger
        self.on_refused = on_refused  # gets the code of each request that is refused here
        self.is_draining = False  # the server shuts down: each response is the last of its connection
        self.reserved_bytes = 0  # for bodies larger than texts need
        self.keys = APIKeys(settings.keys)
        self.hosts = allowed_hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        scope.setdefault("state", {})["request_id"] = id = request_id(headers)
        origin = origins.allowed_origin(headers, self.settings.allow_origins)
        send = self._with_response_headers(send, path, id, origin)
        offered_keys = request_keys(headers)
        body = BodyReader(receive, self._body_limit(path, bool(offered_keys)))
        with ExitStack() as reservation:
            try:
                check_framing(scope, headers)
                self._check_host(headers)
                if origin is not None and origins.is_preflight(scope, headers):
                    await send_preflight(send)
                    return
                if scope["method"] == "POST" and origin is None:
                    check_site(headers)
                if not is_public(path) and (offered_keys or path not in KEY_IN_BODY_PATHS):  # its body may have the key
                    self.keys.check(offered_keys)
                check_body_headers(headers, body.limit)
                self._reserve(headers, body.limit, reservation)
                data = await body.read(self.settings.body_s)
            except APIError as error:
                logger.info("request %s: %d %s", id, error.status, error.code)
                self.on_refused(error.code)
                await send_error(error, path, body, send)
                return
            if not body.is_disconnected:
                await self.app(scope, replay_body(data, receive), send)

    def _body_limit(self, path: str, has_key: bool) -> int:
        """Return the most bytes that a body for a path may have: a bare file, JSON with base64 files, or texts."""
        if path in KEY_IN_BODY_PATHS and self.settings.keys and not has_key:
            return min(self.settings.max_body, MAX_BODY_WITHOUT_KEY)
        if path == "/translate_file":
            return max(self.settings.media_bytes, self.settings.max_body)
        if not self.reads_media or not path.startswith("/v1/"):
            return self.settings.max_body
        is_bare_file = path.startswith("/v1/models/")
        json_limit = self.settings.max_body + -(-self.settings.media_bytes // 3) * 4
        return self.settings.media_bytes if is_bare_file else json_limit

    def _reserve(self, headers: Headers, limit: int, reservation: ExitStack) -> None:
        """Reserve memory for a large body until `reservation` closes; raise a 429 if there is none left."""
        is_chunked = "transfer-encoding" in headers
        size = limit if is_chunked else int(headers.get("content-length", "0"))
        if size <= self.settings.max_body:
            return
        if self.reserved_bytes + size > MAX_LARGE_BODIES * limit:
            text = "the server holds as many large bodies as it can; try again in a moment"
            raise APIError(429, "busy", text, retry_after=1)
        self.reserved_bytes += size
        reservation.callback(self._release, size)

    def _release(self, size: int) -> None:
        self.reserved_bytes -= size

    def _check_host(self, headers: Headers) -> None:
        """Raise a 403 for a host name that is not this server's."""
        host = headers.get("host", "")
        if self.hosts and host and re.sub(r":\d*$", "", host).lower() not in self.hosts:
            allowed = ", ".join(self.hosts)
            raise APIError(403, "wrong_host", f"this server answers only to the host names {allowed}; use one of them")

    def _with_response_headers(self, send: Send, path: str, id: str, origin: str | None) -> Send:
        """Wrap `send`: responses get security headers, the request id, no-store outside /static/, close at the end.

        `origin` is that of a page of another site that may read them.
        """

        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", [])))
                headers.update(SECURITY_HEADERS | {"X-Request-Id": id})
                if not path.startswith("/static/"):
                    headers["Cache-Control"] = "no-store"
                if self.settings.allow_origins:
                    origins.add_origin_headers(headers, origin)
                if self.is_draining:
                    headers["Connection"] = "close"
                message = {**message, "headers": headers.raw}
            await send(message)

        return wrapped


def check_framing(scope: Scope, headers: Headers) -> None:
    """Raise a 400 for a request that a proxy may read in another way (request smuggling), and for a huge query."""
    if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
        text = "Transfer-Encoding must not come with Content-Length, nor with HTTP/1.0; send one of them over HTTP/1.1"
        raise APIError(400, "bad_framing", text)
    if scope["query_string"].count(b"&") >= MAX_QUERY_FIELDS:
        raise APIError(400, "bad_request", f"the query has more than {MAX_QUERY_FIELDS} fields; send fewer")


def check_body_headers(headers: Headers, limit: int) -> None:
    """Raise APIError for a compressed body, and for a wrong or too large Content-Length."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise APIError(415, "encoded", "the body is compressed; send it without a Content-Encoding")
    length = headers.get("content-length", "0")
    if not length.isdecimal():
        raise APIError(400, "bad_length", "Content-Length is not a number; leave it out or send the body's length")
    if int(length) > limit:
        raise body_too_large(limit)


def check_site(headers: Headers) -> None:
    """Raise a 403 for a request that a page of another site sends."""
    if is_cross_site(headers):
        text = "this request comes from a page of another site, which --allow-origin does not list; send it from a "
        raise APIError(403, "cross_site", f"{text}program, or from this server's page")


def is_cross_site(headers: Headers) -> bool:
    """Whether a browser sent the request for a page of another origin; other programs do not send these headers."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()


def allowed_hosts(settings: ServerSettings) -> tuple[str, ...]:
    """Return the Host names that a loopback server answers to; for other servers (), which means any.

    This prevents DNS rebinding: a foreign page whose name resolves to 127.0.0.1 would be same-origin to a browser.
    """
    if not settings.is_loopback:
        return ()
    bound = settings.host.strip("[]")
    names = [*LOOPBACK_HOSTS, f"[{bound}]" if ":" in bound else bound, *settings.hosts]
    return tuple(dict.fromkeys(name.lower() for name in names))


def request_id(headers: Headers) -> str:
    """Return the client's X-Request-Id if it is plain, else a new random one."""
    id = headers.get("x-request-id", "")
    return id if _REQUEST_ID.fullmatch(id) else secrets.token_hex(8)


def replay_body(data: bytes, receive: Receive) -> Receive:
    """Wrap `receive` so that it returns the complete body first, then what `receive` returns."""
    unread = [data]

    async def wrapped() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return wrapped


async def send_error(error: APIError, path: str, body: BodyReader, send: Send) -> None:
    """Send an error response, let the client read it, and close the connection without reading the rest of the body."""
    headers, text = error_response(error, path)
    await send({"type": "http.response.start", "status": error.status, "headers": Headers(headers).raw})
    await send({"type": "http.response.body", "body": text, "more_body": True})
    if error.status != 408:  # a client that was too slow would not finish now
        await body.drain()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_preflight(send: Send) -> None:
    """Answer what a page of a listed origin may send."""
    await send({"type": "http.response.start", "status": 204, "headers": Headers(origins.PREFLIGHT_HEADERS).raw})
    await send({"type": "http.response.body", "body": b""})


class CancelOnDisconnect:
    """ASGI middleware: cancels a route when its client disconnects."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body_received, disconnected = asyncio.Event(), asyncio.Event()

        async def receive_body() -> Message:
            if body_received.is_set():
                await disconnected.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                body_received.set()
            return message

        async def cancel_on_disconnect(route: asyncio.Task[None]) -> None:
            await body_received.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
            disconnected.set()
            route.cancel()

        route = asyncio.ensure_future(self.app(scope, receive_body, send))
        monitor = asyncio.create_task(cancel_on_disconnect(route))
        try:
            await asyncio.wait([route])
            if not disconnected.is_set() or not route.cancelled():
                route.result()
        finally:
            monitor.cancel()
            route.cancel()
            with suppress(asyncio.CancelledError):
                await monitor
