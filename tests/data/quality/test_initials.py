"""Lists that were cut from sorted ones."""

from __future__ import annotations

import random

import pytest

from dragoman.data.quality.initials import WordBeginnings


def missing(words: list[str]) -> list[str]:
    counts = WordBeginnings()
    for word in words:
        counts.add(word)
    return counts.missing


def words(letters: str, count: int = 3000) -> list[str]:
    rng = random.Random(1)
    return sorted("".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(count))


@pytest.mark.parametrize(
    "letters", ["abcdefghijklmnopqrstuvwxyz", "абвгдежзиклмнопрстуфхцчшщыьэюя", "αβγδεζηθικλμνξοπρστυφχψω"]
)
def test_one_end_of_a_sorted_list_is_noticed_and_a_sample_of_it_is_not(letters: str) -> None:
    every = words(letters)
    assert missing(every) == []
    assert missing(random.Random(2).sample(every, 1500)) == []
    half = sorted(letters)[len(letters) // 2 + 1 :]
    begins = [word for word in every if word[0] < half[0]]
    assert missing(begins) == half
    assert missing(random.Random(3).sample(begins, len(begins))) == half  # shuffled afterwards
    assert missing([word for word in every if word[0] >= half[0]]) == sorted(set(letters) - set(half))


def test_letters_that_begin_no_word_and_few_words_are_no_sign() -> None:
    every = [word for word in words("abcçdefgğhıijklmnoöprsştuüvyz") if word[0] not in "ğıüz"]
    assert missing(every) == []
    assert missing(["ab", "az", "bz", "bx", "by"]) == []
    assert missing([]) == missing(["", "1 2", "42"]) == []
