"""What pairs look like, on made-up pairs of each kind, and on the public sets where they are there."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.data.quality.profile import profile_pairs
from dragoman.data.samples import synthetic

DATA = Path(__file__).parents[3].parent / "shared" / "data"
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


def draw_word(rng: random.Random, syllables: int = 3) -> str:
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(1, syllables)))


def pronunciations(rng: random.Random) -> tuple[str, str]:
    word = draw_word(rng)
    return word, " ".join({"a": "AA", "e": "EH", "i": "IY", "o": "OW", "u": "UW"}.get(c, c.upper()) for c in word)


def transliterations(rng: random.Random) -> tuple[str, str]:
    word = draw_word(rng)
    return word, "".join(chr(0x400 + ord(c)) for c in word)


def inflections(rng: random.Random) -> tuple[str, str]:
    word, ending = draw_word(rng), rng.choice(["en", "te", "t"])
    return f"{word} V;{ {'en': 'INF', 'te': 'PST', 't': 'PRS'}[ending] }", word + ending


def commands(rng: random.Random) -> tuple[str, str]:
    said, done = list[str](), list[str]()
    for _ in range(rng.randint(2, 4)):
        verb, times = rng.choice(["jump", "walk", "run", "look"]), rng.choice(["once", "twice", "thrice"])
        said += [verb, times, "and"]
        done += [f"I_{verb.upper()}"] * {"once": 1, "twice": 2, "thrice": 3}[times]
    return " ".join(said[:-1]), " ".join(done)


def sentences(rng: random.Random) -> tuple[str, str]:
    words = [draw_word(rng, 4) for _ in range(rng.randint(4, 12))]
    return " ".join(words) + ".", " ".join(word[::-1] for word in words) + "."


def code(rng: random.Random) -> tuple[str, str]:
    name, argument = draw_word(rng), draw_word(rng)
    return f"call the function {name} with the argument {argument}.", f"{name} ( {argument} ) [ 0 ] = {{ }}"


def labels(rng: random.Random) -> tuple[str, str]:
    return " ".join(draw_word(rng) for _ in range(6)), rng.choice(["good", "bad", "not sure"])


KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "pronunciation": pronunciations,
    "strings": transliterations,
    "commands": commands,
    "sentences": sentences,
    "code": code,
    "labels": labels,
}


def make(kind: Callable[[random.Random], tuple[str, str]], count: int, seed: int) -> list[Example]:
    rng = random.Random(seed)
    return [Example(*kind(rng)) for _ in range(count)]


@pytest.mark.parametrize("count", [300, 3000])
@pytest.mark.parametrize("task", KINDS)
def test_pairs_of_each_kind_are_recognized(task: str, count: int) -> None:
    assert profile_pairs(make(KINDS[task], count, count)).task == task


def test_inflections_are_strings_that_are_mostly_copied() -> None:
    profile = profile_pairs(make(inflections, 500, 1))
    assert (profile.task, profile.source.unit) == ("strings", "letters")
    assert profile.copied > 0.6
    assert "of the target copied" in str(profile)


def test_dates_are_strings() -> None:
    pairs = synthetic.generate_pairs(synthetic.dates, 500, 1, split="train")
    assert profile_pairs([Example(*pair) for pair in pairs]).task == "strings"


def test_single_texts_and_media_are_recognized() -> None:
    assert profile_pairs([Example(f"some text number {i}") for i in range(30)]).task == "text"
    assert profile_pairs([Example(f"photo{i}.JPG", "a dog runs") for i in range(30)]).task == "image"
    assert profile_pairs([Example(f"clips/{i}.wav", "hello") for i in range(30)]).task == "audio"


def test_pairs_with_a_blank_side_do_not_count() -> None:
    pairs = make(pronunciations, 50, 2)
    blank = [Example("", "a"), Example("a", " ")]
    assert profile_pairs([*pairs, *blank]) == profile_pairs(pairs)
    with pytest.raises(DataError, match="no pair to learn from"):
        profile_pairs(blank)


def test_copied_counts_units_in_the_same_order() -> None:
    # "abcd" stands in "xabyc" with a, b, c of its four letters; "ba" with one of two.
    assert profile_pairs([Example("xabyc", "abcd")] * 20).copied == pytest.approx(0.75)
    assert profile_pairs([Example("ab", "ba")] * 20).copied == pytest.approx(0.5)


def test_languages_and_lengths_are_counted() -> None:
    pairs = [Example("ab", "x y z", "de", "en"), Example("abcd", "x y z", "fr", "en")] * 10
    profile = profile_pairs(pairs)
    assert (profile.pairs, profile.languages, profile.source.characters) == (20, 2, 3.0)
    assert profile.target is not None
    assert (profile.target.words, profile.target.longest_words, profile.target.vocabulary) == (3.0, 3, 3)


def read_columns(file: Path, source: tuple[int, ...], target: int) -> Iterator[Example]:
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            cells = line.rstrip("\n").split("\t")
            yield Example(" ".join(cells[i] for i in source), cells[target])


@pytest.mark.skipif(not DATA.is_dir(), reason="the public data sets are not here")
@pytest.mark.parametrize(
    ("file", "source", "target", "task"),
    [
        ("cmudict/train.tsv.gz", (0,), 1, "pronunciation"),
        ("sigmorphon2020-g2p/train.tsv.gz", (1,), 2, "pronunciation"),
        ("sigmorphon2023-inflection/fin.train.tsv.gz", (0, 1), 2, "strings"),
        ("dakshina-translit/te.train.tsv.gz", (1,), 0, "strings"),
        ("tatoeba-fra-eng/train.tsv.gz", (0,), 1, "sentences"),
        ("scan/simple.train.tsv.gz", (0,), 1, "commands"),
        ("cogs/train.tsv.gz", (0,), 1, "commands"),
        ("django-code/train.tsv.gz", (0,), 1, "code"),
        ("nl2bash/train.tsv.gz", (0,), 1, "code"),
    ],
)
def test_public_sets_are_recognized_also_by_a_small_part(
    file: str, source: tuple[int, ...], target: int, task: str
) -> None:
    pairs = list(read_columns(DATA / file, source, target))
    assert profile_pairs(pairs).task == task
    assert profile_pairs(pairs[:: len(pairs) // 1000]).task == task


def test_words_of_grammatical_features_are_noticed_beside_a_lemma_alone() -> None:
    rng = random.Random(3)
    inflected = profile_pairs([Example(*inflections(rng)) for _ in range(100)])
    assert inflected.source.has_features
    assert "grammatical features" in str(inflected)
    assert not profile_pairs([Example(*transliterations(rng)) for _ in range(100)]).source.has_features
    assert not profile_pairs([Example(*code(rng)) for _ in range(100)]).source.has_features
