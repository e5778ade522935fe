"""One set of generation options: the same names everywhere, and only what is set overrides."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from dragoman import config as configs
from dragoman.config import Config
from dragoman.core import yaml
from dragoman.core.errors import UserError
from dragoman.core.generation import (
    SCOPES,
    GenerationOptions,
    fields_of,
    lift_search_options,
    parse_simple,
    scope_of,
    simple_type,
)
from dragoman.core.registry import Part
from dragoman.search import Search, apply_overrides, build_search, search_part, searches
from dragoman.serve.schema import PredictRequest, UploadFields, UploadQuery, upload_to_request

FIELDS = list(GenerationOptions.model_fields)

# A value of each field that is not its default, and its text on a command line or in a query.
VALUES: dict[str, tuple[Any, Any]] = {
    "search": (Part("sample"), "sample"),
    "beam": (7, 7),
    "nbest": (2, 2),
    "length_rule": (Part("gnmt"), "gnmt"),
    "length_penalty": (0.3, 0.3),
    "early_stopping": ("never", "never"),
    "patience": (1.5, 1.5),
    "finished_policy": ("shrink", "shrink"),
    "coverage_penalty": (0.2, 0.2),
    "num_beam_groups": (2, 2),
    "diversity_penalty": (1.5, 1.5),
    "num_samples": (3, 3),
    "temperature": (0.7, 0.7),
    "top_k": (10, 10),
    "top_p": (0.9, 0.9),
    "min_p": (0.1, 0.1),
    "typical_p": (0.8, 0.8),
    "epsilon_cutoff": (0.01, 0.01),
    "seed": (5, 5),
    "mbr": (Part("chrf"), "chrf"),
    "ctc_weight": (0.4, 0.4),
    "max_new_tokens": (9, 9),
    "max_length_ratio": (1.5, 1.5),
    "max_length_extra": (3, 3),
    "min_new_tokens": (1, 1),
    "min_length_ratio": (0.5, 0.5),
    "prefix": ("ab", "ab"),
    "force_phrases": (("a", "b"), ["a", "b"]),
    "force_phrases_ordered": (True, True),
    "forbid_phrases": (("c",), ["c"]),
    "choices": (("a", "b"), ["a", "b"]),
    "pattern": ("[ab]+", "[ab]+"),
    "no_repeat_ngram_size": (3, 3),
    "repetition_penalty": (1.2, 1.2),
    "allow_unk": (False, False),
    "replace_unk": (True, True),
}


# -- the same names everywhere -----------------------------------------------------------------------------------------


def test_every_field_has_a_value_here_a_description_and_a_scope() -> None:
    assert list(VALUES) == FIELDS
    assert list(fields_of(*SCOPES)) == FIELDS
    for name, info in GenerationOptions.model_fields.items():
        assert info.description, name
        assert VALUES[name][0] != info.default, name
        assert scope_of(name) in SCOPES


def test_every_field_is_an_option_of_the_command_line_with_its_name_and_description() -> None:
    command = [sys.executable, "-m", "dragoman", "predict", "--help"]
    env = os.environ | {"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    for name, info in GenerationOptions.model_fields.items():
        assert info.description is not None
        (line,) = re.findall(rf"^\W*--{name.replace('_', '-')}[ /].*$", shown, re.MULTILINE)
        assert re.sub(r"\s+", " ", info.description) in line
    for title in SCOPES.values():
        assert title in shown


def test_every_field_is_in_the_schemas_of_a_request_an_upload_and_a_config() -> None:
    config = Config.model_json_schema()["$defs"]["GenerationOptions"]["properties"]
    request, upload = PredictRequest.model_json_schema(), UploadQuery.model_json_schema()
    assert list(config) == FIELDS
    for name, info in GenerationOptions.model_fields.items():
        assert config[name]["description"] == request["properties"][name]["description"] == info.description
        assert name in upload["properties"]
    assert set(request["properties"]) - set(FIELDS) == {"model", "inputs", "attention", "stream", "token_log_probs"}
    assert set(upload["properties"]) - set(FIELDS) == {"text", "attention", "stream"}
    assert request["required"] == ["inputs"]
    for schema in (config, request["properties"]):
        assert (schema["search"]["default"], schema["length_rule"]["default"], schema["beam"]["default"]) == (
            "beam",
            "mean",
            5,
        )
    assert request["additionalProperties"] is False


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_means_the_same_in_python_yaml_json_a_query_and_on_the_command_line(name: str) -> None:
    value, text = VALUES[name]
    options = GenerationOptions(**{name: value})
    assert options.explicit == {name: value}
    saved = yaml.parse(yaml.dump(options.model_dump()), "saved")
    assert GenerationOptions.model_validate(saved) == options
    body = json.loads(json.dumps({"inputs": ["a"], **options.model_dump(mode="json", exclude_unset=True)}))
    request = PredictRequest.model_validate(body)
    assert GenerationOptions.model_validate(request.options()) == options
    query = UploadQuery.model_validate({name: text})
    assert isinstance(query, UploadFields)
    uploaded = upload_to_request(query, "m", {"source": "a"})
    assert GenerationOptions.model_validate(uploaded.options()) == options
    others = {other: [] if simple_type(other) == list[str] else None for other in FIELDS if other != name}
    parsed = GenerationOptions.model_validate(parse_simple({name: text} | others))
    assert (parsed, parsed.model_fields_set) == (options, {name})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("beam", int),
        ("num_beam_groups", int),
        ("length_penalty", float),
        ("allow_unk", bool),
        ("early_stopping", str),
        ("search", str),
        ("mbr", str),
        ("prefix", str),
        ("choices", list[str]),
    ],
)
def test_a_field_has_a_type_where_all_values_are_text(name: str, kind: Any) -> None:
    assert simple_type(name) == kind


@pytest.mark.parametrize("text", ["true", "True", "false", "FALSE", "never"])
def test_early_stopping_is_true_false_or_never_as_a_word(text: str) -> None:
    expected: Any = {"true": True, "false": False}.get(text.lower(), text)
    assert GenerationOptions.model_validate(parse_simple({"early_stopping": text})).early_stopping == expected


@pytest.mark.parametrize("value", ["exact", "usual", 2, None, "True"])
def test_early_stopping_is_nothing_else(value: Any) -> None:
    with pytest.raises(ValidationError, match="Input should be False, True or 'never'"):
        GenerationOptions(early_stopping=value)


# -- only what is set overrides ----------------------------------------------------------------------------------------


def test_unset_fields_do_not_override_and_set_ones_do_whatever_their_value_is() -> None:
    base = GenerationOptions(**{name: value for name, (value, _) in VALUES.items()})
    assert base.merge(None) == base.merge(GenerationOptions()) == base
    for name, info in GenerationOptions.model_fields.items():
        merged = base.merge(GenerationOptions(**{name: info.default}))  # the default, explicitly
        assert getattr(merged, name) == info.default
        assert {other for other in FIELDS if getattr(merged, other) != getattr(base, other)} == {name}
        merged = GenerationOptions().merge(GenerationOptions(**{name: VALUES[name][0]}))
        assert merged.explicit == {name: VALUES[name][0]}


def test_a_request_overrides_what_it_sets_and_a_new_search_drops_what_it_does_not_take() -> None:
    own = GenerationOptions(beam=9, length_rule=Part("gnmt"), early_stopping=False, min_new_tokens=2)
    assert apply_overrides(own, None) == apply_overrides(own, GenerationOptions()) == own
    assert apply_overrides(own, GenerationOptions(beam=5)).beam == 5  # the default, explicitly
    sampling = apply_overrides(own, GenerationOptions(search=Part("sample"), top_k=4))
    assert sampling.explicit == {"search": Part("sample"), "top_k": 4, "min_new_tokens": 2}
    diverse = apply_overrides(own, GenerationOptions(search=Part("diverse"), num_beam_groups=3))
    assert set(diverse.explicit) == {"search", "beam", "length_rule", "num_beam_groups", "min_new_tokens"}
    other = apply_overrides(
        own.merge(GenerationOptions(length_penalty=0.5)), GenerationOptions(length_rule=Part("none"))
    )
    assert search_part(other).options["length_rule"] == Part("none")  # without the exponent of the old rule


def test_the_options_for_validation_override_the_models_own_and_so_they_do_after_saving() -> None:
    sets = ["data.train=a.tsv", "generation.max_length_ratio=0.5", "generation.beam=4"]
    config = configs.load(None, "transformer-tiny", sets).config
    saved = configs.validate(yaml.parse(config.to_yaml(), "saved"), "saved")
    for one in (config, saved):
        resolved = apply_overrides(one.generation, one.training.validate_generation)
        assert (resolved.search, resolved.max_length_ratio) == (Part("greedy"), 0.5)


# -- an option of another search ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["beam", "diverse", "exhaustive", "greedy", "sample"])
@pytest.mark.parametrize("name", [name for name in fields_of("search") if name not in ("search", "ctc_weight")])
def test_an_option_of_another_search_is_refused_with_the_searches_that_take_it(search: str, name: str) -> None:
    field = "length_rule" if name == "length_penalty" else name
    takers = [one for one in searches.names if field in searches.schema(one).model_fields]
    assert takers
    options = GenerationOptions(**{"search": Part(search), name: VALUES[name][0]})
    if search in takers:
        assert search_part(apply_overrides(GenerationOptions(), options)).name == search
        return
    words = f"^{name} is not an option of the search '{search}': set search to {' or '.join(takers)}$"
    with pytest.raises(UserError, match=words):
        search_part(options)
    default = GenerationOptions.model_fields[name].default
    for value in (VALUES[name][0], default):  # in a request even its default is refused
        with pytest.raises(UserError, match=words):
            apply_overrides(GenerationOptions(), GenerationOptions(**{"search": Part(search), name: value}))


def test_options_inside_a_search_are_fields_and_its_own_stay() -> None:
    inside = GenerationOptions.model_validate({"search": {"name": "beam", "beam": 3, "length_rule": "none"}})
    assert inside == GenerationOptions(search=Part("beam"), beam=3, length_rule=Part("none"))
    assert GenerationOptions(search=Part("beam", {"beam": 3})) == GenerationOptions(search=Part("beam"), beam=3)
    assert GenerationOptions(search=Part("exhaustive", {"beam": 2, "max_hypotheses": 9})).search == Part(
        "exhaustive", {"max_hypotheses": 9}
    )
    assert lift_search_options({"search": {"beam": 3}, "nbest": 2}) == {"beam": 3, "nbest": 2}
    with pytest.raises(UserError, match="search beam: sise is not an option"):
        build_search(GenerationOptions(search=Part("beam", {"sise": 3})))
    with pytest.raises(UserError, match="no search called 'bean'; did you mean 'beam'"):
        apply_overrides(GenerationOptions(), GenerationOptions(search=Part("bean")))


# -- a search of a user's own ------------------------------------------------------------------------------------------


@pytest.fixture
def own_search() -> Iterator[str]:
    """A search that a user registers: an option of its own, and one that other searches have, too."""

    class Own:
        is_sampling = supports_trace = supports_force_phrases = needs_attention = False

        def __init__(self, *, width: int = 1, beam: int = 5) -> None:
            self.width, self.num_hypotheses = width, beam

    searches.register("own")(Own)
    yield "own"
    del searches._parts["own"]


def test_a_search_of_a_users_own_keeps_its_own_options_beside_its_name(own_search: str) -> None:
    value = {"search": {"name": own_search, "width": 3}, "beam": 4}
    for options in (
        GenerationOptions.model_validate(value),
        GenerationOptions(search=Part(own_search, {"width": 3, "beam": 4})),
        apply_overrides(GenerationOptions(early_stopping=False), GenerationOptions.model_validate(value)),
        GenerationOptions.model_validate(PredictRequest.model_validate({"inputs": ["a"], **value}).options()),
        configs.load(None, "bahdanau2015", ["data.train=a.tsv", f"generation={json.dumps(value)}"]).config.generation,
    ):
        search: Search | Any = build_search(options)
        assert (options.search, search.width, search.num_hypotheses) == (Part(own_search, {"width": 3}), 3, 4)
    saved = yaml.parse(yaml.dump(GenerationOptions.model_validate(value).model_dump()), "saved")
    assert build_search(GenerationOptions.model_validate(saved)).width == 3  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=f"search {own_search}: widht is not an option; did you mean 'width'"):
        build_search(GenerationOptions(search=Part(own_search, {"widht": 3})))
    with pytest.raises(UserError, match=f"search {own_search}: width: must be a valid integer, found 'x'"):
        build_search(GenerationOptions(search=Part(own_search, {"width": "x"})))
    with pytest.raises(UserError, match=f"temperature is not an option of the search '{own_search}'"):
        build_search(GenerationOptions(search=Part(own_search), temperature=0.5))
