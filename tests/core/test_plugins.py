"""Plugins are imported by the name of a module or the path of a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.core.plugins import load_plugin


@pytest.fixture(autouse=True)
def _imports_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})


def test_a_file_is_imported_as_a_module_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "helper_of_plugin.py").write_text("VALUE = 7\n")
    (tmp_path / "a_plugin.py").write_text("from helper_of_plugin import VALUE\n")
    load_plugin(str(tmp_path / "a_plugin.py"))
    assert sys.modules["a_plugin"].VALUE == 7  # by that name other processes can import it


def test_a_module_is_imported_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "installed_plugin.py").write_text("VALUE = 8\n")
    sys.path.insert(0, str(tmp_path))
    load_plugin("installed_plugin")
    assert sys.modules["installed_plugin"].VALUE == 8


def test_a_file_whose_name_belongs_to_another_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("")
    with pytest.raises(UserError, match=r"--plugin .*: the name 'json' belongs to another module.*rename the file"):
        load_plugin(str(tmp_path / "json.py"))


@pytest.mark.parametrize(("name", "problem"), [("none.py", "there is no such file"), ("no_module", "No module named")])
def test_a_missing_plugin_is_a_user_error(name: str, problem: str) -> None:
    with pytest.raises(UserError, match=f"--plugin {name}: {problem}"):
        load_plugin(name)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import sys\n\nx = undefined\n", r"broken_\d\.py:3: NameError: name 'undefined' is not defined"),
        ("def f(:\n", r"SyntaxError: .*broken_\d\.py, line 1"),
        (
            "from dragoman.nn.scores import DotScore, scores\nscores.register('dot')(DotScore)\n",
            r"broken_\d\.py:2: ValueError: there are two scores called 'dot'",
        ),
        ("import no_such_module_at_all\n", "No module named 'no_such_module_at_all'"),
    ],
)
def test_an_error_in_the_users_own_file_is_one_sentence_with_its_line(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / f"broken_{abs(hash(text)) % 10}.py"
    path.write_text(text)
    with pytest.raises(UserError, match=f"--plugin .*: {problem}") as caught:
        load_plugin(str(path))
    assert "\n" not in str(caught.value)
