"""Which of the served source languages a text is in, for LibreTranslate's POST /detect and its source "auto".

py3langid compares a text with all the languages it knows, about a hundred, not only with those that are served: a text
in another language gets a low confidence for each of these, instead of a high one for the least unlikely.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from dragoman.core.registry import Options
from dragoman.serve.schema import APIError

READ_CHARS = 2000  # of a text; more would not change the answer
MIN_CONFIDENCE = 50.0  # percent, for "auto" to choose a language


class DetectedLanguage(Options):
    """A source language, and how likely a text is in it, in percent; 0 where nothing was detected."""

    language: str
    confidence: float


@cache
def load_identifier() -> Any:
    """The model of languages, loaded once; APIError where the package is not installed."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        text = "languages are not detected here: the package 'py3langid' is not installed; name the source language"
        raise APIError(501, "no_detection", text, "source") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def detect_language(text: str, languages: Sequence[str]) -> list[DetectedLanguage]:
    """Rank the served languages that can be detected, the most likely first; [] if there is none, or no text."""
    if not any(character.isalpha() for character in text[:READ_CHARS]):
        return []
    ranked: dict[str, float] = dict(load_identifier().rank(text[:READ_CHARS]))
    found = [
        DetectedLanguage(language=one, confidence=round(100 * float(ranked[code]), 1))
        for one in dict.fromkeys(languages)
        if (code := one.lower().replace("_", "-").partition("-")[0]) in ranked
    ]
    return sorted(found, key=lambda one: -one.confidence)


def choose_language(text: str, languages: Sequence[str]) -> DetectedLanguage:
    """Return the language of a text; a 400 if it is too unlikely to be one of those that are served."""
    best = next(iter(detect_language(text, languages)), None)
    if best is None or best.confidence < MIN_CONFIDENCE:
        problem = "the language of the text was not recognized as one that is served"
        raise APIError(400, "no_language", f"{problem}; name one that GET /languages lists as source", "source")
    return best
