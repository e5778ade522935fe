"""Sequence templates: which symbols stand around the tokens of a text, in a model's source or target.

    "<from:{from}>? <to:{to}>? {text} </s>"        <to:de> tokens </s>       where only the target language is known
    "<lang:{to}> {text} </s>"                      <lang:de> tokens </s>     where it must be known

Items are separated by spaces: {text}, once, for the tokens, and symbols of the vocabulary. {from} and {to} in a symbol
become the languages of the example; a symbol that ends with "?" is left out where its language is not known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dragoman.core.errors import DataError, PartError
from dragoman.core.types import EOS, SPECIALS, Example

SOURCE_TEMPLATE = "<from:{from}>? <to:{to}>? {text} </s>"  # of models with our own tokenizers
TARGET_TEMPLATE = "{text} </s>"
TEXT = "{text}"
LANGUAGE_TAG = re.compile(r"<(from|to|lang):[^>]*>")  # how tags are named in every vocabulary of ours


@dataclass(frozen=True)
class SequenceTemplate:
    """The symbols before and after the tokens of a text."""

    prefix: tuple[str, ...]
    suffix: tuple[str, ...]

    @classmethod
    def parse(cls, template: str) -> SequenceTemplate:
        """Parse a template as a config writes it; PartError if it is none."""
        items = template.split()
        if items.count(TEXT) != 1 or any("{" in re.sub(r"\{(from|to|text)\}", "", item) for item in items):
            raise PartError(
                f"'{template}' is no template: write {TEXT} once, and symbols around it, in which only "
                f"{{from}} and {{to}} stand for something else, such as '{SOURCE_TEMPLATE}'"
            )
        place = items.index(TEXT)
        return cls(tuple(items[:place]), tuple(items[place + 1 :]))

    @property
    def ends_with_eos(self) -> bool:
        """Whether the sequence ends with </s>."""
        return self.suffix[-1:] == (SPECIALS[EOS],)

    def prefix_symbols(self, example: Example) -> list[str]:
        """The symbols before the tokens of an example's text; DataError if a language is missing."""
        return _fill(self.prefix, example)

    def suffix_symbols(self, example: Example) -> list[str]:
        """The symbols after them, </s> included."""
        return _fill(self.suffix, example)

    def extra_symbols(self, example: Example) -> list[str]:
        """Those of them that a vocabulary needs beside the special ones: the language tags."""
        return [s for s in (*self.prefix_symbols(example), *self.suffix_symbols(example)) if s not in SPECIALS]

    def language_symbols(self, language: str) -> list[str]:
        """Its language tags for one language, as source and as target language."""
        both = Example("", source_lang=language, target_lang=language)
        return [symbol for symbol in self.extra_symbols(both) if LANGUAGE_TAG.fullmatch(symbol)]

    def languages(self, role: str, symbols: list[str]) -> list[str]:
        """The languages among the vocabulary's symbols for a role, "from" or "to"; [] if the template has no such."""
        for item in (*self.prefix, *self.suffix):
            before, found, after = item.removesuffix("?").partition(f"{{{role}}}")
            if found:
                fitting = re.compile(f"{re.escape(before)}(.+){re.escape(after)}")
                return [match[1] for match in map(fitting.fullmatch, symbols) if match]
        return []


def _fill(items: tuple[str, ...], example: Example) -> list[str]:
    languages = {"{from}": example.source_lang, "{to}": example.target_lang}
    symbols = []
    for item in items:
        missing = [role for role, language in languages.items() if role in item and not language]
        if missing and item.endswith("?"):
            continue
        if missing:
            side = "source" if missing[0] == "{from}" else "target"
            raise DataError(
                f"the model needs the {side} language of every text; give --{side}-lang, or a column {side}_lang",
                example.file or None,
                example.line or None,
            )
        symbol = item.removesuffix("?")
        for role, language in languages.items():
            symbol = symbol.replace(role, language or "")
        symbols.append(symbol)
    return symbols
