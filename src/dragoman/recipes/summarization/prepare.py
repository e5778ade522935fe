"""Abstracts of papers and what they say in one sentence (TLDR).

    train.tsv       abstract → TLDR; valid.tsv and test.tsv have one to four of them, and the best counts
    sentences.tsv   "place 2 of 7 : a sentence" → best or other: best is the one that is most like the TLDR
    reading.tsv     abstract with a gap → the sentence that stood there; abstract → the two that say most of the rest

Abstracts of dev and test are not learned from: two papers of the test set are in train, too, with their TLDR. What
reading.tsv asks for needs no TLDR. An extractive system answers with the sentence it finds most likely the best.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core.registry import Part
from dragoman.evaluation.metrics import metrics
from dragoman.recipes import tables

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline

Row = Sequence[str]

GAP = "____"  # stands for the sentence to write
BEST, OTHER = "best", "other"
CENTRAL = 2  # sentences of an abstract that say most of the rest
ROUGE = [metrics.build(Part(name)) for name in ("rouge1", "rouge2")]
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(\[])")


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    place = sets["scitldr-a"]
    train, dev, test = (list(papers(place / f"{split}.tsv")) for split in ("train", "dev", "test"))
    kept_apart = {row[0] for row in [*dev, *test]}
    train = [row for row in train if row[0] not in kept_apart]
    tables.write(folder / "train.tsv", train)
    tables.write(folder / "valid.tsv", dev)
    tables.write(folder / "test.tsv", test)
    for rows, name in ((train, ""), (dev, ".valid")):
        tables.write(folder / f"sentences{name}.tsv", (row for one in rows for row in labeled(one)))
        tables.write(folder / f"reading{name}.tsv", (row for one in rows for row in to_read(one[0])))


def papers(path: Path) -> Iterator[Row]:
    """Abstract and TLDRs of each line."""
    for row in tables.rows(path, 3):
        if not all(text.strip() for text in row[1:3]):
            raise row.wrong(f"the abstract or its TLDR is blank; take the line out, or {tables.AGAIN}")
        yield row[1:]


def sentences(text: str) -> list[str]:
    """Cut behind a period, an exclamation mark or a question mark, where a capital follows."""
    return [one for one in END.split(text.strip()) if one.strip()]


def placed(every: Sequence[str]) -> list[str]:
    """Each sentence with its place, as a classifier reads it."""
    return [f"place {i} of {len(every)} : {one}" for i, one in enumerate(every, 1)]


def likeness(text: str, references: Sequence[str]) -> float:
    """ROUGE-1 and ROUGE-2 together."""
    return float(sum(rouge.statistics([text], [references])[0, 0] for rouge in ROUGE))


def labeled(row: Row) -> Iterator[Row]:
    """The sentences of an abstract, the one most like its TLDRs marked as the best."""
    every = sentences(row[0])
    best = max(range(len(every)), key=lambda i: likeness(every[i], row[1:]))
    return ((text, BEST if i == best else OTHER) for i, text in enumerate(placed(every)))


def to_read(abstract: str) -> Iterator[Row]:
    """What can be asked about an abstract without a TLDR."""
    every = sentences(abstract)
    if len(every) < 2:
        return
    rests = [" ".join([*every[:i], GAP, *every[i + 1 :]]) for i in range(len(every))]
    yield from zip(rests, every, strict=True)
    central = sorted(range(len(every)), key=lambda i: -likeness(every[i], [rests[i]]))
    yield from ((abstract, every[i]) for i in central[:CENTRAL])


def answer(model: Pipeline, examples: Sequence[Example], system: str) -> list[str]:
    """A generated sentence, or from a classifier the sentence of the abstract that is most likely the best."""
    if system != "extractive":
        return [found.text for found in model.predict(examples)]
    return chosen(model.score, [sentences(example.source) for example in examples])


def chosen(score: Callable[[list[tuple[str, str]]], list[float]], abstracts: Sequence[Sequence[str]]) -> list[str]:
    """Of each abstract the sentence that has the highest score as the best, given log p of every one."""
    scores = iter(score([(text, BEST) for every in abstracts for text in placed(every)]))
    return [max((next(scores), -i, one) for i, one in enumerate(every))[2] for every in abstracts]


def baselines(folder: Path, part: str) -> dict[str, list[str]]:
    """The first sentence, and the best choice there is, which only those who know the references can make."""
    rows = list(tables.rows(folder / "test.tsv", 2))
    found = [sentences(row[0]) for row in rows]
    oracle = [max(every, key=lambda one: likeness(one, row[1:])) for every, row in zip(found, rows, strict=True)]
    return {"first sentence": [every[0] for every in found], "best sentence (oracle)": oracle}


# -- made-up data ------------------------------------------------------------------------------------------------------

TASKS = ("parsing", "planning", "ranking of news", "weather forecasting", "chess", "music transcription")
MEANS = ("small networks", "kernel machines", "random forests", "sparse attention", "lookup tables", "tree search")


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    years = iter(rng.sample(range(1800, 2000), 124))  # no abstract twice
    for split, count, summaries in (("train", 100, 1), ("dev", 12, 2), ("test", 12, 3)):
        rows = [[f"{split}{i}", *_paper(next(years), rng)[: 1 + summaries]] for i in range(count)]
        tables.write_set(sets["scitldr-a"] / f"{split}.tsv.gz", rows)


def _paper(year: int, rng: random.Random) -> list[str]:
    task, means, share = rng.choice(TASKS), rng.choice(MEANS), rng.randrange(2, 90)
    told = [f"We propose {means} for {task}.", f"Experiments show {share} percent fewer errors.", "Code is available."]
    abstract = " ".join([f"Work on {task} began in {year}.", *told[: rng.randint(1, 3)]])
    return [
        abstract,
        f"{means} for {task}",
        f"We study {task} with {means}",
        f"{task} has {share} percent fewer errors",
    ]
