"""A stranger's model or run folder is refused in one sentence: soon, with flat memory, and nothing outside it read.

Its manifest is signed by the stranger, so every file is what the manifest says.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.core import yaml
from dragoman.core.errors import ModelError, UserError
from dragoman.text.vocabulary import TokenizerFile

from .test_model_folder import contents, learned, save, sign, sign_manifest, tiny

MEMORY = 100  # MB
SECONDS = 1.0  # of our own time: the machine may be busy
HUGE = 8 * 2**30


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save(folder, tiny())
    model_folder.load(folder)  # what is imported on the way is no stranger's doing
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A run folder with two checkpoints."""
    run = tmp_path / "run"
    for step in (1, 2):
        shutil.copytree(original, run / "checkpoints" / f"step-{step}")
    (run / "run.json").write_text('{"format": 1}')
    (run / "best").write_text("step-1\n")
    (run / "last").write_text("step-2\n")
    return run


def memory(key: str) -> int:
    """Megabytes of this process: VmRSS, or the peak VmHWM."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(key))) // 1024


@contextmanager
def cheap() -> Iterator[None]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before, start = memory("VmRSS"), time.process_time()
    yield
    assert time.process_time() - start < SECONDS
    assert memory("VmHWM") - before < MEMORY


def refused(path: Path) -> str:
    """The sentence with which a folder is refused."""
    with cheap(), pytest.raises(UserError) as caught:
        model_folder.load(path)
    text = str(caught.value)
    assert text.count("\n") <= 1  # a config's problem stands on its own line
    assert len(text) < 1000
    return text


def sparse(path: Path, size: int) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def declare(folder: Path, sizes: dict[str, int]) -> None:
    """List files in the manifest with a size and some checksum: nobody should get as far as computing it."""
    value = json.loads((folder / "manifest.json").read_text())
    del value["sha256"]
    value["files"] |= {name: {"bytes": size, "sha256": "0" * 64} for name, size in sizes.items()}
    sign_manifest(folder, value)


# -- absurd sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        {"width": 40_000},
        {"width": 10**9},
        {"width": 10**18},
        {"width": 10**30},
        {"encoder": {"name": "transformer", "layers": 10**6, "heads": 2}},
        {"decoder": {"name": "transformer", "layers": 10**6, "heads": 2}},
        {"encoder": {"name": "transformer", "layers": 1, "heads": 2, "feedforward": 10**12}},
        {"encoder": {"name": "transformer", "layers": 1, "heads": 10**9, "position": "alibi"}},
        {"encoder": {"name": "transformer", "layers": 1, "heads": 2, "position": {"name": "xl", "distance": 10**10}}},
        {
            "encoder": {
                "name": "transformer",
                "layers": 1,
                "heads": 2,
                "position": {"name": "t5", "buckets": 10**9, "distance": 10**10},
            }
        },
        {"encoder": {"name": "rnn", "layers": 10**6}},
        {"encoder": {"name": "conv", "kernel": 10**9 + 1}},
        {"encoder": {"name": "conv", "layers": 10**7}},
        {"width": 2, "encoder": {"name": "rnn", "layers": 10**7}, "decoder": {"name": "rnn"}, "tie": "none"},
    ],
    ids=str,
)
def test_a_config_with_absurd_sizes_is_refused_before_anything_is_allocated(
    folder: Path, model: dict[str, Any]
) -> None:
    value = yaml.read(folder / "config.yaml")
    value["model"] = {key: item for key, item in value["model"].items() if key not in model} | model
    (folder / "config.yaml").write_text(yaml.dump(value))
    sign(folder)
    assert "config.yaml" in refused(folder)


@pytest.mark.parametrize("name", ["n" * 5_000, "n" * 201, "ü" * 101])
def test_a_name_that_is_too_long_for_a_folder_is_refused(folder: Path, name: str) -> None:
    value = yaml.read(folder / "config.yaml")
    (folder / "config.yaml").write_text(yaml.dump(value | {"name": name}))
    sign(folder)
    assert "name: " in refused(folder)


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml", "joint.tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("size", [HUGE, 400 * 2**20])
def test_a_file_of_an_absurd_size_is_refused_unread(folder: Path, name: str, size: int) -> None:
    if name != "manifest.json":
        declare(folder, {name: size})
    sparse(folder / name, size)
    assert f"{size:,}" in refused(folder)


def test_a_training_state_of_an_absurd_size_is_refused_unread(folder: Path) -> None:
    for name in ("training.safetensors", "training.json", "notes.txt", "more.safetensors"):
        copy = Path(shutil.copytree(folder, folder.with_name(name)))
        declare(copy, {name: HUGE})
        sparse(copy / name, HUGE)
        assert name in refused(copy)


def test_a_header_that_fills_the_file_does_not_stretch_the_limits(folder: Path) -> None:
    sparse(folder / "model.safetensors", HUGE)
    with (folder / "model.safetensors").open("r+b") as file:
        file.write((HUGE - 8).to_bytes(8, "little"))
    declare(folder, {"model.safetensors": HUGE})
    assert f"{HUGE:,}" in refused(folder)


def test_a_vocabulary_much_larger_than_the_weights_is_refused_with_flat_memory(folder: Path) -> None:
    tokens = tuple(f"{i:x}" for i in range(180_000))
    data = TokenizerFile(kind="characters", extra=(), tokens=tokens).to_bytes()
    assert 0.8 < len(data) / model_folder.MIN_SMALL_BYTES < 1
    (folder / "joint.tokenizer.json").write_bytes(data)
    sign(folder)
    assert "config.yaml" in refused(folder)
    (folder / "joint.tokenizer.json").write_bytes(data + b" " * 500_000)
    sign(folder)
    assert "tokenizer" in refused(folder)


def test_a_model_that_would_be_refused_is_not_written(tmp_path: Path) -> None:
    config = tiny()
    codec = learned(config)
    codec.source.vocabulary = type(codec.source.vocabulary)(["w" * 3_000_000])  # type: ignore[attr-defined]
    model = configs.build_model(config, len(codec.source), len(codec.target))
    with pytest.raises(ModelError, match="vocabularies"):
        model_folder.save(tmp_path / "m", config, model_folder.unique_weights(model), codec, {})
    assert not list(tmp_path.iterdir())


def test_a_manifest_of_many_files_or_long_names_is_refused(folder: Path) -> None:
    declare(folder, {"a" * 5_000: 3})
    assert "not a plain file name" in refused(folder)
    declare(folder, {f"a{i}": 3 for i in range(200)})
    assert "manifest.json" in refused(folder)


# -- not plain files ---------------------------------------------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def listener(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(here)


KINDS: list[Callable[[Path], None]] = [fifo, zeros, loop, listener, Path.mkdir, lambda path: sparse(path, HUGE)]
every_kind = pytest.mark.parametrize("make", KINDS, ids=["fifo", "zeros", "loop", "socket", "folder", "sparse"])


@every_kind
@pytest.mark.parametrize("name", ["manifest.json", "config.yaml", "joint.tokenizer.json", "model.safetensors"])
def test_only_plain_files_of_a_model_are_opened(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    (folder / name).unlink()
    make(folder / name)
    refused(folder)


@every_kind
def test_a_pointer_that_is_no_plain_file_points_nowhere(run: Path, make: Callable[[Path], None]) -> None:
    (run / "best").unlink()
    make(run / "best")
    with cheap():
        assert model_folder.resolve(run).name == "step-2"
    (run / "last").unlink()
    make(run / "last")
    assert "neither a model folder" in refused(run)


@every_kind
def test_a_format_file_that_is_no_plain_file_is_no_format(run: Path, make: Callable[[Path], None]) -> None:
    (run / "run.json").unlink()
    make(run / "run.json")
    assert "no format" in refused(run)


@pytest.mark.parametrize("text", ["a" * 200, "a" * 5_000, "step-1" + "\n" * 10_000])
def test_a_pointer_with_too_long_a_name_points_nowhere(run: Path, text: str) -> None:
    (run / "best").write_text(text)
    assert model_folder.resolve(run).name == "step-2"


@pytest.mark.parametrize("inside", ["checkpoints", "checkpoints/step-1"])
def test_a_checkpoint_outside_the_run_is_not_opened(run: Path, inside: str) -> None:
    outside = run.parent / "outside"
    (run / inside).rename(outside)
    (run / inside).symlink_to(outside)
    assert "link" in refused(run)
    assert not [p for p in model_folder.list_checkpoints(run) if p.is_symlink()]


@pytest.mark.parametrize("name", ["m" * 5_000, "a/" * 3_000, "\0", "/dev/zero", "/dev/stdin"])
def test_what_is_no_folder_at_all_is_refused(name: str) -> None:
    with cheap(), pytest.raises(ModelError, match="no such model"):
        model_folder.load(name)


def test_the_folders_of_these_tests_load_unless_they_are_changed(folder: Path, run: Path) -> None:
    sign(folder)
    assert contents(folder).keys() >= {"config.yaml", "model.safetensors"}
    with cheap():
        model_folder.load(folder)
        model_folder.load(run)
