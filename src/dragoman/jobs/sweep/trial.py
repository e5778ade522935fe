"""What a worker does: claim a trial, train it as an ordinary run, report its validations to Optuna, end it.

    claim     a trial whose process was killed, else a new one while there are too few; one process at a time
    train     training.run in trials/0007; what is there already is resumed
    end       complete with its best validation · pruned · failed, with a reason

A training that diverges counts as pruned: its values are as bad as can be, which the sampler learns from. One that is
killed three times without a checkpoint in between has failed, and another takes its place.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.config import Config, autoconfig
from dragoman.core import files
from dragoman.core.errors import RunError, TrainingDiverged, TrainingStopped, UserError
from dragoman.inference.device import is_out_of_memory
from dragoman.jobs.sweep.folder import Settings, SweepFolder, best_validation, finished, import_optuna
from dragoman.jobs.sweep.space import Params
from dragoman.training.autotrain import VALIDATION_SHARE
from dragoman.training.speed import measure_speed

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

MAX_KILLS = 3  # of a trial at the same checkpoint
REDUCTION = 3  # of ASHA: the best third goes on
MEDIAN_TRIALS = 5  # that are not pruned, since there is no median yet
MIN_STEPS = 10
MAX_DRAWS = 20  # of values for a trial that no other has


@dataclass
class Claim:
    """A trial that this process trains, and its lock."""

    number: int
    trial: optuna.Trial
    lock: IO[bytes]


def claim_and_train(folder: SweepFolder, trials: int, driver: str) -> Literal["trained", "nothing"]:
    """Claim a trial and train it; "nothing" if there is none to claim. TrainingStopped if a signal ends it."""
    with files.explain_write_errors(folder.journal, 0):
        study = folder.open_study()
        with folder.claiming():
            claim = claim_trial(folder, study, trials, driver)
        if claim is None:
            return "nothing"
        with claim.lock:
            train_trial(folder, study, claim)
        return "trained"


# -- claims ------------------------------------------------------------------------------------------------------------


def claim_trial(folder: SweepFolder, study: optuna.Study, trials: int, driver: str) -> Claim | None:
    """The trial that this process trains next, locked; None if there is none. Call it while claiming."""
    known, alive = study.get_trials(deepcopy=False), 0
    for number in [trial.number for trial in known if trial.state.name == "RUNNING"]:
        lock = folder.lock_trial(number)
        if lock is None:
            alive += 1
            continue
        known = study.get_trials(deepcopy=False)  # it may have ended since they were read, before its lock was freed
        if known[number].state.name == "RUNNING" and _can_go_on(folder, study, known[number]):
            return _take(study, known[number], lock, driver)
        lock.close()
    if len(finished(known)) + alive >= trials:
        return None
    return _begin_trial(folder, study, study.get_trials(deepcopy=False), driver)


def _take(study: optuna.Study, frozen: FrozenTrial, lock: IO[bytes], driver: str) -> Claim:
    import optuna

    trial = optuna.Trial(study, frozen._trial_id)
    trial.set_user_attr("driver", driver)
    return Claim(frozen.number, trial, lock)


def _can_go_on(folder: SweepFolder, study: optuna.Study, frozen: FrozenTrial) -> bool:
    """Whether a trial whose process is gone can be taken up; ends it, if not."""
    if frozen.params.keys() != folder.space.domains.keys():
        _fail(study, frozen.number, "was killed before it had its values")
        return False
    step, kills = frozen.user_attrs.get("begun_at", (None, 0))
    if kills >= MAX_KILLS and step == last_step(folder, frozen.number):
        _fail(study, frozen.number, f"its process was killed {kills} times after step {step}; maybe memory ran out")
        return False
    return True


def _begin_trial(folder: SweepFolder, study: optuna.Study, known: list[FrozenTrial], driver: str) -> Claim:
    distributions = folder.space.distributions()
    if all(trial.state.name != "WAITING" for trial in known):  # else a process was killed between this and the next
        study.enqueue_trial(propose(folder.settings, study, known, distributions))
    trial = study.ask(distributions)
    lock = folder.lock_trial(trial.number)
    if lock is None:
        raise RunError(f"{folder.locks}: trial {trial.number} is new, but locked; does this file system have flock?")
    trial.set_user_attr("driver", driver)
    return Claim(trial.number, trial, lock)


def propose(
    settings: Settings,
    study: optuna.Study,
    known: Sequence[FrozenTrial],
    distributions: dict[str, optuna.distributions.BaseDistribution],
) -> Params:
    """The values of the next trial: the config's own first, then the sampler's, if it can others than before."""
    if not known and settings.first:
        return settings.first
    optuna = import_optuna()
    for attempt in range(MAX_DRAWS):
        draft = optuna.create_study(direction=study.direction, sampler=make_sampler(settings, len(known), attempt))
        draft.add_trials(known)
        params = draft.ask(distributions).params
        if all(params != trial.params for trial in known):
            break
    return params  # type: ignore[no-any-return]


def make_sampler(settings: Settings, number: int, attempt: int = 0) -> optuna.samplers.BaseSampler:
    """The sampler of a trial: every trial has a seed of its own, whichever process begins it."""
    samplers = import_optuna().samplers
    seed = (settings.seed * 1_000_003 + number * MAX_DRAWS + attempt) % 2**32
    if settings.sampler == "random":
        return samplers.RandomSampler(seed)  # type: ignore[no-any-return]
    return samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)  # type: ignore[no-any-return]


def make_pruner(settings: Settings, config: Config) -> optuna.pruners.BasePruner:
    """The pruner of a trial; the first rung of ASHA is the first validation."""
    pruners = import_optuna().pruners
    if settings.pruner == "asha":
        first = config.training.validate_every
        return pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=REDUCTION)  # type: ignore[no-any-return]
    if settings.pruner == "median":
        return pruners.MedianPruner(n_startup_trials=MEDIAN_TRIALS)  # type: ignore[no-any-return]
    return pruners.NopPruner()  # type: ignore[no-any-return]


def last_step(folder: SweepFolder, number: int) -> int:
    """The step of a trial's newest checkpoint; 0 if there is none."""
    found = model_folder.list_checkpoints(folder.trial_folder(number))
    return int(found[-1].name.removeprefix("step-")) if found else 0


# -- training ----------------------------------------------------------------------------------------------------------


def train_trial(folder: SweepFolder, study: optuna.Study, claim: Claim) -> None:
    """Train a claimed trial, or go on with it, and tell Optuna how it ended."""
    trial, number, began = claim.trial, claim.number, time.monotonic()
    spent = float(trial.user_attrs.get("seconds", 0.0))

    def note_seconds() -> None:
        trial.set_user_attr("seconds", round(spent + time.monotonic() - began, 3))

    try:
        config = _trial_config(folder, trial)
        study.pruner = make_pruner(folder.settings, config)
        pruned_at = _train(folder, claim, config)
    except TrainingDiverged as error:
        note_seconds()
        trial.set_user_attr("reason", f"diverged: {str(error).splitlines()[0]}")
        study.tell(number, state=_state("PRUNED"))
    except (RunError, TrainingStopped):  # of the folder, or the user's wish: the trial goes on later
        note_seconds()
        raise
    except UserError as error:
        _fail(study, number, str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        _fail(study, number, "memory ran out")
    else:
        note_seconds()
        if pruned_at is not None:
            trial.set_user_attr("reason", f"pruned at step {pruned_at} of {config.training.steps}")
            study.tell(number, state=_state("PRUNED"))
            return
        found = best_validation(folder.trial_folder(number), config)
        if found is None:
            _fail(study, number, f"no validation had a finite {config.training.best}")
            return
        trial.set_user_attr("step", found[1])
        study.tell(number, found[0])


def _fail(study: optuna.Study, number: int, reason: str) -> None:
    trial = next(t for t in study.get_trials(deepcopy=False) if t.number == number)
    study._storage.set_trial_user_attr(trial._trial_id, "reason", reason)
    study.tell(number, state=_state("FAIL"))


def _state(name: str) -> Any:
    return import_optuna().trial.TrialState[name]


def _trial_config(folder: SweepFolder, trial: optuna.Trial) -> Config:
    """The config of a trial; with --trial-minutes its steps are measured once, and then kept."""
    overrides = folder.space.overrides(trial.params)
    config = folder.trial_config(overrides)
    minutes = folder.settings.trial_minutes
    if minutes is None:
        return config
    if "settings" not in trial.user_attrs:
        speed = measure_speed(config, folder.trials / ".cache")
        seconds = minutes * 60 * (1 - VALIDATION_SHARE)
        steps = max(int(seconds / speed.seconds_per_step) // MIN_STEPS * MIN_STEPS, MIN_STEPS)
        warmup = config.training.schedule.options.get("warmup")
        chosen = autoconfig.interval_settings(steps, warmup or 0)
        if warmup is None:
            del chosen["training.schedule.warmup"]  # not every schedule has one
        trial.set_user_attr("settings", [f"{key}={value}" for key, value in chosen.items()])
    return folder.trial_config([*overrides, *trial.user_attrs["settings"]])


def _train(folder: SweepFolder, claim: Claim, config: Config) -> int | None:
    """Train to the end, or until Optuna prunes the trial: the step at which it did."""
    trial, metric = claim.trial, config.training.best
    known = trial.study.get_trials(deepcopy=False)[claim.number].intermediate_values
    reports = cast("Generator[training.Report]", training.run(config, folder.trial_folder(claim.number)))
    pruned_at = None
    try:
        for report in reports:
            if pruned_at is not None:
                break  # after the checkpoint, if the last validation was the best
            if report.kind == "start":
                step, kills = trial.user_attrs.get("begun_at", (None, 0))
                trial.set_user_attr("begun_at", (report.step, kills + 1 if step == report.step else 1))
            elif report.kind == "validation" and report.values["kind"] == "valid" and report.step not in known:
                trial.report(float(report.values[metric]), report.step)
                if report.step < config.training.steps and trial.should_prune():
                    pruned_at = report.step
    except TrainingStopped:
        trial.set_user_attr("begun_at", (None, 0))  # it was asked to stop
        raise
    finally:
        reports.close()
    return pruned_at
