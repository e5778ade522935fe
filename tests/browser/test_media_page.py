"""Pages of models that see and hear, in a real browser: a panel for each word, words by key, nothing sideways."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.inspection import media_layout
from dragoman.inspection.views import alignment, beam, saliency, steps

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """All that a page shows of each model."""
    spec = importlib.util.spec_from_file_location("inspected", Path(__file__).parents[1] / "inspection" / "conftest.py")
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    found = {}
    for kind in made.MEDIA:
        folder, before = tmp_path_factory.mktemp(kind), Path.cwd()
        model, source = made.seeing(folder, kind)
        os.chdir(folder)  # so that sources have short names
        try:
            short = source.replace(f"{folder}/", "")
            data = [
                view(model, short)
                for view in (alignment.compute_alignment, beam.trace_beam, steps.trace_steps, saliency.compute_saliency)
            ]
        finally:
            os.chdir(before)
        found[kind] = json.loads(json.dumps(data, allow_nan=False))
    return found


def bare(word: str) -> str:
    return word.removeprefix("▁") or word


def test_an_image_has_a_panel_for_each_word_that_says_where_it_looked(offline: Open, views: Any) -> None:
    data = views["patches"][0]
    tab = offline(views["patches"])
    panels = tab.locator("#panel-0 .panel")
    labels = panels.evaluate_all("(every) => every.map((one) => one.ariaLabel)")
    truth = [
        f"{bare(w)}: {media_layout.describe_peak(data['media_preview'], row)}"
        for w, row in zip(data["target"], data["soft"], strict=True)
    ]
    assert labels == truth
    assert tab.locator("#panel-0 .panel img").first.evaluate("(one) => one.complete && one.naturalWidth") == 24
    for i in (0, 2, 1):
        panels.nth(i).focus()
        assert tab.text_content("#panel-0 .seen .token") == bare(data["target"][i])
    panels.nth(3).hover()
    assert tab.text_content("#panel-0 .seen .token") == bare(data["target"][3])


def test_veils_are_thin_and_an_edge_is_where_the_word_looked_in_both_themes(offline: Open, views: Any) -> None:
    data = views["hard"][0]
    script = "(one) => Array.from(one.getContext('2d').getImageData(0, 0, one.width, one.height).data)"
    for theme in ("light", "dark"):
        tab = offline([data], color_scheme=theme)
        for i, row in enumerate(data["soft"]):
            veil = tab.locator(".panel .veil").nth(i).evaluate(script)
            alpha = np.array(veil[3::4])
            np.testing.assert_array_equal(alpha == 0, np.array(row) == 1.0)
            assert (alpha[np.array(row) == 0.0] > 200).all()
            panel = tab.locator(".panel").nth(i)
            picture, edge = (panel.locator(one).bounding_box() for one in (".picture", ".strongest"))
            at, across = divmod(int(np.argmax(row)), 4)
            assert (edge["x"] - picture["x"]) / picture["width"] == pytest.approx(across / 4, abs=0.02)
            assert (edge["y"] - picture["y"]) / picture["height"] == pytest.approx(at / 4, abs=0.02)
            assert edge["width"] / picture["width"] == pytest.approx(1 / 4, abs=0.02)


def test_a_head_of_a_transformer_is_shown_on_the_picture_too(offline: Open, views: Any) -> None:
    data = views["patches"][0]
    tab = offline([data])
    tab.click("[data-head='cross.2.1']")
    weights = next(head for one in data["maps"] for head in one["heads"] if head["name"] == "cross.2.1")["weights"]
    label = tab.locator(".panel").nth(1).get_attribute("aria-label")
    assert label == f"{bare(data['target'][1])}: {media_layout.describe_peak(data['media_preview'], weights[1])}"
    tab.locator(".choice label", has_text="encoder").click()
    tab.click("[data-head='encoder.1.1']")
    assert tab.locator(".panel").count() == 0
    assert tab.locator(".map").count() == 1


@pytest.mark.parametrize("kind", ["speech", "frames"])
def test_a_sound_has_a_row_for_each_word_and_marks_its_span(kind: str, offline: Open, views: Any) -> None:
    data = views[kind][0]
    tab = offline([data])
    words = tab.locator(".sound button")
    truth = [
        f"{bare(w)}: {media_layout.describe_peak(data['media_preview'], row)}"
        for w, row in zip(data["target"], data["soft"], strict=True)
    ]
    assert words.evaluate_all("(every) => every.map((one) => one.ariaLabel)") == truth
    ticks = [f"{t:.6g} s" for t in media_layout.time_ticks(data["media_preview"]["seconds"])]
    assert tab.locator(".times span").all_text_contents() == ticks
    assert tab.locator(".mark:visible").count() == 0
    words.nth(1).focus()
    start, end = media_layout.peak_span(data["media_preview"], data["soft"][1])
    frames, mark = (tab.locator(f".frames {one}").first.bounding_box() for one in ("img", ".mark"))
    assert (mark["x"] - frames["x"]) / frames["width"] == pytest.approx(start, abs=0.01)
    assert mark["width"] / frames["width"] == pytest.approx(end - start, abs=0.01)
    lane = tab.locator(".lane").nth(1).bounding_box()
    assert (lane["x"], lane["width"]) == pytest.approx((frames["x"], frames["width"]), abs=1)


def test_clips_and_two_sources_are_drawn(offline: Open, views: Any) -> None:
    tab = offline([views["clip"][0], views["cells"][0], views["asked"][0]])
    for i, kind in enumerate(("clip", "cells")):
        tab.click(f"#tab-{i}")
        assert tab.locator(f"#panel-{i} .panel img").count() == 3 * len(views[kind][0]["target"])
    tab.click("#tab-2")
    data = views["asked"][0]
    share = round(100 * sum(data["soft"][0][6:]))
    assert tab.locator("#panel-2 .panel .token").first.text_content() == f"{bare(data['target'][0])} {share} %"
    assert tab.locator("#panel-2 .large .heading:not(.faint)").all_text_contents() == data["source"][:6]


def test_nothing_is_wider_than_a_phone(offline: Open, views: Any) -> None:
    every = [one for data in views.values() for one in (data[0], data[3])]
    tab = offline(every, width=390)
    for i in range(len(every)):
        tab.locator(f"#tab-{i}").evaluate("(one) => one.click()")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_two_models_stand_beside_each_other_by_name(offline: Open, views: Any) -> None:
    both = {"view": "beside", "source_text": "photo.png", "models": ["soft", "<b>hard</b>"]}
    tab = offline([both | {"views": [views[kind][i] for kind in ("soft", "hard")]} for i in range(4)])
    assert [name.strip() for name in tab.locator("[role=tab]").all_text_contents()] == [
        "Alignment",
        "Beam",
        "Steps",
        "Saliency",
    ]
    assert tab.locator("#panel-0 section > h3").all_text_contents() == ["soft", "<b>hard</b>"]
    sections = tab.locator("#panel-0 section")
    for i, kind in enumerate(("soft", "hard")):
        assert sections.nth(i).locator(".panel").count() == len(views[kind][0]["target"])
    upper, lower = (sections.nth(i).bounding_box() for i in (0, 1))
    assert upper["y"] + upper["height"] <= lower["y"]  # two rows of the strip
    tab.click("#tab-1")
    left, right = (tab.locator("#panel-1 section").nth(i).bounding_box() for i in (0, 1))
    assert left["x"] + left["width"] <= right["x"]


def test_a_picture_comes_from_the_data_or_not_at_all(offline: Open, views: Any) -> None:
    data = views["soft"][0]
    tab = offline([data | {"media_preview": data["media_preview"] | {"src": "http://dragoman.example/spy.png"}}])
    assert tab.locator(".panel img").first.get_attribute("src") is None
