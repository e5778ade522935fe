"""`dragoman export` of a page and of ES modules: what it prints, its exit codes, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interop.exporters.random_models import save_model, transformers

from .conftest import Done


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", transformers())


def test_a_page_is_written_by_its_ending_and_says_how_to_open_it(
    tmp_path: Path, model: Path, here: Callable[..., Done]
) -> None:
    out = tmp_path / "new" / "page.html"
    done = here("export", model, out)
    assert done.code == 0, done.err
    assert f"wrote {out} (" in done.err
    assert done.out.startswith(f"open {out} in a browser")
    int8 = out.stat().st_size
    done = here("export", model, out, "--format", "html", "--precision", "float32", "--with", f"again={model}")
    assert done.code == 0, done.err
    assert out.stat().st_size > int8  # it is replaced
    assert '"name":"model"' in out.read_text("utf-8")
    assert '"name":"again"' in out.read_text("utf-8")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]


def test_modules_are_written_into_a_new_folder(tmp_path: Path, model: Path, here: Callable[..., Done]) -> None:
    done = here("export", model, tmp_path / "js", "--format", "js")
    assert done.code == 0, done.err
    names = {
        "README.md",
        "engine",
        "index.d.ts",
        "index.js",
        "manifest.json",
        "model.json",
        "package.json",
        "weights.bin",
    }
    assert {path.name for path in (tmp_path / "js").iterdir()} == names
    done = here("export", model, tmp_path / "js", "--format", "js")
    assert done.code == 2
    assert "exists already" in done.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["page.html", "--quantization", "int8"], "--quantization cannot be used with --format html; use --precision"),
        (["page.html", "--check", "5"], "--check cannot be used with --format html"),
        (["page.html", "--no-check"], "--no-check cannot be used with --format html"),
        (["page.html", "--from", "en"], "--from cannot be used with --format html"),
        (["page.html", "--with", "model"], "two models are called 'model'"),
        (["page.html", "--with", "nothing"], "there is no such model or run folder"),
        (["page.html", "--format", "ct2", "--precision", "int8"], "--precision cannot be used with --format ct2"),
        (["folder", "--format", "js", "--with", "model"], "--with cannot be used with --format js"),
        (["folder", "--format", "html"], "a page is a file whose name ends in .html"),
        (["folder", "--format", "htm"], "did you mean 'html'?"),
        (["folder"], "--format is missing"),
    ],
)
def test_wrong_options_are_named_with_exit_code_2(
    tmp_path: Path, model: Path, here: Callable[..., Done], arguments: list[str], reason: str
) -> None:
    out, *given = [str(model) if argument == "model" else argument for argument in arguments]
    done = here("export", model, tmp_path / out, *given)
    assert done.code == 2
    assert reason in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_input_and_what_the_engine_lacks_are_refused_before_anything_is_written(
    tmp_path: Path, model: Path, here: Callable[..., Done]
) -> None:
    (tmp_path / "link.html").symlink_to(model / "config.yaml")
    before = (model / "config.yaml").read_bytes()
    done = here("export", model, tmp_path / "link.html")
    assert (done.code, "is also an input" in done.err) == (2, True)
    assert (model / "config.yaml").read_bytes() == before
    done = here("export", f"{model}+{model}", tmp_path / "two.html")
    assert (done.code, "cannot run in a browser: an ensemble" in done.err) == (2, True)
    assert not (tmp_path / "two.html").exists()
