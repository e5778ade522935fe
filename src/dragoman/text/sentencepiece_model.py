"""Subword pieces: what BPE and unigram share. sentencepiece learns and splits; sampling, decoding and files are ours.

    "a  dog" → ▁a ▁ ▁dog → ids          a space is "▁" (U+2581); one more stands before the first word, so that a word
                                        has one spelling wherever it stands

Decoding turns "▁" into spaces again and drops the first. So a text comes back exactly, double spaces and all, but for a
"▁" of its own, which becomes a space. A piece holds "▁" at its beginning or not at all: words are split independently
of each other, and a split can be drawn word by word. What no piece covers is spelled by its UTF-8 bytes, or is <unk>.

The specials and language tags are control symbols of the sentencepiece model, which it never finds in text.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import DataError, ModelError, PartError
from dragoman.core.types import BOS, EOS, PAD, SPECIALS, UNK
from dragoman.text.normalization import well_formed
from dragoman.text.vocabulary import FILE, MARK, Learned, Vocabulary, join, read

if TYPE_CHECKING:
    import numpy as np

MODEL = "tokenizer.model"
LONGEST_WORD = 1000  # characters that are learned from at once; at 65,536 sentencepiece aborts the whole process


class Pieces:
    """A tokenizer over a sentencepiece model; a kind of it says how the split of a word is drawn."""

    kind: str
    format: str  # of the corpus: "text" has one word to a line, "tsv" also its count

    def __init__(self, *, size: int, byte_fallback: bool, character_coverage: float) -> None:
        self.size, self.byte_fallback, self.character_coverage = size, byte_fallback, character_coverage
        self.model = b""
        self.vocabulary = Vocabulary((), byte_fallback=byte_fallback)

    @property
    def samples(self) -> bool:
        raise NotImplementedError

    def corpus(self, counts: Counter[str]) -> Iterable[str]:
        """Counted words as this kind's trainer reads them."""
        raise NotImplementedError

    def draw(self, word: str, rng: np.random.Generator) -> list[str]:
        """Some split of a word (which begins with "▁"), from the generator and nothing else."""
        raise NotImplementedError

    def learn(self, lines: Iterable[str], extra: Sequence[str] = ()) -> None:
        extra = list(dict.fromkeys(extra))
        counts = count(lines, extra)
        if not counts:
            raise DataError(f"the {self.kind} tokenizer has nothing to learn from: the training texts are empty")
        model = train(
            self.corpus(counts),
            extra,
            kind=self.kind,
            format=self.format,
            size=self.size,
            byte_fallback=self.byte_fallback,
            character_coverage=self.character_coverage,
        )
        self._open(model, extra, self.byte_fallback)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(well_formed(text))
        return ids

    def unknown_words(self, text: str) -> list[str]:
        """Subwords know nearly all there is, and what they do not know is no word."""
        return []

    def sample(self, text: str, rng: np.random.Generator) -> list[int]:
        if not self.samples:
            return self.encode(text)
        return self.spell([piece for word in words(text) for piece in self.draw(word, rng)])

    def spell(self, pieces: Iterable[str]) -> list[int]:
        """The ids of pieces; a run of unknown ones is a single <unk>, as sentencepiece has it."""
        ids: list[int] = []
        for piece in pieces:
            found = self.vocabulary.find(piece)
            if found is not None:
                ids.append(found)
            elif self.byte_fallback or ids[-1:] != [UNK]:
                ids.extend(self.vocabulary.spell(piece))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return join(self.vocabulary.parts(ids)).replace(MARK, " ").removeprefix(" ")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.vocabulary.name(id) for id in ids]

    def id(self, symbol: str) -> int | None:
        return self.vocabulary.id(symbol)

    @property
    def extra(self) -> Sequence[str]:
        return self.vocabulary.extra

    def __len__(self) -> int:
        return len(self.vocabulary)

    def state(self) -> dict[str, bytes]:
        digest = hashlib.sha256(self.model).hexdigest()
        extra = tuple(self.vocabulary.extra)
        learned = Learned(kind=self.kind, extra=extra, byte_fallback=self.byte_fallback, sha256=digest)
        return {FILE: learned.file(), MODEL: self.model}

    def restore(self, files: dict[str, bytes]) -> None:
        """What was learned, with the options it was learned with."""
        learned = read(files, self.kind)
        if MODEL not in files:
            raise ModelError(f"{MODEL} of the {self.kind} tokenizer is missing; copy the model folder again")
        if hashlib.sha256(files[MODEL]).hexdigest() != learned.sha256:
            raise ModelError(f"{MODEL} is not the file that {FILE} was written with; copy the model folder again")
        try:
            self._open(files[MODEL], learned.extra, learned.byte_fallback)
        except ValueError as error:
            raise ModelError(f"{FILE} is damaged ({error}); copy the model folder again") from None

    # -- the model as tables ---------------------------------------------------------------------------------------

    def _open(self, model: bytes, extra: Sequence[str], byte_fallback: bool) -> None:
        """Read a sentencepiece model: its pieces as our vocabulary, and the score of each."""
        processor = load(model)
        names = [processor.id_to_piece(i) for i in range(len(processor))]
        symbols, reserved = (len(Vocabulary((), extra, byte_fallback=on)) for on in (False, byte_fallback))

        def fits(i: int) -> bool:
            if i < symbols:
                return bool(processor.is_unknown(i) if i == UNK else processor.is_control(i))
            return bool(processor.is_byte(i) == (i < reserved) and not processor.is_control(i))

        vocabulary = Vocabulary(names[reserved:], extra, byte_fallback=byte_fallback)
        if vocabulary.names != names or not all(map(fits, range(len(names)))):
            raise ModelError(f"{MODEL} and {FILE} do not belong together; copy the model folder again")
        if any(MARK in name[1:] for name in vocabulary.tokens):
            raise ModelError(f"{MODEL} holds pieces that reach over a space; only models learned here can be read")
        self.model, self.vocabulary, self.byte_fallback, self._processor = model, vocabulary, byte_fallback, processor
        self.scores: dict[str, float] = {names[i]: processor.get_score(i) for i in range(reserved, len(names))}
        self.longest = max(map(len, self.scores), default=1)  # characters of the longest piece

    def __getstate__(self) -> dict[str, Any]:
        """To another process: the model as bytes; the tables are read from it again."""
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.model:
            self._open(self.model, self.vocabulary.extra, self.byte_fallback)


def words(text: str) -> list[str]:
    """A text as sentencepiece sees it, cut before every "▁"."""
    if not text:
        return []
    return [MARK + word for word in well_formed(text).replace(" ", MARK).split(MARK)]


# -- learning ----------------------------------------------------------------------------------------------------------


def train(
    corpus: Iterable[str],
    extra: Sequence[str],
    *,
    kind: str,
    format: str,
    size: int,
    byte_fallback: bool,
    character_coverage: float,
) -> bytes:
    """The sentencepiece model of a corpus."""
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus),
            input_format=format,
            model_writer=model,
            model_type=kind,
            vocab_size=min(size, 1 << 30),
            hard_vocab_limit=False,  # fewer pieces where the texts do not hold as many
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            pad_piece=SPECIALS[PAD],
            bos_piece=SPECIALS[BOS],
            eos_piece=SPECIALS[EOS],
            unk_piece=SPECIALS[UNK],
            control_symbols=list(extra),
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=1 << 20,
            num_threads=1,  # another number gives other sums, hence other scores
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explain(str(error), kind, size, byte_fallback) from None
    return model.getvalue()


def count(lines: Iterable[str], extra: Sequence[str]) -> Counter[str]:
    """How often each word occurs. No piece reaches over a space, so words are all that matters to learning.

    The trainer cuts out what is spelled like a special symbol, and its letters would not be learned: the first of them
    counts as a word by itself, and so does the rest.
    """
    found: Counter[str] = Counter()
    for line in lines:
        found.update(well_formed(line).translate(_SEPARATORS).split(" "))
    reserved = re.compile(f"({'|'.join(map(re.escape, [*SPECIALS, *extra]))}|<0x[0-9A-F]{{2}}>)")
    counts: Counter[str] = Counter()
    for word in sorted(found):
        for part in reserved.sub(lambda symbol: f"{symbol[0][0]} {symbol[0][1:]}", word).split(" "):
            for start in range(0, len(part), LONGEST_WORD):
                counts[part[start : start + LONGEST_WORD]] += found[word]
    return counts


# To the trainer, a tab separates a word from its count, and a word with "▅" is skipped. Neither is learned, then.
_SEPARATORS = str.maketrans({MARK: " ", "\t": " ", "\u2585": " "})


def _explain(message: str, kind: str, size: int, byte_fallback: bool) -> Exception:
    """sentencepiece's complaint as a sentence of ours."""
    small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if small:
        remedy = ", set byte_fallback to false (256 fewer)" if byte_fallback else ""
        return PartError(
            f"{kind}: a vocabulary of size {size} has no room for the characters of the training texts. "
            f"Set size to more than {small[1]}{remedy}, or lower character_coverage."
        )
    first = message.split("\n", 1)[0][:200]
    return DataError(f"the {kind} tokenizer could not learn from the training texts (sentencepiece: {first})")


def load(model: bytes) -> Any:
    """The sentencepiece processor of a model."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError:
        raise ModelError(f"{MODEL} is not a sentencepiece model; copy the model folder again") from None
    return processor
