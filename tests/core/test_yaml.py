"""YAML 1.2 with the traps closed."""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.core import yaml
from dragoman.core.errors import ConfigError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
WORDS = "no yes on null ~ 1e-4 1_000 0x1f 0o7 010 2020-01-01 12:30:00 .inf = << # !x &a *a"
TRICKY = st.sampled_from([*WORDS.split(), "", " x ", "a: b", "- a", "\t", "\x85", "\u2028"])
SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | TRICKY
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | TRICKY, inner, max_size=3),
    max_leaves=12,
)


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        yaml.parse(text, "c.yaml")
    assert caught.value.where == "c.yaml"
    [found] = caught.value.problems
    return found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("Yes", "Yes"),
        ("off", "off"),
        ("y", "y"),
        ("true", True),
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("12", 12),
        ("010", 10),
        ("0o10", 8),
        ("2020-01-01", "2020-01-01"),
        ("2020-01-01T10:00:00Z", "2020-01-01T10:00:00Z"),
        ("12:30:00", "12:30:00"),
        ("1.2.3", "1.2.3"),
        ("=", "="),
        ("~", None),
        ("", None),
    ],
)
def test_plain_values_are_read_as_yaml_1_2(text: str, value: Any) -> None:
    found = yaml.parse(f"key: {text}", "c.yaml")["key"]
    assert (type(found), found) == (type(value), value)


@given(value=VALUE)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert yaml.parse(yaml.dump(value), "c.yaml") == value


def test_the_order_of_keys_is_kept() -> None:
    assert list(yaml.parse(yaml.dump({"b": 1, "a": 2, "c": {}}), "c.yaml")) == ["b", "a", "c"]


def test_aliases_are_followed() -> None:
    assert yaml.parse("a: &x [1, 2]\nb: *x", "c.yaml") == {"a": [1, 2], "b": [1, 2]}


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", ["plain", "merge"])
def test_an_alias_bomb_is_refused_quickly(marker: str) -> None:
    inner = {"plain": "[{}]", "merge": "{{<<: [{}]}}"}[marker]
    lines = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} " + inner.format(", ".join([f"*a{i - 1}"] * 9)) for i in range(1, 40)]
    began = time.monotonic()
    problem("\n".join(lines))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("text", ["&a [*a]", "a: &a {b: *a}"])
def test_a_value_inside_itself_is_refused(text: str) -> None:
    assert "more than 20,000 values" in problem(text)


def test_more_values_than_a_config_has_are_refused() -> None:
    assert "more than 20,000 values" in problem("[" + "[]," * 200 + "&a [" + "1," * 100 + "]," + "*a," * 200 + "]")
    assert "at most 200,000" in problem("#" * 200_001)


@pytest.mark.parametrize("text", ["a: [" + "1," * 99_000 + "1]", "- a\n" * 49_000, "{" * 190_000], ids=len)
def test_a_text_of_too_many_values_is_refused_without_parsing_it(text: str) -> None:
    began = time.process_time()
    assert "more than 20,000 values" in problem(text)
    assert time.process_time() - began < 0.5


def test_nesting_without_end_is_refused() -> None:
    began = time.process_time()
    for text in ("- " * 10_000, "[" * 10_000, "a: " + "{a: " * 5_000, "[" * 9_000 + "]" * 9_000):
        assert problem(text).startswith("not a config")
    assert time.process_time() - began < 2


def test_the_same_key_twice_is_refused_with_its_line() -> None:
    assert problem("a: 1\nb: 2\na: 3").startswith("line 3, column 1: not valid YAML: found duplicate key")


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!!python/module:os", "!mine", "!!no"]
)
def test_nothing_in_a_file_can_name_a_python_object(tag: str) -> None:
    assert "could not determine a constructor" in problem(f"a: {tag} ['touch /tmp/x']")


@pytest.mark.parametrize("text", ["1: 2", "null: 1", "? [a]\n: 1", "a: {true: 1}", "- 1.5: 2"])
def test_keys_are_text(text: str) -> None:
    assert "must be text" in problem(text)


def test_a_broken_line_is_named_with_its_column() -> None:
    assert problem("a: 1\nb: [1, 2\nc: 3").startswith("line 3, column 2: not valid YAML")


def test_merge_keys_are_an_error() -> None:
    assert problem("a: &a {x: 1}\nb:\n  <<: *a").startswith("line 3, column 3: not valid YAML: '<<'")


def test_text_that_utf_8_cannot_hold_is_refused() -> None:
    assert "surrogate" in problem(r'a: "\ud800"')
    assert "surrogate" in problem(r'"\ud800": a')


TAGS = ["!!int ", "!!float ", "!!bool ", "!!binary ", "!!set ", "!!omap ", "!!pairs ", "!!timestamp ", "!x "]
PIECES = [
    *TAGS,
    *'x_-+.1e[]{}|>"#',
    "''",
    ": ",
    "\n",
    "  ",
    "- ",
    "? ",
    ", ",
    "&a ",
    "*a",
    "<<",
    "%YAML 1.1\n",
    "---\n",
]


@given(text=TEXT | st.lists(st.sampled_from(PIECES)).map("".join))
@example(text="a: !!int ''")
@example(text="a: !!bool maybe")
@example(text="a: !!float _")
@example(text="a: " + "1" * 5000)
def test_any_text_is_a_value_or_one_error(text: str) -> None:
    with suppress(ConfigError):
        yaml.parse(text, "c.yaml")


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_file_is_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: ü\n", encoding="utf-8")
    assert yaml.read(path) == {"name": "ü"}
    path.write_text("# nothing yet\n", encoding="utf-8")
    assert yaml.read(path) == {}


@pytest.mark.parametrize(
    ("data", "words"), [(b"- 1", "must be a mapping of settings, not list"), (b"a: \xff", "not UTF-8: byte 3 is 0xff")]
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        yaml.read(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        yaml.read(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        yaml.read(tmp_path)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_file_without_end_is_read_up_to_a_limit(tmp_path: Path, is_named: bool) -> None:
    with (tmp_path / "sparse.yaml").open("wb") as file:
        file.truncate(8 * 2**30)
    for path in (Path("/dev/zero"), tmp_path / "sparse.yaml"):
        with pytest.raises(ConfigError, match="cannot be read: it "):
            yaml.read(path, is_named=is_named)


def test_only_a_file_that_a_user_names_may_be_a_link_or_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a: 1")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("a: 1",))
    for name in ("link", "pipe"):
        with pytest.raises(ConfigError, match="not a plain file"):  # at once: nobody writes yet
            yaml.read(tmp_path / name, is_named=False)
    writer.start()
    assert [yaml.read(tmp_path / name) for name in ("link", "pipe")] == [{"a": 1}] * 2
    writer.join()
