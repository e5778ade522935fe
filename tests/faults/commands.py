"""Commands in forks of this process, which has imported everything: each begins within a few milliseconds."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG = """
name: tiny
data: {{train: {folder}/train.tsv, valid: {folder}/valid.tsv, cache: {folder}/cache}}
tokenizer: {{source: characters}}
model:
  width: 8
  tie: none
  encoder: {{name: rnn, cell: gru}}
  decoder: {{name: rnn, cell: gru, order: before}}
training:
  steps: 2
  batch_tokens: 32
  optimizer: {{name: adam, rate: 1.0e-2}}
  schedule: constant
  validate_every: 1
  save_every: 1
  log_every: 1
  keep: 1
runtime: {{device: cpu, threads: 1}}
"""
SETTINGS_OF_THE_CLOCK = ("seconds", "tokens_per_second")


@dataclass
class Finished:
    """How a command ended: its exit code (below 0: the signal that killed it) and its words."""

    code: int
    output: str


def in_fork(work: Callable[[], object], seconds: float = 60.0) -> Finished:
    """Run a function in a fork of this process; SystemExit is its exit code, another exception a traceback and 1."""
    with tempfile.TemporaryFile() as words:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(int(seconds))
                for handle in (1, 2):
                    os.dup2(words.fileno(), handle)
                sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
                work()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                with suppress(BaseException):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        words.seek(0)
        return Finished(code, words.read().decode(errors="replace"))


def dragoman(*arguments: object) -> Callable[[], None]:
    """The command line as a function of no arguments."""

    def run() -> None:
        from dragoman.cli.main import main

        sys.argv = ["dragoman", *map(str, arguments)]
        main()

    return run


def write_data(folder: Path, pairs: int = 12) -> Path:
    """Write pairs and a config that trains on them within a tenth of a second; returns the config."""
    for side, first in (("train", 0), ("valid", 3)):
        rows = [("abcd"[i % 4] * (1 + i % 3), "wxyz"[i % 4] * (1 + i % 2)) for i in range(first, pairs)]
        path = folder / f"{side}.tsv"
        path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
        os.utime(path, (1e9, 1e9))  # long ago: a file that has just been written is not trusted to stay as it is
    config = folder / "tiny.yaml"
    config.write_text(CONFIG.format(folder=folder), encoding="utf-8")
    return config


def end_of_run(run: Path) -> dict[str, Any]:
    """Everything in which two runs that ended alike must agree."""
    from dragoman.checkpoint import model_folder

    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    records = [{k: v for k, v in json.loads(line).items() if k not in SETTINGS_OF_THE_CLOCK} for line in lines]
    pointers = {name: (run / name).read_text(encoding="utf-8") for name in ("best", "last", "finished")}
    folders = [model_folder.resolve(run), model_folder.list_checkpoints(run)[-1]]
    files = {f"{folder.name}/{path.name}": path.read_bytes() for folder in folders for path in folder.iterdir()}
    return {"records": records, **pointers, **files}


def temporary_files(folder: Path) -> Iterable[Path]:
    return folder.rglob(".tmp-*")
