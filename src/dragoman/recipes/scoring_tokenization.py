"""Tokenize texts before they are scored, so that a score compares with one that was computed elsewhere.

    spacy words   as spaCy splits English: punctuation, clitics (do n't, it 's) and hyphens in words stand alone
    moses words   as the Moses tokenizer splits: punctuation stands alone, hyphens stay, an apostrophe starts a token
    code tokens   names, numbers and single signs, as code is scored

The first two reproduce what these tokenizers do to plain sentences, without their lists of abbreviations: spaCy is
large, and sacremoses is not maintained.
"""

from __future__ import annotations

import re

from dragoman.recipes.recipe import ScoringTokenization

_SPACY = re.compile(r"\d+(?:[.,]\d+)*|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|[^\W\d_]+?(?=n['’]t\b)|\w+|\.\.+|[^\w\s]", re.I)
_MOSES = re.compile(r"\d+(?:[.,:]\d+)*|['’]\w+|\w+(?:[-.]\w+)*|\.\.+|[^\w\s]")
_CODE = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?|[^\w\s]")
_PATTERNS: dict[ScoringTokenization, re.Pattern[str]] = {
    "spacy words": _SPACY,
    "moses words": _MOSES,
    "code tokens": _CODE,
}


def tokenize_for_scoring(text: str, tokenization: ScoringTokenization, lowercase: bool = False) -> str:
    """Join the tokens of a text by single spaces, lower-cased on request; "as it is" does not tokenize."""
    text = text.lower() if lowercase else text
    return text if tokenization == "as it is" else " ".join(_PATTERNS[tokenization].findall(text))
