"""The tasks we make ourselves, held against Python's own sorting and calendar, and a parser of dates written here."""

from __future__ import annotations

import calendar
import re
from datetime import date, datetime, timedelta
from functools import partial

import pytest
from bench import letters
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import DataError, UserError
from dragoman.data.samples import synthetic

days = st.dates(date(1900, 1, 1), date(2099, 12, 31))

# -- a reader of dates that shares nothing with the writer -------------------------------------------------------------

UNITS = ["", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"]
TEENS = [
    "tenth",
    "eleventh",
    "twelfth",
    *(f"{n}teenth" for n in ("thir", "four", "fif", "six", "seven", "eigh", "nine")),
]
NUMBERS = {name: i for i, name in enumerate(UNITS) if name}
NUMBERS |= {name: 10 + i for i, name in enumerate(TEENS)} | {"twentieth": 20, "thirtieth": 30}
NUMBERS |= {f"{tens}-{name}": i + j for tens, i in (("twenty", 20), ("thirty", 30)) for j, name in enumerate(UNITS)}
MONTHS = {calendar.month_abbr[i].lower(): i for i in range(1, 13)}
WEEKDAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
ALL_NUMBERS = {
    r"\d{4}-\d\d-\d\d": "%Y-%m-%d",
    r"\d{4}/\d\d/\d\d": "%Y/%m/%d",
    r"\d{8}": "%Y%m%d",
    r"\d+/\d+/\d{4}": "%d/%m/%Y",
    r"\d+\.\d+\.\d{4}": "%d.%m.%Y",
    r"\d\d-\d\d-\d{4}": "%d-%m-%Y",
}


def read(text: str) -> date:
    """The one day that a text can mean under the rules in the module's header."""
    text = text.lower()
    for form, directive in ALL_NUMBERS.items():
        if re.fullmatch(form, text.replace(" ", "")):
            return datetime.strptime(text.replace(" ", ""), directive).date()
    day = month = year = weekday = None
    for word in re.split(r"[ ,.]+|(?<=\d)-(?=[a-z])|(?<=[a-z])-(?=\d)", text):
        if word in ("", "the", "of"):
            continue
        if word.startswith("'"):
            year = int(word[1:]) + (2000 if int(word[1:]) < 50 else 1900)
        elif re.fullmatch(r"\d{4}", word):
            year = int(word)
        elif number := re.fullmatch(r"(\d{1,2})(st|nd|rd|th)?", word):
            day = int(number[1])
        elif word in NUMBERS:
            day = NUMBERS[word]
        elif word[:3] in MONTHS:
            month = MONTHS[word[:3]]
        else:
            weekday = WEEKDAYS.index(word[:3])
    found = date(year, month, day)
    assert weekday in (None, calendar.weekday(year, month, day)), text
    return found


# -- dates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", synthetic.PATTERNS)
@settings(deadline=None, max_examples=30)
@given(day=days)
def test_every_pattern_can_be_read_back_as_the_day_it_was_made_from(pattern, day):
    if synthetic.is_unambiguous(pattern, day):
        assert read(synthetic.format_date(day, pattern)) == day


def test_every_generated_date_can_be_read_back_as_its_target():
    pairs = synthetic.generate_pairs(synthetic.dates, 5000, seed=3)
    assert [read(source).isoformat() for source, _ in pairs] == [target for _, target in pairs]
    years = {int(target[:4]) for _, target in pairs}
    assert min(years) == 1900
    assert max(years) == 2099


def test_a_known_day_is_formatted_in_every_pattern():
    written = {pattern: synthetic.format_date(date(2019, 1, 5), pattern) for pattern in synthetic.PATTERNS}
    assert written["{wd} {d} {mon} {y}"] == "Sat 5 Jan 2019"
    assert written["the {ordinal} of {month}, {y}"] == "the fifth of January, 2019"
    assert written["{mon.} {d}, '{yy}"] == "Jan. 5, '19"
    assert written["{d}.{m}.{y}"] == "5.1.2019"
    assert (
        synthetic.format_date(date(1969, 7, 20), "{weekday} the {nth} of {month} {y}") == "Sunday the 20th of July 1969"
    )
    assert synthetic.format_date(date(1999, 5, 2), "{mon.} {d}, '{yy}") == "May 2, '99"


def test_ordinals_end_as_in_english():
    day = date(2000, 1, 1)
    endings = [synthetic.format_date(day + timedelta(i), "{nth}") for i in range(31)]
    assert endings[:4] == ["1st", "2nd", "3rd", "4th"]
    assert endings[10:13] == ["11th", "12th", "13th"]
    assert endings[20:23] == ["21st", "22nd", "23rd"]
    assert endings[29:] == ["30th", "31st"]


def test_short_years_are_used_only_where_the_century_is_fixed():
    assert not synthetic.is_unambiguous("{d} {month} '{yy}", date(1949, 12, 31))
    assert synthetic.is_unambiguous("{d} {month} '{yy}", date(1950, 1, 1))
    assert synthetic.is_unambiguous("{d} {month} '{yy}", date(2049, 12, 31))
    assert not synthetic.is_unambiguous("{d} {month} '{yy}", date(2050, 1, 1))


def test_no_two_days_are_ever_written_alike():
    day, stop, meanings = date(2019, 1, 1), date(2021, 1, 1), {}
    while day < stop:
        for pattern in synthetic.PATTERNS:
            text = re.sub(r"[ ,]+", " ", synthetic.format_date(day, pattern).lower())
            assert meanings.setdefault(text, day) == day
        day += timedelta(1)


def test_there_are_many_patterns_and_all_of_them_occur():
    assert len(set(synthetic.PATTERNS)) >= 12
    sources = "\n".join(source for source, _ in synthetic.generate_pairs(synthetic.dates, 4000, seed=1))
    for form in (
        r"^\d{8}$",
        r"^\d+/\d+/\d{4}$",
        r" / ",
        r"(?i)^the \w",
        r"'\d\d$",
        r"  ",
        r"[A-Z]{3} \d",
        r"^[a-z]+ \d",
    ):
        assert re.search(form, sources, re.M), form


# -- letters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", letters.TASKS)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), symbols=st.integers(2, 26), max_length=st.integers(3, 30))
def test_letters_are_copied_reversed_and_sorted(task, seed, symbols, max_length):
    truth = {"copy": lambda x: x, "reverse": lambda x: x[::-1], "sort": sorted}[task]
    for source, target in letters.generate_pairs(task, 40, seed, symbols=symbols, max_length=max_length):
        x = source.split(" ")
        assert target.split(" ") == list(truth(x))
        assert 1 <= len(x) <= max_length
        assert set(x) <= set("abcdefghijklmnopqrstuvwxyz"[:symbols])


def test_all_lengths_and_all_symbols_occur():
    pairs = letters.generate_pairs("copy", 2000, seed=0, symbols=8, max_length=20)
    assert {len(source.split()) for source, _ in pairs} == set(range(1, 21))
    assert {letter for source, _ in pairs for letter in source.split()} == set("abcdefgh")


# -- pairs -------------------------------------------------------------------------------------------------------------

GENERATORS = [
    partial(synthetic.generate_pairs, synthetic.dates),
    *(partial(letters.generate_pairs, task) for task in letters.TASKS),
]


@pytest.mark.parametrize("generate", GENERATORS)
def test_the_same_seed_gives_the_same_pairs_and_another_seed_others(generate):
    assert generate(50, seed=5) == generate(50, seed=5)
    assert generate(50, seed=5) != generate(50, seed=6)


@pytest.mark.parametrize("generate", GENERATORS)
def test_no_target_of_a_test_occurs_in_training(generate):
    sides = {
        side: {target for seed in (1, 2) for _, target in generate(300, seed, split=side)}
        for side in ("train", "valid", "test")
    }
    assert not sides["train"] & sides["test"]
    assert not sides["train"] & sides["valid"]
    assert not sides["valid"] & sides["test"]


def test_a_tenth_of_all_days_are_kept_for_tests():
    all_days = [date(1900, 1, 1) + timedelta(i) for i in range((date(2100, 1, 1) - date(1900, 1, 1)).days)]
    sides = [synthetic.split_of_target(day.isoformat()) for day in all_days]
    assert sides.count("test") / len(sides) == pytest.approx(0.10, abs=0.005)
    assert sides.count("valid") / len(sides) == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("generate", GENERATORS)
def test_sources_are_not_repeated(generate):
    sources = [source for source, _ in generate(3000, seed=2)]
    assert len(set(sources)) == len(sources) == 3000


def test_a_small_task_gives_every_pair_once_and_then_repeats():
    every = {
        source
        for length in (1, 2)
        for source in _strings("abc", length)
        if synthetic.split_of_target(source) == "train"
    }
    sources = [source for source, _ in letters.generate_pairs("copy", 50, seed=0, symbols=3, max_length=2)]
    assert len(sources) == 50
    assert set(sources[: len(every)]) == every


def _strings(alphabet, length):
    return (
        list(alphabet) if length == 1 else [f"{a} {rest}" for a in alphabet for rest in _strings(alphabet, length - 1)]
    )


def test_a_side_without_pairs_is_an_error_and_not_an_endless_search():
    empty = next(side for side in ("train", "valid", "test") if side != synthetic.split_of_target("a"))
    with pytest.raises(DataError, match=f"none is for the split '{empty}'"):
        letters.generate_pairs("copy", 1, seed=0, split=empty, symbols=1, max_length=1)


def test_pairs_are_written_as_lines_with_a_tab(tmp_path):
    file = tmp_path / "new" / "pairs.tsv"
    synthetic.write_tsv(file, [("c a b", "a b c"), ("é", "e")])
    assert file.read_bytes() == "c a b\ta b c\né\te\n".encode()
    assert list(file.parent.iterdir()) == [file]


def test_a_file_stays_whole_when_writing_fails(tmp_path):
    file = tmp_path / "pairs.tsv"
    synthetic.write_tsv(file, [("a", "b")])

    def broken():
        yield ("c", "d")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        synthetic.write_tsv(file, broken())
    assert file.read_text() == "a\tb\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be written"):
        synthetic.write_tsv(tmp_path / "file" / "pairs.tsv", [])
