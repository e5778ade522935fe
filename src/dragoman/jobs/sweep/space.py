"""A search space: which options of a config a sweep varies, and over which values.

    model.width: {choices: [128, 256]}
    training.optimizer.rate: {low: 1.0e-4, high: 1.0e-2, log: true}
    model.encoder.layers, model.decoder.layers: {low: 1, high: 4}

Keys with a comma between them get the same value. A space is checked against its config before the first trial: at a
few points that have every choice and both ends of every range among them.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from dragoman.config import Config, validate
from dragoman.config.loading import merge_into
from dragoman.core import yaml
from dragoman.core.errors import ConfigError, did_you_mean
from dragoman.core.registry import Options

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

MIN_POINTS, MAX_POINTS = 4, 12  # at which a space is checked
REHEARSAL_S = 2.0
COMPARISON = ("training.best", "training.validate_", "data.valid", "data.columns", "name")
Number = int | float
Params = dict[str, Any]  # a point of a space: values as Optuna has them, by key


class Choices(Options):
    """Some values, without an order."""

    choices: Annotated[list[Any], Field(min_length=1)]

    def problems(self) -> Iterator[str]:
        labels = [to_label(value) for value in self.choices]
        if len(set(map(repr, labels))) < len(labels):
            yield "choices has a value twice"

    def edges(self) -> list[Any]:
        return [to_label(value) for value in self.choices]

    def has(self, value: Any) -> bool:
        label = to_label(value)
        return any(label == each and type(label) is type(each) for each in self.edges())

    def decode(self, label: Any) -> Any:
        """The value of a label."""
        return next(value for value in self.choices if repr(to_label(value)) == repr(label))

    def draw(self, rng: random.Random) -> Any:
        return rng.choice(self.edges())

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.edges())


class Range(Options):
    """The numbers from `low` to `high`: integers if both are; on a log scale with `log`, or in steps."""

    low: Number
    high: Number
    log: bool = False
    step: Annotated[Number, Field(gt=0)] | None = None

    def problems(self) -> Iterator[str]:
        if self.low > self.high:
            yield f"low is {self.low}; it must not exceed high, {self.high}"
        if self.log and self.low <= 0:
            yield f"low is {self.low}; with log: true it must be above 0"
        if self.log and self.step is not None:
            yield "log and step exclude each other; leave one out"
        if self.is_integer and isinstance(self.step, float):
            yield f"step is {self.step}, but low and high are integers; write them as {self.low}.0 and {self.high}.0"

    @property
    def is_integer(self) -> bool:
        """Whether the range has integers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def last(self) -> Number:
        """The largest value: `high`, or the last step below it."""
        if self.step is None:
            return self.high
        return self.low + math.floor((self.high - self.low) / self.step + 1e-9) * self.step

    def edges(self) -> list[Any]:
        return [self.low, self.last] if self.low < self.last else [self.low]

    def has(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.is_integer else int | float):
            return False
        if not self.low <= value <= self.last:
            return False
        offset = 0.0 if self.step is None else (value - self.low) / self.step
        return abs(offset - round(offset)) < 1e-9

    def decode(self, value: Any) -> Any:
        return value

    def draw(self, rng: random.Random) -> Any:
        if self.step is not None:
            return self.low + rng.randrange(round((self.last - self.low) / self.step) + 1) * self.step
        value = rng.uniform(self.low, self.high)
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return min(max(round(value), self.low), self.high) if self.is_integer else value

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.is_integer:
            return IntDistribution(int(self.low), int(self.last), log=self.log, step=int(self.step or 1))
        return FloatDistribution(float(self.low), float(self.last), log=self.log, step=self.step)


Domain = Choices | Range


def to_label(value: Any) -> Any:
    """A value as Optuna stores it: a mapping or a list as its JSON text."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


@dataclass(frozen=True)
class Space:
    """The domains of a search space, by key, and the file that it is from."""

    domains: Mapping[str, Domain]
    where: str
    is_preset: bool = False

    def distributions(self) -> dict[str, BaseDistribution]:
        """The domains as Optuna has them."""
        return {key: domain.distribution() for key, domain in self.domains.items()}

    def overrides(self, params: Params) -> list[str]:
        """The values of a point as KEY=VALUE, for configs.load."""
        return [
            f"{path}={json.dumps(self.domains[key].decode(value), ensure_ascii=False)}"
            for key, value in params.items()
            for path in split_key(key)
        ]

    def to_yaml(self) -> str:
        """The text of a space file."""
        return yaml.dump({key: domain.model_dump(exclude_unset=True) for key, domain in self.domains.items()})

    def own_values(self, config: Config) -> tuple[Params, list[str]]:
        """The point of a config's own values, and the keys whose values are outside of the space."""
        values, outside, params = config.model_dump(), [], {}
        for key, domain in self.domains.items():
            found = [_value_at(values, path) for path in split_key(key)]
            if all(domain.has(value) and value == found[0] for value in found):
                params[key] = to_label(found[0])
            else:
                outside.append(key)
        return params, outside

    def points(self) -> list[Params]:
        """Points at which the space is checked: with every choice, the ends of the ranges, and some at random."""
        edges = {key: domain.edges() for key, domain in self.domains.items()}
        count = min(max(MIN_POINTS, *map(len, edges.values())), MAX_POINTS)
        cover = max(map(len, edges.values()))
        points = [{key: values[i % len(values)] for key, values in edges.items()} for i in range(cover)]
        rng = random.Random(1)
        points += [{key: domain.draw(rng) for key, domain in self.domains.items()} for _ in range(count - cover)]
        return points


def split_key(key: str) -> list[str]:
    """The dotted keys of a config that a key of a space stands for."""
    return [path.strip() for path in key.split(",")]


def short_key(key: str) -> str:
    """A key in a few letters: the end of its path; `layers` where it stands for several that end so."""
    first, *others = split_key(key)
    parts = first.removeprefix("training.").split(".")
    return parts[-1] if others else ".".join(parts[-2:])


def _value_at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


# -- reading and checking ----------------------------------------------------------------------------------------------


def list_preset_spaces() -> dict[str, str]:
    """The first comment line of every preset space, by name."""
    return {
        file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")
        for file in sorted(resources.files("dragoman.presets").joinpath("spaces").iterdir(), key=lambda f: f.name)
        if file.name.endswith(".yaml")
    }


def read_space(name: str) -> Space:
    """Read a space file (.yaml), or a preset space by its name."""
    if name.lower().endswith((".yaml", ".yml")):
        return parse_space(yaml.read(Path(name)), name)
    names = list_preset_spaces()
    if name not in names:
        near = did_you_mean(name, names)
        raise ConfigError(f"--space {name}", [f"no space called '{name}'{near} (there is {', '.join(names)})"])
    file = resources.files("dragoman.presets") / "spaces" / f"{name}.yaml"
    return replace(parse_space(yaml.parse(file.read_text(encoding="utf-8"), name), f"space {name}"), is_preset=True)


def parse_space(value: Any, where: str) -> Space:
    """A mapping from keys to domains as a Space; ConfigError with every problem."""
    if not value:
        raise ConfigError(where, ["there is no key in it; name one, as in model.width: {choices: [128, 256]}"])
    domains, problems = dict[str, Domain](), list[str]()
    for key, item in value.items():
        try:
            domains[key] = _parse_domain(item)
        except ValidationError as error:
            found = error.errors(include_url=False)
            unknown = [each for each in found if each["type"] == "extra_forbidden"]  # then others follow from it
            problems += [f"{key}: {_domain_problem(each)}" for each in unknown or found]
        else:
            problems += [f"{key}: {problem}" for problem in domains[key].problems()]
    paths = [path for key in domains for path in split_key(key)]
    problems += [f"{path}: is named twice" for path in dict.fromkeys(paths) if paths.count(path) > 1]
    if problems:
        raise ConfigError(where, problems)
    return Space(domains, where)


def _parse_domain(item: Any) -> Domain:
    kind = Choices if isinstance(item, dict) and "choices" in item else Range
    return kind.model_validate(item)


def _domain_problem(error: Any) -> str:
    key, form = ".".join(map(str, error["loc"])), "{choices: […]} or {low: …, high: …}"
    if error["type"] == "extra_forbidden":
        names = [*Choices.model_fields, *Range.model_fields]
        return f"'{key}' is not an option{did_you_mean(key, names)} (there is {form}, with log: true or step: …)"
    if error["type"] in ("model_type", "missing"):
        return f"must be {form}, found {error['input']!r}"[:160]
    return f"{key.split('.')[0]}: {error['msg'][0].lower()}{error['msg'][1:]}, found {error['input']!r}"[:160]


def check_space(space: Space, config: Config, load: Callable[[Sequence[str]], Config]) -> None:
    """Raise ConfigError, with file and key, if the config with the values of one of the space's points is none.

    Options and types are checked at every point, then whole models are rehearsed for up to REHEARSAL_S.
    """
    if problems := list(_incomparable(space, config)):
        raise ConfigError(space.where, problems)
    for params in space.points():
        paths = {path: value for key, value in params.items() for path in split_key(key)}
        values = {path: space.domains[key].decode(params[key]) for key in params for path in split_key(key)}
        if problems := [text for text in find_problems(config, values) if text.startswith(tuple(paths))]:
            raise ConfigError(space.where, problems)
    began = time.monotonic()
    for params in space.points():
        try:
            load(space.overrides(params))
        except ConfigError as error:
            shown = ", ".join(f"{key} {value}" for key, value in params.items())
            problems = [f"{text.split(' (from --set')[0]}; with {shown}" for text in error.problems]
            raise ConfigError(space.where, problems) from None
        if time.monotonic() - began > REHEARSAL_S:
            return


def _incomparable(space: Space, config: Config) -> Iterator[str]:
    """Yield what is wrong with keys whose values would make trials impossible to compare."""
    has_own_target = config.tokenizer.target is not None
    for path in (path for key in space.domains for path in split_key(key)):
        if path.startswith(COMPARISON):
            yield f"{path}: decides how trials are compared, so it must be the same for all; leave it out"
        changes_tokens = path.startswith(("tokenizer.", "data.normalization"))
        if config.training.best == "loss" and changes_tokens and not (has_own_target and ".source" in path):
            yield f"{path}: losses of different tokens cannot be compared; set training.best to a metric of texts"


def find_problems(config: Config, values: Mapping[str, Any]) -> list[str]:
    """What is wrong with a config that has other values at some of its dotted keys; no model is built."""
    merged = config.model_dump()
    for path, value in values.items():
        for part in reversed(path.split(".")):
            value = {part: value}
        merge_into(merged, value, "", {})
    try:
        validate(merged, "")
    except ConfigError as error:
        return error.problems
    return []


def suited_space(config: Config) -> tuple[Space, list[str]]:
    """The preset space of a config's encoder, or decoder if it has none; and its keys that the config lacks."""
    name = config.model.encoder.name
    if name not in list_preset_spaces() and config.model.decoder is not None:
        name = config.model.decoder.name
    if name not in list_preset_spaces():
        raise ConfigError("--space", [f"there is none for the encoder '{name}'; name a space file with --space FILE"])
    space = read_space(name)
    kept, left_out = dict[str, Domain](), list[str]()
    for key, domain in space.domains.items():
        value = domain.decode(domain.edges()[0])
        paths = [path for path in split_key(key) if not _lacks(config, path, value)]
        left_out += [path for path in split_key(key) if path not in paths]
        if paths:
            kept[", ".join(paths)] = domain
    return replace(space, domains=kept), left_out


def add_own_values(space: Space, config: Config) -> Space:
    """The space with a config's own values in it: among the choices, and within the ranges."""
    values, domains = config.model_dump(), dict(space.domains)
    for key, domain in space.domains.items():
        found = [_value_at(values, path) for path in split_key(key)]
        if any(value != found[0] for value in found) or domain.has(found[0]):
            continue
        if isinstance(domain, Choices):
            domains[key] = Choices(choices=[*domain.choices, found[0]])
            continue
        ends = {"low": min, "high": max}
        with suppress(TypeError, ValidationError):  # a value that is no number
            wider = domain.model_copy(update={end: pick(getattr(domain, end), found[0]) for end, pick in ends.items()})
            wider = Range.model_validate(wider.model_dump())
            if wider.has(found[0]) and wider.is_integer == domain.is_integer and not list(wider.problems()):
                domains[key] = wider
    return replace(space, domains=domains)


def _lacks(config: Config, path: str, value: Any) -> bool:
    return any(text.startswith(f"{path} is not an option") for text in find_problems(config, {path: value}))
