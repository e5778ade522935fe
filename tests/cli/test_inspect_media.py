"""dragoman inspect of models that see and hear, and of two models beside each other: terminal, page and picture."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dragoman.cli.main import main
from dragoman.inspection.views import alignment


class Done(NamedTuple):
    code: int
    out: str
    err: str


def _inspected() -> Any:
    """The small models of the tests of inspection."""
    spec = importlib.util.spec_from_file_location("inspected", Path(__file__).parents[1] / "inspection" / "conftest.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, and the files that they read."""
    folder, made = tmp_path_factory.mktemp("media"), _inspected()
    for kind in ("soft", "hard", "speech", "asked"):
        made.seeing(folder, kind)
    for seed in (0, 1):
        made.save_and_load(folder / f"text{seed}", made.RNN, {**made.RNN, "score": "additive"}, seed=seed)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: Path) -> Callable[..., Done]:
    """`dragoman inspect ARGS` in this process, in that folder."""

    def done(*args: str) -> Done:
        monkeypatch.chdir(place)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "argv", ["dragoman", "inspect", *args, "--device", "cpu"])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, *capsys.readouterr())

    return done


def embedded(page: Path) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    views: list[dict[str, Any]] = json.loads(found[1])
    return views


def look(place: Path, model: str, source: str) -> dict[str, Any]:
    from dragoman.inference import pipeline

    return alignment.compute_alignment(pipeline.load(place / model, "cpu", reference=True), source)


def test_a_photo_has_a_grid_for_each_word(run: Callable[..., Done], place: Path, monkeypatch: Any) -> None:
    done = run("soft", "photo.png")
    assert done.code == 0, done.err
    monkeypatch.chdir(place)
    words = [word.removeprefix("▁") for word in look(place, "soft", "photo.png")["target"]]
    lines = done.out.split("\n")
    assert lines[0].startswith("photo.png → ")
    assert [word for line in lines[1::6] for word in line.split()][: len(words)] == words  # a title over 4 lines each
    assert "the most of each word" in done.out


def test_a_sound_has_a_map_with_times(run: Callable[..., Done]) -> None:
    done = run("speech", "tone.wav")
    assert done.code == 0, done.err
    headings = [line.ljust(80) for line in done.out.split("\n")[1:5]]
    margin = len(headings[0]) - len(headings[0].lstrip())
    times = ["".join(line[margin + 2 * j] for line in headings) for j in range(8)]
    assert times == [f"{0.04 * j:.2f}" for j in range(8)]


def test_two_sources_stand_in_one_line_with_a_tab(run: Callable[..., Done]) -> None:
    done = run("asked", "what color is it ?\tphoto.png")
    assert done.code == 0, done.err
    assert done.err == ""
    assert "%" in done.out  # how much of the attention lies on the picture
    assert "▁" in done.out  # the words of the question, in a map of their own
    alone = run("asked", "what color is it ?")
    assert (alone.code, alone.err.count("\n")) == (2, 1)
    assert "'what color is it ?' is one; give the other with --second-source" in alone.err
    assert "the text, then the image" in alone.err


def test_a_second_source_is_given_as_predict_takes_it(run: Callable[..., Done]) -> None:
    both = run("asked", "what color is it ?\tphoto.png")
    done = run("asked", "photo.png", "--second-source", "what color is it ?")
    assert (done.code, done.out, done.err) == (0, both.out, "")
    for arguments, words in {("soft", "photo.png"): "has one source", ("asked",): "given as arguments"}.items():
        done = run(*arguments, "--second-source", "what ?")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert words in done.err


@pytest.mark.parametrize("options", [(), ("--html", "never.html"), ("--png", "never.png")])
def test_a_missing_or_damaged_file_is_one_sentence(
    run: Callable[..., Done], place: Path, options: tuple[str, ...]
) -> None:
    (place / "damaged.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    for name, words in {"lost.png": "no file 'lost.png'", "damaged.png": "not an image"}.items():
        done = run("soft", name, *options)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert words in done.err
    assert not list(place.glob("never.*"))


def test_files_are_looked_for_in_the_places_given(run: Callable[..., Done], place: Path) -> None:
    (place / "album").mkdir()
    (place / "album" / "one.png").write_bytes((place / "photo.png").read_bytes())
    assert run("soft", "one.png").code == 2
    done = run("soft", "one.png", "--files", "album")
    assert done.code == 0, done.err
    assert done.out.replace("one.png", "photo.png") == run("soft", "photo.png").out


def test_soft_and_hard_stand_beside_each_other(run: Callable[..., Done], place: Path, monkeypatch: Any) -> None:
    done = run("soft", "photo.png", "--beside", "hard")
    assert done.code == 0, done.err
    alone = [run(model, "photo.png").out.strip() for model in ("soft", "hard")]
    assert done.out.split("soft:\n")[1].split("hard:\n")[0].strip() == alone[0]
    assert done.out.split("hard:\n")[1].strip() == alone[1]
    assert run("soft", "photo.png", "--beside", "hard", "--html", "both.html").code == 0
    monkeypatch.chdir(place)
    views = embedded(place / "both.html")
    assert [[one["view"] for one in view["views"]] for view in views] == [
        [name] * 2 for name in ("alignment", "beam", "saliency", "steps")
    ]
    assert views[0]["models"] == ["soft", "hard"]
    assert views[0]["views"] == [look(place, model, "photo.png") for model in ("soft", "hard")]


def test_text_models_stand_beside_each_other_too(run: Callable[..., Done]) -> None:
    out = run("text0", "abc", "--beside", "text1", "--view", "alignment,steps").out
    assert re.findall(r"^text[01]:$", out, re.M) == ["text0:", "text1:", "text0:", "text1:"]


def test_pictures_have_as_many_panels_as_words(run: Callable[..., Done], place: Path, monkeypatch: Any) -> None:
    pytest.importorskip("matplotlib")
    done = run("soft", "photo.png", "--beside", "hard", "--svg", "a.svg")
    assert done.code == 0, done.err
    monkeypatch.chdir(place)
    counts = [len(look(place, model, "photo.png")["target"]) for model in ("soft", "hard")]
    found = re.findall(r'id="panel-(\d+)"', (place / "a.svg").read_text())
    assert len(found) == sum(counts) + 2  # the photo itself before each
    assert run("speech", "tone.wav", "--png", "tone.png").code == 0
    assert (place / "tone.png").read_bytes().startswith(b"\x89PNG")
    assert run("asked", "what color is it ?\tphoto.png", "--svg", "heads.svg", "--maps", "second_source").code == 0
