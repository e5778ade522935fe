"""The cells of spreadsheets and typed tables as text, as people read them: 12 and not 12.0, 2019-01-05, TRUE.

A spreadsheet stores a number and a format; a date is the number of days since 1900 (or 1904). Formats that change what
is read are followed: decimals (0.00), leading zeros (0000), percent. Dates are written as 2019-01-05 whatever their
format, because 5/1/2019 means two days. Other formats (currencies, fractions) show the plain number.
"""

from __future__ import annotations

import json
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from dragoman.data.lines import BadLine

EPOCHS = {False: datetime(1899, 12, 30), True: datetime(1904, 1, 1)}  # by whether a workbook counts from 1904
MAX_DATE = 2_958_465  # 9999-12-31 from 1900 on

# What in a format is neither digits nor date: literals, escapes, colors, conditions.
_LITERALS = re.compile(r'"[^"]*"|\\.|_.|\*.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)


class NumberCell(NamedTuple):
    """A number of a spreadsheet and the format in which it is shown."""

    number: float
    format: str = "General"
    counts_from_1904: bool = False

    @property
    def moment(self) -> datetime | date | time | None:
        """The date or time that the number stands for; None if its format is no date."""
        kind, number = _format_kind(self.format)[0], self.number
        if kind not in ("date", "time") or not 0 <= number <= MAX_DATE:
            return None
        days = number + 1 if number < 60 and not self.counts_from_1904 else number  # 1900 had no 29 February
        moment = EPOCHS[self.counts_from_1904] + timedelta(days=int(days), seconds=round((days - int(days)) * 86_400))
        if kind == "time":
            return moment.time() if number < 1 else None
        return moment if moment.time() != time() else moment.date()

    def __str__(self) -> str:
        if (moment := self.moment) is not None:
            return cell_text(moment)
        kind, decimals, digits = _format_kind(self.format)
        if kind == "percent":
            return f"{self.number * 100:.{decimals}f}%"
        if kind == "fixed":
            return f"{self.number:0{digits + decimals + bool(decimals)}.{decimals}f}"
        return format_number(self.number)


def cell_text(value: Any) -> str:
    """A cell as text; BadLine for what is none (a list, bytes that are not UTF-8)."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ") if value.time() != time() else value.date().isoformat()
    if isinstance(value, int | NumberCell | Decimal | date | time | timedelta):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise BadLine("encoding", "a cell holds bytes that are not UTF-8", "Save texts as UTF-8") from None
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        raise BadLine("cell", f"a cell holds {type(value).__name__}, expected text", "Save it as text") from None


def format_number(number: float) -> str:
    """A number with at most 15 digits, as spreadsheets show it: 12, 0.3, 1e+20."""
    return f"{number:.15g}"


@lru_cache(maxsize=1024)
def _format_kind(format: str) -> tuple[str, int, int]:
    """What a number format shows (date, time, percent, fixed or general), with its decimals and least digits."""
    plain = _LITERALS.sub("", format.split(";", 1)[0])
    if plain.strip().lower() in ("general", "@", "standard", ""):
        return "general", 0, 0
    letters = set(re.sub(r"AM/PM|A/P", "", plain, flags=re.IGNORECASE).lower())
    if letters & set("yd") or (letters & set("m") and not letters & set("hs0#")):
        return "date", 0, 0
    if letters & set("hs"):
        return "time", 0, 0
    if match := re.fullmatch(r"\s*[#,0]*?(0*)(?:\.(0*)#*)?\s*(%?)\s*", plain):
        digits, decimals, percent = match.groups()
        if "E" not in plain and (digits or decimals or percent):
            return ("percent" if percent else "fixed"), min(len(decimals or ""), 30), min(len(digits), 30)
    return "general", 0, 0
