"""One text, one spelling: Unicode lets "é" be one code point or two, and a vocabulary should see only one of them.

    nfc    composed: "é" is one character                       the default of a run
    nfd    decomposed: "é" is "e" and a combining accent
    nfkc   composed, and look-alikes folded: "ﬁ" is "fi", "①" is "1"
    none   as it came

Nothing else happens here: spaces, case and punctuation are left to the tokenizers.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

Form = Literal["nfc", "nfd", "nfkc", "none"]

_UNICODE: dict[Form, Literal["NFC", "NFD", "NFKC"]] = {"nfc": "NFC", "nfd": "NFD", "nfkc": "NFKC"}
_SURROGATES = re.compile("[\ud800-\udfff]")


def normalize(text: str, form: Form) -> str:
    """The text in a Unicode form; a text already in that form comes back as it is."""
    if form == "none" or text.isascii():
        return text
    name = _UNICODE[form]
    return text if unicodedata.is_normalized(name, text) else unicodedata.normalize(name, text)


def well_formed(text: str) -> str:
    """The text with lone surrogates, which are halves of characters and have no UTF-8, as U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)
    return text
