"""What a recipe is: a folder with a recipe.yaml, read and checked.

    data sets ─prepare(sets, part, folder)→ train.tsv, valid.tsv, test.tsv ─each system→ a model ─each score→ a figure

A part is a share of the data with models of its own (a language, a split); most recipes have one. A job is one
training: a system, a part and a seed. `expect` says what a job's scores should be, by system, by system/part, or, where
a system is named and there are several parts, for the mean over them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BeforeValidator, Field, ValidationError

from dragoman.core import yaml
from dragoman.core.errors import ConfigError, DataError, UserError, nearest
from dragoman.core.registry import Options, Part, PositiveInt
from dragoman.evaluation.metrics import metrics

SURPRISE = "bits per character"  # the score of a language model
TOGETHER = ", together"  # after a system's name: the models of its seeds as one
Spelling = Literal["as it is", "spacy words", "moses words", "code tokens"]


def _figure(value: Any) -> Any:
    """A bare metric is one that reads the texts as they are."""
    return value if isinstance(value, dict) and "metric" in value else {"metric": value}


class Figure(Options):
    """One score: a metric, and how texts are written before it looks at them (spelling.py)."""

    metric: Annotated[Part, metrics]
    text: Spelling = "as it is"
    lowercase: bool = False
    label: str | None = None  # in tables; default: its name
    inverse: bool = False  # 100 less the metric: an error rate of exact match


def _system(value: Any) -> Any:
    return {"config": value} if isinstance(value, str) else value


class System(Options):
    """A config of the folder, and what it is trained on."""

    config: str
    after: str | None = None  # begin with the weights and tokenizers of this system, trained before
    train: str = "train.tsv"
    valid: str | None = "valid.tsv"
    scored: bool = True  # false: a step on the way


class Expected(Options):
    """A score, and how far below it (above, for an error rate) a run may end."""

    value: float
    tolerance: Annotated[float, Field(ge=0.0)]


class Recipe(Options):
    """A recipe.yaml."""

    title: str
    task: str
    data: list[str] = []  # the folders of data sets; none: prepare makes the data up
    parts: Annotated[list[str], Field(min_length=1)] = [""]
    systems: dict[str, Annotated[System, BeforeValidator(_system)]]
    tests: Annotated[list[str], Field(min_length=1)] = [
        "test"
    ]  # NAME.tsv, and NAME.groups, a word for each line, if any
    scores: dict[str, Annotated[Figure, BeforeValidator(_figure)]]  # the first is the one that matters
    beam: PositiveInt | None = None  # default: as the config has it
    seeds: Annotated[list[int], Field(min_length=1)] = [1]
    together: dict[str, Annotated[list[str], Field(min_length=2)]] = {}  # systems that answer as one, by a name
    expect: dict[str, dict[str, Expected]] = {}
    extras: list[str] = []  # what has to be installed besides

    def problems(self) -> Iterator[str]:
        for name, system in self.systems.items():
            if system.after is not None and system.after not in self.systems:
                yield f"systems.{name}.after is '{system.after}', which is no system of this recipe"
            elif system.after is not None and self.systems[system.after].after is not None:
                yield f"systems.{name}.after is '{system.after}', which comes after another itself; one is the most"
        for name, members in self.together.items():
            if name in self.systems or not {*members} <= self.systems.keys():
                yield f"together.{name} must be a new name for some of the systems {', '.join(self.systems)}"
        systems = [*self.systems, *(f"{name}{TOGETHER}" for name in (*self.systems, *self.together))]
        known = {*systems, *(f"{system}/{part}" for system in systems for part in self.parts)}
        for key, scores in self.expect.items():
            if key not in known:
                yield f"expect: '{key}' is no system, and no system/part, of this recipe"
            for score in scores:
                test, _, name = score.rpartition(".")
                if (test and test not in self.tests) or _figure_of(name) not in {*self.scores, SURPRISE}:
                    yield f"expect.{key}: there is no score '{score}'"


@dataclass(frozen=True)
class Job:
    """One training."""

    system: str
    part: str
    seed: int

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.system, self.part, f"seed{self.seed}" if self.seed != 1 else "")))


@dataclass(frozen=True)
class Opened:
    """A recipe and its folder."""

    name: str
    recipe: Recipe
    folder: Path

    def config(self, system: str) -> Path:
        return self.folder / self.recipe.systems[system].config

    @property
    def readme(self) -> str:
        return (self.folder / "README.md").read_text(encoding="utf-8")

    @property
    def code(self) -> Any:
        """prepare.py: `prepare`, `example`, and perhaps `baselines` and `answer`."""
        return importlib.import_module(f"dragoman.recipes.{self.folder.name}.prepare")

    def jobs(self, only: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[Job]:
        """The trainings asked for: by system, by part or by system/part; those that others build on come first."""
        recipe = self.recipe
        every = [
            (system, part, {system, *([part, f"{system}/{part}"] if part else [])})
            for part in recipe.parts
            for system in recipe.systems
        ]
        allowed = sorted({name for *_, known in every for name in known})
        for name in only:
            if name not in allowed:
                there = f"(there is {', '.join(allowed)})"
                raise UserError(f"--only: the recipe '{self.name}' has no '{name}'{nearest(name, allowed)} {there}")
        wanted: list[tuple[str, str]] = []
        for system, part, known in every:
            if not only or known & {*only}:
                before = recipe.systems[system].after
                wanted += [(name, part) for name in (before, system) if name is not None]
        return [Job(system, part, seed) for seed in (seeds or recipe.seeds) for system, part in dict.fromkeys(wanted)]

    def sets(self, place: Path) -> Sets:
        """The folder of each data set that is there: `place` holds them by name, or is the only one."""
        names = self.recipe.data
        alone = len(names) == 1 and not (place / names[0]).is_dir()
        folders = {names[0]: place} if alone else {name: place / name for name in names}
        found = Sets({name: folder for name, folder in folders.items() if folder.is_dir()}, self.name, place)
        if not found:
            found.miss(names[0])
        return found


class Sets(dict[str, Path]):
    """Data sets by name; one that is not there is missed when a part asks for it."""

    def __init__(self, found: Mapping[str, Path], recipe: str, place: Path) -> None:
        super().__init__(found)
        self.recipe, self.place = recipe, place

    def __missing__(self, name: str) -> Path:
        self.miss(name)

    def miss(self, name: str) -> NoReturn:
        raise DataError(
            f"there is no folder with the data set '{name}'; --data names it, or the folder that holds it "
            f"(`dragoman recipe show {self.recipe}` says how to get it)",
            self.place,
        )


def names() -> list[str]:
    """Every recipe there is."""
    root = Path(str(resources.files("dragoman.recipes")))
    return sorted(file.parent.name.replace("_", "-") for file in root.glob("*/recipe.yaml"))


def open_recipe(name: str) -> Opened:
    known = names()
    if name not in known:
        raise UserError(f"there is no recipe '{name}'{nearest(name, known)} (`dragoman recipe list` shows them all)")
    folder = Path(str(resources.files("dragoman.recipes"))) / name.replace("-", "_")
    where = folder / "recipe.yaml"
    try:
        recipe = Recipe.model_validate(yaml.read(where))
    except ValidationError as error:
        found = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
        raise ConfigError(where, found) from None
    if found := list(recipe.problems()):
        raise ConfigError(where, found)
    return Opened(name, recipe, folder)


def _figure_of(name: str) -> str:
    """The score that a mean over groups is one of."""
    return name.split(", mean of ")[0]


def _higher_is_better(recipe: Recipe, name: str) -> bool:
    if name == SURPRISE:
        return False
    figure = recipe.scores[name]
    return metrics.build(figure.metric).higher_is_better != figure.inverse


def passed(recipe: Recipe, scores: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str, float, Expected, bool]]:
    """Each expectation that there are scores for: where, which score, what was reached and expected, whether it was."""
    rows = []
    for where, expected in recipe.expect.items():
        for name, wanted in expected.items():
            if name not in scores.get(where, {}):
                continue
            higher = _higher_is_better(recipe, _figure_of(name.rpartition(".")[2]))
            reached = scores[where][name]
            good = reached >= wanted.value - wanted.tolerance if higher else reached <= wanted.value + wanted.tolerance
            rows.append((where, name, reached, wanted, good))
    return rows


@dataclass(frozen=True)
class Setting:
    """How jobs of a recipe are run."""

    opened: Opened
    data: Path | None  # None where nothing is pointed to
    out: Path
    example: bool = False  # on made-up data, a few steps
    sets: Sequence[str] = ()
    allow_change: Sequence[str] = ()  # keys of the config that a run that is gone on with may differ in

    def folder(self, job: Job) -> Path:
        return self.out / job.name

    def prepared(self, part: str) -> Path:
        return self.out / "data" / part if part else self.out / "data"
