"""Models, inputs and ledgers at URLs: what stores do wrong for a while is tried again, and loses nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.core import processes, remote
from dragoman.core.errors import MissingExtra, RunError, UserError
from dragoman.jobs.merge import merge, read_all
from dragoman.jobs.status import read_status

from .fake_job import SHARDS, begun, computing, drive, expected, open_ledger, write_lines

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

pytestmark = pytest.mark.skipif(not processes.can_fork(), reason="workers need Linux")


class FaultyStore(MemoryFileSystem):
    """A store in memory that is at times too slow, or keeps half of an object."""

    protocol = "faulty"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    rng = random.Random()
    rate = 0.0  # of calls that fail
    faults = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("faulty://", "memory://"))

    def fail(self) -> bool:
        failing = self.rng.random() < self.rate
        FaultyStore.faults += failing
        return failing

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        if self.fail():
            if self.rng.random() < 0.5:
                super().pipe_file(path, value[: self.rng.randint(0, len(value))], **options)  # half of it is there
            raise TimeoutError("read timeout")
        super().pipe_file(path, value, **options)

    def cat_file(self, path: str, *args: Any, **options: Any) -> bytes:
        if self.fail():
            raise ConnectionError("connection reset")
        data: bytes = super().cat_file(path, *args, **options)
        return data

    def ls(self, path: str, *args: Any, **options: Any) -> Any:
        if self.fail():
            raise TimeoutError("read timeout")
        return super().ls(path, *args, **options)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FaultyStore]]:
    monkeypatch.setattr(remote, "FIRST_DELAY_S", 0.0)
    monkeypatch.setattr(remote, "TRIES", 12)
    fsspec.register_implementation("faulty", FaultyStore, clobber=True)
    FaultyStore.store.clear()
    FaultyStore.pseudo_dirs[:] = [""]
    FaultyStore.rng, FaultyStore.faults = random.Random(torch.initial_seed()), 0
    yield FaultyStore
    FaultyStore.rate = 0.0


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_ledger_at_a_url_gives_what_one_in_a_folder_gives(
    rate: float, store: type[FaultyStore], tmp_path: Path
) -> None:
    file, log, url = write_lines(tmp_path), tmp_path / "log", "faulty://bucket/work"
    store.rate = rate
    drive(url, file, log, compute=computing(log, 0.0))  # type: ignore[arg-type]
    ledger = open_ledger(url, file)  # type: ignore[arg-type]
    assert b"".join(read_all(ledger)) == expected(file)
    assert sorted(number for number, _ in begun(log)) == list(range(SHARDS))
    status = read_status(ledger)
    assert status.is_complete
    assert status.folder == url
    assert (store.faults > 0) == (rate > 0)
    with pytest.raises(UserError, match="--beam was 5 and is 6"):
        ledger.check_same("predict", {"--beam": 6}, list(ledger.job.inputs), ledger.job.shard_size)


def test_a_half_written_object_is_found_and_computed_again(store: type[FaultyStore], tmp_path: Path) -> None:
    file, log, url = write_lines(tmp_path), tmp_path / "log", "faulty://bucket/work"
    drive(url, file, log, compute=computing(log, 0.0))  # type: ignore[arg-type]
    ledger, system = open_ledger(url, file), FaultyStore()  # type: ignore[arg-type]
    whole = system.cat_file("/bucket/work/shard-000007.result")
    system.pipe_file("/bucket/work/shard-000007.result", whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"faulty://bucket/work/shard-000007.result: was changed or damaged"):
        merge(ledger, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    system.rm_file("/bucket/work/shard-000007.result")
    drive(url, file, log, compute=computing(log, 0.0))  # type: ignore[arg-type]
    merge(ledger, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == expected(file)


def test_a_store_that_is_gone_is_one_sentence(store: type[FaultyStore], tmp_path: Path) -> None:
    file, log, url = write_lines(tmp_path), tmp_path / "log", "faulty://bucket/work"
    drive(url, file, log, compute=computing(log, 0.0))  # type: ignore[arg-type]
    store.rate = 1.0
    with pytest.raises(RunError, match=r"failed 12 times: read timeout; run the same command again") as caught:
        open_ledger(url, file)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_file_and_a_model_are_fetched(store: type[FaultyStore]) -> None:
    system = FaultyStore()
    for name, data in {
        "data/a.txt": b"a\n",
        "runs/x/best": b"step-2\n",
        "runs/x/checkpoints/step-2/manifest.json": b"{}",
        "runs/x/checkpoints/step-2/model.safetensors": b"weights",
        "runs/x/checkpoints/step-2/training.safetensors": b"large",
        "runs/bad/last": b"../../../etc",
        "none/a": b"",
    }.items():
        system.pipe_file(f"/bucket/{name}", data)
    assert remote.fetch_file("faulty://bucket/data/a.txt").read_bytes() == b"a\n"
    model = remote.fetch_model("faulty://bucket/runs/x")
    assert {path.name: path.read_bytes() for path in model.iterdir()} == {
        "manifest.json": b"{}",
        "model.safetensors": b"weights",
    }
    for url, sentence in [
        ("faulty://bucket/runs/bad", "names no checkpoint"),
        ("faulty://bucket/none", "there is no model"),
        ("faulty://bucket/nowhere", "there is no model"),
        ("faulty://bucket/a.zip", "there is no such file"),
    ]:
        with pytest.raises(UserError, match=sentence):
            remote.fetch_model(url)


def test_a_store_without_its_package_is_named_with_the_extra() -> None:
    with pytest.raises(UserError, match="no-such-store"):
        remote.RemoteFolder("no-such-store://a/b")
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtra, match=r"dragoman\[remote\]"):
            remote.RemoteFolder("s3://bucket/a")
