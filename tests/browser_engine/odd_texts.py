"""Texts that programs get wrong: emoji, scripts from right to left, marks, control characters, what is unassigned."""

from __future__ import annotations

import random
import re
import sys
import unicodedata
from functools import lru_cache

LINES = (
    "the old bridge is closed for repairs.",
    "die alte Brücke ist wegen Reparaturen gesperrt.",
    "the lower road, the newest and the widest, is low and new!",
    "naïve café déjà-vu, ΣΊΣΥΦΟΣ και Οδυσσεύς",
    "Строительство моста идёт медленно",
    "गाँव में बारिश हुई थी",
    "السلام عليكم يا أصدقائي",
    "橋は修理のため閉鎖されています。",
    "walk V;NOM(3);ACC(PL) Case=Nom|Number=Sing",
    "⁇ and so on",
    "D R AE1 G AH0 M AH0 N",
    "1234 5678 3.14 aaaaaaaa bababab </s> \ufffd 👩‍👩‍👧 🇭🇺",
)
# Characters that are known since Unicode 15, 16 and 17; some have a case, a decomposition or a combining class.
NEWER = [0x1C89, 0x1C8A, 0xA7CB, 0xA7CE, 0xA7DC, 0x10D50, 0x10D69, 0x10D70, 0x10EFD, 0x113C5, 0x113B8, 0x113CE, 0x1E4EC]
NEWER += [0x11F41, 0x105C9, 0x105D2, 0x1ACF, 0x16D63, 0x16D67, 0x16121, 0x1E5EE, 0x2FFC, 0x31E4, 0x16EA0, 0x323B0]
PHRASES = (
    *(
        "</s>",
        "<unk>",
        "<0x41>",
        "<to:de>",
        "<copy:0>",
        "▁",
        "▁▁a",
        "⁇",
        "ﬁ①ℌ",
        "Å",
        "A\u030a",
        "İIıi̇",
        "ΑΣ",
        "Σ",
        "ὈΔΥΣΣΕΎΣ",
    ),
    *(
        "ΑΣ\u0301 Σ",
        "ΑΣ.",
        "ΑΣ.Α",
        "ẞß",
        "각",
        "\u1100\u1161\u11a8",
        "q\u0323\u0307",
        "q\u0307\u0323",
        "👩🏽‍🚀",
        "🏳️‍🌈",
        "🇺🇦",
    ),
    *(
        "\u202eabc\u202c",
        "\u2067שלום\u2069",
        "مرحبا",
        "\ufeff",
        "\x00",
        "\x1c\x1d\x1e\x1f",
        "\x85",
        "\r\n",
        "\t",
        "\u2028",
    ),
    *(
        "\u3000",
        "\u00a0",
        "\u200b",
        "\u180e",
        "\ud800",
        "\udfff",
        "N;ACC(PL)",
        "V;NOM",
        "Case=Nom|Number=Sing",
        "a=b;c",
        "V;ACC(PL,3)",
    ),
    *(
        "²½Ⅷ٣",
        "१२",
        "_",
        "a_b",
        "don't",
        "x\u0301\u0302y",
        "\u0958",
        "\u2126",
        "\u212b",
        "\uf900",
        "\U0002f800",
        "\u0344",
    ),
)


@lru_cache(maxsize=1)
def active_characters() -> list[str]:
    """Characters that some Unicode form changes, or that combine."""
    characters = map(chr, range(0xA0, 0x30000))
    return [c for c in characters if unicodedata.combining(c) or unicodedata.decomposition(c)]


def odd_texts(chance: random.Random, count: int) -> list[str]:
    """So many texts, each in a mood of its own; some are empty, blank or long."""
    texts = ["", " ", "  ", "\t", "\x00", "\u3000 ", *LINES, *PHRASES]
    while len(texts) < count:
        length = chance.choice([1, 3, 8, 20, 20, 60])
        sources = chance.sample(_SOURCES, chance.choice([1, 2, 3, len(_SOURCES)]))
        text = "".join(chance.choice(sources)(chance) for _ in range(length))
        texts.append(text * chance.choice([1] * 40 + [50]))
    return [_without_pairs(text) for text in texts[:count]]


def _without_pairs(text: str) -> str:
    """A text in which no two surrogates stand for one character in UTF-16."""
    return re.sub("[\ud800-\udbff](?=[\udc00-\udfff])", "", text)


_SOURCES = [
    lambda chance: chance.choice(chance.choice(LINES).split()) + chance.choice([" ", " ", "", "  "]),
    lambda chance: chance.choice("".join(LINES)),
    lambda chance: chance.choice(PHRASES),
    lambda chance: chr(chance.choice(NEWER)),
    lambda chance: chance.choice(active_characters()),
    lambda chance: chance.choice("aAΣσς .") + chance.choice(active_characters()),
    lambda chance: chr(chance.randrange(0x80)),
    lambda chance: chr(chance.randrange(0x3000)),
    lambda chance: chr(chance.randrange(sys.maxunicode + 1)),
    lambda chance: chr(chance.randrange(0x1F300, 0x1FB00)) + chance.choice(["", "\u200d", "\ufe0f"]),
    lambda chance: chance.choice([" ", "\u2581", "a", "b", "\u2003", "the"]),
]
