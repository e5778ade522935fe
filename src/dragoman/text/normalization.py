"""Unicode normalization: "é" may be one code point or two, and a vocabulary should see only one of them.

    nfc    composed: "é" is one character                       the default of a run
    nfd    decomposed: "é" is "e" and a combining accent
    nfkc   composed, and look-alikes folded: "ﬁ" is "fi", "①" is "1"
    none   unchanged

Spaces, case and punctuation are left to the tokenizers.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

Form = Literal["nfc", "nfd", "nfkc", "none"]

_UNICODE: dict[Form, Literal["NFC", "NFD", "NFKC"]] = {"nfc": "NFC", "nfd": "NFD", "nfkc": "NFKC"}
SURROGATES = re.compile("[\ud800-\udfff]")


def normalize(text: str, form: Form) -> str:
    """A text in a Unicode form; unchanged for "none"."""
    if form == "none" or text.isascii():
        return text
    name = _UNICODE[form]
    return text if unicodedata.is_normalized(name, text) else unicodedata.normalize(name, text)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)
    return text
