"""Keep workers at work until so many trials are finished. Yields a sentence for everything that happens.

    SweepRequest ─open_sweep→ SweepFolder ─run→ workers claim trials ─→ finished = trials ─→ results.py

The driver trains nothing and decides nothing: workers claim trials by themselves, so drivers on several machines need
nothing but the folder. It starts a worker while there is a trial to claim and a place for it. The time that --minutes
gives is that of this process, by a clock that nobody can set.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dragoman import config as configs
from dragoman.config import Config
from dragoman.core.errors import Stopped, UserError
from dragoman.data.readers import spec_files
from dragoman.data.store.cache import hash_files
from dragoman.jobs.sweep.executors import LocalExecutor, TrialExecutor
from dragoman.jobs.sweep.folder import Settings, SweepFolder, finished, import_optuna
from dragoman.jobs.sweep.space import Space, add_own_values, check_space, read_space, short_key, suited_space
from dragoman.training import distributed
from dragoman.training.loop import catch_stop_signals

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

Sampler = Literal["tpe", "random"]
Pruner = Literal["asha", "median", "none"]
ExecutorName = Literal["local", "ray"]

POLL_S = 0.2  # seconds between two looks at the journal
MAX_KILLED = 10  # workers in a row that are killed without any trial ending
MIN_FAILED = 3  # trials; if more have failed than have finished, the space or the data are at fault


@dataclass(frozen=True)
class SweepRequest:
    """What a person asks for."""

    config: str | None
    trials: int
    space: str | None = None  # a file or a preset space; None: the one of the encoder
    preset: str | None = None
    overrides: tuple[str, ...] = ()
    folder: Path | None = None
    sampler: Sampler = "tpe"
    pruner: Pruner = "asha"
    seed: int = 1
    executor: ExecutorName = "local"
    workers: int | None = None  # at once
    minutes: float | None = None  # of this command
    trial_minutes: float | None = None  # of each trial: its steps are measured, and the config's do not count
    plugins: tuple[str, ...] = ()

    def load(self, overrides: Sequence[str] = ()) -> Config:
        """The config with other values."""
        return configs.load(self.config, self.preset, [*self.overrides, *overrides]).config

    def check(self) -> None:
        """Raise UserError for numbers that are out of range."""
        given: dict[str, float | None] = {"--trials": self.trials, "--workers": self.workers}
        given |= {"--minutes": self.minutes, "--trial-minutes": self.trial_minutes}
        for name, value in given.items():
            if value is not None and not value > 0:
                raise UserError(f"{name} must be above 0, found {value:g}")
        if distributed.rank_and_world_size()[1] > 1:
            raise UserError("a sweep starts its trials itself: run it without torchrun")


@dataclass
class Sweep:
    """A sweep that is open: its folder, and sentences about how it begins."""

    folder: SweepFolder
    notices: list[str] = field(default_factory=list)


def open_sweep(request: SweepRequest, *, may_begin: bool = True) -> Sweep:
    """Check everything that is asked for, and begin a sweep in its folder, or open the one that is there."""
    request.check()
    import_optuna()
    config, notices = request.load(), list[str]()
    folder = SweepFolder(request.folder or Path("runs") / f"{config.name}-sweep")
    if not may_begin and not folder.path.exists():
        raise UserError(f"{folder.path}: there is no sweep; without --status one is begun")
    if config.data.valid is None:
        raise UserError("a sweep chooses by the validation: name validation pairs in data.valid")
    space, said = _choose_space(request, config)
    notices += said
    check_space(space, config, request.load)
    first, outside = space.own_values(config)
    if outside:
        notices.append(f"the config's own values are no trial: the space does not have its {', '.join(outside)}")
    paths = [corpus.path for corpus in config.data.train] + [config.data.valid]
    data = hash_files(list(chain.from_iterable(map(spec_files, paths))), folder.trials / ".cache")
    settings = Settings(
        request.sampler, request.pruner, request.seed, request.trial_minutes, {} if outside else first, data
    )
    folder.begin(config, space, settings)
    return Sweep(folder, notices)


def _choose_space(request: SweepRequest, config: Config) -> tuple[Space, list[str]]:
    if request.space is not None:
        space = read_space(request.space)
        return add_own_values(space, config) if space.is_preset else space, []
    space, left_out = suited_space(config)
    space = add_own_values(space, config)
    without = f", without {', '.join(left_out)}, which this config does not have" if left_out else ""
    return space, [f"{space.where}, which suits the config{without}; another: --space FILE.yaml"]


def run(request: SweepRequest, sweep: Sweep) -> Iterator[str]:
    """Train trials until so many are finished, or the time is up; yields a sentence for everything that happens."""
    folder, driver = sweep.folder, uuid.uuid4().hex
    study = folder.open_study()
    order = {
        "folder": str(folder.path.absolute()),
        "trials": request.trials,
        "driver": driver,
        "plugins": list(request.plugins),
    }
    watch = Watch(folder)
    yield from watch.begin(study.get_trials(deepcopy=False), request.trials)
    if len(finished(study.get_trials(deepcopy=False))) >= request.trials:
        return
    executor = _open_executor(request, order, folder.config)
    end = None if request.minutes is None else time.monotonic() + 60 * request.minutes
    killed = 0
    with catch_stop_signals() as stop_signal:
        try:
            while True:
                ended = executor.collect()
                trials = study.get_trials(deepcopy=False)
                changes = list(watch.changes(trials))
                yield from changes
                _check_failures(trials)
                killed = 0 if changes else killed
                for each in ended:
                    if each.error is not None:
                        raise UserError(each.error)
                    if each.killed is None:
                        continue
                    killed += 1
                    if killed > MAX_KILLED:
                        raise UserError(f"{killed} workers in a row ended early (the last {each.killed}); {_REMEDY}")
                    yield f"a worker {each.killed}; its trial goes on"
                if (number := stop_signal()) is not None:
                    text = f"stopped; {_finished(trials, request.trials)}, and the same command goes on"
                    yield "stopping: the trials save a checkpoint"
                    raise Stopped(text, 128 + number)
                if len(finished(trials)) >= request.trials and not executor.running:
                    return
                missing = _claimable(folder, study, request.trials, driver, executor.running)
                is_late = end is not None and time.monotonic() + _expected_seconds(trials) > end
                if is_late and not executor.running:
                    yield f"the time is up: {_finished(trials, request.trials)}; the same command goes on"
                    return
                for _ in range(0 if is_late else min(missing, executor.workers - executor.running)):
                    executor.start()
                time.sleep(POLL_S)
        finally:
            executor.stop()


_REMEDY = "if memory ran out, use fewer with --workers, or smaller models"


def _finished(trials: Sequence[FrozenTrial], wanted: int) -> str:
    return f"{len(finished(trials))} of {wanted} trials are finished"


def _check_failures(trials: Sequence[FrozenTrial]) -> None:
    failed = [trial for trial in trials if trial.state.name == "FAIL"]
    if len(failed) >= MIN_FAILED and len(failed) > len(finished(trials)):
        reason = failed[-1].user_attrs.get("reason", "")
        raise UserError(f"{len(failed)} trials have failed, more than have finished; the last: {reason}")


def _claimable(folder: SweepFolder, study: optuna.Study, wanted: int, driver: str, running: int) -> int:
    """How many trials nobody trains yet; this driver's workers that have not claimed one are taken into account."""
    with folder.claiming():
        trials = study.get_trials(deepcopy=False)
        alive = [trial for trial in trials if trial.state.name == "RUNNING" and folder.is_alive(trial.number)]
        done = len(finished(study.get_trials(deepcopy=False)))  # read last: what is not alive any more has ended
    own = len([trial for trial in alive if trial.user_attrs.get("driver") == driver])
    return wanted - done - len(alive) - max(running - own, 0)


def _expected_seconds(trials: Sequence[FrozenTrial]) -> float:
    """The mean time of the trials that were trained to their end; 0 if there is none."""
    known = [trial.user_attrs.get("seconds", 0.0) for trial in trials if trial.state.name == "COMPLETE"]
    return sum(known) / len(known) if known else 0.0


# -- executors ---------------------------------------------------------------------------------------------------------


def _open_executor(request: SweepRequest, order: dict[str, Any], config: Config) -> TrialExecutor:
    if request.executor == "ray":
        from dragoman.jobs.sweep.on_ray import RayExecutor

        return RayExecutor(order, request.workers, uses_gpu(config))
    gpus = visible_gpus() if uses_gpu(config) else []
    workers = request.workers or max(len(gpus), 1)
    given = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(given) if given.isdecimal() else max((os.cpu_count() or 1) // workers, 1)
    return LocalExecutor(order, workers, threads, gpus)


def uses_gpu(config: Config) -> bool:
    """Whether a trial trains on a GPU if there is one."""
    return config.runtime.device in ("auto", "cuda")


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


# -- what happens ------------------------------------------------------------------------------------------------------


class Watch:
    """Sentences about trials that have begun or ended since the last look, also those of other drivers."""

    def __init__(self, folder: SweepFolder) -> None:
        self.metric = folder.config.training.best
        self.is_higher_better = folder.open_study().direction.name == "MAXIMIZE"
        self.states: dict[int, tuple[str, str]] = {}  # and who trains it
        self.best: float | None = None

    def begin(self, trials: Sequence[FrozenTrial], wanted: int) -> Iterator[str]:
        """What is there already."""
        for _ in self.changes(trials):
            pass
        if trials:
            yield f"{_finished(trials, wanted)}, the best {self.metric} {self._format(self.best)}"

    def changes(self, trials: Sequence[FrozenTrial]) -> Iterator[str]:
        """A sentence for each trial that has begun or ended."""
        for trial in trials:
            state, name = trial.state.name, f"trial {trial.number}"
            new, old = (state, trial.user_attrs.get("driver", "")), self.states.get(trial.number)
            if new == old or state == "WAITING" or not new[1]:
                continue
            self.states[trial.number] = new
            if state == "RUNNING":
                yield f"{name} goes on" if old else f"{name}: {describe_params(trial.params)}"
            elif state == "COMPLETE":
                assert trial.value is not None
                is_best = self.best is None or (trial.value > self.best) == self.is_higher_better
                is_best &= trial.value != self.best
                self.best = trial.value if is_best else self.best
                note = " (the best so far)" if is_best else ""
                yield f"{name}: {self.metric} {trial.value:.4g} at step {trial.user_attrs.get('step')}{note}"
            else:
                failed = "failed: " if state == "FAIL" else ""
                yield f"{name}: {failed}{trial.user_attrs.get('reason', '')}"

    def _format(self, value: float | None) -> str:
        return "–" if value is None else f"{value:.4g}"


def describe_params(params: dict[str, Any]) -> str:
    """The values of a trial in a line: `model.width 128, optimizer.rate 0.00312`."""
    return ", ".join(f"{short_key(key)} {format_param(value)}" for key, value in params.items())


def format_param(value: Any) -> str:
    """A value of a trial, short."""
    return f"{value:.3g}" if isinstance(value, float) else "null" if value is None else str(value)
