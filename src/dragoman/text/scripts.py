"""The script of a letter: Latin, Cyrillic, Han, …

Python's Unicode tables have names but no scripts. The name of a letter begins with its script ("CYRILLIC SMALL LETTER
ZHE"), and the `regex` package says whether such a beginning is a script.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import regex


@lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str:
    """The script of a letter; "" for digits, signs, and letters that all scripts share."""
    if not character.isalpha():
        return ""
    words = unicodedata.name(character, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ").split()
    if words[:1] == ["CJK"]:
        return "Han"
    for count in (2, 1):
        name = "_".join(words[:count]).title()
        if len(words) >= count and _is_script(name) and regex.fullmatch(rf"\p{{Script={name}}}", character):
            return name.replace("_", " ")
    return ""


@lru_cache(maxsize=1 << 12)
def _is_script(name: str) -> bool:
    try:
        regex.compile(rf"\p{{Script={name}}}")
    except regex.error:
        return False
    return True


def count_letters_by_script(text: str) -> dict[str, int]:
    """The number of letters of each script in a text."""
    counts: dict[str, int] = {}
    for character in text:
        if script := script_of(character):
            counts[script] = counts.get(script, 0) + 1
    return counts


def main_script(text: str) -> str:
    """The script of most letters of a text, the first of equals; "" for a text without letters."""
    counts = count_letters_by_script(text)
    return max(counts, key=lambda script: counts[script]) if counts else ""
