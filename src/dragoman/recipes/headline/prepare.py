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

MAX_WORDS = 200  # of a mail; 86 % have no more
LEAD_LENGTHS = range(3, 21)


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write train, valid, test and people.tsv (test with all subjects); train lacks held-out bodies; ignores `part`."""
    data_set = data_sets["aeslc"]
    dev, test = list(_read_mails(data_set / "dev.tsv")), list(_read_mails(data_set / "test.tsv"))
    held_out = {row[0] for row in [*dev, *test]}
    tables.write_rows(
        folder / "train.tsv", (row for row in _read_mails(data_set / "train.tsv") if row[0] not in held_out)
    )
    tables.write_rows(folder / "valid.tsv", (row[:2] for row in dev))
    tables.write_rows(folder / "test.tsv", (row[:2] for row in test))
    tables.write_rows(folder / "people.tsv", test)


def _read_mails(path: Path) -> Iterator[list[str]]:
    """Yield each mail as its body, cut to MAX_WORDS words, its subject, and further subjects where it has them."""
    for _, body, *subjects in tables.read_rows(path, 3):
        yield [" ".join(body.split()[:MAX_WORDS]), *subjects]


def baseline_outputs(folder: Path, part: str) -> dict[str, list[str]]:
    """The first n words of each test mail, with the n of best ROUGE-1 on valid.tsv; `part` is ignored."""
    bodies, subjects = zip(*tables.read_rows(folder / "valid.tsv", 2), strict=True)
    metric = metrics.build(Part("rouge1"))

    def rouge1_score(count: int) -> float:
        """ROUGE-1 on the validation set of the first `count` words as the subject."""
        leads = [first_words(body, count) for body in bodies]
        return float(metric.score(metric.statistics(leads, [[subject] for subject in subjects]).sum(0)))

    best = max(LEAD_LENGTHS, key=rouge1_score)
    return {f"first {best} words": [first_words(row[0], best) for row in tables.read_rows(folder / "test.tsv", 2)]}


def first_words(text: str, count: int) -> str:
    """The first `count` words of a text."""
    return " ".join(text.split()[:count])


# -- generated example data --------------------------------------------------------------------------------------------

NAMES = ("Ada", "Ben", "Carla", "Dinesh", "Efua", "Farid")
THINGS = ("budget", "contract", "schedule", "invoice", "forecast", "survey", "floor plan")
DAYS = ("Monday", "Tuesday", "Thursday", "Friday")
TEMPLATES = (
    ("please send me the {thing} by {day}", "{thing} due {day}"),
    ("can we talk about the {thing} on {day}", "Meeting about the {thing}"),
    ("the {thing} has changed, a new one comes on {day}", "New {thing}"),
)


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write random short mails with their subjects; those of dev and test have three more subjects each."""
    for split, count in (("train", 100), ("dev", 12), ("test", 12)):
        rows = [_generate_mail(f"{split}-{i}", split == "train", rng) for i in range(count)]
        tables.write_data_set(data_sets["aeslc"] / f"{split}.tsv.gz", rows)


def _generate_mail(name: str, once: bool, rng: random.Random) -> Sequence[str]:
    """A random mail: name, body, subject and, unless `once`, three more subjects."""
    thing, day = rng.choice(THINGS), rng.choice(DAYS)
    request, subject = (text.format(thing=thing, day=day) for text in rng.choice(TEMPLATES))
    reader, writer = rng.sample(NAMES, 2)
    body = f"{reader}, {request}. Call me at 555-{rng.randrange(10_000):04}. Thanks, {writer}"
    others = [] if once else [thing, f"{writer} on the {thing}", f"{thing}, {day}"]
    return [name, body, subject, *others]
