"""What the cells of a column look like: numbers, language codes, morphological features, symbols between spaces, IPA.

Each property is a share of the cells that are not blank; a sample of a few hundred is enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.data.column_names import LANGUAGE_CODES

MOST, FEW = 0.95, 0.01  # of the cells: nearly all, hardly any
MANY = 0.5
MIN_CELLS = 3  # that a property needs; of fewer cells nothing can be said
MAX_SYMBOL_LENGTH, MEAN_SYMBOL_LENGTH = 4, 2.2  # letters of the symbols between spaces: words are longer

_REGION = re.compile("[-_]")  # pt-BR, eng_us
_NUMBER = re.compile(r"[-+]?[\d.,\s]*\d%?")
# UniMorph (V;PST;3;SG and N;ACC(PL)) and Universal Dependencies (Case=Nom|Number=Sing)
_FEATURES = re.compile(r"[A-Z0-9][A-Z0-9.+/{}(),:_*-]*(;[A-Z0-9.+/{}(),:_*-]+)*|\w+=[\w,]+(\|\w+=[\w,]+)*")
# Signs of phonetic transcription that hardly any orthography has; ɛ, ɔ, ŋ, ə and others are letters of many.
_PHONETIC = re.compile("[ˈˌːˑʰʲ͡ɹɾɑɪʒʃɕʑʂʐɫʁʀɜɐɒɯɵɟɡ]")


@dataclass(frozen=True)
class ColumnProfile:
    """The properties of the cells of a column."""

    cells: int  # that are not blank
    distinct: int
    numbers: float  # shares of the cells
    language_codes: float
    features: float
    several_features: float
    phonetic: float
    words: float  # mean number of words
    has_symbols: bool  # short symbols between spaces, as phonemes are often written

    @property
    def is_number(self) -> bool:
        """Whether the column is a count or an id."""
        return self.cells >= MIN_CELLS and self.numbers >= MOST

    @property
    def is_language(self) -> bool:
        """Whether the column says of what language a row is."""
        return self.cells >= MIN_CELLS and self.language_codes >= MOST and self.distinct <= max(2, self.cells / 2)

    @property
    def is_features(self) -> bool:
        """Whether the column has morphological features."""
        return self.cells >= MIN_CELLS and self.features >= MOST and self.several_features >= MANY

    def is_pronunciation_of(self, other: ColumnProfile) -> bool:
        """Whether the column is certainly a transcription, and the other the words that are transcribed."""
        if min(self.cells, other.cells) < MIN_CELLS or other.has_symbols or other.phonetic > FEW:
            return False
        return self.phonetic >= MANY or (self.has_symbols and other.words < 1.5)


def profile_column(cells: Sequence[str]) -> ColumnProfile:
    """The properties of a sample of cells."""
    present = [cell.strip() for cell in cells if cell.strip()]
    count = max(len(present), 1)

    def share(matching: int) -> float:
        return matching / count

    features = [cell for cell in present if _FEATURES.fullmatch(cell[:200]) and re.search("[A-Z]", cell)]
    return ColumnProfile(
        len(present),
        len(set(present)),
        share(sum(_NUMBER.fullmatch(cell[:100]) is not None for cell in present)),
        share(sum(_REGION.split(cell.lower())[0] in LANGUAGE_CODES for cell in present)),
        share(len(features)),
        share(sum(";" in cell or "=" in cell for cell in features)),
        share(sum(_PHONETIC.search(cell[:1000]) is not None for cell in present)),
        share(sum(len(cell[:1000].split()) for cell in present)),
        _has_symbols(present),
    )


def _has_symbols(cells: Sequence[str]) -> bool:
    """Whether most cells are sequences of short symbols; a word of one letter has only one."""
    symbols = [cell[:1000].split() for cell in cells]
    every = [symbol for row in symbols for symbol in row]
    if len(every) < 2 * MIN_CELLS or sum(len(row) > 1 for row in symbols) < 0.6 * len(symbols):
        return False
    short = sum(len(symbol) <= MAX_SYMBOL_LENGTH for symbol in every)
    return short >= MOST * len(every) and sum(map(len, every)) <= MEAN_SYMBOL_LENGTH * len(every)
