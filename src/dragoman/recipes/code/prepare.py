"""English to code: a line of Python (Django), a snippet of Python (CoNaLa), a command of the shell (NL2Bash).

    find /tmp -name "*.mp3"   ─written→   find ␣ / tmp ␣ - name ␣ " * . mp3 "   ─joined→   find /tmp -name "*.mp3"

Names, numbers and single signs are tokens on both sides, so that what is copied from the English (`mp3`, `self`) is the
same token there; in code, ␣ is a space. Python is made tight first: spaces that mean nothing are left out, strings stay
as they are, and ⏎ is the end of a line. Training sees code as written; what a model says is joined again, and compared
with the code itself.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log
from pathlib import Path

from dragoman.core.types import Example
from dragoman.inference.pipeline import Pipeline
from dragoman.recipes import tables

SPACE, LINE = "␣", "⏎"  # in place of white space
HELD_OUT = 200  # of CoNaLa's training snippets, the last, to choose by
Pair = tuple[str, str]

_TOKEN = re.compile(r"\w+|[^\w\s]|\s+")
_STRING_OR_SIGN = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|\s*([^\w\s'"])\s*""")


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the tokenized pairs of the data set that `part` names; the test keeps its code untokenized."""
    splits = READERS[part](data_sets)
    for name in ("train", "valid"):
        tables.write_rows(
            folder / f"{name}.tsv", ((tokenize_english(english), tokenize_code(code)) for english, code in splits[name])
        )
    tables.write_rows(folder / "test.tsv", ((tokenize_english(english), code) for english, code in splits["test"]))


def predict_outputs(model: Pipeline, examples: Sequence[Example], system: str) -> list[str]:
    """The model's code for each example, detokenized; `system` is ignored."""
    return [detokenize_code(prediction.text) for prediction in model.predict(examples)]


# -- code as tokens ----------------------------------------------------------------------------------------------------


def tokenize_english(english: str) -> str:
    """Separate the tokens of an English text by single spaces."""
    return " ".join(token for token in _TOKEN.findall(english) if not token.isspace())


def tokenize_code(code: str) -> str:
    """Separate the tokens of code by single spaces; a sign stands for each run of spaces in the code."""
    return " ".join(SPACE if token.isspace() else token for token in _TOKEN.findall(code))


def detokenize_code(tokens: str) -> str:
    """Undo `tokenize_code`: join the tokens, with one space for each sign of spaces."""
    return "".join(tokens.split()).replace(SPACE, " ")


def strip_spaces(python: str) -> str:
    """Remove the spaces around signs from Python code; those inside strings and between words stay."""
    return _STRING_OR_SIGN.sub(lambda match: match[1] or match[2], python)


# -- the sets ----------------------------------------------------------------------------------------------------------


def read_django(data_sets: Mapping[str, Path]) -> dict[str, list[Pair]]:
    """Read the splits of the data set Django as (English, Python), without the spaces of its tokenized Python."""
    splits = read_splits(data_sets["django-code"])
    return {name: [(english, strip_spaces(python)) for english, python in pairs] for name, pairs in splits.items()}


def read_nl2bash(data_sets: Mapping[str, Path]) -> dict[str, list[Pair]]:
    """Read the splits of the data set NL2Bash as (English, Bash)."""
    return read_splits(data_sets["nl2bash"])


def read_splits(folder: Path) -> dict[str, list[Pair]]:
    """Read the pairs of train.tsv, dev.tsv and test.tsv in a folder; dev is called valid."""
    files = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
    return {name: [(row[0], row[1]) for row in tables.read_rows(folder / file, 2)] for name, file in files.items()}


def read_conala(data_sets: Mapping[str, Path]) -> dict[str, list[Pair]]:
    """Read CoNaLa as (request, Python): the rewritten request where there is one; train's end is held out as valid.

    A line's end in English stays an escape, as strings of code have it.
    """
    train, test = (
        [
            ((rewritten or intent).replace("\\\\", "\\"), strip_spaces(unescape(code)))
            for _, intent, rewritten, code, *_ in tables.read_rows(data_sets["conala"] / file, 4)
        ]
        for file in ("train.tsv", "test.tsv")
    )
    held_out = min(HELD_OUT, len(train) // 10)
    return {"train": train[:-held_out], "valid": train[-held_out:], "test": test}


def unescape(text: str) -> str:
    """Resolve backslash escapes; a tab becomes a space, a line break with the spaces around it becomes one sign."""
    meaning = {"n": "\n", "t": " "}
    text = re.sub(r"\\(.)", lambda match: meaning.get(match[1], match[1]), text)
    return re.sub(r"\s*\n\s*", LINE, text)


READERS: dict[str, Callable[[Mapping[str, Path]], dict[str, list[Pair]]]] = {
    "django": read_django,
    "conala": read_conala,
    "nl2bash": read_nl2bash,
}


# -- without a model ---------------------------------------------------------------------------------------------------


def baseline_outputs(folder: Path, part: str) -> dict[str, list[str]]:
    """For each test request, the code of the most similar training request; `part` is ignored."""
    train = [(english, detokenize_code(code)) for english, code in tables.read_rows(folder / "train.tsv", 2)]
    nearest = NearestText([english for english, _ in train])
    return {"nearest": [train[nearest(row[0])][1] for row in tables.read_rows(folder / "test.tsv", 2)]}


class NearestText:
    """The text that shares most with another: weight of the shared words / weight of all, rare words weighing more."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Index texts by their words; a word weighs log(texts / texts that have it)."""
        self.texts = [{*text.split()} for text in texts]
        counts = Counter(word for text in self.texts for word in text)
        self.weights = {word: log(len(texts) / n) for word, n in counts.items()}
        self.totals = [self.weight(text) for text in self.texts]
        self.postings: dict[str, list[int]] = defaultdict(list)
        for i, text in enumerate(self.texts):
            for word in text:
                self.postings[word].append(i)

    def weight(self, text: set[str]) -> float:
        """The sum of the weights of the words; an unknown word weighs log N, as the rarest ones do."""
        return sum(self.weights.get(word, log(len(self.texts))) for word in text)

    def __call__(self, text: str) -> int:
        """The index of the indexed text with the largest weighted Jaccard similarity; 0 if none shares a word."""
        query = {*text.split()}
        shared: dict[int, float] = defaultdict(float)
        for word in sorted(query & self.weights.keys()):
            for i in self.postings[word]:
                shared[i] += self.weights[word]
        total = self.weight(query)
        return max(shared, key=lambda i: (shared[i] / max(total + self.totals[i] - shared[i], 1e-9), -i), default=0)


# -- generated example data --------------------------------------------------------------------------------------------

NAMES = ("tray", "lid", "oven", "dough", "self.rack", "batch_size", "timer_2", "crumbs")
LINES = (
    ("substitute {b} for {a}.", "{a} = {b}"),
    ("call the function bake with an argument {a}, return the result.", "return bake ( {a} )"),
    ("if {a} equals string '{b}',", "if {a} == '{b}' :"),
    ("append {b} to {a}.", "{a} . append ( {b} )"),
)
SNIPPETS = (
    ("How do I count things?", "count `{b}` in list `{a}`", "{a}.count('{b}')"),
    ("sorting by a key", "", "sorted({a}, key=lambda x: x.{b})"),
    ("read many lines", "print every line of file `{a}`", "for line in open('{a}'):\\n    print(line)"),
)
COMMANDS = (
    ("Find files called {a} under /{b}", 'find /{b} -name "{a}*"'),
    ("count the lines of {a}", "wc -l {a} | tail -n 1"),
    ("move {a} to /tmp/{b}", "mv {a} /tmp/{b}"),
)


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write example data for the three data sets: 100 training requests with code and 8 for each other split."""
    sizes = {"train.tsv.gz": 100, "dev.tsv": 8, "test.tsv": 8}
    for name, size in sizes.items():
        tables.write_data_set(data_sets["django-code"] / name, fill_templates(rng, LINES, size))
        tables.write_data_set(data_sets["nl2bash"] / name, fill_templates(rng, COMMANDS, size))
        if name != "dev.tsv":
            rows = ((str(1000 + i), *row) for i, row in enumerate(fill_templates(rng, SNIPPETS, size)))
            tables.write_data_set(data_sets["conala"] / name, rows)


def fill_templates(rng: random.Random, templates: Sequence[tuple[str, ...]], size: int) -> Iterator[list[str]]:
    """Yield `size` rows, each a random template with two random names filled in."""
    for _ in range(size):
        a, b = rng.sample(NAMES, 2)
        yield [text.format(a=a, b=b) for text in rng.choice(templates)]
