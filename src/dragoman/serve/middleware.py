"""What a request must pass before the app sees it, and what every answer carries.

    request → host → key → encoding → body (whole, small, in time) → app → answer + headers that keep browsers strict

Nothing is read of a request that is refused for its head. The body is read here, as a whole, so that the app never
waits for one: a client that sends too much, too slowly or compressed costs a bounded number of bytes and seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from dragoman.serve.schema import Refused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dragoman.serve.settings import Serving

logger = logging.getLogger("dragoman.serve")

LARGEST = 32  # bodies of the largest size that are held at a time: 1,024 connections could bring 12 GB of images
LINGER = 1.0  # seconds in which a client that is still sending may come to read why it was refused

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
LIBRE = ("/translate", "/languages")  # whose errors look as LibreTranslate's do

_OURS = re.compile(r"[A-Za-z0-9._-]{1,64}")  # request ids of a client that are taken over: they go into log lines


def written(refused: Refused, path: str) -> bytes:
    """The JSON of a refusal, in the shape that clients of this path know."""
    return json.dumps({"error": refused.message} if path in LIBRE else refused.body()).encode()


def headers_of(refused: Refused) -> dict[str, str]:
    return refused.headers() | ({"WWW-Authenticate": 'Bearer realm="dragoman"'} if refused.status == 401 else {})


class Keys:
    """The API keys that open the server; without any it is open to all.

    Keys are compared by their digests, each with every one: the time tells nothing of a key, nor of its length.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def admit(self, offered: Sequence[bytes]) -> bool:
        """Whether one of the offered keys is right, or none is needed."""
        right = not self._digests
        for given in offered:
            digest = hashlib.sha256(given).digest()
            for known in self._digests:
                right |= hmac.compare_digest(digest, known)
        return right

    def check(self, offered: Sequence[bytes]) -> None:
        """Nothing where one of the offered keys is right, else the refusal. It repeats no key."""
        if self.admit(offered):
            return
        what = "the API key is not right" if any(offered) else "an API key is missing"
        remedy = "send a valid one as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
        raise Refused(401, "unauthorized", f"{what}; {remedy}")


def offered_keys(headers: Headers) -> list[bytes]:
    """The keys that a request brings in its head."""
    schemes = (value.partition(" ") for value in headers.getlist("authorization"))
    bearers = [key.strip() for scheme, _, key in schemes if scheme.lower() == "bearer"]
    return [key.encode("latin-1") for key in [*bearers, *headers.getlist("x-api-key")]]


def is_open(path: str) -> bool:
    """Whether a path needs no key: health checks, the API's description, and the page, which asks its user for the key.

    /translate takes a key inside its body too, so it asks for itself.
    """
    return path in ("/", "/translate", "/docs", "/openapi.json") or path.startswith(("/health/", "/static/"))


class Body:
    """The body of a request: what `receive` gives, until that is more than `limit`.

    connections.py reads at most 64 KiB at a time, so never more than limit + 64 KiB come in.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self.receive, self.limit = receive, limit
        self.read = 0
        self.ended = self.gone = False  # all is here; the client is not

    async def _more(self) -> bytes:
        message = await self.receive()
        self.gone = message["type"] == "http.disconnect"
        self.ended = self.gone or not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        self.read += len(data)
        return data

    async def whole(self, seconds: float) -> bytes:
        """All of it, or a refusal: too large, or not here in time."""
        parts = []
        try:
            async with asyncio.timeout(seconds):
                while not self.ended:
                    parts.append(await self._more())
                    if self.read > self.limit:
                        raise too_large(self.limit)
        except TimeoutError:
            raise Refused(408, "slow_body", f"the body did not arrive within {seconds:g} s; send it faster") from None
        return b"".join(parts)

    async def linger(self) -> None:
        """Read on for a moment what nobody wants: a connection closed on unread data may take the answer with it."""
        try:
            async with asyncio.timeout(LINGER):
                while not self.ended and self.read < self.limit:
                    await self._more()
        except TimeoutError:
            pass


def too_large(limit: int) -> Refused:
    return Refused(413, "too_large", f"the body is larger than {limit:,} bytes; send less at a time")


class Guard:
    """ASGI middleware around the whole app: limits on what comes in, strict headers on what goes out."""

    def __init__(self, app: ASGIApp, serving: Serving, media: bool = False) -> None:
        """`media`: whether a model reads images or sounds, for which bodies may be larger."""
        self.app, self.serving, self.media = app, serving, media
        self.held = 0  # bytes of bodies that are larger than texts need
        self.keys = Keys(serving.keys)
        self.hosts = allowed_hosts(serving)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the start and the end of the server
            await self.app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        scope.setdefault("state", {})["request_id"] = number = request_id(headers)
        send = signed(send, path, number)
        body = Body(receive, self._limit(path))
        with ExitStack() as room:
            try:
                self._check(path, headers)
                self._set_aside(headers, body.limit, room)
                data = await body.whole(self.serving.body_s)
            except Refused as refused:
                logger.info("request %s: %d %s", number, refused.status, refused.code)
                await refuse(refused, path, body, send)
                return
            if not body.gone:
                await self.app(scope, replayed(data, receive), send)

    def _limit(self, path: str) -> int:
        """The bytes that a body may have: a bare file, JSON with files in base64, or texts."""
        if not self.media or not path.startswith("/v1/"):
            return self.serving.max_body
        bare = path.startswith("/v1/models/")
        return self.serving.media_bytes if bare else self.serving.max_body + -(-self.serving.media_bytes // 3) * 4

    def _set_aside(self, headers: Headers, limit: int, room: ExitStack) -> None:
        """Set memory aside for a body that is large, until `room` is left; a refusal where there is none."""
        chunked = "transfer-encoding" in headers
        announced = limit if chunked else int(headers.get("content-length", "0"))
        if announced <= self.serving.max_body:
            return
        if self.held + announced > LARGEST * limit:
            text = "the server holds as many large bodies as it can; try again in a moment"
            raise Refused(429, "busy", text, retry_after=1)
        self.held += announced
        room.callback(self._let_go, announced)

    def _let_go(self, size: int) -> None:
        self.held -= size

    def _check(self, path: str, headers: Headers) -> None:
        """What the head of a request says is enough to refuse it."""
        host = headers.get("host", "")
        if self.hosts and host and re.sub(r":\d*$", "", host).lower() not in self.hosts:
            allowed = ", ".join(self.hosts)
            raise Refused(403, "wrong_host", f"this server answers only to the host names {allowed}; use one of them")
        if not is_open(path):
            self.keys.check(offered_keys(headers))
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            raise Refused(415, "encoded", "the body is compressed; send it without a Content-Encoding")
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise Refused(400, "bad_length", "Content-Length is not a number; leave it out or send the body's length")
        if int(length) > self._limit(path):
            raise too_large(self._limit(path))


def allowed_hosts(serving: Serving) -> tuple[str, ...]:
    """The names by which a server on this machine alone may be called; none where it is bound to the outside.

    A page from elsewhere whose name is made to lead to 127.0.0.1 would be of the server's own origin to a browser.
    """
    if not serving.loopback:
        return ()
    bound = serving.host.strip("[]")
    names = [*LOOPBACK, f"[{bound}]" if ":" in bound else bound, *serving.hosts]
    return tuple(dict.fromkeys(name.lower() for name in names))


def request_id(headers: Headers) -> str:
    """The client's own, where it is plain, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _OURS.fullmatch(given) else secrets.token_hex(8)


def signed(send: Send, path: str, number: str) -> Send:
    """`send` with the headers that every answer has."""

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            headers.update(SECURITY | {"X-Request-Id": number})
            if not path.startswith("/static/"):
                headers["Cache-Control"] = "no-store"
            message = {**message, "headers": headers.raw}
        await send(message)

    return wrapped


def replayed(data: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the whole body first, then what comes after it: the client's leaving."""
    waiting = [data]

    async def wrapped() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return wrapped


async def refuse(refused: Refused, path: str, body: Body, send: Send) -> None:
    """Answer, let the client read the answer, and close the connection: what it still sends is nobody's business."""
    text = written(refused, path)
    headers = {"Content-Type": "application/json", "Content-Length": str(len(text)), "Connection": "close"}
    raw = [(name.lower().encode(), value.encode()) for name, value in (headers | headers_of(refused)).items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    await send({"type": "http.response.body", "body": text, "more_body": True})
    if refused.status != 408:  # who was slow before will not be fast now
        await body.linger()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
