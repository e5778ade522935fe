"""One thread that parses and tokenizes large requests, so that the event loop answers others meanwhile.

It is one thread, because every thread that computes takes turns with the event loop at the interpreter's lock (GIL):
with six of them a health check waited for 0.7 s. With one, and turns of SWITCH_INTERVAL_S, it waits for some
milliseconds. A function that runs here must not stay in one C call for long: no other thread can interrupt that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SMALL = 2000  # bytes or characters that are handled in the event loop itself, in about 2 ms
SWITCH_INTERVAL_S = 0.001  # Python's own is 0.005; a request needs the lock several times

_thread = ThreadPoolExecutor(1, "large-requests")


async def run(size: int, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function of an input of `size` bytes or characters: at once if it is small, else in the thread."""
    if size <= SMALL:
        return function(*args, **options)
    return await asyncio.get_running_loop().run_in_executor(_thread, lambda: function(*args, **options))
