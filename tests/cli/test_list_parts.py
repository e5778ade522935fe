"""`dragoman list`: in the terminal, and as the page docs/parts.md."""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

import dragoman
from dragoman.cli.list_parts import KINDS, load_registries
from dragoman.cli.parts_page import describe_type, escape_markdown, format_options, render_page
from dragoman.config import TrainingOptions
from dragoman.core.registry import NonNegativeInt, Part, PositiveInt, Registry, UnitInterval, options_of
from dragoman.nn.scores import scores

from .conftest import process

PAGE = Path(__file__).parents[2] / "docs/parts.md"


def test_the_page_of_parts_is_what_the_code_says(tmp_path: Path) -> None:
    # A process of its own: other tests of this one may have registered parts.
    done = process("list", "--markdown", cwd=tmp_path, env={"PYTHONIOENCODING": "utf-8"})
    assert done.code == 0, done.err
    renewed = done.out.replace("\r\n", "\n") == PAGE.read_text(encoding="utf-8")
    assert renewed, "the parts have changed; renew their page: dragoman list --markdown > docs/parts.md"


def test_every_registry_of_the_package_is_listed_under_its_name() -> None:
    found = []
    for module in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
        if not module.name.endswith("__main__"):
            found += [value for value in vars(import_module(module.name)).values() if isinstance(value, Registry)]
    plurals = {registry.kind.replace(" ", "_") + "s": registry for registry in found if registry.kind != "search"}
    plurals |= {"searches": next(registry for registry in found if registry.kind == "search")}
    del plurals["readers"]  # nobody names one: the ending of a file does
    assert load_registries() == plurals
    assert [*load_registries(), "presets"] == list(KINDS)


def test_the_page_has_every_part_under_its_kind_with_its_options() -> None:
    text = render_page(load_registries())
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for kind, registry in load_registries().items():
        assert f"](#{kind})" in text
        parts = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", sections[kind], re.MULTILINE | re.DOTALL))
        assert list(parts) == registry.names
        for name, block in parts.items():
            signature = inspect.signature(registry[name])
            options = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
            assert re.findall(r"^\| `(\w+)` \|", block, re.MULTILINE) == options
    assert set(re.findall(r"\]\(#(\w+)\)", text)) <= sections.keys(), "a link leads nowhere"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (bool, "`true`, `false`"),
        (PositiveInt, "whole number > 0"),
        (NonNegativeInt | None, "whole number ≥ 0 or `null`"),
        (UnitInterval, "0 ≤ number < 1"),
        (Annotated[float, Field(gt=0.5, le=2.0)], "0.5 < number ≤ 2"),
        (Annotated[float, Field(lt=3)], "number < 3"),
        (Literal["a", "b"], "`a`, `b`"),
        (list[str], "list of text"),
        (Annotated[Part, scores] | None, "[score](#scores) or `null`"),
    ],
)
def test_a_type_is_said_in_words(kind: Any, words: str) -> None:
    assert describe_type(kind, [], load_registries()) == words


def test_a_table_shows_defaults_as_a_config_writes_them_and_comments_behind_settings() -> None:
    def part(
        *, sure: bool = True, width: int | None = None, score: Annotated[Part, scores] = Part("dot"), n: int
    ) -> None:
        pass

    rows = format_options(options_of(part, "part"), load_registries()).split("\n")[2:]
    assert [row.split(" | ")[-1] for row in rows if row] == ["`true` |", "`null` |", "`dot` |", "required |"]
    assert "| `save_every` | whole number > 0 | `500` | steps |" in format_options(TrainingOptions, load_registries())


def test_text_is_no_markup_unless_it_is_code() -> None:
    assert escape_markdown("F * α of `a_*` [q; k], y_<t, x_1") == r"F \* α of `a_*` \[q; k], y\_\<t, x_1"
