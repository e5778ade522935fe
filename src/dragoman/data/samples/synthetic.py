"""Tasks the project makes itself: pairs of any number, from a seed and nothing else.

    copy       c a b → c a b        letters from the first `symbols` of the alphabet, 1 to `max_length` of them
    reverse    c a b → b a c
    sort       c a b → a b c
    dates      Sat 5 Jan 2019 → 2019-01-05        every day from 1900 to 2099, written in many ways

No date can be read in two ways. The rules: a date all in numbers is day, month, year (5/1/2019 is the fifth of
January), unless the four-figure year comes first, and then it is year, month, day. A year of two figures always has its
apostrophe and lies between 1950 and 2049: '49 is 2049, '50 is 1950. A weekday, where one is named, is the right one.

Each pair belongs to one side, train, valid or test (85, 5 and 10 of 100), by a hash of its target: no day and no string
of letters to be written in a test was ever written in training, whatever the seeds.
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
from dragoman.core.errors import DataError, nearest

Pair = tuple[str, str]
Task = Callable[[random.Random, int, int], Pair]  # generator, symbols, max_length → source, target
Side = Literal["train", "valid", "test"]

FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
PATIENCE = 2000  # draws in a row that bring nothing new: then all sources have very likely been seen

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ORDINALS = (
    *("first", "second_source", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
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
    """The same letters again."""
    letters = _letters(rng, symbols, max_length)
    return " ".join(letters), " ".join(letters)


def reverse(rng: random.Random, symbols: int, max_length: int) -> Pair:
    """The letters from the last to the first."""
    letters = _letters(rng, symbols, max_length)
    return " ".join(letters), " ".join(reversed(letters))


def sort(rng: random.Random, symbols: int, max_length: int) -> Pair:
    """The letters in the order of the alphabet."""
    letters = _letters(rng, symbols, max_length)
    return " ".join(letters), " ".join(sorted(letters))


def _letters(rng: random.Random, symbols: int, max_length: int) -> list[str]:
    return [rng.choice(string.ascii_lowercase[:symbols]) for _ in range(rng.randint(1, max_length))]


# -- dates -------------------------------------------------------------------------------------------------------------


def dates(rng: random.Random, symbols: int, max_length: int) -> Pair:
    """A date as people write it → the ISO form. (There are no letters to choose: both numbers are ignored.)"""
    day = FIRST + timedelta(days=rng.randint(0, (LAST - FIRST).days))
    pattern = rng.choice([pattern for pattern in PATTERNS if allows(pattern, day)])
    return _varied(rng, written(day, pattern)), day.isoformat()


def allows(pattern: str, day: date) -> bool:
    """Whether the century of a day can be told from a pattern."""
    return "{yy}" not in pattern or 1950 <= day.year < 2050


def written(day: date, pattern: str) -> str:
    """A day in one of PATTERNS."""
    month, weekday = MONTHS[day.month - 1], WEEKDAYS[day.weekday()]
    fields = {
        "d": f"{day.day}",
        "dd": f"{day.day:02}",
        "nth": f"{day.day}{_ending(day.day)}",
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


def _ending(number: int) -> str:
    """1st 2nd 3rd 4th … 11th 12th 13th … 21st."""
    return "th" if number // 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _varied(rng: random.Random, text: str) -> str:
    """The same date by a careless hand: capitals, spaces and commas vary, figures and words do not."""
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


def pairs(
    task: str, count: int, seed: int, *, side: Side = "train", symbols: int = 8, max_length: int = 20
) -> list[Pair]:
    """`count` pairs of one side, no source twice as long as there are new ones."""
    _check(task, symbols, max_length)
    rng = random.Random(seed)
    found: list[Pair] = []
    seen: set[str] = set()
    new, misses = True, 0  # only new sources are taken; draws in a row that were not taken
    while len(found) < count:
        source, target = TASKS[task](rng, symbols, max_length)
        if side_of(target) == side and not (new and source in seen):
            found.append((source, target))
            seen.add(source)
            misses = 0
            continue
        misses += 1
        if misses == PATIENCE:
            if not found:
                raise DataError(
                    f"the task '{task}' with {symbols} symbols and lengths up to {max_length} has no pair for "
                    f"the side '{side}'. Use more symbols or a larger length."
                )
            new, misses = False, 0
    return found


def side_of(target: str) -> Side:
    """Where every pair with this target belongs, on any machine and for any seed."""
    draw = int.from_bytes(hashlib.sha256(target.encode()).digest()[:8], "big") % 100
    return "test" if draw < 10 else "valid" if draw < 15 else "train"


def write(path: str | Path, rows: Iterable[Sequence[str]]) -> None:
    """Pairs (or rows of more columns) as TSV, written aside and renamed."""
    path = Path(path)
    files.make_folder(path.parent)
    files.write(path, "".join("\t".join(row) + "\n" for row in rows).encode())


def _check(task: str, symbols: int, max_length: int) -> None:
    if task not in TASKS:
        raise DataError(f"no synthetic task called '{task}'{nearest(task, TASKS)} (there is {', '.join(TASKS)})")
    if not 1 <= symbols <= len(string.ascii_lowercase):
        raise DataError(f"the task '{task}' has {symbols} symbols; there can be 1 to {len(string.ascii_lowercase)}.")
    if max_length < 1:
        raise DataError(f"the task '{task}' has lengths up to {max_length}; it must be at least 1.")
