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


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    splits = READERS[part](sets)
    for name in ("train", "valid"):
        tables.write(folder / f"{name}.tsv", ((words(english), written(code)) for english, code in splits[name]))
    tables.write(folder / "test.tsv", ((words(english), code) for english, code in splits["test"]))


def answer(model: Pipeline, examples: Sequence[Example], system: str) -> list[str]:
    return [joined(found.text) for found in model.predict(examples)]


# -- code as tokens ----------------------------------------------------------------------------------------------------


def words(english: str) -> str:
    """The tokens of an English text."""
    return " ".join(token for token in _TOKEN.findall(english) if not token.isspace())


def written(code: str) -> str:
    """The tokens of code, with a sign for each run of spaces."""
    return " ".join(SPACE if token.isspace() else token for token in _TOKEN.findall(code))


def joined(tokens: str) -> str:
    """Code again."""
    return "".join(tokens.split()).replace(SPACE, " ")


def tight(python: str) -> str:
    """Python without the spaces around signs; those inside strings and between words stay."""
    return _STRING_OR_SIGN.sub(lambda found: found[1] or found[2], python)


# -- the sets ----------------------------------------------------------------------------------------------------------


def django(sets: Mapping[str, Path]) -> dict[str, list[Pair]]:
    splits = in_three(sets["django-code"])
    return {name: [(english, tight(python)) for english, python in pairs] for name, pairs in splits.items()}


def nl2bash(sets: Mapping[str, Path]) -> dict[str, list[Pair]]:
    return in_three(sets["nl2bash"])


def in_three(folder: Path) -> dict[str, list[Pair]]:
    files = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
    return {name: [(row[0], row[1]) for row in tables.rows(folder / file, 2)] for name, file in files.items()}


def conala(sets: Mapping[str, Path]) -> dict[str, list[Pair]]:
    """The rewritten request, where there is one: it names the variables that the code uses.

    A line's end in English stays an escape, as strings of code have it.
    """
    train, test = (
        [
            ((rewritten or asked).replace("\\\\", "\\"), tight(unescaped(code)))
            for _, asked, rewritten, code, *_ in tables.rows(sets["conala"] / file, 4)
        ]
        for file in ("train.tsv", "test.tsv")
    )
    held_out = min(HELD_OUT, len(train) // 10)
    return {"train": train[:-held_out], "valid": train[-held_out:], "test": test}


def unescaped(text: str) -> str:
    """Backslashes and tabs as they were; a line's end, and the next one's indentation, as one sign."""
    meaning = {"n": "\n", "t": " "}
    text = re.sub(r"\\(.)", lambda found: meaning.get(found[1], found[1]), text)
    return re.sub(r"\s*\n\s*", LINE, text)


READERS: dict[str, Callable[[Mapping[str, Path]], dict[str, list[Pair]]]] = {
    "django": django,
    "conala": conala,
    "nl2bash": nl2bash,
}


# -- without a model ---------------------------------------------------------------------------------------------------


def baselines(folder: Path, part: str) -> dict[str, list[str]]:
    """For each request, the code of the training request that is most like it."""
    train = [(english, joined(code)) for english, code in tables.rows(folder / "train.tsv", 2)]
    nearest = Nearest([english for english, _ in train])
    return {"nearest": [train[nearest(row[0])][1] for row in tables.rows(folder / "test.tsv", 2)]}


class Nearest:
    """The text that shares most with another: weight of the shared words / weight of all, rare words weighing more."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = [{*text.split()} for text in texts]
        counts = Counter(word for text in self.texts for word in text)
        self.weights = {word: log(len(texts) / n) for word, n in counts.items()}
        self.totals = [self.weight(text) for text in self.texts]
        self.where: dict[str, list[int]] = defaultdict(list)
        for i, text in enumerate(self.texts):
            for word in text:
                self.where[word].append(i)

    def weight(self, text: set[str]) -> float:
        return sum(self.weights.get(word, log(len(self.texts))) for word in text)

    def __call__(self, text: str) -> int:
        asked = {*text.split()}
        shared: dict[int, float] = defaultdict(float)
        for word in sorted(asked & self.weights.keys()):
            for i in self.where[word]:
                shared[i] += self.weights[word]
        total = self.weight(asked)
        return max(shared, key=lambda i: (shared[i] / max(total + self.totals[i] - shared[i], 1e-9), -i), default=0)


# -- made-up data ------------------------------------------------------------------------------------------------------

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


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    sizes = {"train.tsv.gz": 100, "dev.tsv": 8, "test.tsv": 8}
    for name, size in sizes.items():
        tables.write_set(sets["django-code"] / name, filled(rng, LINES, size))
        tables.write_set(sets["nl2bash"] / name, filled(rng, COMMANDS, size))
        if name != "dev.tsv":
            rows = ((str(1000 + i), *row) for i, row in enumerate(filled(rng, SNIPPETS, size)))
            tables.write_set(sets["conala"] / name, rows)


def filled(rng: random.Random, forms: Sequence[tuple[str, ...]], size: int) -> Iterator[list[str]]:
    """Rows made of a form and two names."""
    for _ in range(size):
        a, b = rng.sample(NAMES, 2)
        yield [text.format(a=a, b=b) for text in rng.choice(forms)]
