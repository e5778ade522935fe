"""The folder of a run: its config, metrics, log and checkpoints.

    run.json  config.yaml  env.json  metrics.jsonl  replay.jsonl  train.log  checkpoints/step-N/  best  last  finished

`run.json` holds the format of the folder (core/formats.py). `best` and `last` are files with the name of a checkpoint,
`finished` is a file with the last step of a run that ended by itself.

Only one process may train in a folder at a time: it holds a lock, which the operating system frees when the process
ends. Of several ranks, rank 0 is that process; the others only read.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dragoman.checkpoint.model_paths import FILE_NAME
from dragoman.config import Config, validate
from dragoman.core import files, yaml
from dragoman.core.errors import RunError, UserError, did_you_mean
from dragoman.core.formats import FORMAT, MAX_POINTER_BYTES, RUN_FILE
from dragoman.core.json import replace_nonfinite
from dragoman.training.report import Metrics
from dragoman.version import __version__

# Options that may differ when a run is resumed: no weight depends on them.
RESUMABLE_OPTIONS = (
    *("data.workers", "data.cache", "training.rank_timeout", "training.replay"),
    *("runtime.tensorboard", "runtime.threads", "runtime.precision", "runtime.workers"),
)
MAX_RECORD_BYTES = 2**28  # of metrics.jsonl or replay.jsonl: a million lines


class RunFolder:
    """Paths and small files of a run; without `is_writer` nothing is written, since another rank does."""

    def __init__(self, path: Path, is_writer: bool = True) -> None:
        self.path, self.is_writer = path, is_writer
        self.checkpoints = path / "checkpoints"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create and lock the folder; RunError if another process holds it. A new run that fails early is removed."""
        if not self.is_writer:
            yield
            return
        with files.explain_write_errors(self.path, 0):  # a name may be too long
            is_new = not self.path.exists()
        files.make_folder(self.path)
        for folder in (self.checkpoints, self.path / "tensorboard"):
            if folder.is_symlink():
                raise RunError(f"{folder}: is a link, and a run writes into its own folder alone; choose another --run")
        with files.explain_write_errors(self.path / ".lock", 0):
            handle = files.open_plain(self.path / ".lock", "a+b")
        with handle:
            with files.explain_write_errors(self.path / ".lock", 0):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    handle.seek(0)
                    pid = handle.read(20).decode(errors="replace").strip() or "unknown"
                    raise RunError(
                        f"{self.path}: in use by pid {pid}; wait for it, or choose another folder with --run"
                    ) from None
                handle.truncate(0)
                os.write(handle.fileno(), f"{os.getpid()}\n".encode())  # unbuffered: nothing is left to fail at the end
            try:
                yield
            except UserError:
                if is_new and {entry.name for entry in self.path.iterdir()} <= {".lock", "train.log"}:
                    shutil.rmtree(self.path, ignore_errors=True)  # nothing was trained: leave no folder behind
                raise

    # -- format and config ---------------------------------------------------------------------------------------------

    def check_config(self, config: Config, allowed: Sequence[str]) -> None:
        """Raise RunError if a config differs from the saved one, but in data paths, `allowed` and RESUMABLE_OPTIONS."""
        path = self.path / "config.yaml"
        if not path.exists():
            return
        saved = validate(yaml.read(path, is_named=False), str(path))
        changes = [
            (key, old, new)
            for key, old, new in config_differences(_without_paths(saved), _without_paths(config))
            if not any(key == free or key.startswith(f"{free}.") for free in (*RESUMABLE_OPTIONS, *allowed))
        ]
        if changes:
            table = "\n".join(f"  {key}: was {old!r}, is now {new!r}" for key, old, new in changes)
            raise RunError(
                f"{self.path}: this run was started with another config:\n{table}\n"
                "Start a new run with --run DIR, or accept a change with --allow-change KEY"
            )

    def write_config(self, config: Config) -> None:
        """Write the format of the folder and the resolved config."""
        self._write(RUN_FILE, json.dumps({"format": FORMAT}) + "\n")  # first: a run with a config has a format
        self._write("config.yaml", config.to_yaml())

    def describe_machine(self, device: torch.device, threads: int, ranks: int) -> None:
        """Write versions, platform, device, threads, ranks and the time into env.json."""
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

    def record(self, values: Metrics, file: str = "metrics.jsonl") -> None:
        """Append a line of JSON to a file, which has no NaN and no infinity: they become null."""
        self._append(file, json.dumps(replace_nonfinite(values)))

    def flush_records(self) -> None:
        """Flush metrics and replay to the disk: a power cut must not take the records that a checkpoint continues."""
        for path in (self.path / "metrics.jsonl", self.path / "replay.jsonl", self.path):
            files.flush_to_disk(path)

    def truncate_records(self, step: int, last_validation: int) -> Iterator[str]:
        """Remove metrics and replay frames after a checkpoint: a resumed run writes them again.

        The validation of the checkpoint's own step may come after it, hence a step of its own. A file with damaged
        lines is set aside and goes on with the others; yields a sentence on each.
        """
        last = {"train": step, "valid": last_validation}
        yield from self._filter_lines("metrics.jsonl", lambda values: values["step"] <= last.get(values["kind"], -1))
        yield from self._filter_lines("replay.jsonl", lambda values: values["step"] <= step)

    @property
    def seconds(self) -> float:
        """Time spent training, by metrics.jsonl: a checkpoint's bytes must not depend on the speed. 0: no record."""
        path = self.path / "metrics.jsonl"
        if not self.is_writer or not path.exists():
            return 0.0
        lines = map(json.loads, self._read_record(path).splitlines())
        return max((float(line.get("seconds", 0.0)) for line in lines if line["kind"] == "train"), default=0.0)

    def _filter_lines(self, name: str, keep: Callable[[Metrics], bool]) -> Iterator[str]:
        path = self.path / name
        if not self.is_writer or not path.exists():
            return
        kept, damaged = [], 0
        for line in self._read_record(path).removesuffix(b"\n").split(b"\n"):
            try:
                text = line.decode()
                if text and keep(json.loads(text)):
                    kept.append(text)
            except (ValueError, KeyError, TypeError, RecursionError):
                damaged += 1
        if damaged:
            aside = files.set_aside(path, "damaged")
            yield f"{path}: {damaged:,} of its lines cannot be read and are left out; the file is kept as {aside.name}"
        self._write(name, "".join(line + "\n" for line in kept))

    def _read_record(self, path: Path) -> bytes:
        try:
            return files.read_plain(path, MAX_RECORD_BYTES)
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error.strerror}; move it out of the folder") from None

    def log(self, text: str) -> None:
        """Append a line with the time to train.log."""
        self._append("train.log", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def _append(self, name: str, line: str) -> None:
        if not self.is_writer:
            return
        data = f"{line}\n".encode()
        with files.explain_write_errors(self.path / name, len(data)), files.open_plain(self.path / name, "ab") as file:
            file.write(data)

    def _write(self, name: str, text: str) -> None:
        if self.is_writer:
            files.write_file(self.path / name, text.encode())

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    @property
    def finished_step(self) -> int | None:
        """The step at which the run ended by itself, if it did."""
        try:
            return int(files.read_plain(self.path / "finished", MAX_POINTER_BYTES))
        except (OSError, ValueError):
            return None

    def set_aside_damaged_pointers(self) -> Iterator[str]:
        """Rename pointer files that do not hold a name, or a step; yields a sentence on each."""
        for name in ("best", "last", "finished"):
            path = self.path / name
            if self.is_writer and os.path.lexists(path) and not _is_pointer(path):
                yield f"{path}: is damaged and is written again; it is kept as {files.set_aside(path, 'damaged').name}"

    def write_pointer(self, pointer: str, checkpoint: str) -> None:
        """Write the name of a checkpoint into a pointer file: `best`, `last`; a step into `finished`."""
        self._write(pointer, f"{checkpoint}\n")


def _is_pointer(path: Path) -> bool:
    """Whether a file is a plain one with the name of a checkpoint, or, if it is called `finished`, with a step."""
    try:
        text = files.read_plain(path, MAX_POINTER_BYTES).decode().strip()
    except (OSError, ValueError):
        return False
    return text.isdecimal() if path.name == "finished" else FILE_NAME.fullmatch(text) is not None


def check_allowed_keys(keys: Sequence[str]) -> None:
    """Raise UserError for a key of --allow-change that is none of a config's, nor 'data' or 'ranks'."""
    if isinstance(keys, str):
        raise UserError(f"allow_change takes a list of keys, found the text '{keys}'; give a list: ['{keys}']")
    known = {"ranks", *_schema_keys(schema := Config.model_json_schema(), schema)} if keys else set()
    for key in keys:
        if key not in known:
            raise UserError(f"--allow-change {key}: a config has no such key{did_you_mean(str(key), known)}")


def _schema_keys(schema: Mapping[str, Any], root: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of a JSON schema, those of all parts that may stand somewhere included."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for variant in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _schema_keys(variant, root, prefix)
    for name, value in schema.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from _schema_keys(value, root, f"{prefix}{name}.")


def _without_paths(config: Config) -> dict[str, object]:
    """A config as a mapping without the names of its data files, whose contents are compared elsewhere."""
    value = config.model_dump()
    value["data"]["train"] = [{**corpus, "path": ""} for corpus in value["data"]["train"]]
    value["data"]["valid"] = value["data"]["valid"] is not None
    return value


def config_differences(
    old: Mapping[str, object], new: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Dotted keys whose values differ between two nested mappings, with both values."""
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from config_differences(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key}", a, b
