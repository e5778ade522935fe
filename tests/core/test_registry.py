"""A part's constructor is its schema: strict options, nested parts, and where parts come from."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import ValidationError

from dragoman import config
from dragoman.core.errors import ConfigError, did_you_mean
from dragoman.core.registry import (
    NonNegativeInt,
    Options,
    Part,
    PositiveFloat,
    PositiveInt,
    Registry,
    UnitInterval,
    options_of,
)

engines: Registry[Any] = Registry("engine")
cars: Registry[Any] = Registry("car")


@engines.register("petrol")
class Petrol:
    """Burns.

    More than one line is known about it.
    """

    def __init__(self, seats: int, *, cylinders: PositiveInt = 4) -> None:
        self.seats, self.cylinders = seats, cylinders


@engines.register("electric")
class Electric:
    """Hums."""

    def __init__(self, seats: int, *, volts: PositiveInt) -> None:
        self.volts = volts


@cars.register("van")
class Van:
    """Carries."""

    def __init__(
        self,
        seats: int,
        *,
        engine: Annotated[Part, engines] = Part("petrol"),
        load: PositiveFloat = 1.5,
        leak: UnitInterval = 0.0,
        spare: NonNegativeInt = 0,
        color: Literal["red", "blue"] = "red",
        tow: bool = False,
    ) -> None:
        self.engine, self.load = engines.build(engine, seats), load


@cars.register("cart")
def cart(seats: int, *, wheels: PositiveInt = 2) -> tuple[int, int]:
    """Rolls."""
    return seats, wheels


def problems(value: Any) -> list[tuple[tuple[Any, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        cars.parse(value)
    return [(error["loc"], error["type"]) for error in caught.value.errors()]


def test_a_name_a_mapping_and_a_part_mean_the_same() -> None:
    assert cars.parse("van") == cars.parse({"name": "van"}) == cars.parse(Part("van"))


def test_defaults_are_filled_in_at_every_depth() -> None:
    assert cars.parse("van").to_mapping() == {
        "name": "van",
        "engine": {"name": "petrol", "cylinders": 4},
        "load": 1.5,
        "leak": 0.0,
        "spare": 0,
        "color": "red",
        "tow": False,
    }


def test_options_reach_the_constructor_of_a_nested_part() -> None:
    van = cars.build(cars.parse({"name": "van", "engine": {"name": "petrol", "cylinders": 12}}), 7)
    assert (van.engine.seats, van.engine.cylinders) == (7, 12)


def test_a_function_can_be_a_part() -> None:
    assert cars.build(cars.parse({"name": "cart", "wheels": 3}), 1) == (1, 3)


def test_wiring_is_not_an_option() -> None:
    assert problems({"name": "van", "seats": 3}) == [(("seats",), "extra_forbidden")]


def test_an_unknown_option_is_an_error_at_its_own_path() -> None:
    assert problems({"name": "van", "lod": 1.0}) == [(("lod",), "extra_forbidden")]
    [(place, kind)] = problems({"name": "van", "engine": {"name": "petrol", "cylinder": 2}})
    assert (place[0], place[-1], kind) == ("engine", "cylinder", "extra_forbidden")


def test_all_problems_come_at_once() -> None:
    wrong = {"name": "van", "engine": "steam", "load": 0.0, "leak": 1.0, "spare": -1, "color": "green", "tow": "yes"}
    assert {place[0] for place, _ in problems(wrong)} == {"engine", "load", "leak", "spare", "color", "tow"}


@pytest.mark.parametrize("cylinders", ["2", 2.0, True, None, 0, -1, [2]])
def test_types_are_not_converted(cylinders: Any) -> None:
    assert problems({"name": "van", "engine": {"name": "petrol", "cylinders": cylinders}})


def test_a_whole_number_is_a_fine_float() -> None:
    assert cars.parse({"name": "van", "load": 2}).options["load"] == 2.0


def test_a_required_option_is_missed() -> None:
    [(place, kind)] = problems({"name": "van", "engine": "electric"})
    assert (place[0], place[-1], kind) == ("engine", "volts", "missing")


@pytest.mark.parametrize("value", [None, 3, [], {}, {"name": 3}, {"engine": "petrol"}, ""])
def test_what_names_no_part_is_refused(value: Any) -> None:
    with pytest.raises(Exception, match=r"must be the name of a car|no car called"):
        cars.parse(value)


def test_an_unknown_name_gets_a_hint_and_the_list() -> None:
    assert cars.unknown_name_message("vann") == "no car called 'vann'; did you mean 'van'? (there is cart, van)"
    with pytest.raises(KeyError, match="did you mean 'van'"):
        cars["vann"]


def test_a_misspelt_option_deep_in_a_config_gets_its_path_and_a_hint() -> None:
    value = {
        "data": {"train": "x.tsv"},
        "model": {"decoder": {"name": "rnn", "score": {"name": "additive", "widht": 3}}},
    }
    with pytest.raises(ConfigError) as caught:
        config.validate(value, "c.yaml")
    [problem] = caught.value.problems
    assert problem.startswith("model.decoder.score.widht is not an option; did you mean 'width'?")


def test_two_parts_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two engines called 'petrol'"):
        engines.register("petrol")(object)


def test_the_line_of_a_part_is_the_first_of_its_docstring() -> None:
    assert engines.summary("petrol") == "Burns."


def test_a_part_cannot_be_changed_and_travels() -> None:
    part = Part("van", {"engine": Part("petrol", {"cylinders": 2})})
    with pytest.raises(TypeError):
        part.options["load"] = 3.0  # type: ignore[index]
    assert pickle.loads(pickle.dumps(part)) == part


def test_a_part_keeps_its_options_when_the_given_mapping_changes() -> None:
    options = {"wheels": 4}
    part = Part("cart", options)
    options["wheels"] = 5
    assert part.options["wheels"] == 4


def test_a_group_of_settings_is_frozen_and_strict() -> None:
    van = options_of(Van, "van")()
    with pytest.raises(ValidationError):
        van.load = 3.0  # type: ignore[attr-defined]
    assert isinstance(van, Options)
    assert list(van.problems()) == []


def test_a_wrong_default_is_an_error_too() -> None:
    def part(*, size: PositiveInt = 0) -> None: ...

    with pytest.raises(ValidationError):
        options_of(part, "part")()


@pytest.mark.filterwarnings("ignore:Default value Part")
def test_the_json_schema_knows_every_part_and_option() -> None:
    schema = options_of(Van, "van").model_json_schema()["properties"]["engine"]
    names, *variants = schema["anyOf"]
    assert names == {"enum": ["electric", "petrol"]}
    assert {v["title"]: sorted(v["properties"]) for v in variants} == {
        "petrol": ["cylinders", "name"],
        "electric": ["name", "volts"],
    }
    assert variants[0]["required"] == ["volts"]  # without a name the default part is meant
    assert all(v["additionalProperties"] is False for v in variants)


def test_a_file_dropped_into_the_folder_is_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dropped_parts"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from dragoman.core.registry import Registry\nparts = Registry('p', __name__)\n"
    )
    (folder / "one.py").write_text(
        "from dropped_parts import parts\n@parts.register('one')\ndef one(*, n: int = 1):\n    return n\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import dropped_parts

    try:
        assert dropped_parts.parts.names == ["one"]
        assert dropped_parts.parts.build(dropped_parts.parts.parse("one")) == 1
    finally:
        for name in ("dropped_parts", "dropped_parts.one"):
            sys.modules.pop(name, None)


def test_an_installed_package_adds_parts_through_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dragoman.odd_things]\ntheirs = their_module\n")
    (tmp_path / "their_module.py").write_text(
        "import builtins\n@builtins.odd_things.register('theirs')\ndef theirs():\n    return 'theirs'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    things: Registry[str] = Registry("odd thing")
    monkeypatch.setattr("builtins.odd_things", things, raising=False)
    try:
        assert things.names == ["theirs"]
        assert things.build(Part("theirs")) == "theirs"
    finally:
        sys.modules.pop("their_module", None)


@pytest.mark.parametrize(("word", "hint"), [("layer", "; did you mean 'layers'?"), ("zzz", "")])
def test_a_hint_is_given_only_when_a_name_is_near(word: str, hint: str) -> None:
    assert did_you_mean(word, ["layers", "width"]) == hint
