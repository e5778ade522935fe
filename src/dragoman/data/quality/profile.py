"""What pairs look like: the units of each side, their lengths, how much is copied, and the task this suggests.

    Examples ─profile_pairs→ DataProfile(task, source, target, copied, …)

    unit        a text is                                          read as
    letters     one word, or two (a name)                          characters
    symbols     short signs between spaces, few different ones     symbols: phones, spelled-out letters
    closed      words of a closed vocabulary                       symbols: commands, logical forms
    code        words of which many have no letter                 symbols: programs, queries
    sentences   anything else                                      subwords

    task            source → target
    pronunciation   letters → symbols
    strings         letters → letters: transliteration, inflection, spelling
    commands        closed or sentences → closed
    code            sentences → code
    labels          anything → a few targets that recur
    sentences       anything else: translation, summaries, corrections
    text            a source alone
    image, audio    the name of a file → anything

Of many pairs a sample is looked at; the thresholds were chosen on twenty-four public data sets, tests name them.
"""

from __future__ import annotations

import os
import statistics
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal

from rapidfuzz.distance import LCSseq

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.text.tokenizers.characters import FEATURE_BUNDLE

Unit = Literal["letters", "symbols", "closed", "code", "sentences"]
Task = Literal["pronunciation", "strings", "commands", "code", "labels", "sentences", "text", "image", "audio"]

SAMPLE = 20_000  # pairs that are looked at
COPY_SAMPLE = 2_000  # of them, compared side with side
MAX_LABELS = 50
MIN_LABEL_COUNT = 10.0  # how often each label occurs on average
MAX_SYMBOLS = 600  # different ones
MOST = 0.8
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")


@dataclass(frozen=True)
class SideProfile:
    """The texts of one side of the pairs."""

    unit: Unit
    characters: float  # of a text, on average
    words: float  # of a text, on average
    longest: int  # characters of a text that only one in a hundred exceeds
    longest_words: int
    alphabet: int  # different characters
    vocabulary: int  # different words
    decomposed: int = 0  # different characters after decomposition (NFD): a thousand Korean syllables are 67 letters
    has_features: bool = False  # most texts of letters have a word of grammatical features: walk V;PST

    @property
    def tokens(self) -> float:
        """About how many tokens a text has, as its unit is read."""
        if self.unit == "letters":
            return self.characters
        return 1.35 * self.words if self.unit == "sentences" else self.words


@dataclass(frozen=True)
class DataProfile:
    """What some pairs look like, and the task that this suggests."""

    task: Task
    pairs: int
    distinct_sources: int
    source: SideProfile
    target: SideProfile | None  # None: single texts
    copied: float  # the share of the target that stands in the source, in its order
    languages: int  # different pairs of language tags
    labels: int  # different targets, of labels

    def __str__(self) -> str:
        """`3,000 pairs, letters → symbols (looks like pronunciation)`."""
        if self.target is None:
            return f"{self.pairs:,} texts of {self.source.words:.0f} words on average"
        names = {"closed": "words of a closed vocabulary"}
        sides = [names.get(side.unit, side.unit) for side in (self.source, self.target)]
        if self.source.has_features:
            sides[0] += " and grammatical features"
        if self.task in ("image", "audio"):
            sides[0] = {"image": "images", "audio": "sounds"}[self.task]
        if self.task == "labels":
            sides[1] = f"{self.labels} labels"
        copied = f", {self.copied:.0%} of the target copied" if self.copied >= 0.5 else ""
        languages = f", {self.languages} languages" if self.languages > 1 else ""
        return f"{self.pairs:,} pairs{languages}, {sides[0]} → {sides[1]}{copied} (looks like {TASK_NAMES[self.task]})"


TASK_NAMES: dict[Task, str] = {
    "pronunciation": "pronunciation",
    "strings": "transliteration, inflection or spelling",
    "commands": "commands or a formal language",
    "code": "code",
    "labels": "classification",
    "sentences": "translation or rewriting",
    "text": "language modeling",
    "image": "captioning",
    "audio": "speech recognition",
}


def profile_pairs(examples: Sequence[Example]) -> DataProfile:
    """Look at pairs, or at single texts; DataError if there are none."""
    usable = [e for e in examples if e.source.strip() and (e.target is None or e.target.strip())]
    if not usable:
        raise DataError("there is no pair to learn from; a pair is a source and a target")
    step = max(len(usable) // SAMPLE, 1)
    sample = usable[::step][:SAMPLE]
    media = _media_task(sample)
    sources, targets = [e.source for e in sample], [e.target for e in sample if e.target is not None]
    source, target = TextSide(sources), TextSide(targets) if targets else None
    labels = 0 if target is None else _count_labels(target, len(sample))
    units = _units(source, target)
    copied = 0.0 if target is None or media else _copied_share(sample, units[1])
    task = media or _task(units, target is not None, labels)
    return DataProfile(
        task,
        len(usable),
        len({(e.source, e.source_lang, e.target_lang) for e in usable}),
        source.profile(units[0]),
        None if target is None else target.profile(units[1]),
        copied,
        len({(e.source_lang, e.target_lang) for e in usable}),
        labels,
    )


class TextSide:
    """The texts of one side, and what is counted in them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.split = [text.split() for text in texts]
        self.lengths = sorted(map(len, self.split))
        self.mean_words = statistics.fmean(self.lengths)

    @cached_property
    def words(self) -> Counter[str]:
        """How often each word occurs."""
        return Counter(chain.from_iterable(self.split))

    @property
    def featured(self) -> float:
        """The share of texts with a bundle of grammatical features."""
        return sum(any(map(FEATURE_BUNDLE.fullmatch, words)) for words in self.split) / len(self.split)

    @property
    def is_single_words(self) -> bool:
        """Whether nearly every text is one word, or two."""
        return self.mean_words < 1.8

    @property
    def is_symbols(self) -> bool:
        """Whether texts are short signs between spaces: few different ones, of one to three characters."""
        if self.mean_words < 2.5 or len(self.words) > MAX_SYMBOLS:
            return False
        total = self.words.total()
        mean = sum(len(word) * count for word, count in self.words.items()) / total
        return mean <= 2.6 and sum(count for word, count in self.words.items() if len(word) > 4) < 0.02 * total

    @property
    def is_closed(self) -> bool:
        """Whether the words of one half of the texts are hardly ever missing in the other."""
        if self.mean_words < 1.8 or len(self.split) < 200 or len(self.words) > 5_000:
            return False
        known = set(chain.from_iterable(self.split[::2]))
        others = list(chain.from_iterable(self.split[1::2]))
        allowed = 0.003 if len(self.split) >= 5_000 else 0.01  # of few texts, names recur less
        return sum(word not in known for word in others) < allowed * len(others)

    @property
    def is_code(self) -> bool:
        """Whether many words have no letter: brackets, operators, numbers."""
        total = self.words.total()
        without = sum(count for word, count in self.words.items() if not any(c.isalpha() for c in word))
        return without > 0.25 * total or _symbol_share(self.texts) > 0.12

    def profile(self, unit: Unit) -> SideProfile:
        """The numbers of this side, read in a unit."""
        lengths, alphabet = sorted(map(len, self.texts)), set(chain.from_iterable(self.texts))
        return SideProfile(
            unit,
            statistics.fmean(lengths),
            self.mean_words,
            lengths[min(int(0.99 * len(lengths)), len(lengths) - 1)],
            self.lengths[min(int(0.99 * len(self.lengths)), len(self.lengths) - 1)],
            len(alphabet),
            len(self.words),
            len(set(unicodedata.normalize("NFD", "".join(alphabet)))),
            unit == "letters" and self.featured > MOST,
        )


def _symbol_share(texts: Sequence[str]) -> float:
    """The share of characters, spaces aside, that are punctuation or signs of ASCII, but no ends of sentences."""
    joined = "".join(texts[:COPY_SAMPLE])
    signs = sum(joined.count(c) for c in '()[]{}<>=+*/\\|_$#@^~;:"`-')
    return signs / max(sum(not c.isspace() for c in joined), 1)


def _units(source: TextSide, target: TextSide | None) -> tuple[Unit, Unit]:
    """The units of both sides; beside single words, the words of the other side are read as letters."""
    sides: list[Unit] = []
    for side, other in ((source, target), (target or source, source)):
        strings = side.is_single_words or (other is not None and other.is_single_words and side.mean_words < 8)
        if side.is_symbols:
            sides.append("symbols")
        elif strings:
            sides.append("letters")
        elif side.is_closed:
            sides.append("closed")
        else:
            sides.append("code" if side.is_code else "sentences")
    return sides[0], sides[1]


def _task(units: tuple[Unit, Unit], has_target: bool, labels: int) -> Task:
    """The task that the units suggest."""
    if not has_target:
        return "text"
    if labels:
        return "labels"
    source, target = units
    if source in ("letters", "symbols") and target in ("letters", "symbols"):
        return "pronunciation" if (source, target) == ("letters", "symbols") else "strings"
    if target in ("closed", "symbols"):
        return "commands"
    return "code" if target == "code" else "sentences"


def _count_labels(target: TextSide, pairs: int) -> int:
    """How many different targets there are, if they are few and recur; else 0."""
    found = len(set(target.texts))
    return found if 2 <= found <= min(MAX_LABELS, pairs / MIN_LABEL_COUNT) and target.mean_words < 5 else 0


def _copied_share(sample: Sequence[Example], unit: Unit) -> float:
    """The mean share of a target's units that are its source's units, in the same order."""
    split = list if unit == "letters" else str.split
    shares = []
    for example in sample[:: max(len(sample) // COPY_SAMPLE, 1)]:
        target = split(example.target or "")
        shares.append(LCSseq.similarity(split(example.source), target) / max(len(target), 1))
    return statistics.fmean(shares)


def _media_task(sample: Sequence[Example]) -> Literal["image", "audio"] | None:
    """Whether sources are names of images or sounds, by their suffixes."""
    suffixes = Counter(os.path.splitext(example.source.strip())[1].lower() for example in sample)
    for task, known in (("image", IMAGE_SUFFIXES), ("audio", AUDIO_SUFFIXES)):
        if sum(suffixes[suffix] for suffix in known) > 0.9 * len(sample):
            return task  # type: ignore[return-value]
    return None
