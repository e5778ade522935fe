"""The languages between which a document is translated, as codes: en, pt-BR."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Languages:
    """The codes of the languages that a document is translated between, where they are known."""

    source: str | None = None
    target: str | None = None


def is_same_language(code: str, other: str) -> bool:
    """Whether two codes name the same language, or one of them a variety of the other: en and en-US."""
    first, second = (each.lower().replace("_", "-").split("-") for each in (code, other))
    shared = min(len(first), len(second))
    return first[:shared] == second[:shared]


def matching_language(code: str | None, codes: Iterable[str]) -> str | None:
    """The first of `codes` that names the language of a code, an equal one before a variety; None if there is none."""
    if not code:
        return None
    known = list(codes)
    same = [each for each in known if is_same_language(code, each)]
    return code if code in known else next(iter(same), None)
