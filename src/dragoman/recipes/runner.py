"""Train the systems of a recipe on its prepared data, each job in a run folder OUT/JOB; what was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dragoman import config as configs
from dragoman import training
from dragoman.config import Config
from dragoman.recipes.prepared_data import prepare
from dragoman.recipes.recipe import Job, Setting
from dragoman.training import Report

# What --example changes: a look at the whole way, on a hundred pairs.
QUICK = (
    "training.steps=4",
    "training.epochs=null",
    "training.validate_every=4",
    "training.save_every=4",
    "training.log_every=4",
    "training.average=1",
    "training.batch_sentences=8",
    "training.accumulate=1",
    "training.precision=float32",
    "training.patience=null",
    "training.validate_examples=4",
    "training.replay=0",
    "data.workers=0",
    "runtime.device=cpu",
    "runtime.threads=1",
)


def config_of(setting: Setting, job: Job) -> Config:
    """A system's config, with the data, the seed and what the user sets."""
    valid, data = setting.opened.recipe.systems[job.system].valid, prepare(setting, job.part)
    return _config(setting, job, validates=valid is not None and (data / valid).exists())


def check_configs(setting: Setting, jobs: Sequence[Job]) -> None:
    """That the configs of jobs are right, before any data is looked at."""
    for job in {job.system: job for job in jobs}.values():
        _config(setting, job, validates=setting.opened.recipe.systems[job.system].valid is not None)


def _config(setting: Setting, job: Job, validates: bool) -> Config:
    system, data = setting.opened.recipe.systems[job.system], setting.prepared(job.part)
    sets = [f"name={job.name}", f"seed={job.seed}", f"data.train={_quoted(data / system.train)}"]
    if validates:
        sets.append(f"data.valid={_quoted(data / str(system.valid))}")
    if system.after is not None:
        sets.append(f"training.start_from={_quoted(setting.folder(replace(job, system=system.after)))}")
    file, sets = setting.opened.config(job.system), [*sets, *setting.sets]
    if not setting.example:
        return configs.load(file, None, sets).config
    schedule = configs.load(file, None, sets).config.training.schedule.options
    warmup = ["training.schedule.warmup=1"] if "warmup" in schedule else []
    return configs.load(file, None, [*sets, *QUICK, *warmup]).config


def _quoted(path: Path) -> str:
    """A path as a value of --set, whatever it is called: JSON's strings are YAML's."""
    return json.dumps(str(path))


def train(setting: Setting, job: Job) -> Iterator[Report]:
    """Train one job; one that is finished only says so."""
    return training.run(config_of(setting, job), setting.folder(job), allow_change=setting.allow_change)
