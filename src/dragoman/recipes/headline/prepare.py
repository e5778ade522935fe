"""E-mails and their subjects: the first 200 words of the body are read.

    test     the sender's own subject is the reference, as in published figures
    people   besides it the subjects that three people wrote later; the best counts

A mail of the training set whose body is also in dev or test is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dragoman.core.registry import Part
from dragoman.evaluation.metrics import metrics
from dragoman.recipes import tables

READ = 200  # words; 86 % of the mails have no more
LEADS = range(3, 21)


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    place = sets["aeslc"]
    dev, test = list(_mails(place / "dev.tsv")), list(_mails(place / "test.tsv"))
    kept_apart = {row[0] for row in [*dev, *test]}
    tables.write(folder / "train.tsv", (row for row in _mails(place / "train.tsv") if row[0] not in kept_apart))
    tables.write(folder / "valid.tsv", (row[:2] for row in dev))
    tables.write(folder / "test.tsv", (row[:2] for row in test))
    tables.write(folder / "people.tsv", test)


def _mails(path: Path) -> Iterator[list[str]]:
    """Body, subject, and the subjects of others where there are any."""
    for _, body, *subjects in tables.rows(path, 3):
        yield [" ".join(body.split()[:READ]), *subjects]


def baselines(folder: Path, part: str) -> dict[str, list[str]]:
    """The first words of the mail, as many as are best on the validation set."""
    bodies, subjects = zip(*tables.rows(folder / "valid.tsv", 2), strict=True)
    metric = metrics.build(Part("rouge1"))

    def goodness(count: int) -> float:
        said = [lead(body, count) for body in bodies]
        return float(metric.score(metric.statistics(said, [[subject] for subject in subjects]).sum(0)))

    best = max(LEADS, key=goodness)
    return {f"first {best} words": [lead(row[0], best) for row in tables.rows(folder / "test.tsv", 2)]}


def lead(text: str, count: int) -> str:
    return " ".join(text.split()[:count])


# -- made-up data ------------------------------------------------------------------------------------------------------

NAMES = ("Ada", "Ben", "Carla", "Dinesh", "Efua", "Farid")
THINGS = ("budget", "contract", "schedule", "invoice", "forecast", "survey", "floor plan")
DAYS = ("Monday", "Tuesday", "Thursday", "Friday")
ASKED = (
    ("please send me the {thing} by {day}", "{thing} due {day}"),
    ("can we talk about the {thing} on {day}", "Meeting about the {thing}"),
    ("the {thing} has changed, a new one comes on {day}", "New {thing}"),
)


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    for split, count in (("train", 100), ("dev", 12), ("test", 12)):
        rows = [_mail(f"{split}-{i}", split == "train", rng) for i in range(count)]
        tables.write_set(sets["aeslc"] / f"{split}.tsv.gz", rows)


def _mail(name: str, once: bool, rng: random.Random) -> Sequence[str]:
    thing, day = rng.choice(THINGS), rng.choice(DAYS)
    asked, subject = (text.format(thing=thing, day=day) for text in rng.choice(ASKED))
    reader, writer = rng.sample(NAMES, 2)
    body = f"{reader}, {asked}. Call me at 555-{rng.randrange(10_000):04}. Thanks, {writer}"
    others = [] if once else [thing, f"{writer} on the {thing}", f"{thing}, {day}"]
    return [name, body, subject, *others]
