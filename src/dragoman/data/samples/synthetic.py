"""Synthetic tasks: any number of pairs, from a seed and nothing else.

    copy       c a b → c a b        letters from the first `symbols` of the alphabet, 1 to `max_length` of them
    reverse    c a b → b a c
    sort       c a b → a b c
    dates      Sat 5 Jan 2019 → 2019-01-05        every day from 1900 to 2099, written in many ways

No date is ambiguous: a date in digits is day, month, year (5/1/2019 is the fifth of January),
unless the four-digit year comes first, and then it is year, month, day. A two-digit year always has
an apostrophe and lies between 1950 and 2049: '49 is 2049, '50 is 1950. A weekday, if there is one,
is correct.

A hash of the target assigns each pair to train, valid or test (85, 5 and 10 of 100): no target of a
test occurs in training, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import random
import re
import string
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

from dragoman.core import files
from dragoman.core.errors import DataError, did_you_mean

Pair = tuple[str, str]
Task = Callable[[random.Random, int, int], Pair]  # generator, symbols, max_length → source, target
SplitName = Literal["train", "valid", "test"]

FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
MAX_MISSES = 2000  # consecutive draws without a new pair: then very likely all sources have occurred

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ORDINALS = (
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
    *("twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth"),
    *("twentieth", "twenty-first", "twenty-second", "twenty-third", "twenty-fourth", "twenty-fifth", "twenty-sixth"),
    *("twenty-seventh", "twenty-eighth", "twenty-ninth", "thirtieth", "thirty-first"),
)
PATTERNS = (
    "{d} {month} {y}",  # 5 January 2019
    "{dd} {mon} {y}",  # 05 Jan 2019
    "{d}-{mon}-{y}",  # 5-Jan-2019
    "{nth} {month} {y}",  # 5th January 2019
    "{nth} of {month}, {y}",  # 5th of January, 2019
    "the {ordinal} of {month}, {y}",  # the fifth of January, 2019
    "{month} {d}, {y}",  # January 5, 2019
    "{month} {nth}, {y}",  # January 5th, 2019
    "{month} the {ordinal}, {y}",  # January the fifth, 2019
    "{mon} {d} {y}",  # Jan 5 2019
    "{wd} {d} {mon} {y}",  # Sat 5 Jan 2019
    "{weekday}, {month} {d}, {y}",  # Saturday, January 5, 2019
    "{weekday} the {nth} of {month} {y}",  # Saturday the 5th of January 2019
    "{y}, {month} {d}",  # 2019, January 5
    "{mon.} {d}, '{yy}",  # Jan. 5, '19
    "{d} {month} '{yy}",  # 5 January '19
    "{d}/{m}/{y}",  # 5/1/2019
    "{dd}/{mm}/{y}",  # 05/01/2019
    "{d}.{m}.{y}",  # 5.1.2019
    "{dd}-{mm}-{y}",  # 05-01-2019
    "{y}-{mm}-{dd}",  # 2019-01-05
    "{y}/{mm}/{dd}",  # 2019/01/05
    "{y}{mm}{dd}",  # 20190105
)


# -- letters -----------------------------------------------------------------------------------------------------------


def copy(rng: random.Random, symbols: int, max_length: int) -> Pair:
    """A (source, target) pair: 1 to max_length random letters, and the same letters."""
    letters = _letters(rng, symbols, max_length)
    return " ".join(letters), " ".join(letters)


def reverse(rng: random.Random, symbols: int, max_length: int) -> Pair:
    """A (source, target) pair: 1 to max_length random letters, and the letters in reverse order."""
    letters = _letters(rng, symbols, max_length)
    return " ".join(letters), " ".join(reversed(letters))


def sort(rng: random.Random, symbols: int, max_length: int) -> Pair:
    """A (source, target) pair: 1 to max_length random letters, and the letters in alphabetical order."""
    letters = _letters(rng, symbols, max_length)
    return " ".join(letters), " ".join(sorted(letters))


def _letters(rng: random.Random, symbols: int, max_length: int) -> list[str]:
    """1 to `max_length` random letters from the first `symbols` of the alphabet."""
    return [rng.choice(string.ascii_lowercase[:symbols]) for _ in range(rng.randint(1, max_length))]


# -- dates -------------------------------------------------------------------------------------------------------------


def dates(rng: random.Random, symbols: int, max_length: int) -> Pair:
    """A date as people write it → the ISO form; symbols and max_length are ignored."""
    day = FIRST + timedelta(days=rng.randint(0, (LAST - FIRST).days))
    pattern = rng.choice([pattern for pattern in PATTERNS if is_unambiguous(pattern, day)])
    return _vary_writing(rng, format_date(day, pattern)), day.isoformat()


def is_unambiguous(pattern: str, day: date) -> bool:
    """Whether a pattern determines the century of a day."""
    return "{yy}" not in pattern or 1950 <= day.year < 2050


def format_date(day: date, pattern: str) -> str:
    """A day in one of PATTERNS."""
    month, weekday = MONTHS[day.month - 1], WEEKDAYS[day.weekday()]
    fields = {
        "d": f"{day.day}",
        "dd": f"{day.day:02}",
        "nth": f"{day.day}{_ordinal_suffix(day.day)}",
        "ordinal": ORDINALS[day.day - 1],
        "m": f"{day.month}",
        "mm": f"{day.month:02}",
        "mon": month[:3],
        "mon.": month if month == "May" else f"{month[:3]}.",
        "month": month,
        "wd": weekday[:3],
        "weekday": weekday,
        "y": f"{day.year}",
        "yy": f"{day.year % 100:02}",
    }
    return re.sub(r"\{([a-z.]+)\}", lambda field: fields[field[1]], pattern)


def _ordinal_suffix(number: int) -> str:
    """1st 2nd 3rd 4th … 11th 12th 13th … 21st."""
    return "th" if number // 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _vary_writing(rng: random.Random, text: str) -> str:
    """At random, vary capitals, spaces and commas of a date, but not its digits and words."""
    text = rng.choice([text, text, text.lower(), text.upper()])
    if rng.random() < 0.1:
        text = text.replace(",", "")
    if rng.random() < 0.1:
        text = text.replace(", ", ",")
    if rng.random() < 0.1:
        text = text.replace(" ", "  ")
    if rng.random() < 0.1:
        text = text.replace("/", " / ")
    return text


# -- pairs -------------------------------------------------------------------------------------------------------------

TASKS: dict[str, Task] = {"copy": copy, "reverse": reverse, "sort": sort, "dates": dates}


def generate_pairs(
    task: str, count: int, seed: int, *, split: SplitName = "train", symbols: int = 8, max_length: int = 20
) -> list[Pair]:
    """`count` pairs of one split; sources repeat only when there are no new ones."""
    _check_task(task, symbols, max_length)
    rng = random.Random(seed)
    pairs: list[Pair] = []
    seen: set[str] = set()
    only_new, misses = True, 0  # misses: consecutive draws that were rejected
    while len(pairs) < count:
        source, target = TASKS[task](rng, symbols, max_length)
        if split_of_target(target) == split and not (only_new and source in seen):
            pairs.append((source, target))
            seen.add(source)
            misses = 0
            continue
        misses += 1
        if misses == MAX_MISSES:
            if not pairs:
                raise DataError(
                    f"the task '{task}' with {symbols} symbols and lengths up to {max_length} has no pair for "
                    f"the split '{split}'. Use more symbols or a larger length."
                )
            only_new, misses = False, 0
    return pairs


def split_of_target(target: str) -> SplitName:
    """The split of every pair with this target, on any machine and for any seed."""
    bucket = int.from_bytes(hashlib.sha256(target.encode()).digest()[:8], "big") % 100
    return "test" if bucket < 10 else "valid" if bucket < 15 else "train"


def write_tsv(path: str | Path, rows: Iterable[Sequence[str]]) -> None:
    """Write pairs, or rows of more columns, as a TSV file, atomically."""
    path = Path(path)
    files.make_folder(path.parent)
    files.write_file(path, "".join("\t".join(row) + "\n" for row in rows).encode())


def _check_task(task: str, symbols: int, max_length: int) -> None:
    """Raise DataError for an unknown task, or a number of symbols or a length that is out of range."""
    if task not in TASKS:
        raise DataError(f"no synthetic task called '{task}'{did_you_mean(task, TASKS)} (there is {', '.join(TASKS)})")
    if not 1 <= symbols <= len(string.ascii_lowercase):
        raise DataError(f"the task '{task}' has {symbols} symbols; there can be 1 to {len(string.ascii_lowercase)}.")
    if max_length < 1:
        raise DataError(f"the task '{task}' has lengths up to {max_length}; it must be at least 1.")
