"""Pages of other origins that may use the API (CORS): only those that --allow-origin lists, compared exactly.

    Origin: https://shop.example ─ listed? ─→ yes: Access-Control-Allow-Origin on every response, errors and streams too
                                          └─→ no: no such header, and a POST is refused, as without the option

A listed page may send a key in a header, but no cookies and no other credentials of the browser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.types import Scope

ALLOW_ORIGIN = "Access-Control-Allow-Origin"
EXPOSED_HEADERS = "Retry-After, X-Request-Id"  # that a page may read besides the usual ones
PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-API-Key, X-Request-Id",
    "Access-Control-Max-Age": "600",
}
DEFAULT_PORTS = {"http": 80, "https": 443}
HOST = re.compile(r"[a-z0-9_.-]+|\[[0-9a-f:.]+\]")


def origin_problem(text: str) -> str | None:
    """Return what is wrong with an origin of --allow-origin, as a browser would never send it, or None."""
    if "*" in text:
        return f"'{text}' would admit every page of the web; list each origin, as in https://shop.example.org"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        return f"'{text}' is no origin; write scheme, host and port, as in http://localhost:3000"
    if url.scheme not in DEFAULT_PORTS or not HOST.fullmatch(url.netloc.lower().removesuffix(f":{port}")):
        return f"'{text}' is no origin; write scheme, host and port, as in http://localhost:3000"
    own_port = "" if port is None or port == DEFAULT_PORTS[url.scheme] else f":{port}"
    exact = f"{url.scheme}://{url.netloc.lower().removesuffix(f':{port}')}{own_port}"
    return None if text == exact else f"'{text}' is not as browsers send it; write {exact}"


def allowed_origin(headers: Headers, origins: Sequence[str]) -> str | None:
    """Return the origin of the page that sent a request if it is listed, or None."""
    sent = headers.getlist("origin")  # a browser sends one
    return sent[0] if len(sent) == 1 and sent[0] in origins else None


def is_preflight(scope: Scope, headers: Headers) -> bool:
    """Whether a browser asks what a page of another origin may send."""
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers


def add_origin_headers(headers: MutableHeaders, origin: str | None) -> None:
    """Let the page of a listed origin read a response; caches must keep the responses to others apart."""
    headers.add_vary_header("Origin")
    if origin is not None:
        headers[ALLOW_ORIGIN] = origin
        headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
