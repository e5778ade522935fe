"""How texts are written before a score looks at them, so that a figure compares with one that was computed elsewhere.

    spacy words   as spaCy's rules cut English: punctuation, clitics (do n't, it 's) and hyphens in words stand alone
    moses words   as the Moses tokenizer cuts: punctuation stands alone, hyphens stay, an apostrophe leads what follows
    code tokens   names, numbers and single signs, as code is scored

The first two are written here, from what these tokenizers do to plain sentences: spaCy is large, and sacremoses is not
kept up. They do not know the lists of abbreviations.
"""

from __future__ import annotations

import re

from dragoman.recipes.recipe import Spelling

_SPACY = re.compile(r"\d+(?:[.,]\d+)*|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|[^\W\d_]+?(?=n['’]t\b)|\w+|\.\.+|[^\w\s]", re.I)
_MOSES = re.compile(r"\d+(?:[.,:]\d+)*|['’]\w+|\w+(?:[-.]\w+)*|\.\.+|[^\w\s]")
_CODE = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?|[^\w\s]")
_RULES: dict[Spelling, re.Pattern[str]] = {"spacy words": _SPACY, "moses words": _MOSES, "code tokens": _CODE}


def spelled(text: str, spelling: Spelling, lowercase: bool = False) -> str:
    """The text as tokens with single spaces between them, or as it is."""
    text = text.lower() if lowercase else text
    return text if spelling == "as it is" else " ".join(_RULES[spelling].findall(text))
