"""The results of a sweep: a table of its trials, the best config, and which options mattered.

sweep.json   everything, for programs and for reports/sweep_report.py
trials.tsv   a line for each trial, the best first
best.yaml    the config of the best trial, to be trained or changed
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dragoman.config import Config
from dragoman.core import files
from dragoman.core.json import replace_nonfinite
from dragoman.data.readers import read_pairs
from dragoman.jobs.sweep.folder import SweepFolder, finished, import_optuna
from dragoman.jobs.sweep.space import short_key

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

MIN_FOR_IMPORTANCE = 10  # finished trials; fewer say nothing
NEAR_END = 0.03  # of a range
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


@dataclass(frozen=True)
class TrialResult:
    """A trial: its values, and how it ended."""

    number: int
    state: str
    value: float | None  # of the metric; of a pruned trial that of its last validation
    step: int | None
    seconds: float
    params: dict[str, Any]
    reason: str = ""


@dataclass(frozen=True)
class SweepResults:
    """The trials of a sweep, the best first, and what they say together."""

    name: str
    metric: str
    higher_is_better: bool
    validation_examples: int
    space: dict[str, Any]
    trials: list[TrialResult]
    own: int | None = None  # the trial with the config's own values
    importance: dict[str, float] = field(default_factory=dict)  # empty where there are too few trials

    @property
    def best(self) -> TrialResult | None:
        """The best complete trial."""
        return self.trials[0] if self.trials and self.trials[0].state == "complete" else None

    def count(self, *states: str) -> int:
        """How many trials are in one of these states."""
        return sum(trial.state in states for trial in self.trials)

    @property
    def note(self) -> str:
        """What the best value is worth."""
        count = self.count("complete", "pruned")
        if self.best is None:
            return "no trial is complete"
        return (
            f"the best of {count} trials on {self.validation_examples:,} validation examples: its validation score is "
            "optimistic; measure it on a test set"
        )

    def findings(self) -> list[str]:
        """What the trials say besides their order, a sentence each."""
        if self.best is None:
            return []
        own = next((trial for trial in self.trials if trial.number == self.own and trial.value is not None), None)
        found = list[str]()
        if own is not None and own.state == "complete":
            text = "are the best" if own == self.best else f"have {self.metric} {own.value:.4g}"
            found.append(f"the config's own values {text} (trial {own.number})")
        for key, value in self.best.params.items():
            if end := _end_of_range(self.space[key], value):
                found.append(
                    f"the best {key}, {value:.3g}, is at the end of its range, {end:g}: a wider one may be better"
                )
        return found

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        best = None if self.best is None else self.best.number
        labels = {key: short_key(key) for key in self.space}
        more = {"best": best, "note": self.note, "findings": self.findings(), "labels": labels}
        return replace_nonfinite(asdict(self) | more)  # type: ignore[no-any-return]


def _end_of_range(domain: dict[str, Any], value: Any) -> float | None:
    """The end of a range that a value is at, on the range's own scale; None if it is not, or the end is 0 or 1."""
    if "choices" in domain or domain["low"] == domain["high"]:
        return None
    scale = math.log if domain.get("log") else float
    low, high = scale(domain["low"]), scale(domain["high"])
    share = (scale(value) - low) / (high - low)
    end = domain["low"] if share < NEAR_END else domain["high"] if share > 1 - NEAR_END else 0
    return None if end in (0, 1) else end  # most numbers of a config cannot be lower


def collect_results(folder: SweepFolder) -> SweepResults:
    """The results of a sweep as they are now."""
    study, config = folder.open_study(), folder.config
    is_higher_better = study.direction.name == "MAXIMIZE"
    trials = [_trial_result(trial) for trial in study.get_trials(deepcopy=False) if trial.params]
    order = {state: i for i, state in enumerate(STATES.values())}

    def rank(trial: TrialResult) -> tuple[int, float, int]:
        value = math.inf if trial.value is None else -trial.value if is_higher_better else trial.value
        return order[trial.state], value, trial.number

    return SweepResults(
        config.name,
        config.training.best,
        is_higher_better,
        _count_validation_examples(config),
        {key: domain.model_dump(exclude_unset=True) for key, domain in folder.space.domains.items()},
        sorted(trials, key=rank),
        0 if folder.settings.first else None,
        _importance(study),
    )


def _trial_result(trial: FrozenTrial) -> TrialResult:
    attributes = trial.user_attrs
    step = attributes.get("step", trial.last_step)
    value = trial.value if trial.state.name in ("COMPLETE", "PRUNED") else None
    value = None if value is None or not math.isfinite(value) else value
    seconds, reason = attributes.get("seconds", 0.0), attributes.get("reason", "")
    return TrialResult(trial.number, STATES[trial.state.name], value, step, seconds, dict(trial.params), reason)


def _count_validation_examples(config: Config) -> int:
    """How many examples the metric is measured on."""
    assert config.data.valid is not None
    how: dict[str, Any] = {"columns": config.columns, "on_error": config.data.on_error, "extra_targets": True}
    count = sum(1 for _ in read_pairs(config.data.valid, **how))
    return count if config.training.best == "loss" else min(count, config.training.validate_examples)


def _importance(study: optuna.Study) -> dict[str, float]:
    """What share of the difference between good and middling trials each option explains (PED-ANOVA).

    Of a pruned trial the last validation counts: only which trials are the good ones matters.
    """
    optuna = import_optuna()
    trials = [t for t in finished(study.get_trials(deepcopy=False)) if t.value is not None and math.isfinite(t.value)]
    if len(trials) < MIN_FOR_IMPORTANCE or len({trial.value for trial in trials}) < 2:
        return {}
    ended = optuna.create_study(direction=study.direction)
    for each in trials:  # as if all were complete: the others are not looked at
        same = {"params": each.params, "distributions": each.distributions, "value": each.value}
        ended.add_trial(optuna.trial.create_trial(**same))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()  # fANOVA would need scikit-learn
    shares = optuna.importance.get_param_importances(ended, evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


# -- files -------------------------------------------------------------------------------------------------------------


def write_results(folder: SweepFolder) -> SweepResults:
    """Write sweep.json, trials.tsv and best.yaml; returns the results."""
    results = collect_results(folder)
    text = json.dumps(results.as_json(), indent=1, ensure_ascii=False) + "\n"
    files.write_file(folder.path / "sweep.json", text.encode())
    files.write_file(folder.path / "trials.tsv", "".join(f"{line}\n" for line in _tsv_lines(results)).encode())
    if results.best is not None:
        best = results.best.number
        text = best_config(folder, best).to_yaml()
        head = f"# Trial {best} of a sweep: {results.metric} {results.best.value:.6g}, {results.note}.\n"
        files.write_file(folder.path / "best.yaml", f"{head}{text}".encode())
    return results


def best_config(folder: SweepFolder, number: int) -> Config:
    """The config of a trial, by a name of its own."""
    trial = folder.open_study().get_trials(deepcopy=False)[number]
    overrides = [*folder.space.overrides(trial.params), *trial.user_attrs.get("settings", [])]
    return folder.trial_config([*overrides, f"name={json.dumps(f'{folder.config.name}-best')}"])


def _tsv_lines(results: SweepResults) -> Iterator[str]:
    keys = list(results.space)
    yield "\t".join(["trial", "state", results.metric, "step", "seconds", *keys, "reason"])
    for trial in results.trials:
        cells = [trial.number, trial.state, trial.value, trial.step, trial.seconds]
        cells += [trial.params.get(key) for key in keys]
        cells.append(" ".join(trial.reason.split()))
        yield "\t".join("" if cell is None else str(cell) for cell in cells)
