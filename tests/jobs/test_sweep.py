"""Sweeps: what is asked for is checked at once, results are those of the runs, and nothing that is killed is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman import config as configs
from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.core import yaml
from dragoman.core.errors import ConfigError, MissingExtra, RunError, UserError

pytest.importorskip("optuna")

from dragoman.jobs.sweep import driver, results, space, trial
from dragoman.jobs.sweep.driver import SweepRequest, open_sweep
from dragoman.jobs.sweep.folder import SweepFolder, best_validation

DEADLINE = 120.0  # seconds that anything may take here, on a busy machine

CONFIG = """
name: copy
data: {{train: {folder}/train.tsv, valid: {folder}/valid.tsv}}
tokenizer: {{source: characters}}
model:
  width: 16
  tie: none
  encoder: {{name: rnn, cell: gru, dropout: 0.1}}
  decoder: {{name: rnn, cell: gru, order: before, dropout: 0.1}}
training:
  steps: 20
  batch_tokens: 128
  optimizer: {{name: adam, rate: 3.0e-3}}
  schedule: constant
  validate_every: 5
  save_every: 5
  log_every: 1
runtime: {{device: cpu, threads: 1}}
"""
SPACE = """
model.width: {choices: [16, 24]}
training.optimizer.rate: {choices: [1.0e-3, 3.0e-3]}
"""
POINTS = {(width, rate) for width in (16, 24) for rate in (1e-3, 3e-3)}


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[..., SweepRequest]:
    """request_for(trials=4) → a sweep of a tiny model that copies words."""
    rng = random.Random(1)
    for side, count in (("train", 200), ("valid", 30)):
        words = ["".join(rng.choices("abcdef", k=rng.randint(2, 8))) for _ in range(count)]
        path = tmp_path / f"{side}.tsv"
        path.write_text("".join(f"{word}\t{word}\n" for word in words))
        os.utime(path, (1e9, 1e9))  # long ago: a file that has just been written is not trusted to stay as it is
    (tmp_path / "copy.yaml").write_text(CONFIG.format(folder=tmp_path))
    (tmp_path / "space.yaml").write_text(SPACE)

    def make(**changes: Any) -> SweepRequest:
        request = SweepRequest(str(tmp_path / "copy.yaml"), 4, str(tmp_path / "space.yaml"), folder=tmp_path / "sweep")
        return replace(request, **({"sampler": "random", "pruner": "none"} | changes))

    return make


def train_here(request: SweepRequest) -> SweepFolder:
    """Train the trials of a sweep in this process."""
    folder = open_sweep(request).folder
    while trial.work(folder, request.trials, "here") == "trained":
        pass
    return folder


def values_of_runs(folder: SweepFolder) -> dict[int, float]:
    """The least validation loss of each run, from its metrics.jsonl."""
    found = {}
    for run in sorted(folder.trials.glob("0*")):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found[int(run.name)] = min(line["loss"] for line in lines if line["kind"] == "valid")
    return found


def test_the_best_config_is_that_of_the_run_with_the_least_loss(request_for: Callable[..., SweepRequest]) -> None:
    folder = train_here(request_for())
    found = results.write_results(folder)
    values = values_of_runs(folder)
    points = [(t.params["model.width"], t.params["training.optimizer.rate"]) for t in found.trials]
    assert set(points) == POINTS
    assert {t.number: t.value for t in found.trials} == values
    assert found.best is not None
    assert found.best.number == min(values, key=lambda number: values[number])
    saved = yaml.read(folder.trial_folder(found.best.number) / "config.yaml")
    best = configs.load(folder.path / "best.yaml").config.model_dump()
    expected = configs.validate(saved, "saved").model_dump() | {"name": "copy-best"}
    expected["data"]["max_source"] = best["data"]["max_source"]  # what a run resolves from its data
    assert best == expected
    assert "4 trials on 30 validation examples" in found.note
