"""The folder of a sweep: what it was begun with, Optuna's journal, and the locks that say which trials are alive.

    config.yaml  space.yaml  settings.json     what it was begun with; nothing else may be done in it
    journal.log                                Optuna's journal: every trial, its values and its state
    trials/0007/                               an ordinary run folder
    locks/0007                                 held by the process that trains trial 7

Optuna's journal has no heartbeat, so a trial is alive while its file in locks/ is locked (flock): the system frees it
when the process ends, however it ends, and no clock is asked. Claims of trials are made one at a time, under .lock.
The file system must have flock: local disks do, NFS since version 4, Lustre if it is mounted so.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dragoman import config as configs
from dragoman.config import Config
from dragoman.core import files, yaml
from dragoman.core.errors import MissingExtra, RunError
from dragoman.evaluation.metrics import metrics
from dragoman.jobs.sweep.space import Space, parse_space
from dragoman.training.run_folder import MAX_RECORD_BYTES, RESUMABLE_OPTIONS, config_differences

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

MAX_JOURNAL_BYTES = 2**30
STUDY = "sweep"


@dataclass(frozen=True)
class Settings:
    """What decides the trials of a sweep, besides its config and its space."""

    sampler: str
    pruner: str
    seed: int
    trial_minutes: float | None
    first: dict[str, Any]  # the point of trial 0: the config's own; empty if it is not in the space
    data: str  # SHA-256 of the files of pairs
    format: int = 1


def import_optuna() -> Any:
    """The package optuna, which says nothing but errors; MissingExtra without it."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra("optuna", "sweep", "dragoman sweep") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    logging.getLogger("optuna").propagate = False
    return optuna


def trial_name(number: int) -> str:
    """The name of a trial's folder."""
    return f"{number:04d}"


class SweepFolder:
    """Paths, settings and locks of a sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal, self.trials, self.locks = path / "journal.log", path / "trials", path / "locks"

    # -- what it was begun with ----------------------------------------------------------------------------------------

    def begin(self, config: Config, space: Space, settings: Settings) -> None:
        """Write what a sweep is begun with, or raise RunError if this folder was begun with something else."""
        files.make_folder(self.locks)
        with self.claiming():
            if (self.path / "settings.json").exists():
                self._check_same(config, space, settings)
                self._check_journal()
                return
            if self._trial_numbers() or self.journal.exists():
                raise RunError(
                    f"{self.path}: settings.json is missing; put it back, or choose another folder with --run"
                )
            files.write_file(self.path / "config.yaml", config.to_yaml().encode())
            files.write_file(self.path / "space.yaml", space.to_yaml().encode())
            text = json.dumps(asdict(settings), indent=1, ensure_ascii=False) + "\n"
            files.write_file(self.path / "settings.json", text.encode())  # last: with it the others are whole
            self._create_study()

    def _check_same(self, config: Config, space: Space, settings: Settings) -> None:
        begun, changes = self.settings, list[str]()
        for key, old, new in config_differences(self.config.model_dump(), config.model_dump()):
            if not any(key == free or key.startswith(f"{free}.") for free in RESUMABLE_OPTIONS):
                changes.append(f"{key} was {old!r}, is now {new!r}")
        domains = {key: domain.model_dump() for key, domain in self.space.domains.items()}
        if domains != {key: domain.model_dump() for key, domain in space.domains.items()}:
            changes.append("the space is another")
        old_settings, new_settings = asdict(begun), asdict(settings)
        for key in ("sampler", "pruner", "seed", "trial_minutes"):
            if old_settings[key] != new_settings[key]:
                changes.append(f"--{key.replace('_', '-')} was {old_settings[key]}, is now {new_settings[key]}")
        if begun.data != settings.data:
            changes.append("the pairs have changed")
        if changes:
            raise RunError(
                f"{self.path}: this sweep was begun otherwise: {'; '.join(changes)}. "
                "Its trials could not be compared; choose another folder with --run"
            )

    @property
    def settings(self) -> Settings:
        """The sweep's settings; RunError if they cannot be read."""
        path = self.path / "settings.json"
        try:
            return Settings(**json.loads(files.read_plain(path, 1 << 20)))
        except (OSError, ValueError, TypeError):
            raise RunError(f"{path}: cannot be read; put it back, or choose another folder with --run") from None

    @property
    def config(self) -> Config:
        """The config that the trials vary."""
        path = self.path / "config.yaml"
        return configs.validate(yaml.read(path, is_named=False), str(path))

    @property
    def space(self) -> Space:
        """The search space."""
        path = self.path / "space.yaml"
        return parse_space(yaml.read(path, is_named=False), str(path))

    def trial_config(self, overrides: Sequence[str]) -> Config:
        """The config with other values, checked."""
        return configs.load(self.path / "config.yaml", None, overrides).config

    def trial_folder(self, number: int) -> Path:
        """The run folder of a trial."""
        return self.trials / trial_name(number)

    def _trial_numbers(self) -> set[int]:
        """The numbers of the trials that have a folder."""
        return {int(path.name) for path in self.trials.glob("[0-9]*") if path.name.isdecimal()}

    # -- locks ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """The only process that claims trials, or looks which are alive."""
        with _locked(self.path / ".lock"):
            yield

    def lock_trial(self, number: int) -> IO[bytes] | None:
        """The open lock of a trial, None if another process has it; call it while claiming."""
        path = self.locks / trial_name(number)
        with files.explain_write_errors(path, 0):
            handle = files.open_plain(path, "a+b")
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.close()
                return None
            except BaseException:
                handle.close()
                raise
            return handle

    def is_alive(self, number: int) -> bool:
        """Whether a process trains a trial; call it while claiming."""
        handle = self.lock_trial(number)
        if handle is not None:
            handle.close()
        return handle is None

    # -- Optuna's journal ----------------------------------------------------------------------------------------------

    def open_study(self) -> optuna.Study:
        """The study in the journal; RunError if the journal cannot be what Optuna wrote."""
        optuna = import_optuna()
        with self._explain_damage():
            return optuna.load_study(storage=self._storage(), study_name=STUDY)  # type: ignore[no-any-return]

    def _create_study(self) -> None:
        direction = "maximize" if is_higher_better(self.config) else "minimize"
        with files.explain_write_errors(self.journal, 0):
            import_optuna().create_study(storage=self._storage(), study_name=STUDY, direction=direction)

    def _storage(self) -> Any:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        with files.explain_write_errors(self.journal, 0):
            backend = JournalFileBackend(str(self.journal), lock_obj=JournalLock(self.journal))  # type: ignore[arg-type]
            return JournalStorage(backend)

    @contextmanager
    def _explain_damage(self) -> Iterator[None]:
        """Turn what Optuna raises for a journal that it did not write into a RunError."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, IndexError) as error:
            raise self._damage(f"Optuna cannot read it ({type(error).__name__})") from None

    def _damage(self, found: str) -> RunError:
        return RunError(
            f"{self.journal}: {found}; put back the journal as it was, or choose another folder with --run. "
            "Nothing was changed"
        )

    def _check_journal(self) -> None:
        """Raise RunError unless the journal can be read and agrees with the runs of the trials."""
        folders = self._trial_numbers()
        if not self.journal.exists():
            if folders:
                raise self._damage("it is missing, but there are trials")
            self._create_study()  # its sweep was killed as it began
            return
        with _locked(self.journal.with_name("journal.lock")):
            try:
                lines = files.read_plain(self.journal, MAX_JOURNAL_BYTES).split(b"\n")
            except OSError as error:
                raise RunError(f"{self.journal}: cannot be read: {error.strerror}") from None
        for number, line in enumerate(lines[:-1], 1):  # the last is empty, or was not written to its end
            try:
                is_entry = isinstance(json.loads(line)["op_code"], int)
            except (ValueError, KeyError, TypeError):
                is_entry = False
            if not is_entry:
                raise self._damage(f"line {number} is none of Optuna's")
        if len(lines) == 1 and not folders:
            self._create_study()
        with self._explain_damage():
            trials = self.open_study().get_trials(deepcopy=False)
        if missing := sorted(folders - {trial.number for trial in trials}):
            raise self._damage(f"it does not know trials/{trial_name(missing[0])}: lines are missing")
        config = self.config
        for trial in trials:
            if trial.state.name == "COMPLETE" and self.trial_folder(trial.number).exists():
                value = best_validation(self.trial_folder(trial.number), config)
                if value is None or trial.value is None or not math.isclose(value[0], trial.value, rel_tol=1e-9):
                    raise self._damage(f"trial {trial.number} has the value {trial.value}, its metrics.jsonl another")


class JournalLock:
    """The lock around a write into the journal. Optuna's own outlives a killed process by 30 s, flock does not.

    A line that a killed process, or a full disk, left unfinished is removed before the next is written.
    """

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.held = ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock."""
        self.held.enter_context(_open_locked(self.journal.with_name("journal.lock")))
        _remove_unfinished_line(self.journal)
        return True

    def release(self) -> None:
        """Free the lock."""
        self.held.close()


def _remove_unfinished_line(path: Path) -> None:
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(end - 65536, 0)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)


def _open_locked(path: Path) -> IO[bytes]:
    with files.explain_write_errors(path, 0):
        handle = files.open_plain(path, "a+b")
        fcntl.flock(handle, fcntl.LOCK_EX)
        return handle


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with _open_locked(path):
        yield


# -- values ------------------------------------------------------------------------------------------------------------


def is_higher_better(config: Config) -> bool:
    """Whether the metric that a config chooses by is better when it is higher."""
    best = config.training.best
    return any(metrics.build(part).higher_is_better for part in config.training.validate_metrics if part.name == best)


def best_validation(run: Path, config: Config) -> tuple[float, int] | None:
    """The best value of the config's metric among a run's validations, and its step; None if there is none."""
    found = list[tuple[float, int]]()
    for line in _records(run / "metrics.jsonl"):
        value = line.get(config.training.best)
        if line.get("kind") in ("valid", "average") and isinstance(value, int | float) and math.isfinite(value):
            found.append((float(value), int(line["step"])))
    return max(found, key=lambda pair: pair[0] if is_higher_better(config) else -pair[0], default=None)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError, ValueError):
        for line in files.read_plain(path, MAX_RECORD_BYTES).splitlines():
            with suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value


def finished(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that were trained to their end, or stopped early as not promising."""
    return [trial for trial in trials if trial.state.name in ("COMPLETE", "PRUNED")]
