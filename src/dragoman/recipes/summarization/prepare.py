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


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write abstracts with TLDRs, labeled sentences, and reading tasks that need no TLDR; `part` is ignored."""
    data_set = data_sets["scitldr-a"]
    train, dev, test = (list(read_papers(data_set / f"{split}.tsv")) for split in ("train", "dev", "test"))
    held_out = {row[0] for row in [*dev, *test]}
    train = [row for row in train if row[0] not in held_out]
    tables.write_rows(folder / "train.tsv", train)
    tables.write_rows(folder / "valid.tsv", dev)
    tables.write_rows(folder / "test.tsv", test)
    for rows, name in ((train, ""), (dev, ".valid")):
        tables.write_rows(folder / f"sentences{name}.tsv", (row for paper in rows for row in label_sentences(paper)))
        tables.write_rows(
            folder / f"reading{name}.tsv", (row for paper in rows for row in make_reading_tasks(paper[0]))
        )


def read_papers(path: Path) -> Iterator[Row]:
    """Yield the abstract and the TLDRs of each line; a blank abstract or first TLDR is an error."""
    for row in tables.read_rows(path, 3):
        if not all(text.strip() for text in row[1:3]):
            raise row.error(f"the abstract or its TLDR is blank; take the line out, or {tables.DOWNLOAD_AGAIN}")
        yield row[1:]


def split_sentences(text: str) -> list[str]:
    """Split a text after a period, an exclamation mark or a question mark, where a capital follows."""
    return [sentence for sentence in END.split(text.strip()) if sentence.strip()]


def with_positions(sentences: Sequence[str]) -> list[str]:
    """Prefix each sentence with "place i of n : ", as the classifier reads it."""
    return [f"place {i} of {len(sentences)} : {sentence}" for i, sentence in enumerate(sentences, 1)]


def rouge_sum(text: str, references: Sequence[str]) -> float:
    """The sum of ROUGE-1 and ROUGE-2 of a text against references."""
    return float(sum(rouge.statistics([text], [references])[0, 0] for rouge in ROUGE))


def label_sentences(row: Row) -> Iterator[Row]:
    """Yield the sentences of an abstract with labels: BEST for the one most like its TLDRs, else OTHER."""
    sentences = split_sentences(row[0])
    best = max(range(len(sentences)), key=lambda i: rouge_sum(sentences[i], row[1:]))
    return ((text, BEST if i == best else OTHER) for i, text in enumerate(with_positions(sentences)))


def make_reading_tasks(abstract: str) -> Iterator[Row]:
    """Yield pairs from one abstract: each sentence for the text with a gap, the central sentences for the whole."""
    sentences = split_sentences(abstract)
    if len(sentences) < 2:
        return
    rests = [" ".join([*sentences[:i], GAP, *sentences[i + 1 :]]) for i in range(len(sentences))]
    yield from zip(rests, sentences, strict=True)
    central = sorted(range(len(sentences)), key=lambda i: -rouge_sum(sentences[i], [rests[i]]))
    yield from ((abstract, sentences[i]) for i in central[:CENTRAL])


def predict_outputs(model: Pipeline, examples: Sequence[Example], system: str) -> list[str]:
    """The model's text; of the system "extractive", the abstract's sentence that is most likely the best."""
    if system != "extractive":
        return [prediction.text for prediction in model.predict(examples)]
    return choose_sentences(model.score, [split_sentences(example.source) for example in examples])


def choose_sentences(
    score: Callable[[list[tuple[str, str]]], list[float]], abstracts: Sequence[Sequence[str]]
) -> list[str]:
    """The sentence of each abstract to which `score` gives the highest log p of the label BEST."""
    scores = iter(score([(text, BEST) for sentences in abstracts for text in with_positions(sentences)]))
    return [max((next(scores), -i, sentence) for i, sentence in enumerate(sentences))[2] for sentences in abstracts]


def baseline_outputs(folder: Path, part: str) -> dict[str, list[str]]:
    """The first sentence of each test abstract, and the one most like its references (oracle); ignores `part`."""
    rows = list(tables.read_rows(folder / "test.tsv", 2))
    split_abstracts = [split_sentences(row[0]) for row in rows]
    oracle = [
        max(sentences, key=lambda sentence: rouge_sum(sentence, row[1:]))
        for sentences, row in zip(split_abstracts, rows, strict=True)
    ]
    return {"first sentence": [sentences[0] for sentences in split_abstracts], "best sentence (oracle)": oracle}


# -- generated example data --------------------------------------------------------------------------------------------

TASKS = ("parsing", "planning", "ranking of news", "weather forecasting", "chess", "music transcription")
MEANS = ("small networks", "kernel machines", "random forests", "sparse attention", "lookup tables", "tree search")


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write random short abstracts with one (train), two (dev) or three (test) TLDRs."""
    years = iter(rng.sample(range(1800, 2000), 124))  # no abstract twice
    for split, count, summaries in (("train", 100, 1), ("dev", 12, 2), ("test", 12, 3)):
        rows = [[f"{split}{i}", *_paper(next(years), rng)[: 1 + summaries]] for i in range(count)]
        tables.write_data_set(data_sets["scitldr-a"] / f"{split}.tsv.gz", rows)


def _paper(year: int, rng: random.Random) -> list[str]:
    """A random abstract with the year in it, and three TLDRs."""
    task, means, share = rng.choice(TASKS), rng.choice(MEANS), rng.randrange(2, 90)
    sentences = [
        f"We propose {means} for {task}.",
        f"Experiments show {share} percent fewer errors.",
        "Code is available.",
    ]
    abstract = " ".join([f"Work on {task} began in {year}.", *sentences[: rng.randint(1, 3)]])
    return [
        abstract,
        f"{means} for {task}",
        f"We study {task} with {means}",
        f"{task} has {share} percent fewer errors",
    ]
