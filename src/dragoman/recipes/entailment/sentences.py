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
    modifier: str = ""


@dataclass(frozen=True)
class Sentence:
    """A quantifier, a subject and a predicate: "all old dogs do not run quietly"."""

    quantifier: str
    subject: Phrase
    predicate: Phrase
    negated: bool = False

    def __str__(self) -> str:
        """The sentence as English words, without those that are empty."""
        words = (
            self.quantifier,
            self.subject.modifier,
            self.subject.word,
            "do not" * self.negated,
            self.predicate.word,
            self.predicate.modifier,
        )
        return " ".join(filter(None, words))


def hypernyms(word: str) -> Iterator[str]:
    """Yield the word itself, then its hypernyms from the narrowest to the widest."""
    while word:
        yield word
        word = HYPERNYM[word]


HYPERNYM = NOUNS | VERBS
HYPERNYMS = {word: frozenset(hypernyms(word)) for word in HYPERNYM}
RELATED = {
    word: [other for other in HYPERNYM if word in HYPERNYMS[other] or other in HYPERNYMS[word]] for word in HYPERNYM
}


def is_subset(one: Phrase, other: Phrase) -> bool:
    """Whether everything that `one` describes is also described by `other`, by hypernyms and modifiers."""
    return other.word in HYPERNYMS[one.word] and other.modifier in ("", one.modifier)


# -- logic -------------------------------------------------------------------------------------------------------------


def logical_label(first: Sentence, second: Sentence) -> str:
    """The label of a pair: entailment, contradiction (both cannot be true) or neutral."""
    a, b = (first.subject, second.subject), (first.predicate, second.predicate)
    relations = (is_subset(*a), is_subset(*a[::-1]), is_subset(*b), is_subset(*b[::-1]))
    return decide_label((first.quantifier, first.negated), (second.quantifier, second.negated), relations)


@cache
def decide_label(first: tuple[str, bool], second: tuple[str, bool], relations: tuple[bool, bool, bool, bool]) -> str:
    """The label of two (quantifier, negated) forms, given whether A ⊆ A', A' ⊆ A, B ⊆ B', B' ⊆ B."""
    opposite = (OPPOSITE[second[0]], second[1])
    if not can_both_be_true(first, opposite, relations):
        return ENTAILMENT
    return NEUTRAL if can_both_be_true(first, second, relations) else CONTRADICTION


def can_both_be_true(
    first: tuple[str, bool], second: tuple[str, bool], relations: tuple[bool, bool, bool, bool]
) -> bool:
    """Whether two (quantifier, negated) forms can be true together, given the same four subset relations."""
    a_in, in_a, b_in, in_b = relations
    types = [
        (a, a2, b, b2)
        for a, a2, b, b2 in product((False, True), repeat=4)
        if not (a_in and a > a2) and not (in_a and a2 > a) and not (b_in and b > b2) and not (in_b and b2 > b)
    ]
    required: list[set[Type]] = [{t for t in types if t[0]}, {t for t in types if t[1]}]  # every kind has members
    forbidden: set[Type] = set()
    for side, (quantifier, negated) in enumerate((first, second)):
        do = {t for t in types if t[side] and t[2 + side] != negated}
        do_not = {t for t in types if t[side]} - do
        if quantifier in ("all", "no"):
            forbidden |= do_not if quantifier == "all" else do
        else:
            required.append(do if quantifier == "some" else do_not)
    return all(some - forbidden for some in required)


# -- pairs -------------------------------------------------------------------------------------------------------------

SUBJECTS, PREDICATES = (tuple(NOUNS), ADJECTIVES), (tuple(VERBS), ADVERBS)
Words = tuple[tuple[str, ...], tuple[str, ...]]


def generate_pairs(
    rng: random.Random, banned: Collection[tuple[str, str]] = ()
) -> Iterator[tuple[Sentence, Sentence, str]]:
    """Yield labeled random pairs forever, the labels in turn; no sentence combines a banned (noun, verb)."""
    while True:
        for target_label in LABELS:
            yield next(pair for pair in _draw_pairs(rng, banned) if pair[2] == target_label)


def _draw_pairs(rng: random.Random, banned: Collection[tuple[str, str]]) -> Iterator[tuple[Sentence, Sentence, str]]:
    """Yield random pairs of related sentences with their labels forever, without banned (noun, verb) combinations."""
    while True:
        first = draw_sentence(rng, _draw_phrase(rng, SUBJECTS), _draw_phrase(rng, PREDICATES))
        second = draw_sentence(
            rng, _draw_related(rng, first.subject, SUBJECTS), _draw_related(rng, first.predicate, PREDICATES)
        )
        if not any((one.subject.word, one.predicate.word) in banned for one in (first, second)):
            yield first, second, logical_label(first, second)


def draw_sentence(rng: random.Random, subject: Phrase, predicate: Phrase) -> Sentence:
    """A sentence with a random quantifier, negated in 30 % of the cases."""
    return Sentence(rng.choice(QUANTIFIERS), subject, predicate, rng.random() < 0.3)


def _draw_phrase(rng: random.Random, words: Words) -> Phrase:
    """A random word, with a random modifier in 30 % of the cases."""
    return Phrase(rng.choice(words[0]), rng.choice(words[1]) if rng.random() < 0.3 else "")


def _draw_related(rng: random.Random, one: Phrase, words: Words) -> Phrase:
    """Draw the same phrase (20 %), one with a related word (70 %), or any phrase (10 %)."""
    draw = rng.random()
    if draw < 0.2:
        return one
    if draw < 0.9:
        return Phrase(rng.choice(RELATED[one.word]), rng.choice(("", one.modifier, rng.choice(words[1]))))
    return _draw_phrase(rng, words)
