"""How fast this machine trains a config: a few steps in a temporary folder."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dragoman.config import Config
from dragoman.training import prepare, tokenizer_learning
from dragoman.training.run_folder import RunFolder
from dragoman.training.trainer import Trainer

WARMUP_STEPS, STEPS = 5, 60  # the first steps allocate memory and compile
MAX_SECONDS = 12.0  # of measuring; at least three steps are measured


@dataclass(frozen=True)
class TrainingSpeed:
    """What a step costs, how many steps are an epoch, and how large the model is."""

    seconds_per_step: float
    steps_per_epoch: float
    parameters: int


def measure_speed(config: Config, cache: Path) -> TrainingSpeed:
    """Train some steps without validation and throw them away; the token stores that are built stay in `cache`."""
    unused = {"replay": 0, "start_from": None, "adapter": None}  # what trains is as large as the whole model
    endless = config.training.model_copy(update={"steps": 10**9, "save_every": 10**9} | unused)
    data = config.data.model_copy(update={"valid": None})
    trial = prepare.resolve_max_source(config.model_copy(update={"training": endless, "data": data}))
    codec, trial = tokenizer_learning.load_or_learn_codec(trial, None)
    with tempfile.TemporaryDirectory() as temporary:
        trainer = Trainer(trial, RunFolder(Path(temporary)), prepare.prepare_data(trial, codec, cache))
        trainer.start()
        stamps = [time.perf_counter()]
        for report in trainer.train(lambda: None):
            if report.kind != "step":
                continue
            stamps.append(time.perf_counter())
            enough = len(stamps) > WARMUP_STEPS + 3 and stamps[-1] - stamps[WARMUP_STEPS] > MAX_SECONDS
            if enough or len(stamps) > WARMUP_STEPS + STEPS:
                break
    batches = trainer.batch_stream().count_batches(0)
    seconds = (stamps[-1] - stamps[WARMUP_STEPS]) / (len(stamps) - 1 - WARMUP_STEPS)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    return TrainingSpeed(seconds, max(batches / endless.accumulate, 1.0), parameters)
