"""Untrained models in folders of their own, and the real `dragoman serve` on a free port, ended as a service is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.checkpoint import kept_examples, model_folder
from dragoman.core.types import BOS, EOS, PAD, UNK, Example

LETTERS = "abcdefgh"
# What goes wrong in a worker when it is asked for it: --plugin brings it in.
FAULTS = """
import time
import torch
from dragoman.inference.pipeline import Pipeline

whole = Pipeline.stream

def stream(self, sources, *args, **options):
    for source in sources:
        if source.source == "boom":
            raise ValueError("a secret of ours")
        if source.source == "block":
            torch.empty(1 << 30)  # 4 GiB, which are never touched
        blocks = []
        while source.source == "blocks":
            blocks.append(torch.empty(1 << 22))
        while source.source == "stuck":
            try:
                time.sleep(60)
            except BaseException:
                pass
    return whole(self, sources, *args, **options)

Pipeline.stream = stream
"""

SMALL = {"name": "transformer", "layers": 1, "heads": 2}


def save(
    folder: Path,
    part: dict[str, Any],
    languages: tuple[str, ...] = (),
    kept: Sequence[Example] = (),
    **generation: Any,
) -> Path:
    """A model folder with random weights, so large that the model says something definite."""
    endless = generation.pop("endless", False)
    value = {
        "data": {"train": "nowhere.tsv"},
        "model": {"width": 16, "tie": "none", "encoder": part, "decoder": part},
        "generation": {"max_length_ratio": 1.0, "max_length_extra": 3, **generation},
    }
    config = configs.validate(value, "a test")
    tags = [f"<to:{language}>" for language in languages]
    source = config.tokenizer.source
    codec = learn_codec(source, source, config.tokenizer.joint, "nfc", [LETTERS], [LETTERS], tags)
    model = configs.build_model(config, len(codec.source), len(codec.target))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
        model.output.bias[[PAD, BOS, UNK]] = -1e4  # as a trained model, it never says these
        if endless:
            model.output.bias[EOS] = -1e4
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, kept_examples.to_files(kept))
    return folder


IMAGE = {"name": "image", "pixels": 32, "channels": 8, "stages": [1, 1]}
READER = {"name": "rnn", "cell": "gru"}
QUIET = {"name": "identity"}
MEDIA: dict[str, dict[str, Any]] = {
    "captions": {"frontend": IMAGE, "encoder": QUIET},
    "questions": {"encoder": READER, "second_source": {"frontend": IMAGE, "encoder": QUIET}},
    "speech": {"frontend": {"name": "audio", "rate": 8000, "bins": 24, "channels": 8}, "encoder": READER},
    "features": {"frontend": {"name": "features", "numbers": 5}, "encoder": READER},
    "clips": {
        "frontend": {"name": "video", "frames": 4, "pixels": 16, "channels": 8, "stages": [1]},
        "encoder": READER,
    },
}
SAYS = ["a red square at the left", "is it blue ?"]


def save_medium(folder: Path, model: dict[str, Any]) -> None:
    """A model of something else than text, with random weights."""
    columns = ["source", "second_source", "target"] if "second_source" in model else ["source", "target"]
    value = {
        "data": {"train": "nowhere.tsv", "columns": columns, "max_source": 100},
        "tokenizer": {"source": "words"},
        "model": {"width": 16, "tie": "none", "decoder": READER | {"order": "before"}, **model},
        "generation": {"max_length_ratio": 0.0, "max_length_extra": 6},
    }
    config = configs.validate(value, "a test")
    words, (medium, second) = config.tokenizer.source, configs.source_readers(config)
    codec = learn_codec(words, words, config.tokenizer.joint, "nfc", SAYS, SAYS, [], medium, second)
    built = configs.build_model(config, codec.source_size, len(codec.target), codec.second_source_size)
    with torch.no_grad():
        for p in built.parameters():
            p.mul_(1.5)
        built.output.bias[[PAD, BOS, UNK]] = -1e4
    model_folder.save(folder, config, model_folder.unique_weights(built), codec, {})


@pytest.fixture(scope="session")
def media_models(models: Path) -> Path:
    """Beside the models of texts, one of each kind of medium, and one of a question and an image."""
    pytest.importorskip("PIL")
    torch.manual_seed(11)
    for name, model in MEDIA.items():
        save_medium(models / name, model)
    return models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`small` answers at once, `tagged` knows two languages, `endless` goes on for a minute, and so does `plodding`.

    A Transformer's greedy search goes to the CPU's engines, an RNN's and those with constraints the plain way.
    """
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(7)
    rnn = {"name": "rnn", "cell": "gru"}
    save(folder / "small", SMALL, kept=[Example("abcd", "dcba")])
    save(folder / "tagged", SMALL, ("de", "fr"))
    save(folder / "endless", SMALL, max_length_extra=900, endless=True)
    save(folder / "plodding", rnn, max_length_extra=200_000, endless=True)
    return folder


SETTINGS = ("--set", "spare=false")  # a test that needs no spare worker does not wait for its imports


class RunningServer:
    """A running server: its address, its process, what it printed."""

    def __init__(self, folder: Path, args: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", "serve", *SETTINGS, *args, "--port", "0", "--device", "cpu"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.errors: list[str] = []
        self.reading = threading.Thread(target=self._read_errors, daemon=True)
        self.reading.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # comes when it is ready, or ends with the process
        found = re.search(r"http://\S+", line)
        assert found, f"{line}{self.stderr()}"
        self.line, self.url = line, found.group()
        self.client = httpx.Client(base_url=self.url, timeout=30.0, limits=httpx.Limits(max_connections=None))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def stderr(self) -> str:
        if self.process.poll() is not None:
            self.reading.join(10)
        return "".join(self.errors)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def predict(self, *inputs: Any, **options: Any) -> httpx.Response:
        return self.client.post("/v1/predict", json={"inputs": list(inputs), **options})

    def metric(self, name: str) -> float:
        """The value of a series of /metrics, 0 where it has not begun."""
        for line in self.client.get("/metrics").text.split("\n"):
            if line.startswith(f"{name} "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def workers(self) -> list[int]:
        """The processes that compute, or load what they need for that."""
        return self.children("dragoman-worker")

    def children(self, name: str = "") -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [pid for pid in map(int, path.read_text().split()) if name in command(pid)]

    def stop(self) -> int:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.fixture(scope="session")
def start(models: Path) -> Iterator[Callable[..., RunningServer]]:
    """Start a server on some of the models; whoever starts it stops it, but none outlives the tests."""
    started: list[RunningServer] = []

    def one(*args: str) -> RunningServer:
        started.append(RunningServer(models, args))
        return started[-1]

    yield one
    for running in started:
        running.client.close()
        running.process.kill()
        running.process.wait(10)


@pytest.fixture(scope="session")
def server(start: Callable[..., RunningServer]) -> Iterator[RunningServer]:
    """One server on all models, with one worker, for tests that leave it as it was."""
    running = start("small", "tagged", "endless", "plodding", "--workers", "1")
    yield running
    assert running.stop() == 0, running.stderr()
    assert "Traceback" not in running.stderr(), running.stderr()


@pytest.fixture(scope="session")
def narrow(start: Callable[..., RunningServer], models: Path) -> Iterator[RunningServer]:
    """One with room for 8 requests of "abc" and a beam of 1, short deadlines, and faults on request.

    It waits long enough for requests to meet in a job.
    """
    (models / "faults.py").write_text(FAULTS, encoding="utf-8")
    settings = ["queue_tokens=32", "batch_wait_ms=150", "deadline_s=2", "cancel_s=1.5", "spare=true"]
    limits = [text for setting in settings for text in ("--set", setting)]
    running = start("small", "endless", "plodding", "--workers", "1", "--plugin", "faults", *limits)
    yield running
    assert running.stop() == 0, running.stderr()


@pytest.fixture(scope="session")
def until() -> Callable[..., float]:
    """Wait until a condition holds; how long that took."""

    def wait(condition: Callable[[], Any], seconds: float = 10.0) -> float:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, f"not within {seconds} s"
            time.sleep(0.01)
        return time.monotonic() - began

    return wait


@pytest.fixture(scope="session")
def events() -> Callable[[str], list[tuple[str, Any]]]:
    """Server-sent events: their names and data."""

    def read(text: str) -> list[tuple[str, Any]]:
        blocks = [block.split("\n") for block in text.strip().split("\n\n")]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]

    return read
