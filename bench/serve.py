"""Requests a second of the real `dragoman serve`, against the same model called in a loop without batching.

    a loop     for text in sources: model.predict([text])       in one process, and in as many as the server has workers
    C clients  each with one connection and one request at a time, one text in each

Everyone takes turns and has the same sources, weights and threads. The clients are asyncio streams in one process; its
share of a core is told beside what they measured: where that nears 100 %, they are the limit and not the server. With
--overload N, N clients meet a server that has room for 8 requests; who is refused comes back when Retry-After says so,
give or take half of it, and another process asks all the while whether the server is alive.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import numpy as np

from bench import task, timing
from bench.decode import write_model
from bench.timing import Measurement, Turn
from dragoman.core.errors import UserError
from dragoman.core.types import SPECIALS

TOKENS = 20  # of a generated model's sources and results
SOURCES = 200  # of which each is asked for in its turn
COMPARED = 20  # of them whose results are compared
CAPACITY = 8  # requests that the server of the overload has room for
END_S = 40  # seconds that a server has to end

# Sources come first, and a few results go back; then a line is the seconds of a turn, the answer every call's latency.
LOOP = """
import json, sys, time
import torch
torch.set_num_threads(int(sys.argv[3]))
import dragoman
from dragoman.core.types import Example
model = dragoman.load(sys.argv[1], sys.argv[2], precision=sys.argv[4])
beam = json.loads(sys.argv[5])
sources = [Example(**item) for item in json.loads(sys.stdin.readline())]
print(json.dumps([model.predict([one], beam=beam)[0].text for one in sources[:int(sys.argv[6])]]), flush=True)
i = 0
for line in sys.stdin:
    seconds, latencies, start = float(line), [], time.perf_counter()
    while not latencies or time.perf_counter() - start < seconds:
        began = time.perf_counter()
        model.predict([sources[i % len(sources)]], beam=beam)
        latencies.append(time.perf_counter() - began)
        i += 1
    print(json.dumps(latencies), flush=True)
"""
# A new connection each time, as a watcher makes them.
WATCH = """
import http.client, json, sys, time
port, end, latencies = int(sys.argv[1]), time.monotonic() + float(sys.argv[2]), []
while not latencies or time.monotonic() < end:
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/health/live")
    assert connection.getresponse().status == 200
    connection.close()
    latencies.append(time.perf_counter() - began)
    time.sleep(0.01)
print(json.dumps(latencies))
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = command.add_argument
    add("model", nargs="?", help="a run folder or a model folder; default: a Transformer of --shape, random weights")
    add("--clients", type=int, nargs="+", default=[1, 8, 64], help="how many ask at the same time")
    add(
        "--overload",
        type=int,
        default=0,
        help=f"clients of a server with room for {CAPACITY} requests; 0: no such server",
    )
    add("--beam", type=int, help="1 is greedy; default: the model's own search")
    add("--workers", type=int, help="processes of the server; default: its own")


def run(options: argparse.Namespace) -> timing.CommandResult:
    """Measure the loops and the server; the results for the record, and the lines to print."""
    with tempfile.TemporaryDirectory() as temporary:
        model = options.model or str(Path(temporary) / "model")
        if options.model is None:
            shape = task.SHAPES[options.shape]
            if shape.preset == "pronunciation":
                raise UserError("serve generates Transformers; take --shape tiny or base, or name a model")
            write_model(Path(model), shape, TOKENS)
        with start_server(model, options) as server:
            sources = random_sources(options) if options.model is None else server.examples()
            cost = server.cost(sources, options.beam)
            contenders = make_contenders(server, model, sources, options)
            try:
                results: dict[str, Any] = {"same": agreement(server, contenders, sources, options.beam)}
                results["rates"] = measure(contenders, options)
            finally:
                for contender in contenders.values():
                    contender.end()
        if options.overload:
            with start_server(model, options, f"queue_tokens={cost}") as server:
                results["overload"] = overload(server, sources, options)
    return results, format_report(results)


def random_sources(options: argparse.Namespace) -> list[dict[str, str]]:
    """Sources for a generated model, all of one length."""
    rng, shape = np.random.default_rng(options.seed), task.SHAPES[options.shape]
    rows = rng.integers(len(SPECIALS), shape.vocabulary, (SOURCES, TOKENS - 1))
    return [{"source": " ".join(f"{i:06}" for i in row)} for row in rows.tolist()]


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen[str]
    port: int

    def request(self, path: str, body: Any = None) -> Any:
        """Send a request and parse the JSON of its answer."""
        data = None if body is None else json.dumps(body).encode()
        http_request = Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
        with urlopen(http_request, timeout=120) as answer:
            return json.load(answer)

    def examples(self) -> list[dict[str, str]]:
        """Sources that fit the model: of its validation file where that is, else made of its vocabulary."""
        pairs = self.request("/v1/inspect/examples", {"count": SOURCES})["pairs"]
        kept = ("source", "source_lang", "target_lang")
        return [{key: pair[key] for key in kept if pair[key] is not None} for pair in pairs]

    def cost(self, sources: Sequence[dict[str, str]], beam: int | None) -> int:
        """The tokens that CAPACITY requests count, each once for every hypothesis that is kept."""
        kept = beam or self.request("/v1/models")["models"][0]["search"]["beam"]
        results = self.request("/v1/predict", {"inputs": list(sources), "max_new_tokens": 1, "beam": 1})["results"]
        sizes = [len(result["source_tokens"]) * kept for result in results]
        return max(CAPACITY * sum(sizes) // len(sizes), *sizes)

    def memory(self) -> float:
        """MiB that the server and its workers hold."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return sum(map(resident_mib, [self.process.pid, *map(int, children)]))


def resident_mib(pid: int) -> float:
    """MiB of memory that a process holds."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().split("\n") if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@contextmanager
def start_server(model: str, options: argparse.Namespace, *limits: str) -> Iterator[Server]:
    """A server on a port of its own, ended as a service is."""
    command = [sys.executable, "-m", "dragoman", "serve", f"bench={model}", "--port", "0", "--device", options.device]
    command += ["--precision", options.precision]
    command += ["--workers", str(options.workers)] if options.workers else []
    for limit in (f"threads={options.threads}", *limits):
        command += ["--set", limit]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        match = re.search(r"http://[\d.]+:(\d+)", process.stdout.readline())
        if match is None:
            raise UserError("the server did not start; it says why above")
        yield Server(process, int(match.group(1)))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(END_S)


# -- contenders --------------------------------------------------------------------------------------------------------


class LoopProcesses:
    """The model in processes of their own, each calling it for one source after the other."""

    def __init__(self, count: int, model: str, sources: list[dict[str, str]], options: argparse.Namespace) -> None:
        self.seconds, self.latencies, self.busy = options.seconds, list[list[float]](), list[float]()
        settings = [options.device, str(options.threads), options.precision, json.dumps(options.beam), str(COMPARED)]
        command = [sys.executable, "-c", LOOP, str(model), *settings]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        self._send(json.dumps(sources))
        first = self._receive()
        if not all(first):
            raise UserError("the model cannot be called in a loop; see the messages above")
        self.results: list[str] = json.loads(first[0])  # of the first few sources

    def __call__(self) -> Turn:
        start = time.perf_counter()
        self._send(str(self.seconds))
        latencies_by_process = [json.loads(line) for line in self._receive()]
        self.latencies.append([latency for some in latencies_by_process for latency in some])
        return Turn(len(self.latencies[-1]), time.perf_counter() - start)

    def _send(self, line: str) -> None:
        for process in self.processes:
            assert process.stdin is not None
            print(line, file=process.stdin, flush=True)

    def _receive(self) -> list[str]:
        return [process.stdout.readline() for process in self.processes if process.stdout is not None]

    def end(self) -> None:
        """Wait for the processes to end."""
        for process in self.processes:
            process.communicate(timeout=END_S)


@dataclass
class Clients:
    """Some clients of a server, which all ask for as long as a turn lasts."""

    port: int
    count: int
    requests: Iterator[bytes]
    seconds: float
    latencies: list[list[float]] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)  # their share of a core, of each turn

    def __call__(self) -> Turn:
        start, began = time.perf_counter(), time.process_time()
        answers = asyncio.run(drive(self.port, self.count, self.requests, self.seconds))
        spent = time.perf_counter() - start
        refused = {answer.status for answer in answers} - {200}
        if refused:
            raise UserError(f"the server answered with {min(refused)}; fewer --clients may fit its limits")
        self.latencies.append([answer.seconds for answer in answers])
        self.busy.append((time.process_time() - began) / spent)
        return Turn(len(answers), spent)

    def end(self) -> None:
        """Nothing to end: connections are closed after each turn."""


def make_contenders(
    server: Server, model: str, sources: list[dict[str, str]], options: argparse.Namespace
) -> dict[str, LoopProcesses | Clients]:
    """The loops, then the server with each number of clients."""
    workers = server.request("/health/ready")["workers"]
    loops = [1] if workers == 1 else [1, workers]
    contenders: dict[str, LoopProcesses | Clients] = {
        f"a loop in {count} process{'es' * (count > 1)}": LoopProcesses(count, model, sources, options)
        for count in loops
    }
    requests = itertools.cycle([encode_request(source, options.beam) for source in sources])
    for count in options.clients:
        name = f"the server, {count} client{'s' * (count > 1)}"
        contenders[name] = Clients(server.port, count, requests, options.seconds)
    return contenders


def agreement(
    server: Server, contenders: dict[str, LoopProcesses | Clients], sources: Sequence[dict[str, str]], beam: int | None
) -> str:
    """How many results of the server, searched together, are those of the loop, searched one by one."""
    body = {"inputs": list(sources[:COMPARED])} | ({} if beam is None else {"beam": beam})
    texts = [result["text"] for result in server.request("/v1/predict", body)["results"]]
    loop = next(iter(contenders.values()))
    assert isinstance(loop, LoopProcesses)
    alike = sum(a == b for a, b in zip(texts, loop.results, strict=True))
    return f"the server and the loop have the same text for {alike} of {len(texts)} sources"


# -- HTTP, as cheaply as can be ----------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a client got."""

    status: int
    seconds: float
    retry_after: float


def encode_request(source: dict[str, str], beam: int | None) -> bytes:
    """A predict request as the bytes of HTTP."""
    body = json.dumps({"inputs": [source]} | ({} if beam is None else {"beam": beam})).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


async def send_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> Answer:
    """Send a request over an open connection and wait for the whole answer."""
    began = time.perf_counter()
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    fields = dict(re.findall(r"\r\n(content-length|retry-after): (\d+)", head))
    await reader.readexactly(int(fields["content-length"]))
    return Answer(int(head[9:12]), time.perf_counter() - began, float(fields.get("retry-after", 0)))


async def drive(port: int, clients: int, requests: Iterator[bytes], seconds: float) -> list[Answer]:
    """The answers to clients that each ask at least once, and until the time is over."""
    answers: list[Answer] = []
    end = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            answers.append(await send_request(reader, writer, next(requests)))
            if time.perf_counter() >= end:
                break
            if answers[-1].status != 200:
                writer.close()
                wait = answers[-1].retry_after * random.uniform(0.5, 1.5)
                await asyncio.sleep(max(min(wait, end - time.perf_counter()), 0.0))
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


# -- measuring ---------------------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def measure(contenders: dict[str, LoopProcesses | Clients], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Rates and latencies of everyone, without the first turns."""
    warm = 1
    rates: dict[str, Measurement] = timing.measure_in_turns(contenders, options.repeats, warm)
    rows: dict[str, dict[str, Any]] = {}
    for name, one in contenders.items():
        latencies = [1000 * latency for turn in one.latencies[warm:] for latency in turn]
        rows[name] = {
            "requests/s": rates[name],
            "p50 ms": percentile(latencies, 0.5),
            "p99 ms": percentile(latencies, 0.99),
            "clients' share of a core": max(one.busy[warm:], default=None),
        }
    return rows


def overload(server: Server, sources: Sequence[dict[str, str]], options: argparse.Namespace) -> dict[str, Any]:
    """What becomes of many clients where there is room for few, after as many have been there once."""
    requests = itertools.cycle([encode_request(source, options.beam) for source in sources])
    asyncio.run(drive(server.port, options.overload, requests, options.seconds))
    before, seconds = server.memory(), options.seconds * options.repeats
    command = [sys.executable, "-c", WATCH, str(server.port), str(seconds)]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    start = time.perf_counter()
    answers = asyncio.run(drive(server.port, options.overload, requests, seconds))
    spent = time.perf_counter() - start
    output, _ = watcher.communicate(timeout=END_S + seconds)
    accepted = [1000 * answer.seconds for answer in answers if answer.status == 200]
    refused = [1000 * answer.seconds for answer in answers if answer.status in (429, 503)]
    return {
        "clients": options.overload,
        "answers": len(answers),
        "accepted/s": len(accepted) / spent,
        "accepted p50 ms": percentile(accepted, 0.5),
        "accepted p99 ms": percentile(accepted, 0.99),
        "429 or 503": f"{len(refused) / len(answers):.1%}",
        "their p99 ms": percentile(refused, 0.99) if refused else None,
        "anything else": len(answers) - len(accepted) - len(refused),
        "live p99 ms": percentile([1000 * latency for latency in json.loads(output)], 0.99),
        "MiB before": before,
        "MiB after": server.memory(),
    }


def format_report(results: dict[str, Any]) -> list[str]:
    """The tables and ratios to print."""
    rates = results["rates"]
    rows = [
        {"who": name}
        | {key: ("" if value is None else f"{value:.0%}" if "share" in key else value) for key, value in row.items()}
        for name, row in rates.items()
    ]
    lines = [results["same"], timing.markdown_table(rows), ""]
    if "overload" in results:
        kept = {name: value for name, value in results["overload"].items() if value is not None}
        lines += [timing.markdown_table([{"overload": name, "": value} for name, value in kept.items()]), ""]
    loops = [name for name in rates if name.startswith("a loop")]
    for name in [name for name in rates if name not in loops]:
        for loop in loops:
            ratio = timing.ratio(rates[name]["requests/s"], rates[loop]["requests/s"])
            lines.append(f"{name} / {loop}: {ratio}")
    return lines
