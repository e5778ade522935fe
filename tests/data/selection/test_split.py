"""Splits: a partition in which nothing similar is in two parts, alike in languages and lengths, whatever the order."""

from __future__ import annotations

import gzip
import itertools
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import UserError
from dragoman.core.types import Example
from dragoman.data.selection.groups import compare_pairs, merge_similar
from dragoman.data.selection.similarity import find_similar, fold_text
from dragoman.data.selection.split import MAX_HELD_OUT, MIN_PAIRS, Split, part_sizes, split_pairs

DATA = Path(__file__).parents[4] / "shared" / "data"
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u")]


def make_word(rng: random.Random, syllables: int = 4) -> str:
    return "".join(rng.choices(SYLLABLES, k=syllables))


def make_words(count: int, seed: int = 7) -> list[str]:
    rng = random.Random(seed)
    return list({make_word(rng, rng.randint(2, 5)): None for _ in range(3 * count)})[:count]


def pairs_of(sources: list[str]) -> list[Example]:
    return [Example(source, source[::-1], line=i + 1) for i, source in enumerate(sources)]


def part_of(split: Split, examples: list[Example]) -> dict[str, set[str]]:
    """The parts in which each source is."""
    parts: dict[str, set[str]] = {}
    for part, rows in split.items():
        for row in rows:
            parts.setdefault(examples[row].source, set()).add(part)
    return parts


# -- what always holds -------------------------------------------------------------------------------------------------

texts = st.text("abcd é-K", max_size=12)
examples_of_any_kind = st.lists(
    st.builds(Example, texts, texts, st.sampled_from([None, "de", "fr"]), st.sampled_from([None, "en"])),
    min_size=3,
    max_size=60,
)


def try_split(examples: list[Example], seed: int = 1) -> Split | None:
    try:
        return split_pairs(examples, {"train": 3, "valid": 1, "test": 1}, seed, exact=True)
    except UserError as error:
        assert "different sources" in str(error)  # noqa: PT017 - some lists of pairs have no split
        return None


@given(examples_of_any_kind)
def test_a_split_is_a_partition_in_file_order_without_a_source_in_two_parts(examples):
    split = try_split(examples)
    if split is None:
        assert len({fold_text(example.source or example.target or "") for example in examples}) < len(examples)
        return
    assert sorted(itertools.chain.from_iterable(split.values())) == list(range(len(examples)))
    assert all(rows and rows == sorted(rows) for rows in split.values())
    for parts in part_of(split, [e if e.source else Example(e.target or "") for e in examples]).values():
        assert len(parts) == 1


@given(examples_of_any_kind, st.randoms(use_true_random=False))
def test_the_order_of_the_file_changes_nothing(examples, rng):
    shuffled = list(range(len(examples)))
    rng.shuffle(shuffled)
    split, other = try_split(examples), try_split([examples[row] for row in shuffled])
    assert (split is None) == (other is None)
    if split is not None and other is not None:
        assert {part: sorted(shuffled[row] for row in rows) for part, rows in other.items()} == dict(split)


def test_a_seed_decides_and_another_seed_gives_another_split():
    examples = pairs_of(make_words(300))
    assert split_pairs(examples) == split_pairs(examples)
    assert split_pairs(examples, seed=2)["test"] != split_pairs(examples)["test"]


@given(st.lists(st.text("abc", min_size=3, max_size=9), min_size=2, max_size=40, unique=True))
def test_links_between_words_are_those_of_the_definition(words):
    words.sort()
    links = find_similar(words)
    found = {frozenset(pair) for pair in zip(links.left.tolist(), links.right.tolist(), strict=True)}
    expected = set()
    for (i, a), (j, b) in itertools.combinations(enumerate(words), 2):
        short, long = sorted((len(a), len(b)))
        p = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), short)
        q = next((n for n, (x, y) in enumerate(zip(a[::-1], b[::-1], strict=False)) if x != y), short)
        stem = p >= 4 and 3 * p >= 2 * short and p >= 0.55 * long and short - p <= 2 and long - p <= 4
        if stem or (q >= 6 and q >= 0.75 * long):
            expected.add(frozenset((i, j)))
    assert found == expected


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_sizes_are_those_of_the_shares_with_a_minimum_and_a_maximum():
    assert part_sizes(3_000) == {"train": 2_400, "valid": 300, "test": 300}
    assert part_sizes(30) == {"train": 20, "valid": 5, "test": 5}
    assert part_sizes(MIN_PAIRS) == {"train": 14, "valid": 3, "test": 3}
    assert part_sizes(1_000_000) == {"train": 990_000, "valid": MAX_HELD_OUT, "test": MAX_HELD_OUT}
    requested = {"train": 80.0, "valid": 10.0, "test": 10.0}
    assert part_sizes(1_000_000, requested, exact=True) == {"train": 800_000, "valid": 100_000, "test": 100_000}
    assert part_sizes(1_000_000, {"train": 0.8, "valid": 0.1}) == {"train": 995_000, "valid": MAX_HELD_OUT}


def test_too_few_pairs_say_what_to_do():
    with pytest.raises(UserError, match=r"19 pairs are too few .* must be 20\. Add pairs, or train on all"):
        split_pairs(pairs_of(make_words(19)))


def test_few_sources_with_many_targets_say_why_nothing_is_left():
    with pytest.raises(UserError, match="the 40 pairs have only 2 different sources"):
        split_pairs([Example("ab"[i % 2], str(i)) for i in range(40)])


@pytest.mark.parametrize("count", [20, 30, 77, 500])
def test_unrelated_sources_fill_every_part_exactly(count):
    examples = [Example(f"{i:03}", "x") for i in range(count)]  # digits are not inflected
    split = split_pairs(examples)
    assert {part: len(rows) for part, rows in split.items()} == part_sizes(count)
    assert split.groups == 0


# -- what stays together -----------------------------------------------------------------------------------------------


def test_inflections_are_in_one_part():
    rng = random.Random(3)
    stems = sorted({make_word(rng, 3) for _ in range(150)})
    sources = [stem + ending for stem in stems for ending in ("", "s", "ed", "ing")]
    examples = pairs_of(["walk", "walks", "walked", "walking", "house", "mouse", *sources])
    split = split_pairs(examples)
    parts = part_of(split, examples)
    for stem in ("walk", *stems):
        together = {part for ending in ("", "s", "ed", "ing") for part in parts[stem + ending]}
        assert len(together) == 1, stem
    links = find_similar(sorted(["house", "mouse", "walk", "walks"]))
    assert [(links.left.tolist(), links.right.tolist())] == [([2], [3])]


def test_spelling_variants_are_one_source():
    for a, b in [("Naïve", "naive"), ("e-mail", "email"), ("w a l k", "walk"), ("don’t", "dont")]:
        assert fold_text(a) == fold_text(b)
    assert fold_text("हिन्दी") != fold_text("हन्द")  # vowel signs are letters
    assert fold_text("...") == "..."


@pytest.mark.parametrize("form", ["{lemma} {tags}", "{tags} {lemma}", "{spelled} {brackets}"])
def test_forms_of_one_lemma_are_in_one_part(form):
    rng = random.Random(5)
    lemmas = [*make_words(60), "NATO"]
    tags = ["V;PST", "V;PRS;3;SG", "N;PL", "N;GEN(SG)", "V.PTCP;PRS"]
    examples, lemma_of = [], []
    for lemma in lemmas:
        for tag in rng.sample(tags, 4):
            brackets = " ".join(f"[{each}]" for each in tag.split(";"))
            source = form.format(lemma=lemma, tags=tag, spelled=" ".join(lemma), brackets=brackets)
            examples.append(Example(source, "x"))
            lemma_of.append(lemma)
    split = split_pairs(examples)
    parts = [{lemma_of[row] for row in rows} for rows in split.values()]
    assert not any(a & b for a, b in itertools.combinations(parts, 2))
    assert all(parts)


def test_texts_in_capitals_are_no_tags():
    examples = [Example(f"SAY {word.upper()} NOW", "x") for word in make_words(50)]
    assert len(compare_pairs(examples).texts) == 50


def test_names_of_files_are_compared_as_they_are():
    examples = [Example(f"photos/cat{'x' * (i % 3)}_{i // 3:03}.jpg", f"{i}") for i in range(120)]
    split = split_pairs(examples)
    assert (split.groups, split.unit) == (0, "sources")


SENTENCES = [
    ("a man in a red shirt is riding a bike on the street", "a man in a blue shirt is riding a bike on the street"),
    ("the children were playing football behind the school", "children were playing football behind the school"),
    ("please send me the report before the end of this week", "please send us the report before the end of the week"),
]  # fmt: skip


def test_sentences_with_a_few_edits_are_in_one_part():
    rng = random.Random(11)
    words = make_words(500)
    others = [" ".join(rng.choices(words, k=10)) for _ in range(600)]
    examples = pairs_of([*itertools.chain.from_iterable(SENTENCES), *others])
    for seed in range(5):
        parts = part_of(split_pairs(examples, seed=seed), examples)
        for a, b in SENTENCES:
            assert parts[a] == parts[b]


def test_most_sentences_with_one_other_word_are_found_among_many():
    rng = random.Random(13)
    words = make_words(2_000)
    plain = [rng.choices(words, k=12) for _ in range(3_000)]
    changed = [[*words[:i], make_word(rng, 2), *words[i + 1 :]] for words in plain[:300] for i in [rng.randrange(12)]]
    texts = sorted({" ".join(words) for words in plain + changed})
    links = find_similar(texts)
    found = {frozenset((texts[a], texts[b])) for a, b in zip(links.left.tolist(), links.right.tolist(), strict=True)}
    wanted = [frozenset((" ".join(a), " ".join(b))) for a, b in zip(plain, changed, strict=False)]
    assert sum(pair in found for pair in wanted) >= 0.97 * len(wanted)
    assert len(found) < 1.1 * len(wanted)


def test_two_sentences_with_the_same_long_target_are_in_one_part():
    words = make_words(400)
    rng = random.Random(2)
    examples = [Example(" ".join(rng.choices(words, k=6)), f"answer number {i // 2}") for i in range(200)]
    split = split_pairs(examples)
    targets = [{examples[row].target for row in rows} for rows in split.values()]
    assert not any(a & b for a, b in itertools.combinations(targets, 2))


def test_keys_decide_alone_what_stays_together():
    examples = pairs_of(["walk", "walks"] * 20)
    keys = [i // 4 for i in range(40)]
    split = split_pairs(examples, keys=keys)
    assert sorted(itertools.chain.from_iterable(split.values())) == list(range(40))
    found = [{keys[row] for row in rows} for rows in split.values()]
    assert not any(a & b for a, b in itertools.combinations(found, 2))


def test_whole_groups_come_near_to_the_sizes_and_never_exceed_them():
    for seed in range(8):
        split = split_pairs(pairs_of(make_words(600)), keys=[i // 7 for i in range(600)], seed=seed)
        assert all(54 <= len(split[part]) <= 60 for part in ("valid", "test"))


# -- chains ------------------------------------------------------------------------------------------------------------


def test_a_chain_of_similar_words_does_not_become_one_group():
    chain = ["ab" * 5 + "cdefghij"[: i % 9] + "klmnopqr"[: i // 9] for i in range(72)]
    examples = pairs_of(list(dict.fromkeys(chain)) + make_words(1_000))
    limited = split_pairs(examples)
    assert limited.largest <= 32  # √1,072
    everything = Counter(merge_similar(compare_pairs(examples), 10**9).tolist())
    assert max(everything.values()) > 50
    assert limited.separated == 0 or "are apart" in limited.sentence


def test_of_several_links_the_strongest_decides_who_is_together():
    compared = compare_pairs(pairs_of(["walkabo", "walkaboxy", "walkab"]))
    assert compared.texts == ["walkab", "walkabo", "walkaboxy"]
    assert merge_similar(compared, 2).tolist() == [0, 0, 2]


def test_commands_made_of_a_few_patterns_are_kept_together_only_if_equal():
    verbs = ("walk", "look", "run", "jump", "turn")
    ways = ("", " left", " right", " twice", " thrice", " around left", " around right", " opposite left twice")
    actions = [verb + way for verb in verbs for way in ways]
    examples = [Example(f"{a} {joint} {b}", "X") for a in actions for b in actions for joint in ("and", "after")]
    split = split_pairs(examples)
    assert split.is_patterned
    assert (split.groups, split.separated > 0) == (0, True)
    assert "nearly all sentences resemble each other" in split.sentence
    assert {part: len(rows) for part, rows in split.items()} == part_sizes(len(examples))


# -- the same in every part --------------------------------------------------------------------------------------------


def test_an_alphabetical_file_gives_the_same_letters_and_lengths_in_all_parts():
    words = sorted(make_words(3_000))
    split = split_pairs(pairs_of(words))
    assert [len(rows) for rows in split.values()] == [2_400, 300, 300]
    first = {part: Counter(words[row][0] for row in rows) for part, rows in split.items()}
    for letter, count in Counter(word[0] for word in words).items():
        for part, share in (("train", 0.8), ("valid", 0.1), ("test", 0.1)):
            spread = (count * share * (1 - share)) ** 0.5  # of a random sample; groups of words make it larger
            assert abs(first[part][letter] - share * count) < 6 * spread + 3
    lengths = [sum(len(words[row]) for row in rows) / len(rows) for rows in split.values()]
    assert max(lengths) - min(lengths) < 0.15


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_languages_and_lengths_have_their_share_in_each_part(seed):
    rng = random.Random(seed)
    examples = []
    for language, count in (("de", 400), ("fr", 130), ("is", 70)):
        sources = [f"{language}{i:04}" + "1" * rng.randint(0, 15) for i in range(count)]
        examples += [Example(source, "x", language, "en") for source in sources]
    rng.shuffle(examples)
    split = split_pairs(examples, seed=seed)
    for rows in (split["valid"], split["test"]):
        languages = Counter(examples[row].source_lang for row in rows)
        assert all(abs(languages[name] - n) <= 1 for name, n in (("de", 40), ("fr", 13), ("is", 7)))
        assert abs(sum(len(examples[row].source) for row in rows) / len(rows) - 13.5) < 1


def test_a_source_in_several_languages_is_in_one_part():
    words = make_words(200)
    examples = [Example(word, word[::-1], "en", language) for language in ("de", "fr", "is") for word in words]
    split = split_pairs(examples)
    assert all(len(parts) == 1 for parts in part_of(split, examples).values())
    for rows in split.values():
        counts = Counter(examples[row].target_lang for row in rows)
        assert len(set(counts.values())) == 1


# -- real and large data -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_two_hundred_thousand_sentences_take_seconds_not_minutes():
    rng = random.Random(1)
    words = make_words(20_000)
    examples = [Example(" ".join(rng.choices(words, k=rng.randint(3, 10))), "x") for _ in range(200_000)]
    start = time.process_time()
    split = split_pairs(examples)
    assert time.process_time() - start < 60  # about 8 alone on one core
    assert [len(rows) for rows in split.values()] == [190_000, 5_000, 5_000]


@pytest.mark.skipif(not DATA.is_dir(), reason="the public data sets are not here")
def test_no_lemma_of_the_german_inflections_is_in_two_parts():
    with gzip.open(DATA / "sigmorphon2023-inflection" / "deu.train.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    split = split_pairs([Example(f"{lemma} {features}", form) for lemma, features, form in rows])
    lemmas = [{rows[row][0] for row in part} for part in split.values()]
    assert not any(a & b for a, b in itertools.combinations(lemmas, 2))
    assert all(abs(len(split[part]) - 1_000) <= 20 for part in ("valid", "test"))


def test_the_sentence_says_what_was_done():
    examples = pairs_of(make_words(2_000))
    split = split_pairs(examples, seed=4)
    counts = f"{len(split['train']):,} to learn from, 200 for validation, 200 for the test"
    assert split.sentence.startswith(
        f"{counts} (seed 4; no source in two parts; {split.groups} groups of similar words"
    )
