"""From a file of pairs to a trained model without choosing anything: `dragoman train PAIRS`.

    pairs ─profile→ task, sizes ─write_parts→ data/train, valid, test ─autoconfig→ candidates
          ─measure_speed→ the first candidate that gets enough epochs in the time ─→ train.yaml ─→ a training

    runs/NAME/train.yaml     a short config over a preset, to be edited: what a person would have written
    runs/NAME/data/          the parts of the pairs
    runs/NAME/plan.json      what was asked for and what was seen; with it the same command resumes

With `search` the candidates and their rivals race (race.py), and the winner goes on from where it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from dragoman import config as configs
from dragoman.config import Config, autoconfig
from dragoman.config.autoconfig import Candidate
from dragoman.core import files, yaml
from dragoman.core.errors import DataError, RunError, UserError
from dragoman.core.types import Example
from dragoman.data.columns import ColumnsLike
from dragoman.data.lines import OnError, ReadReport, format_count
from dragoman.data.quality.initials import WordBeginnings, describe_missing
from dragoman.data.quality.profile import DataProfile, profile_pairs
from dragoman.data.readers import read_pairs, spec_files
from dragoman.data.readers.columns import propose_columns
from dragoman.data.selection.split import MIN_PAIRS
from dragoman.data.store.cache import hash_files
from dragoman.inference.device import select_device
from dragoman.training import distributed
from dragoman.training.data_parts import Parts, split_references, write_parts
from dragoman.training.loop import run as train_config
from dragoman.training.race import race
from dragoman.training.report import Report
from dragoman.training.speed import TrainingSpeed, measure_speed

MINUTES = 10.0  # of training, if nothing else is asked for
MIN_UPDATES = 1_500  # of a training that has the time, however few its data: early stopping ends it before
VALIDATION_SHARE = 0.12  # of the time that goes into validating and saving
RACE_SHARE = 0.65  # of the time that a race leaves for the winner's training, its part of the race included
MAX_PLAN_BYTES = 1 << 20


@dataclass(frozen=True)
class TrainingRequest:
    """What a person asks for: some pairs, and nothing else unless they say so."""

    pairs: str
    valid: str | None = None  # pairs that are held out already
    test: str | None = None
    columns: ColumnsLike | None = None
    minutes: float = MINUTES
    search: bool = False
    overrides: tuple[str, ...] = ()  # KEY=VALUE, over the config that is chosen
    on_error: OnError = "stop"  # or "skip": lines that cannot be read are left out

    def read(self) -> tuple[list[Example], dict[str, list[Example]], list[str]]:
        """The pairs, those that are held out already by part, and sentences about the columns and lines."""
        columns, sentences, report = self.columns, list[str](), ReadReport()
        how: dict[str, Any] = {"on_error": self.on_error, "report": report}
        if columns is None:
            proposal = propose_columns(self.pairs)
            columns, sentences = proposal.columns, [proposal.sentence]
        given = {"valid": self.valid, "test": self.test}
        held_out = {
            name: list(read_pairs(spec, columns=columns, extra_targets=True, **how))
            for name, spec in given.items()
            if spec
        }
        rows = list(read_pairs(self.pairs, columns=columns, extra_targets=self.columns is None, **how))
        if several := sum(len(row.references) > 1 for row in rows):
            sentences.append(f"{format_count(several, 'line')} with more than one target: each target makes a pair")
        return list(chain.from_iterable(map(split_references, rows))), held_out, [*sentences, *report.notices()]

    def fingerprint(self, cache: Path) -> dict[str, Any]:
        """What must be the same for a run to be resumed."""
        specs = [spec for spec in (self.pairs, self.valid, self.test) if spec is not None]
        return {
            "pairs": self.pairs,
            "sha256": hash_files(list(chain.from_iterable(map(spec_files, specs))), cache),
            "minutes": self.minutes,
            "search": self.search,
            "on_error": self.on_error,
            "set": list(self.overrides),
        }


def default_folder(pairs: str) -> Path:
    """runs/NAME for a file NAME.tsv."""
    paths = spec_files(pairs)
    return Path("runs") / (paths[0].name.split(".")[0] if paths else "model")


def cache_folder(folder: Path) -> Path:
    """Where a run in `folder` keeps its token stores by default."""
    return folder.parent / ".cache"


def run(request: TrainingRequest, folder: Path) -> Iterator[Report]:
    """Divide the pairs, choose a system and train it in `folder`, or resume what is there. Yields reports."""
    if request.minutes <= 0:
        raise UserError(f"--minutes must be above 0, found {request.minutes:g}")
    if distributed.rank_and_world_size()[1] > 1:
        raise UserError("one process chooses a config: run this without torchrun, then torchrun with its train.yaml")
    is_new = not (folder / "plan.json").exists()
    if is_new:
        if (folder / "config.yaml").exists():
            raise RunError(f"{folder}: there is another run; choose another folder with --run")
        yield from _make_plan(request, folder)
    plan = read_plan(folder)
    _check_request(plan, request.fingerprint(cache_folder(folder)), folder)
    yield from [] if is_new else map(_notice, plan["lines"])  # of a new one they came as they were found
    yield from train_config(configs.load(folder / "train.yaml", None, request.overrides).config, folder)


# -- the plan ----------------------------------------------------------------------------------------------------------


def read_plan(folder: Path) -> dict[str, Any]:
    """The request ("asked"), the file of test pairs ("test") and what was said ("lines") of a run; else RunError."""
    try:
        plan: dict[str, Any] = json.loads(files.read_plain(folder / "plan.json", MAX_PLAN_BYTES))
        is_whole = {"asked", "test", "lines"} <= plan.keys()
    except (OSError, ValueError, AttributeError):
        is_whole = False
    if not is_whole:
        raise RunError(f"{folder / 'plan.json'}: cannot be read; choose another folder with --run")
    return plan


def _check_request(plan: Mapping[str, Any], asked: Mapping[str, Any], folder: Path) -> None:
    """Raise RunError if the run was begun with other pairs or options."""
    options = {key: f"--{key.replace('_', '-')}" for key in ("minutes", "search", "on_error", "set")}
    names = {"pairs": "the file", "sha256": "its pairs", **options}
    changed = [name for key, name in names.items() if plan["asked"].get(key) != asked[key]]
    if changed:
        raise RunError(
            f"{folder}: this run was begun otherwise ({' and '.join(changed)}); choose another folder with --run, "
            f"or go on as it was begun with: dragoman train {folder / 'train.yaml'} --run {folder}"
        )


def _make_plan(request: TrainingRequest, folder: Path) -> Iterator[Report]:
    """Divide the pairs, choose a system and write its config; plan.json is written last.

    Yields what is found, each as soon as it is, and a race's reports.
    """
    examples, held_out, sentences = request.read()
    if len(examples) < MIN_PAIRS:
        found = format_count(len(examples), "pair")
        few = f"found {found}; at least {MIN_PAIRS} are needed to hold some out, and a few hundred to learn from"
        raise DataError(few, request.pairs)
    profile = profile_pairs(examples)
    parts = write_parts(examples, held_out, folder / "data")
    beginnings = WordBeginnings()
    for example in examples:
        beginnings.add(example.source)
    if beginnings.missing:
        sentences.append(describe_missing(beginnings.missing))
    seen = [*sentences, f"{profile}. {parts.sentence}"]
    yield from map(_notice, [*seen, "measuring how fast this machine trains …"])
    every = _measure_candidates(profile, parts, request, folder)
    if request.search:
        choice = yield from _race(list(every), request, folder)
    else:
        choice = _first_with_time(every)
    files.write_file(folder / "train.yaml", _config_text(choice, request, profile).encode())
    decision = [choice.sentence(), f"config: {folder / 'train.yaml'}"]
    yield from map(_notice, decision)
    asked = request.fingerprint(cache_folder(folder))
    said = {"lines": [*seen, *decision], "division": parts.sentence}
    plan = {"asked": asked, "test": parts.files.get("test"), **said}
    files.write_file(folder / "plan.json", (json.dumps(plan, indent=1, ensure_ascii=False) + "\n").encode())


def _notice(text: str) -> Report:
    return Report("notice", 0, 0, text)


# -- the system --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A candidate with its settings, its speed on this machine and the steps that fit into the time."""

    candidate: Candidate
    values: Mapping[str, Any]  # by dotted keys, over the candidate's preset
    speed: TrainingSpeed
    steps: int

    @property
    def epochs(self) -> float:
        """How often each pair is seen, if the training goes on to the end."""
        return self.steps / self.speed.steps_per_epoch

    def _describe_epochs(self) -> str:
        if self.epochs < 1:
            return "less than one epoch (give it more minutes, or fewer pairs: dragoman data sample)"
        return format_count(round(self.epochs), "epoch")

    def sentence(self) -> str:
        """What was chosen, in a line."""
        seconds = self.steps * self.speed.seconds_per_step * (1 + VALIDATION_SHARE)
        minutes = round(seconds / 60)
        time = "about a minute of training" if minutes <= 1 else f"about {minutes} minutes of training"
        size = f"{self.speed.parameters / 1e6:.1f} M parameters"
        return (
            f"model: {self.candidate.title} (preset {self.candidate.preset}, {size}); {time} on this machine, "
            f"{self._describe_epochs()}; stops when validation stops improving"
        )


def _load(candidate: Candidate, values: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """The config of a candidate with values and overrides, checked."""
    sets = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return configs.load(None, candidate.preset, [*sets, *overrides]).config


def _measure_candidates(profile: DataProfile, parts: Parts, request: TrainingRequest, folder: Path) -> Iterator[Choice]:
    """Each candidate with its settings, measured on this machine, the best first."""
    has_gpu = select_device("auto").type == "cuda"
    seconds = request.minutes * 60 * (RACE_SHARE if request.search else 1.0)
    for candidate in autoconfig.candidates(profile, has_gpu, rivals=request.search):
        values = {
            "name": folder.name,
            "data.train": parts.files["train"],
            "data.valid": parts.files.get("valid"),
            "data.columns": parts.columns,
            **autoconfig.settings(profile, candidate, parts.counts.get("valid", 0), has_gpu),
        }
        if profile.task in ("image", "audio"):
            values["data.files"] = [str(spec_files(request.pairs)[0].parent)]
        trial = _load(candidate, values, request.overrides)
        speed = measure_speed(trial, cache_folder(folder))
        steps = choose_steps(candidate, speed, seconds)
        warmup = int(trial.training.schedule.options.get("warmup", 0))
        yield Choice(candidate, values | autoconfig.interval_settings(steps, warmup), speed, steps)


def _first_with_time(every: Iterable[Choice]) -> Choice:
    """The first choice that gets enough epochs in the time, or the last."""
    for choice in every:
        if choice.epochs >= choice.candidate.least_epochs:
            break
    return choice


def choose_steps(candidate: Candidate, speed: TrainingSpeed, seconds: float) -> int:
    """As many steps as the time allows, and no more than the candidate's epochs; in tens, at least 10."""
    affordable = seconds * (1 - VALIDATION_SHARE) / speed.seconds_per_step
    wanted = max(candidate.epochs * speed.steps_per_epoch, MIN_UPDATES)
    return max(math.floor(min(affordable, wanted) / 10) * 10, 10)


def _race(every: Sequence[Choice], request: TrainingRequest, folder: Path) -> Generator[Report, None, Choice]:
    """Let candidates race; the winner's run becomes that of `folder`."""
    by_name = {choice.candidate.title: choice for choice in every}
    winner = yield from race(
        {name: _load(choice.candidate, choice.values, request.overrides) for name, choice in by_name.items()},
        folder / "race",
    )
    place = folder / "race" / winner
    for entry in sorted(place.iterdir()) if place.exists() else ():  # a single candidate has not begun
        if entry.name != ".lock":
            entry.rename(folder / entry.name)
    files.remove_folder(folder / "race")
    return by_name[winner]


def _config_text(choice: Choice, request: TrainingRequest, profile: DataProfile) -> str:
    """The config as a file over the preset, with what was seen and chosen as comments."""
    nested: dict[str, Any] = {"preset": choice.candidate.preset}
    for key, value in choice.values.items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    head = [
        f"Written by `dragoman train {request.pairs}`. To change something, edit it and train it in another folder:",
        "dragoman train THIS_FILE --run FOLDER",
        "",
        f"{profile}.",
        f"{choice.sentence()}.",
        f"Measured: {autoconfig.find_rule(profile).reason} (docs/recipes.md).",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + yaml.dump(nested)
