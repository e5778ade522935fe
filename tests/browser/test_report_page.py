"""The report of an evaluation in a real browser: nothing but text, no request, no column cut off on a narrow screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reports.made_up import ALPHABET, made_assessment, made_pipeline

from dragoman.reports.page import escape, render_page
from dragoman.reports.report import EvaluationReport, build_report

UNSAFE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><b>bold</b>", "\u202eab", "&lt;", "ж"]


@pytest.fixture(scope="module")
def report() -> EvaluationReport:
    """Sixty outputs, half of them wrong, with texts that would be markup if they were not escaped."""
    words = [a + b for a in ALPHABET[:6] for b in ALPHABET[6:16]]
    rows = [(word, " ".join(word.upper()), " ".join(word.upper()) if n % 2 else "X Y", 0.3 + n / 100) for n, word in
            enumerate(words)]  # fmt: skip
    rows += [(text, f"A {text}", f"B {text} {text}", 0.9) for text in UNSAFE]
    rows.append(("w" * 300, "A " * 100, "B " * 100, 0.5))
    counts = {letter: 4 * n + 1 for n, letter in enumerate(ALPHABET)}
    return build_report(
        made_pipeline(), made_assessment(rows), None, counts, {0}, model=UNSAFE[0], pairs=f"{UNSAFE[1]}.tsv"
    )


@pytest.fixture
def opened(fresh: Callable[..., Any], tmp_path: Path, report: EvaluationReport) -> Callable[..., Any]:
    """Opens the report; `fresh` fails on a message of the console or a request to anywhere."""

    def opened(**options: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(render_page(report), encoding="utf-8")
        tab = fresh(**options)
        tab.on("dialog", lambda dialog: pytest.fail("a script of the data ran"))
        tab.goto(file.as_uri())
        return tab

    return opened


def test_the_page_shows_scores_findings_and_every_section(opened: Callable[..., Any], report: EvaluationReport) -> None:
    tab = opened()
    text = tab.locator("body").inner_text()
    for expected in (report.headline[1:], *report.findings[1:], *report.advice, "words with an error"):
        assert expected in text
    sections = tab.locator("section").evaluate_all("(all) => all.map((one) => one.id)")
    assert sections == ["errors", "where", "confidence", "worst", "sure", "unseen", "data"]
    assert tab.locator("nav a").evaluate_all("(all) => all.map((one) => one.hash.slice(1))") == sections
    assert tab.locator("svg.plot circle").count() == len(report.calibration.bins) if report.calibration else False
    assert tab.locator("#worst .items > li").count() == len(report.worst_mistakes())


def test_texts_of_the_data_are_texts(opened: Callable[..., Any], report: EvaluationReport) -> None:
    tab = opened()
    assert tab.locator("script, img, iframe, object, link, b:text('bold')").count() == 0
    assert tab.locator("[onerror], [onload], [style]").count() == 0
    sources = tab.locator(".source").all_inner_texts()
    assert {text for text in UNSAFE if text.isascii()} <= {*sources}
    assert UNSAFE[0] in tab.locator("header").inner_text()


def test_an_alignment_shows_reference_over_output_and_marks_the_edits(
    opened: Callable[..., Any], report: EvaluationReport
) -> None:
    tab = opened()
    index, item = next((i, item) for i, item in enumerate(report.confident_mistakes(10)) if len(item.columns) < 20)
    row = tab.locator("#sure .items > li").nth(index)
    columns = row.locator(".aligned > span:not(.names)")
    assert columns.count() == len(item.columns)
    assert row.locator(".aligned > .edit").count() == item.edits
    for i, column in enumerate(item.columns):
        shown = columns.nth(i).locator(":scope > span").all_inner_texts()
        assert [text.replace("\u202e", "") for text in shown] == [
            text.replace("\u202e", "") for text in (column.reference, column.output)
        ]


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_cut_off(opened: Callable[..., Any], width: int) -> None:
    tab = opened(width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    cut = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert tab.locator(".scroll").evaluate_all(cut) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_have_readable_contrast(opened: Callable[..., Any], scheme: str) -> None:
    tab = opened(color_scheme=scheme)
    luminance = """(selector) => {
        const one = document.querySelector(selector), style = getComputedStyle(one);
        const paper = getComputedStyle(document.body).backgroundColor;
        const of = (color) => color.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
            .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
            .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
        const [a, b] = [of(style.color), of(paper)].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
    }"""
    for selector in ("h1", ".findings li", "th", ".meta", ".soft", "nav a", ".edit > :last-child"):
        assert tab.evaluate(luminance, selector) >= 4.5, selector


def test_the_page_has_no_script_and_forbids_any(report: EvaluationReport) -> None:
    page = render_page(report)
    assert "default-src 'none'" in page
    assert "script-src" not in page
    assert "<script" not in page
    assert "http://" not in page.replace("http-equiv", "")


def test_control_characters_and_half_characters_do_not_reach_the_page() -> None:
    assert escape("a\x00\x1bb\ud800\u009f") == "a\ufffd\ufffdb?\ufffd"
    assert escape("a\tb\nc") == "a\tb\nc"


def test_an_empty_model_name_and_no_errors_make_a_page(report: EvaluationReport) -> None:
    right = tuple(item for item in report.items if item.is_right)
    page = render_page(replace(report, items=right, confusions=(), groupings=(), advice=(), calibration=None, pairs=""))
    assert 'id="worst"' not in page
