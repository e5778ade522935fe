"""All settings of the server: address, keys, workers, queue, limits on requests, timeouts."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from dragoman.core.registry import Options, PositiveInt
from dragoman.serve.origins import origin_problem

Seconds = Annotated[float, Field(gt=0.0, le=3600.0)]


class ServerSettings(Options):
    """The settings of a server; the defaults are safe for a public one."""

    # address
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000  # 0: any free port
    allow_origins: list[str] = []  # of pages of other sites that may use the API, as in https://shop.example.org
    hosts: list[str] = []  # names in the Host header that a loopback server answers to, besides this machine's own

    # authentication
    keys: list[Annotated[str, Field(min_length=1)]] = []  # API keys; none: everyone who can connect is admitted

    # worker processes
    workers: PositiveInt | None = None  # none: one on a GPU, one per core on a CPU
    threads: PositiveInt = 1  # per worker, on a CPU
    device: str = "auto"
    precision: Literal["float32", "bfloat16", "int8"] | None = None  # of the search; none: from the model's config
    reference: bool = False  # the models' own equations, without the fast paths
    plugins: list[str] = []  # modules or .py files that a worker imports first; they may register parts
    memory: PositiveInt = 2_147_483_648  # bytes that a worker on a CPU may take beyond its models
    ping_s: Seconds = 0.1  # between two pings of a worker
    silence_s: Seconds = 0.5  # without a pong until a worker counts as not ready
    hang_s: Seconds = 2.0  # without a pong until it is killed and replaced
    cancel_s: Seconds = 2.0  # for a worker to stop a cancelled job, until it is killed and replaced
    start_s: Seconds = 600.0  # for a worker to load its models
    load_hang_s: Seconds = 25.0  # without any CPU time in that until it is killed and replaced
    spare: bool = True  # keep a process that has imported torch (180 MB), so that a worker is replaced in a second

    # queue and batches; a token counts once for each hypothesis of the beam, and a view the tokens of its work
    queue_tokens: PositiveInt = 200_000  # queued and running, those of up to batch_tokens apart; more gets a 429
    item_tokens: PositiveInt = 40_000  # of one input or view, which a worker computes in one go; more gets a 413
    batch_tokens: PositiveInt = 4096  # source tokens of a job; larger requests are split into several jobs
    job_s: Seconds = 0.5  # that a job of several inputs should take, by the measured speed; it gets fewer if need be
    long_s: Seconds = 0.7  # of several workers, one is kept free of inputs and views that may take longer
    batch_wait_ms: Annotated[float, Field(ge=0.0, le=1000.0)] = 3.0  # that a request waits for others to share its job
    max_connections: PositiveInt = 1024

    # size of a request
    max_body: PositiveInt = 1_048_576  # bytes
    max_head: PositiveInt = 16_384  # bytes of the request line and headers
    max_inputs: PositiveInt = 256  # in one request
    max_text: PositiveInt = 50_000  # characters of one text
    media_bytes: PositiveInt = 8_388_608  # of the images and sounds of one request, and of a file to translate
    media_pixels: PositiveInt = 24_000_000  # of an image, or of each frame of a video; decoding takes 16 bytes each
    media_seconds: Seconds = 300.0  # of a sound
    max_beam: PositiveInt = 32
    max_nbest: PositiveInt = 32
    max_length: PositiveInt = 4096  # tokens of a result that a request may ask for

    # timeouts
    deadline_s: Seconds = 60.0  # from a request's arrival to its response
    header_s: Seconds = 5.0  # for the head of a request to arrive
    body_s: Seconds = 8.0  # for its body to arrive
    keep_alive_s: Seconds = 8.0  # that an idle connection stays open
    drain_s: Annotated[float, Field(gt=0.0, le=28.0)] = 25.0  # for requests in flight to finish after SIGTERM

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each wrong origin and each wrong combination of settings."""
        for problem in filter(None, map(origin_problem, self.allow_origins)):
            yield f"allow_origins: {problem}"
        if self.hang_s <= self.silence_s:
            yield f"hang_s is {self.hang_s}; it must be longer than silence_s, {self.silence_s}"
        if self.max_nbest > self.max_beam:
            yield f"max_nbest is {self.max_nbest}; it must not exceed max_beam, {self.max_beam}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect; an unknown host name counts as public."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False
