"""Learning curves: the power law through three points, its uncertainty, and a curve of real trainings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.selection.test_split import make_words

from dragoman.core.registry import Part
from dragoman.inspection.assessment import score_metric
from dragoman.reports.learning_curve import (
    LearningCurve,
    draw_curve,
    extrapolate,
    fit_curve,
    is_still_improving,
)


@given(a=st.floats(1, 500), b=st.floats(0.05, 2), c=st.floats(0, 50), n=st.floats(10, 1e6))
def test_a_power_law_with_a_floor_is_continued_exactly(a, b, c, n):
    def error(pairs: float) -> float:
        return a * (pairs / n) ** -b + c

    errors = np.array([[error(n)], [error(2 * n)], [error(4 * n)]])
    assert extrapolate(errors)[0] == pytest.approx(error(8 * n), rel=1e-6)


@given(st.lists(st.floats(0, 100), min_size=3, max_size=3))
def test_no_errors_give_nonsense(errors):
    (twice,) = extrapolate(np.array(errors)[:, None])
    assert np.isfinite(twice)
    assert 0 <= twice <= errors[-1]


def scores(rights: list[list[bool]]):
    """Scores of exact match for models whose items are right or wrong like this."""
    references = [["x"]] * len(rights[0])
    return [score_metric(Part("exact"), ["x" if right else "y" for right in each], references) for each in rights]


def models(items: int, *wrong: int) -> list[list[bool]]:
    return [[i >= count for i in range(items)] for count in wrong]


def test_clear_gains_are_estimated_with_an_interval_around_the_law():
    curve = fit_curve([250, 500, 1000], scores(models(1000, 400, 200, 100)))
    assert [error.value for error in curve.errors] == pytest.approx([40, 20, 10])
    assert curve.doubled.value == pytest.approx(5)
    assert curve.doubled.low < 5 < curve.doubled.high
    assert curve.gain.low > 0
    assert curve.gain.low < 5 < curve.gain.high
    assert "with 2,000 pairs perhaps lower by 5.0 [" in curve.sentence
    assert curve.rows()[-1][0] == "2,000"


def test_gains_within_the_noise_are_not_claimed():
    few = fit_curve(
        [250, 500, 1000], scores([[True] * 14 + [False] * 6, [False] * 7 + [True] * 13, [True] * 15 + [False] * 5])
    )
    assert few.gain.low <= 0
    assert "cannot be told from 20 test pairs" in few.sentence
    worse = fit_curve([250, 500, 1000], scores(models(300, 100, 110, 120)))
    flat = fit_curve([250, 500, 1000], scores(models(300, 200, 100, 100)))
    for curve in (worse, flat):
        assert curve.doubled.value == pytest.approx(curve.errors[-1].value)
        assert "cannot be told" in curve.sentence


def test_the_interval_shrinks_with_the_number_of_test_pairs():
    rng = np.random.default_rng(1)

    def width(items: int) -> float:
        rights = [list(rng.random(items) > share) for share in (0.4, 0.3, 0.24)]
        doubled = fit_curve([250, 500, 1000], scores(rights)).doubled
        return doubled.high - doubled.low

    assert width(4_000) < 0.5 * width(200)


def test_a_perfect_model_and_an_unfinished_one_are_not_extrapolated():
    perfect = fit_curve([25, 50, 100], scores(models(50, 20, 5, 0)))
    assert "nothing is wrong on the 50 test pairs" in perfect.sentence
    unfinished = fit_curve([250, 500, 1000], scores(models(1000, 400, 200, 100)), is_finished=False)
    assert len(unfinished.rows()) == 3
    assert "perhaps" not in unfinished.sentence
    assert "was still improving" in unfinished.sentence


def test_a_training_that_still_improved_is_noticed(tmp_path: Path):
    for last, improving in ((0.5, True), (0.95, False), (1.4, False)):
        records = [{"kind": "valid", "step": step, "loss": 2 - step / 80} for step in range(10, 90, 10)]
        records += [{"kind": "train", "step": 100, "loss": 0.1}, {"kind": "valid", "step": 100, "loss": last}]
        (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
        assert is_still_improving(tmp_path, 100) == improving


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_curve_is_drawn_into_a_file(tmp_path: Path, suffix: str):
    pytest.importorskip("matplotlib")
    draw_curve(tmp_path / f"curve{suffix}", fit_curve([25, 50, 100], scores(models(50, 20, 10, 5))))
    assert (tmp_path / f"curve{suffix}").stat().st_size > 2_000


CONFIG = """
data: {train: train.tsv, valid: valid.tsv}
tokenizer: {source: characters}
model:
  width: 32
  encoder: {name: rnn, cell: gru, layers: 1}
  decoder: {name: rnn, cell: gru, layers: 1}
training: {steps: 12, batch_tokens: 512, schedule: {name: linear, warmup: 2}, validate_every: 6, save_every: 6}
runtime: {device: cpu, threads: 1}
"""


def test_trainings_have_nested_pairs_and_the_same_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from dragoman.reports import curve_runs

    monkeypatch.chdir(tmp_path)
    words = make_words(200)
    Path("train.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words[:160]))
    Path("valid.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words[160:]))
    Path("c.yaml").write_text(CONFIG)
    generator, reports = curve_runs.from_config("c.yaml", None, None, None), []
    while True:
        try:
            reports.append(next(generator))
        except StopIteration as end:
            curve: LearningCurve = end.value
            break
    assert curve.pairs == (40, 80, 160)
    assert curve.test_pairs == 40
    half, quarter = (
        set(Path(f"runs/c-curve/data/1-{share}-percent.tsv").read_text().splitlines()) for share in (50, 25)
    )
    assert quarter < half < set(Path("train.tsv").read_text().splitlines())
    assert {report.step for report in reports if report.kind == "end"} == {12}
    again = curve_runs.from_config("c.yaml", None, None, None)
    assert not [report for report in again if report.kind == "step"]  # nothing is trained twice
