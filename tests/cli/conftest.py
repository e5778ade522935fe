"""One model, trained once through the command line, and two ways to run commands: as a process, and in this one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from bench import letters

from dragoman.cli.main import main
from dragoman.data.samples import synthetic

CONFIG = """
data: {train: train.tsv, valid: valid.tsv}
model:
  width: 32
  tie: none
  encoder: {name: rnn, cell: gru, dropout: 0.0}
  decoder: {name: rnn, cell: gru, score: general, dropout: 0.0}
training:
  steps: 160
  batch_tokens: 512
  optimizer: {name: adam, rate: 1.0e-2}
  schedule: {name: linear, warmup: 20}
  label_smoothing: 0.0
  validate_every: 80
  save_every: 80
runtime: {device: cpu, threads: 1}
"""


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def process(*args: str | Path, cwd: Path, input: bytes = b"", env: dict[str, str] | None = None) -> Done:
    """`dragoman ARGS` as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", *map(str, args)],
        cwd=cwd,
        input=input,
        capture_output=True,
        timeout=120,
        env=os.environ | (env or {}),
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a config, and the run that `dragoman train` made of them."""
    folder = tmp_path_factory.mktemp("work")
    for side, count in {"train": 800, "valid": 20, "test": 30}.items():
        pairs = letters.generate_pairs("copy", count, 1, split=side, symbols=4, max_length=5)  # type: ignore[arg-type]
        synthetic.write_tsv(folder / f"{side}.tsv", pairs)
    (folder / "copy.yaml").write_text(CONFIG, encoding="utf-8")
    done = process("train", "copy.yaml", cwd=folder)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    return folder


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, work: Path) -> Callable[..., Done]:
    """`dragoman ARGS` in this process and the folder of the trained model: no two seconds for importing torch."""

    def run(*args: str | Path, input: bytes = b"") -> Done:
        monkeypatch.chdir(work)
        monkeypatch.setattr(sys, "argv", ["dragoman", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, *capsys.readouterr())

    return run
