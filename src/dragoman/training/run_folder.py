"""The folder that tells everything about a run.

    run.json  config.yaml  env.json  metrics.jsonl  replay.jsonl  train.log  checkpoints/step-N/  best  last  finished

`run.json` holds the format of the folder (core/formats.py). `best` and `last` are files that hold a checkpoint's name,
`finished` one that holds the last step of a run that ended.

One process at a time may train in a folder: it holds a lock that ends with the process, however the process ends. Of
several ranks the first is that process; the others only read.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dragoman.config import Config, validate
from dragoman.core import files, yaml
from dragoman.core.errors import RunError, UserError
from dragoman.core.formats import FORMAT, RUN_FILE, check_run_format
from dragoman.core.json import finite
from dragoman.version import __version__

# No weight depends on these.
FREE_TO_CHANGE = (
    *("data.workers", "data.cache", "training.rank_timeout", "training.replay"),
    *("runtime.tensorboard", "runtime.threads", "runtime.precision", "runtime.workers"),
)


class RunFolder:
    """Paths and small files of a run; one that does not write leaves them all to another rank."""

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.checkpoints = path / "checkpoints"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; a second training is refused, a dead one's lock is free by itself."""
        if not self.writes:
            yield
            return
        fresh = not self.path.exists()
        files.make_folder(self.path)
        with files.writing(self.path / ".lock", 0):
            handle = (self.path / ".lock").open("a+", encoding="utf-8")
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                handle.seek(0)
                holder = handle.read().strip() or "unknown"
                raise RunError(
                    f"{self.path}: in use by pid {holder}; wait for it, or choose another folder with --run"
                ) from None
            handle.truncate(0)
            handle.write(f"{os.getpid()}\n")
            handle.flush()
            try:
                yield
            except UserError:
                if fresh and {entry.name for entry in self.path.iterdir()} <= {".lock", "train.log"}:
                    shutil.rmtree(self.path, ignore_errors=True)  # nothing came of it: leave nothing behind
                raise

    # -- format and config ---------------------------------------------------------------------------------------------

    def check_format(self) -> None:
        """Refuse a run that another version of Dragoman began."""
        if self.checkpoints.is_dir():
            check_run_format(self.path)

    def settle(self, config: Config, allowed: Sequence[str], fresh: bool) -> None:
        """Write format and config of a new run; refuse a config that differs from an old run's, key by key."""
        saved = self.path / "config.yaml"
        if saved.exists() and not fresh:
            changes = [
                (key, old, new)
                for key, old, new in differences(
                    _without_paths(validate(yaml.read(saved), str(saved))), _without_paths(config)
                )
                if not any(key == free or key.startswith(free + ".") for free in (*FREE_TO_CHANGE, *allowed))
            ]
            if changes:
                table = "\n".join(f"  {key}: was {old!r}, is now {new!r}" for key, old, new in changes)
                raise RunError(
                    f"{self.path}: this run was started with another config:\n{table}\n"
                    "Start a new run with --run DIR, or accept a change with --allow-change KEY"
                )
        self._write(RUN_FILE, json.dumps({"format": FORMAT}) + "\n")  # first: what has a config has a format
        self._write("config.yaml", config.text())

    def describe_machine(self, device: torch.device, threads: int, ranks: int) -> None:
        facts = {
            "dragoman": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": platform.platform(),
            "device": str(device) if device.type != "cuda" else torch.cuda.get_device_name(device),
            "threads": threads,
            "ranks": ranks,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        self._write("env.json", json.dumps(facts, indent=1) + "\n")

    # -- metrics and log -----------------------------------------------------------------------------------------------

    def record(self, values: dict[str, Any]) -> None:
        """One more line of metrics.jsonl; JSON has no NaN and no infinity, so they become null."""
        self._append("metrics.jsonl", json.dumps(finite(values)))

    def record_frame(self, values: dict[str, Any]) -> None:
        """One more line of replay.jsonl."""
        self._append("replay.jsonl", json.dumps(values, allow_nan=False))

    def cut_back(self, step: int, validated: int) -> None:
        """Forget what was recorded after a checkpoint (a validation may be of its very step): it will happen again."""
        last = {"train": step, "valid": validated}
        self._cut("metrics.jsonl", lambda values: values["step"] <= last.get(values["kind"], -1))
        self._cut("replay.jsonl", lambda values: values["step"] <= step)

    @property
    def seconds(self) -> float:
        """Time spent training, as last recorded; not in a checkpoint, which is the same bytes however long it took."""
        path = self.path / "metrics.jsonl"
        if not self.writes or not path.exists():
            return 0.0
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return max((line["seconds"] for line in lines if line["kind"] == "train"), default=0.0)

    def _cut(self, name: str, stays: Callable[[dict[str, Any]], bool]) -> None:
        path = self.path / name
        if not self.writes or not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").split("\n"):
            try:
                if stays(json.loads(line)):
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue  # a line that was being written when the process was killed
        self._write(name, "".join(line + "\n" for line in kept))

    def log(self, text: str) -> None:
        self._append("train.log", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def _append(self, name: str, line: str) -> None:
        if not self.writes:
            return
        data = f"{line}\n".encode()
        with files.writing(self.path / name, len(data)), (self.path / name).open("ab") as file:
            file.write(data)

    def _write(self, name: str, text: str) -> None:
        if self.writes:
            files.write(self.path / name, text.encode())

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> int | None:
        """The step at which the run ended by itself, if it did."""
        try:
            return int((self.path / "finished").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def point(self, pointer: str, checkpoint: str) -> None:
        self._write(pointer, f"{checkpoint}\n")


def _without_paths(config: Config) -> dict[str, Any]:
    """A config whatever its files are called: what they hold must be as it was, which is checked when they are read."""
    value = config.plain()
    value["data"]["train"] = [{**corpus, "path": ""} for corpus in value["data"]["train"]]
    value["data"]["valid"] = value["data"]["valid"] is not None
    return value


def differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Keys whose values differ, with both values."""
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from differences(a, b, f"{path}{key}.")
        elif a != b:
            yield f"{path}{key}", a, b
