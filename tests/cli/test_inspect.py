"""dragoman inspect: every view in the terminal, in files, and what it says when a model cannot show something."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.inspection import alignment, beam_tree, steps

RUN = "runs/copy"


def embedded(page: Path) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    views: list[dict[str, Any]] = json.loads(found[1])
    return views


def test_a_page_holds_the_views_that_python_gives(work: Path, tmp_path: Path, here: Callable[..., Any]) -> None:
    page = tmp_path / "look.html"
    done = here("inspect", RUN, "a b", "--html", str(page))
    assert done.code == 0, done.err
    assert done.out == ""
    views = embedded(page)
    assert [view["view"] for view in views] == ["alignment", "beam", "steps", "why"]
    model = dragoman.load(work / RUN, plain=True)
    assert views[0] == alignment.look(model, "a b")
    assert views[1] == beam_tree.tree(model, "a b")
    assert views[2] == steps.walk(model, "a b")


def test_views_in_the_terminal_say_what_the_data_says(work: Path, here: Callable[..., Any]) -> None:
    out = here("inspect", RUN, "a b", "--target", "a b", "--view", "beam,steps").out
    tree = beam_tree.tree(dragoman.load(work / RUN, plain=True), "a b", "a b")
    assert tree["verdict"]["sentence"] in " ".join(out.split())
    assert f"log p {tree['results'][0]['log_prob']:.3f}" in out
    assert "free:" in out
    assert "forced:" in out


@pytest.mark.parametrize("view", ["why", "sequential", "positions", "replay"])
def test_a_view_of_its_own_is_shown_or_refused_in_one_sentence(view: str, here: Callable[..., Any]) -> None:
    done = here("inspect", RUN, "a b", "--view", view)
    assert done.code == 0 or (done.code == 2 and done.err.count("\n") == 1)
    assert done.code or done.out


def test_sentences_near_each_other_are_named(here: Callable[..., Any]) -> None:
    out = here("inspect", RUN, "a b", "b a", "c c c", "--view", "space").out
    assert out.count("near:") == 3


@pytest.mark.parametrize(("option", "first"), [("--svg", b"<?xml"), ("--pdf", b"%PDF")])
def test_pictures_of_every_head_are_drawn(option: str, first: bytes, tmp_path: Path, here: Callable[..., Any]) -> None:
    path = tmp_path / f"heads.{option[2:]}"
    done = here("inspect", RUN, "a b", option, str(path), "--maps", "cross")
    assert done.code == 0, done.err
    assert path.read_bytes().startswith(first)


def test_bad_requests_are_one_sentence(here: Callable[..., Any]) -> None:
    for arguments, words in {
        ("a", "--view", "beem"): ["--view", "beem", "beam"],
        ("a", "--maps", "all"): ["--maps", "soft"],
        ("a", "b", "--target", "x"): ["2 sources", "1 targets"],
        (" ", "--html", "x.html"): ["nothing to write"],
    }.items():
        done = here("inspect", RUN, *arguments)
        assert done.code == 2
        assert all(word in done.err for word in words), done.err
        assert "Traceback" not in done.err
