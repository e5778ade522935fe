"""A view is one file and one ES module; everything else follows from the registry."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman.inspection
from dragoman.core.errors import UserError
from dragoman.core.registry import Options
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views import find_view, views
from dragoman.inspection.views.steps import trace_steps

STATIC = Path(dragoman.inspection.__file__).parent / "static"
NAMES = (
    *("accuracy_by_position", "alignment", "beam", "blame", "embedding_space", "examples", "head_effects"),
    *("positions", "probes", "quality", "replay", "saliency", "sequential", "steps"),
)


def test_every_view_is_registered_by_its_file() -> None:
    assert tuple(views.names) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_view_has_the_es_module_of_its_name_which_registers_it_for_drawing(name: str) -> None:
    module = STATIC / f"{name}.js"
    assert module.exists() == find_view(name).has_module
    if module.exists():
        assert re.search(rf"^VIEWS\.{name} = ", module.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_the_options_of_a_view_are_its_keyword_only_parameters_with_their_bounds(name: str) -> None:
    parameters = inspect.signature(find_view(name).compute).parameters.values()
    options = {one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
    schema = views.schema(name)
    assert issubclass(schema, Options)
    assert set(schema.model_fields) == options
    for field in schema.model_json_schema().get("properties", {}).values():
        for kind in field.get("anyOf", [field]):
            if kind.get("type") in ("integer", "array"):
                assert {"maximum", "maxItems"} & set(kind), "a request must not ask for any amount"


@pytest.mark.parametrize("name", NAMES)
def test_a_view_says_what_it_shows_in_one_line(name: str) -> None:
    assert 20 < len(views.summary(name)) < 120


def test_the_schemas_are_read_without_loading_torch() -> None:
    code = (
        "import sys; from dragoman.inspection.views import views; [views.schema(name) for name in views.names]; "
        "from dragoman.inspection.render import page; page.join_modules(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_blocked_view_raises_the_reason_and_computes_nothing(classifier: Pipeline) -> None:
    reason = trace_steps.blocker(classifier)
    assert reason is not None
    with pytest.raises(UserError, match=re.escape(reason)):
        trace_steps(classifier, "abc")


def test_the_data_of_a_view_begins_with_its_name(rnn: Pipeline) -> None:
    assert next(iter(trace_steps(rnn, "abc").items())) == ("view", "steps")
