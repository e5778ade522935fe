"""The report that a training leaves in its run folder: the final model on pairs that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.core import files
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.inference import pipeline
from dragoman.inspection.assessment import Assessment
from dragoman.reports.page import render_page
from dragoman.reports.report import EvaluationReport, evaluate

REPORT_FILE = "report.html"


@dataclass(frozen=True)
class ReportSummary:
    """What a training prints of its report, where the report is, and all of it as data."""

    lines: tuple[str, ...]  # the headline with the path of the page, then what was found, one sentence each
    path: Path
    assessment: Assessment
    report: EvaluationReport


def write_run_report(
    run_folder: Path,
    test_pairs: str | Path | Sequence[Example],
    *,
    name: str = "",
    device: str = "auto",
    beam: int | None = None,
    workers: int | None = 1,
) -> ReportSummary:
    """Evaluate a run's model on test pairs, a file or examples, and write report.html into the run folder.

    `name` is what the report calls the pairs, by default the name of their file.
    """
    model = pipeline.load(run_folder, device)
    if isinstance(test_pairs, str | Path):
        name = name or Path(test_pairs).name
        test_pairs = list(read_pairs(test_pairs, columns=model.config.columns, extra_targets=True))
    assessment, report = evaluate(
        model, test_pairs, model=run_folder.name, pairs=name or "the test pairs", beam=beam, workers=workers
    )
    path = run_folder / REPORT_FILE
    files.write_file(path, render_page(report).encode())
    lines = (f"{report.headline} · report: {path}", *report.findings[1:])
    return ReportSummary(lines, path, assessment, report)
