"""Train the systems of a recipe on its prepared data, each job in a run folder OUT/JOB; a stopped job resumes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dragoman import config as configs
from dragoman import training
from dragoman.config import Config
from dragoman.recipes.prepared_data import prepare_data
from dragoman.recipes.recipe import RecipeRun, TrainingJob
from dragoman.training import Report

# The config values of --example: a few steps on a hundred pairs.
EXAMPLE_OVERRIDES = (
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


def job_config(run: RecipeRun, job: TrainingJob) -> Config:
    """Prepare the data of a job, and load its system's config with the data, the seed and the user's overrides."""
    valid, data = run.recipe.systems[job.system].valid, prepare_data(run, job.part)
    return _load_config(run, job, has_valid=valid is not None and (data / valid).exists())


def check_configs(run: RecipeRun, jobs: Sequence[TrainingJob]) -> None:
    """Load one config for each system of the jobs, so that its errors show before any data is read."""
    for job in {job.system: job for job in jobs}.values():
        _load_config(run, job, has_valid=run.recipe.systems[job.system].valid is not None)


def _load_config(run: RecipeRun, job: TrainingJob, has_valid: bool) -> Config:
    """Load a job's config with its data files, seed and overrides; with --example, for a few steps."""
    system, data = run.recipe.systems[job.system], run.data_folder(job.part)
    overrides = [f"name={job.name}", f"seed={job.seed}", f"data.train={_quote(data / system.train)}"]
    if has_valid:
        overrides.append(f"data.valid={_quote(data / str(system.valid))}")
    if system.after is not None:
        overrides.append(f"training.start_from={_quote(run.job_folder(replace(job, system=system.after)))}")
    file, overrides = run.loaded.config_file(job.system), [*overrides, *run.overrides]
    if not run.example:
        return configs.load(file, None, overrides).config
    schedule = configs.load(file, None, overrides).config.training.schedule.options
    warmup = ["training.schedule.warmup=1"] if "warmup" in schedule else []
    return configs.load(file, None, [*overrides, *EXAMPLE_OVERRIDES, *warmup]).config


def _quote(path: Path) -> str:
    """A path as the value of a config override: a JSON string, which is also a YAML string."""
    return json.dumps(str(path))


def train(run: RecipeRun, job: TrainingJob) -> Iterator[Report]:
    """Train one job and yield its reports; a finished job is not trained again."""
    return training.run(job_config(run, job), run.job_folder(job), allow_change=run.allow_change)
