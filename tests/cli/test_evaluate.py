"""dragoman evaluate through the command line: metrics that fit, the table of errors, the page, and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Done

from dragoman.evaluation.metrics import metrics
from dragoman.reports.run_report import write_run_report

RUN = "runs/copy"


def pairs(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


@pytest.fixture
def mixed(work: Path) -> list[list[str]]:
    """The test pairs, a third of them with a wrong target, in mixed.tsv: the model is wrong there."""
    rows = [[source, target if n % 3 else f"{target} a"] for n, (source, target) in enumerate(pairs(work / "test.tsv"))]
    (work / "mixed.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return rows


def succeeded(done: Done) -> Done:
    assert done.code == 0, done.err
    return done


def test_json_keeps_its_keys_and_names_every_metric(here: Callable[..., Done]) -> None:
    value = json.loads(succeeded(here("evaluate", RUN, "test.tsv", "--json")).out)
    assert {"model", "pairs", "n", "metrics", "perplexity", "unscored", "decoding", "report"} == {*value}
    assert 0 < len(value["metrics"]) < len(metrics.names)
    for score in value["metrics"].values():
        assert {"value", "interval", "signature", "higher_is_better"} < {*score}
        assert all(score[key] for key in ("label", "name", "unit", "description"))
    assert value["report"]["findings"][0][1:] == f"{value['report']['headline']}."[1:]


def test_all_metrics_on_request(here: Callable[..., Done]) -> None:
    value = json.loads(succeeded(here("evaluate", RUN, "test.tsv", "--json", "--metrics", "all")).out)
    assert {*value["metrics"]} == {*metrics.names}


def test_the_table_of_errors_has_exactly_the_wrong_outputs(
    work: Path, mixed: list[list[str]], here: Callable[..., Done], tmp_path: Path
) -> None:
    file = tmp_path / "errors.csv"
    done = succeeded(here("evaluate", RUN, "mixed.tsv", "--errors", file, "--json"))
    sources = "".join(f"{source}\n" for source, _ in mixed).encode()
    outputs = succeeded(here("predict", RUN, input=sources)).out.split("\n")[:-1]
    wrong = [
        [str(line), source, output, target]
        for line, ((source, target), output) in enumerate(zip(mixed, outputs, strict=True), 1)
        if output != target
    ]
    assert len(wrong) >= 10
    _, *rows = csv.reader(io.StringIO(file.read_text(encoding="utf-8-sig"), newline=""))
    assert [row[1:5] for row in rows] == wrong
    assert json.loads(done.out)["report"]["wrong"] == len(wrong)
    assert f"wrote {len(wrong)} errors to {file}" in done.err


def test_the_page_is_written_and_named(here: Callable[..., Done], mixed: list[list[str]], tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    done = succeeded(here("evaluate", RUN, "mixed.tsv", "--html", file))
    assert f"wrote {file}" in done.err
    page = file.read_text(encoding="utf-8")
    assert "What is taken for what" in page
    assert "a added" in done.out or "a missing" in done.out


def test_a_wrong_name_of_the_table_is_said_before_anything_is_decoded(
    here: Callable[..., Done], tmp_path: Path
) -> None:
    done = here("evaluate", RUN, "test.tsv", "--errors", tmp_path / "errors.xyz")
    assert done.code == 2
    assert "end its name with .csv or .tsv" in done.err
    assert not list(tmp_path.iterdir())


def test_several_references_count_as_right(work: Path, here: Callable[..., Done]) -> None:
    rows = pairs(work / "test.tsv")
    (work / "several.tsv").write_text("".join(f"{s}\t{t} {t}\t{t}\n" for s, t in rows), encoding="utf-8")
    one, several = (
        json.loads(succeeded(here("evaluate", RUN, file, "--json", "--metrics", "exact")).out)["metrics"]["exact"]
        for file in ("test.tsv", "several.tsv")
    )
    assert one["value"] == several["value"]


def test_a_training_writes_its_report_into_the_run_folder(work: Path) -> None:
    summary = write_run_report(work / RUN, work / "test.tsv", device="cpu")
    assert summary.path == work / RUN / "report.html"
    assert summary.path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert summary.lines[0] == f"{summary.report.headline} · report: {summary.path}"
    assert summary.report.scores == summary.assessment.scores
    assert "test.tsv" in summary.path.read_text(encoding="utf-8")
