"""What a server may be told, in one place: where it listens, how much it takes on, and how long anything may last."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from dragoman.core.registry import Options, PositiveInt

Seconds = Annotated[float, Field(gt=0.0, le=3600.0)]


class Serving(Options):
    """The settings of a server; what is on by default is what keeps a public one alive."""

    # where
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000  # 0: any that is free
    hosts: list[str] = []  # names in the Host header besides this machine's own that a loopback server answers to

    # who
    keys: list[Annotated[str, Field(min_length=1)]] = []  # API keys; none: everyone who can connect

    # the processes that compute
    workers: PositiveInt | None = None  # none: one on a GPU, one for each core on a CPU
    threads: PositiveInt = 1  # of each worker, on a CPU
    device: str = "auto"
    precision: Literal["float32", "bfloat16", "int8"] | None = None  # of searching; none: as the models' configs say
    plain: bool = False  # the models' own equations, without the fast paths
    imports: list[str] = []  # modules that a worker imports first: they may register parts
    ping_s: Seconds = 0.1  # between two pings of a worker
    silence_s: Seconds = 0.5  # without an answer to them until a worker counts as not ready
    hang_s: Seconds = 2.0  # and until it is killed and replaced
    cancel_s: Seconds = 2.0  # that a worker has to leave a job it was told to leave, until it is killed and replaced
    start_s: Seconds = 600.0  # that it has to load its models

    # how much at a time; a token counts once for each hypothesis that is kept
    queue_tokens: PositiveInt = 200_000  # source tokens waiting and at work; a request beyond them is refused with 429
    batch_tokens: PositiveInt = 4096  # source tokens of a job; larger requests are cut into several
    batch_wait_ms: Annotated[float, Field(ge=0.0, le=1000.0)] = 3.0  # that a request waits for others to join it
    max_connections: PositiveInt = 1024

    # how large a request may be
    max_body: PositiveInt = 1_048_576  # bytes
    max_head: PositiveInt = 16_384  # bytes of the request line and headers
    max_inputs: PositiveInt = 256  # in one request
    max_text: PositiveInt = 50_000  # characters of one text
    media_bytes: PositiveInt = 8_388_608  # of the images and sounds of one request
    media_pixels: PositiveInt = 24_000_000  # that are decoded of an image, or of each frame of a clip; 16 bytes each
    media_seconds: Seconds = 300.0  # that are decoded of a sound
    max_beam: PositiveInt = 32
    max_nbest: PositiveInt = 32
    max_length: PositiveInt = 4096  # tokens of a result that a request may ask for

    # how long
    deadline_s: Seconds = 60.0  # from a request's arrival to its answer
    header_s: Seconds = 5.0  # until the head of a request is there
    body_s: Seconds = 8.0  # until its body is
    keep_alive_s: Seconds = 8.0  # that an idle connection stays open
    drain_s: Annotated[float, Field(gt=0.0, le=28.0)] = 25.0  # that requests have to finish after SIGTERM

    def problems(self) -> Iterator[str]:
        if self.hang_s <= self.silence_s:
            yield f"hang_s is {self.hang_s}; it must be longer than silence_s, {self.silence_s}"
        if self.max_nbest > self.max_beam:
            yield f"max_nbest is {self.max_nbest}; it must not exceed max_beam, {self.max_beam}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:  # another name: who knows
            return False
