"""Synthetic pairs: any number of them, from a seed and nothing else.

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
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

from dragoman.core import files
from dragoman.core.errors import DataError

Pair = tuple[str, str]
Task = Callable[[random.Random], Pair]  # a random source and its target
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


def dates(rng: random.Random) -> Pair:
    """A date as people write it → the ISO form."""
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


def generate_pairs(task: Task, count: int, seed: int, *, split: SplitName = "train") -> list[Pair]:
    """`count` pairs of one split; sources repeat only when there are no new ones."""
    rng = random.Random(seed)
    pairs: list[Pair] = []
    seen: set[str] = set()
    only_new, misses = True, 0  # misses: consecutive draws that were rejected
    while len(pairs) < count:
        source, target = task(rng)
        if split_of_target(target) == split and not (only_new and source in seen):
            pairs.append((source, target))
            seen.add(source)
            misses = 0
            continue
        misses += 1
        if misses == MAX_MISSES:
            if not pairs:
                raise DataError(f"of {MAX_MISSES:,} random pairs, none is for the split '{split}'")
            only_new, misses = False, 0
    return pairs


def split_of_target(target: str) -> SplitName:
    """The split of every pair with this target, on any machine and for any seed."""
    bucket = hash_bucket(target)
    return "test" if bucket < 10 else "valid" if bucket < 15 else "train"


def hash_bucket(text: str) -> int:
    """A number from 0 to 99 that depends on a text alone, on any machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100


def write_tsv(path: str | Path, rows: Iterable[Sequence[str]]) -> None:
    """Write pairs, or rows of more columns, as a TSV file, atomically."""
    path = Path(path)
    files.make_folder(path.parent)
    files.write_file(path, "".join("\t".join(row) + "\n" for row in rows).encode())
