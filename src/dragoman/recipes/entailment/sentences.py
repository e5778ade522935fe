"""Pairs of sentences about kinds of things and what they do, and whether the second follows from the first.

    all dogs move > some old poodles move          entailment: poodles are dogs
    no dogs move > some poodles run quietly        contradiction: who runs moves
    some dogs move > all dogs move                 neutral

A sentence is Q A B: a quantifier, a kind of things A, what they do B (or do not do). Every kind that is named has
members. Between the kinds A, A' of two sentences, and between B, B', the words tell one of four relations (the same,
narrower, wider, or nothing). The label is what logic says. A type t says of a thing whether it is A, A', B, B'; the
relations leave some of the 16 types. Each quantifier either forbids types (all, no) or asks for one (some, not all), so
that sentences can be true together just if

    for each type asked for there is one that nothing forbids.

    entailment      the first and the opposite of the second cannot be true together
    contradiction   the first and the second cannot
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

# The wider word of each; what has none stands at the top.
NOUNS = {
    **dict.fromkeys(("animals", "people"), ""),
    **dict.fromkeys(("dogs", "birds", "fish"), "animals"),
    **dict.fromkeys(("poodles", "terriers"), "dogs"),
    **dict.fromkeys(("parrots", "owls"), "birds"),
    **dict.fromkeys(("trout", "eels"), "fish"),
    **dict.fromkeys(("children", "artists"), "people"),
    **dict.fromkeys(("girls", "boys"), "children"),
    **dict.fromkeys(("painters", "singers"), "artists"),
}
VERBS = {
    **dict.fromkeys(("move", "communicate"), ""),
    **dict.fromkeys(("run", "swim", "climb"), "move"),
    **dict.fromkeys(("sprint", "jog"), "run"),
    **dict.fromkeys(("whistle", "speak"), "communicate"),
    **dict.fromkeys(("whisper", "shout"), "speak"),
}
ADJECTIVES, ADVERBS = ("old", "small", "clever"), ("daily", "outdoors", "together")
QUANTIFIERS = ("all", "some", "no", "not all")
OPPOSITE = {"all": "not all", "not all": "all", "some": "no", "no": "some"}
ENTAILMENT, CONTRADICTION, NEUTRAL = LABELS = ("entailment", "contradiction", "neutral")

Type = tuple[bool, bool, bool, bool]  # whether a thing is A, A', B, B'


class Phrase(NamedTuple):
    """A noun with its adjective, or a verb with its adverb; each of these makes it narrower."""

    word: str
    more: str = ""


@dataclass(frozen=True)
class Sentence:
    quantifier: str
    kind: Phrase
    does: Phrase
    negated: bool = False

    def __str__(self) -> str:
        words = (
            self.quantifier,
            self.kind.more,
            self.kind.word,
            "do not" * self.negated,
            self.does.word,
            self.does.more,
        )
        return " ".join(filter(None, words))


def wider(word: str) -> Iterator[str]:
    """The word itself and all that include it."""
    while word:
        yield word
        word = WIDER[word]


WIDER = NOUNS | VERBS
INCLUDED = {word: frozenset(wider(word)) for word in WIDER}
NEAR = {word: [other for other in WIDER if word in INCLUDED[other] or other in INCLUDED[word]] for word in WIDER}


def within(one: Phrase, other: Phrase) -> bool:
    """Whether whatever is the one is the other."""
    return other.word in INCLUDED[one.word] and other.more in ("", one.more)


# -- logic -------------------------------------------------------------------------------------------------------------


def label(first: Sentence, second: Sentence) -> str:
    """Whether the second sentence follows from the first, cannot be true with it, or neither."""
    a, b = (first.kind, second.kind), (first.does, second.does)
    relations = (within(*a), within(*a[::-1]), within(*b), within(*b[::-1]))
    return decided((first.quantifier, first.negated), (second.quantifier, second.negated), relations)


@cache
def decided(first: tuple[str, bool], second: tuple[str, bool], relations: tuple[bool, bool, bool, bool]) -> str:
    """The label of two forms, where A ⊆ A', A' ⊆ A, B ⊆ B', B' ⊆ B or not."""
    opposite = (OPPOSITE[second[0]], second[1])
    if not together(first, opposite, relations):
        return ENTAILMENT
    return NEUTRAL if together(first, second, relations) else CONTRADICTION


def together(first: tuple[str, bool], second: tuple[str, bool], relations: tuple[bool, bool, bool, bool]) -> bool:
    """Whether two sentences can be true together: all that is asked for is left by what is forbidden."""
    a_in, in_a, b_in, in_b = relations
    types = [
        (a, a2, b, b2)
        for a, a2, b, b2 in product((False, True), repeat=4)
        if not (a_in and a > a2) and not (in_a and a2 > a) and not (b_in and b > b2) and not (in_b and b2 > b)
    ]
    asked: list[set[Type]] = [{t for t in types if t[0]}, {t for t in types if t[1]}]  # every kind has members
    forbidden: set[Type] = set()
    for place, (quantifier, negated) in enumerate((first, second)):
        do = {t for t in types if t[place] and t[2 + place] != negated}
        do_not = {t for t in types if t[place]} - do
        if quantifier in ("all", "no"):
            forbidden |= do_not if quantifier == "all" else do
        else:
            asked.append(do if quantifier == "some" else do_not)
    return all(some - forbidden for some in asked)


# -- pairs -------------------------------------------------------------------------------------------------------------

THINGS, DEEDS = (tuple(NOUNS), ADJECTIVES), (tuple(VERBS), ADVERBS)
Words = tuple[tuple[str, ...], tuple[str, ...]]


def pairs(rng: random.Random, banned: Collection[tuple[str, str]] = ()) -> Iterator[tuple[Sentence, Sentence, str]]:
    """Pairs with labels, each label in turn; without sentences that say a banned noun with a banned verb."""
    while True:
        for wanted in LABELS:
            yield next(pair for pair in _drawn(rng, banned) if pair[2] == wanted)


def _drawn(rng: random.Random, banned: Collection[tuple[str, str]]) -> Iterator[tuple[Sentence, Sentence, str]]:
    while True:
        first = sentence(rng, _phrase(rng, THINGS), _phrase(rng, DEEDS))
        second = sentence(rng, _near(rng, first.kind, THINGS), _near(rng, first.does, DEEDS))
        if not any((one.kind.word, one.does.word) in banned for one in (first, second)):
            yield first, second, label(first, second)


def sentence(rng: random.Random, kind: Phrase, does: Phrase) -> Sentence:
    return Sentence(rng.choice(QUANTIFIERS), kind, does, rng.random() < 0.3)


def _phrase(rng: random.Random, words: Words) -> Phrase:
    return Phrase(rng.choice(words[0]), rng.choice(words[1]) if rng.random() < 0.3 else "")


def _near(rng: random.Random, one: Phrase, words: Words) -> Phrase:
    """The same, something wider or narrower, or anything: all four relations are common."""
    draw = rng.random()
    if draw < 0.2:
        return one
    if draw < 0.9:
        return Phrase(rng.choice(NEAR[one.word]), rng.choice(("", one.more, rng.choice(words[1]))))
    return _phrase(rng, words)
