"""What goes wrong around a server, drawn up front from a seed; and clients that know the answer they should get.

    seed ─→ faults, each with its time      worker killed, frozen, paused, starved of memory · server paused · clock set
    seed ─→ questions ─a quiet server→ true answers      the same questions ─under faults→ the answers, or a refusal

A client speaks HTTP over a socket of its own and reads until the server closes, so that an answer that is missing, cut,
doubled or another's is seen as such. Its manners differ: some send or read slowly, some send ahead, some go away.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import math
import os
import random
import resource
import signal
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LETTERS = "abcdefgh"
TOLERANCE = 1e-3  # of numbers in an answer: the last bits of a score depend on the batch
REFUSALS = {429: ("busy",), 503: ("not_ready", "worker_lost", "out_of_memory"), 504: ("deadline",)}
THINK_S = 0.2  # at most between an answer and the next question
ANSWER_S = (
    45.0  # for each request, until a client gives up: longer than the server's deadline, by what a busy machine may add
)
# The plugin of a worker: sources that take more memory than there is, in one piece or in many.
HUNGER = """
import torch
from dragoman.inference.pipeline import Pipeline

whole = Pipeline.stream

def stream(self, sources, *args, **options):
    for source in sources:
        blocks = [torch.empty(1 << 34)] if source.source == "block" else []
        while source.source == "blocks":
            blocks.append(torch.empty(1 << 22))
    return whole(self, sources, *args, **options)

Pipeline.stream = stream
"""


# -- faults ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One fault: when it begins, what it is, whom it meets, how long it lasts, and how strong it is."""

    at: float  # seconds after the first request
    kind: str
    worker: int  # of those that it may meet then, counted around
    seconds: float
    amount: float  # of "starve": MiB that are left; of "clock": hours


KINDS = ("kill", "freeze", "pause", "starve", "pause server", "clock")


def draw_faults(seed: int, count: int, seconds: float) -> list[Fault]:
    """Faults at random times: all kinds in a random order, then again."""
    rng = random.Random(seed)
    times = sorted(rng.uniform(0.0, seconds) for _ in range(count))
    kinds = [kind for _ in range(0, count, len(KINDS)) for kind in rng.sample(KINDS, len(KINDS))]
    longest = {"pause": 1.2, "starve": 2.0, "pause server": 2.0}
    return [
        Fault(
            at,
            kind,
            worker=rng.randrange(1000),
            seconds=rng.uniform(0.05, longest.get(kind, 0.05)),
            amount=rng.choice([0, 2, 64]) if kind == "starve" else rng.choice([-1, 1]) * 10 ** rng.uniform(-3, 4),
        )
        for at, kind in zip(times, kinds, strict=False)
    ]


class Faults:
    """Lets faults happen to a server, and ends those that last."""

    def __init__(self, server: int, clock: Path) -> None:
        self.server, self.clock = server, clock  # the server's process id; the file of tests/faults/preload/clock.c
        self.happened: Counter[str] = Counter()

    async def run(self, faults: list[Fault], seconds: float) -> None:
        """Let each happen at its time, for so many seconds at least; none is at work any more when this returns."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as lasting:
            for fault in faults:
                await asyncio.sleep(max(began + fault.at - loop.time(), 0.0))
                lasting.create_task(self.happen(fault))
            await asyncio.sleep(max(began + seconds - loop.time(), 0.0))

    async def happen(self, fault: Fault) -> None:
        if fault.kind == "clock":
            with self.clock.open("r+b") as file:  # which stays as long as it is: others have mapped it
                file.write(struct.pack("q", int(fault.amount * 3600e9)))
        elif fault.kind == "pause server":
            await pause(self.server, fault.seconds)
        else:
            with suppress(ProcessLookupError):  # it ends by itself just now
                await self.meet(await self.choose_worker(fault), fault)
        self.happened[fault.kind] += 1

    async def choose_worker(self, fault: Fault) -> int:
        """A worker of those that are there, also one that loads or is spare; waits for one where there is none."""
        while True:
            # One that still loads has no limit yet; without memory then, Python itself fails to start.
            pids = [pid for pid in children(self.server) if fault.kind != "starve" or data_limit(pid)[0] > 0]
            if pids:
                return pids[fault.worker % len(pids)]
            await asyncio.sleep(0.1)

    async def meet(self, pid: int, fault: Fault) -> None:
        if fault.kind == "kill":
            os.kill(pid, signal.SIGKILL)
        elif fault.kind == "freeze":
            os.kill(pid, signal.SIGSTOP)
        elif fault.kind == "pause":
            await pause(pid, fault.seconds)
        else:
            limit, used = data_limit(pid)
            resource.prlimit(pid, resource.RLIMIT_DATA, (min(used + (int(fault.amount) << 20), limit), limit))
            await asyncio.sleep(fault.seconds)
            resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


def children(pid: int) -> list[int]:
    """The child processes of a process, in the order of their start, also those that have ended and wait for it."""
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


async def pause(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def data_limit(pid: int) -> tuple[int, int]:
    """The most bytes that a worker may ever allocate, -1 where it has set itself no limit yet; and those it has."""
    try:
        used = int(Path(f"/proc/{pid}/status").read_text().partition("VmData:")[2].split()[0]) << 10
        return resource.prlimit(pid, resource.RLIMIT_DATA)[1], used
    except (OSError, IndexError):  # it is gone, or nearly
        return -1, 0


# -- questions and answers ---------------------------------------------------------------------------------------------


@dataclass
class Question:
    """A request whose answer is known; of a stream the answer is the tokens and the result of each input."""

    path: str
    body: dict[str, Any]
    answer: Any = None

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))

    def encode(self, id: str, close: bool) -> bytes:
        body = json.dumps(self.body).encode()
        lines = [f"POST {self.path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(body)}", f"X-Request-Id: {id}", *(["Connection: close"] if close else [])]
        return "\r\n".join([*lines, "", ""]).encode() + body


def draw_questions(rng: random.Random, count: int) -> list[Question]:
    """Questions of every route, most of them short; none is asked twice."""

    def text(longest: int = 30) -> str:
        return "".join(rng.choices(LETTERS, k=rng.randint(4, longest)))

    def predict() -> Question:
        beam = rng.choice([1, 2, 5])
        inputs = [text() for _ in range(rng.choice([1, 1, 2, 20]))]
        body = {"inputs": inputs, "model": "small", "beam": beam, "nbest": rng.randint(1, beam)}
        return Question("/v1/predict", body | {"attention": rng.random() < 0.2})

    def long() -> Question:
        body = {"inputs": [text()], "model": "plodding", "beam": rng.choice([1, 2])}
        return Question("/v1/predict", body | {"max_new_tokens": rng.randint(50, 400)})

    def stream() -> Question:
        body = {"inputs": [text(), text()], "model": rng.choice(["small", "plodding"]), "beam": 1, "stream": True}
        return Question("/v1/predict", body | {"max_new_tokens": rng.randint(20, 100)})

    def score() -> Question:
        return Question("/v1/score", {"inputs": [{"source": text(), "target": text()} for _ in range(3)]})

    def view() -> Question:
        return Question(f"/v1/inspect/{rng.choice(['alignment', 'beam', 'steps', 'saliency'])}", {"source": text(12)})

    def translate() -> Question:
        return Question("/translate", {"q": f"{text()}. {text()}.", "source": "auto", "target": "small"})

    kinds = [predict, predict, predict, long, long, stream, stream, score, view, translate]
    return [kinds[i % len(kinds)]() for i in range(count)]


def read_answer(question: Question, body: bytes) -> Any:
    """What is compared; raises AssertionError for a stream that is doubled or out of order."""
    if not question.is_stream:
        return json.loads(body)
    *events, (last, _) = parse_events(body)
    assert last == "done", last
    found: list[dict[str, Any]] = [{"tokens": []} for _ in question.body["inputs"]]
    for kind, data in events:
        item = found[data.pop("index")]
        assert "result" not in item, "something follows a result"
        if kind == "token":
            item["tokens"].append(data["token"])
        else:
            assert kind == "result", kind
            assert data["tokens"] == item["tokens"], "the tokens are not those of the result"
            item["result"] = data
    assert all("result" in item for item in found), "a result is missing"
    return found


def parse_events(body: bytes) -> list[tuple[str, Any]]:
    """The names and data of server-sent events; comments are left out."""
    blocks = [block.split("\n") for block in body.decode().strip().split("\n\n") if block != ":"]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def is_same(one: Any, other: Any) -> bool:
    """Whether two answers agree, numbers that are no integers to TOLERANCE."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(one == other)


# -- one connection ----------------------------------------------------------------------------------------------------


@dataclass
class Response:
    status: int
    headers: Any
    body: bytes


class Received(io.BytesIO):
    """The bytes of a connection as a socket that http.client reads from, one response after the other."""

    def makefile(self, mode: str) -> Received:
        return self

    def close(self) -> None:
        pass


def parse_responses(data: bytes) -> list[Response]:
    """All responses in the bytes of a connection; raises an HTTPException where one is cut or is none."""
    received, found = Received(data), list[Response]()
    while received.tell() < len(data):
        response = http.client.HTTPResponse(received, method="POST")  # type: ignore[arg-type]
        response.begin()
        found.append(Response(response.status, response.headers, response.read()))
    return found


@dataclass
class Clients:
    """Clients of one server that do one thing after the other, and what they found wrong."""

    port: int
    questions: list[Question]
    problems: list[str] = field(default_factory=list)
    outcomes: Counter[tuple[str, int]] = field(default_factory=Counter)  # by manner and status; 0: none was expected

    async def run(self, seed: int, count: int, until: asyncio.Future[None]) -> None:
        """Let clients ask until that is done; return when the last of them has its answer."""

        async def client(rng: random.Random) -> None:
            while not until.done():
                (manner,) = rng.choices(list(MANNERS), list(MANNERS.values()))
                try:
                    await manner(self, rng)
                except Exception as error:  # no response in time, one that is none, or an assertion on it
                    self.problems.append(f"{manner.__name__}: {error!r}")
                await asyncio.sleep(rng.uniform(0.0, THINK_S))

        await asyncio.gather(*(client(random.Random(f"{seed} {n}")) for n in range(count)))

    async def ask_all(self) -> None:
        """Ask every question once, one after the other: each must be answered."""
        for question in self.questions:
            (response,) = await exchange(self.port, [question.encode("all", close=True)])
            found = (response.status, response.body[:200])
            right = response.status == 200 and is_same(read_answer(question, response.body), question.answer)
            if not right:
                self.problems.append(f"afterwards {question.path} {question.body} got {found}")

    def judge(self, manner: str, asked: list[tuple[str, Question]], responses: list[Response]) -> None:
        """Each request has one response, in order; an answer is the true one, a refusal one that may be."""
        if len(responses) != len(asked):
            self.problems.append(f"{manner}: {len(responses)} responses to {len(asked)} requests")
        for (id, question), response in zip(asked, responses, strict=False):
            where = f"{manner}: {question.path} {question.body}"
            self.outcomes[manner, response.status] += 1
            if response.headers["X-Request-Id"] != id:
                self.problems.append(f"{where} got the response to {response.headers['X-Request-Id']}")
            elif response.status != 200:
                self.judge_refusal(where, question, response.status, json.loads(response.body))
            elif question.is_stream and (events := parse_events(response.body))[-1][0] == "error":
                said = [(data["index"], data["token"]) for kind, data in events[:-1] if kind == "token"]
                for i, item in enumerate(question.answer):
                    tokens = [token for index, token in said if index == i]
                    if tokens != item["tokens"][: len(tokens)]:
                        self.problems.append(f"{where} streamed {tokens}")
                if events[-1][1]["code"] not in sum(REFUSALS.values(), ()):
                    self.problems.append(f"{where} ended in {events[-1]}")
            elif not is_same(read_answer(question, response.body), question.answer):
                self.problems.append(f"{where} got {response.body[:500]!r} instead of {str(question.answer)[:500]}")

    def judge_refusal(self, where: str, question: Question, status: int, body: dict[str, Any]) -> None:
        code = "" if question.path == "/translate" else body["error"]["code"]  # LibreTranslate's errors have none
        if code not in REFUSALS.get(status, ()) and not (code == "" and status in REFUSALS):
            self.problems.append(f"{where} was refused with {status}: {body}")


async def exchange(
    port: int, requests: list[bytes], write: Any = None, read: Any = None, receive_buffer: int = 0
) -> list[Response]:
    """Send requests on one connection and read until it closes; `write` and `read` may take their time."""
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock)
    try:
        async with asyncio.timeout(ANSWER_S * len(requests)):
            await (write or write_at_once)(writer, b"".join(requests))
            return parse_responses(await (read or read_at_once)(reader))
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def write_at_once(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def read_at_once(reader: asyncio.StreamReader) -> bytes:
    return await reader.read()


# -- manners -----------------------------------------------------------------------------------------------------------


def choose(clients: Clients, rng: random.Random, count: int = 1) -> list[tuple[str, Question]]:
    return [(f"{rng.getrandbits(60):x}", rng.choice(clients.questions)) for _ in range(count)]


def encode_all(asked: list[tuple[str, Question]]) -> list[bytes]:
    return [question.encode(id, close=i == len(asked) - 1) for i, (id, question) in enumerate(asked)]


async def plain(clients: Clients, rng: random.Random) -> None:
    asked = choose(clients, rng)
    clients.judge("plain", asked, await exchange(clients.port, encode_all(asked)))


async def ahead(clients: Clients, rng: random.Random) -> None:
    """Several requests are sent at once on one connection."""
    asked = choose(clients, rng, 4)
    clients.judge("ahead", asked, await exchange(clients.port, encode_all(asked)))


async def half_closed(clients: Clients, rng: random.Random) -> None:
    """The sending side is shut down behind the request."""
    asked = choose(clients, rng)

    async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
        await write_at_once(writer, data)
        writer.write_eof()

    clients.judge("half_closed", asked, await exchange(clients.port, encode_all(asked), write))


async def slow_sender(clients: Clients, rng: random.Random) -> None:
    asked = choose(clients, rng)

    async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
        cuts = sorted(rng.sample(range(1, len(data)), 4))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            await write_at_once(writer, data[start:end])
            await asyncio.sleep(rng.uniform(0.0, 0.2))

    clients.judge("slow_sender", asked, await exchange(clients.port, encode_all(asked), write))


async def slow_reader(clients: Clients, rng: random.Random) -> None:
    """The answers are too long for the buffers of both sides, and are read by a few kilobytes."""
    asked = choose(clients, rng, 8)

    async def read(reader: asyncio.StreamReader) -> bytes:
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        parts = []
        while part := await reader.read(4096):
            parts.append(part)
            await asyncio.sleep(0.002)
        return b"".join(parts)

    responses = await exchange(clients.port, encode_all(asked), read=read, receive_buffer=4096)
    clients.judge("slow_reader", asked, responses)


async def vanishing(clients: Clients, rng: random.Random) -> None:
    """Go away within the head, the body, the work or the answer, properly or not."""
    _, writer = await asyncio.open_connection("127.0.0.1", clients.port)
    data = choose(clients, rng)[0][1].encode("gone", close=False)
    writer.write(data[: rng.choice([rng.randrange(len(data)), len(data)])])
    await asyncio.sleep(rng.choice([0.0, rng.uniform(0.0, 0.3)]))
    if rng.random() < 0.5:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    clients.outcomes["vanishing", 0] += 1


async def garbage(clients: Clients, rng: random.Random) -> None:
    """What is no request, or none that can be answered, is refused or not answered; never served, never a 500."""
    body = rng.choice([b"{", b'{"inputs": [3], "q": 3}', b"[" * 5000, b'{"inputs": ["a"], "z": 1}', rng.randbytes(99)])
    path = rng.choice(["/v1/predict", "/v1/score", "/v1/inspect/steps", "/translate", "/nowhere"])
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    data = rng.choice([request, request, rng.randbytes(2000) + b"\r\n\r\n", b"\x16\x03\x01 tls\r\n\r\n"])
    try:
        responses = await exchange(clients.port, [data])
    except ConnectionError:  # closed on us, with bytes unread
        return
    for response in responses:
        clients.outcomes["garbage", response.status] += 1
        if not 400 <= response.status < 500:
            clients.problems.append(f"garbage: {data!r} got {response.status}")
    if len(responses) != 1:
        clients.problems.append(f"garbage: {data!r} got {len(responses)} responses")


async def hungry(clients: Clients, rng: random.Random) -> None:
    """Ask for more memory than a worker has."""
    body = {"inputs": ["abc", rng.choice(["block", "blocks"])], "model": "small", "beam": 1}
    question = Question("/v1/predict", body, "nothing")
    clients.judge("hungry", [("hungry", question)], await exchange(clients.port, [question.encode("hungry", True)]))


async def watching(clients: Clients, rng: random.Random) -> None:
    """The server's own process answers, whatever its workers do."""
    path = rng.choice(["/health/live", "/health/ready", "/metrics", "/v1/models"])
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    (response,) = await exchange(clients.port, [request])
    clients.outcomes["watching", response.status] += 1
    if response.status != 200 and (path, response.status) != ("/health/ready", 503):
        clients.problems.append(f"watching: {path} got {response.status}")


Manner = Callable[[Clients, random.Random], Any]
MANNERS: dict[Manner, int] = {
    plain: 8, ahead: 2, half_closed: 2, slow_sender: 2, slow_reader: 1, vanishing: 3, garbage: 2, hungry: 1, watching: 2
}  # fmt: skip
