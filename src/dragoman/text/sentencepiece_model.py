"""Subword tokenizers on sentencepiece, which learns and splits; sampling, decoding and files are ours.

    "a  dog" → ▁a ▁ ▁dog → ids          a space is "▁" (U+2581); one is added before the first word, so that a word is
                                        spelled alike everywhere

Decoding turns "▁" into spaces and drops the first. It restores a text exactly, double spaces
included; only a "▁" in the text becomes a space. A piece has "▁" at its beginning or not at all:
words are split independently of each other, and splits are sampled word by word. What no piece
covers is spelled by its UTF-8 bytes, or is <unk>.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dragoman.core.errors import DataError, ModelError, PartError
from dragoman.core.types import BOS, EOS, PAD, SPECIALS, UNK
from dragoman.text.normalization import replace_surrogates
from dragoman.text.vocabulary import SPACE_MARKER, TOKENIZER_FILE, TokenizerFile, Vocabulary, encode_added_words

if TYPE_CHECKING:
    import numpy as np

MODEL_FILE = "tokenizer.model"
MAX_WORD_LENGTH = 1000  # characters, in training; at 65,536 sentencepiece aborts the whole process


class SentencePieceTokenizer:
    """A tokenizer with a sentencepiece model; subclasses define how a word is split at random."""

    kind: str
    corpus_format: str  # "text": one word on a line; "tsv": with its count
    is_stochastic: bool

    def __init__(self, *, size: int, byte_fallback: bool, character_coverage: float) -> None:
        self.size, self.byte_fallback, self.character_coverage = size, byte_fallback, character_coverage
        self.model = b""
        self.vocabulary = Vocabulary((), byte_fallback=byte_fallback)

    def corpus_lines(self, counts: Counter[str]) -> Iterable[str]:
        """Word counts as lines of a training corpus."""
        raise NotImplementedError

    def sample_word(self, word: str, rng: np.random.Generator) -> list[str]:
        """A random split of a word, which begins with "▁"; it depends on the generator alone."""
        raise NotImplementedError

    def learn(self, lines: Iterable[str], extra_symbols: Sequence[str] = ()) -> None:
        self.learn_from_counts(Counter(unit for line in lines for unit in self.learning_units(line)), extra_symbols)

    def learning_units(self, text: str) -> Sequence[str]:
        """The words of a text. No piece spans a space, so the trainer needs nothing but their counts."""
        return replace_surrogates(text).translate(_SEPARATORS).split(" ")

    def learn_from_counts(self, counts: Counter[str], extra_symbols: Sequence[str] = ()) -> None:
        extra_symbols = list(dict.fromkeys(extra_symbols))
        counts = split_symbols(counts, extra_symbols)
        if not counts:
            raise DataError(f"the {self.kind} tokenizer has nothing to learn from: the training texts are empty")
        self._load_model(self._train_model(counts, extra_symbols), extra_symbols, self.byte_fallback)

    def _train_model(self, counts: Counter[str], extra_symbols: list[str]) -> bytes:
        import sentencepiece

        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(self.corpus_lines(counts)),
                input_format=self.corpus_format,
                model_writer=model,
                model_type=self.kind,
                vocab_size=min(self.size, 1 << 30),
                hard_vocab_limit=False,  # small corpora give fewer pieces
                byte_fallback=self.byte_fallback,
                character_coverage=self.character_coverage,
                pad_id=PAD,
                bos_id=BOS,
                eos_id=EOS,
                unk_id=UNK,
                pad_piece=SPECIALS[PAD],
                bos_piece=SPECIALS[BOS],
                eos_piece=SPECIALS[EOS],
                unk_piece=SPECIALS[UNK],
                control_symbols=extra_symbols,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                max_sentence_length=1 << 20,
                num_threads=1,  # more threads give other sums, hence other scores
                minloglevel=2,
            )
        except RuntimeError as error:
            raise self._training_error(str(error)) from None
        return model.getvalue()

    def _training_error(self, message: str) -> Exception:
        small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
        if small:
            remedy = ", set byte_fallback to false (256 fewer)" if self.byte_fallback else ""
            return PartError(
                f"{self.kind}: a vocabulary of size {self.size} is too small for the characters of the training texts. "
                f"Set size to more than {small[1]}{remedy}, or lower character_coverage."
            )
        first = message.split("\n", 1)[0][:200]
        return DataError(f"the {self.kind} tokenizer could not learn from the training texts (sentencepiece: {first})")

    def encode(self, text: str) -> list[int]:
        return encode_added_words(replace_surrogates(text), self.vocabulary, self._processor.encode)

    def extend(self, tokens: Iterable[str], tags: Iterable[str]) -> None:
        """Add whole words and language tags at the end of the vocabulary."""
        self.vocabulary = self.vocabulary.extended([*(SPACE_MARKER + word for word in tokens), *tags])

    def unknown_words(self, text: str) -> list[str]:
        """[], whatever the text: subwords cover nearly all text, and what they do not cover is no word."""
        return []

    def sample(self, text: str, rng: np.random.Generator) -> list[int]:
        if not self.is_stochastic:
            return self.encode(text)
        added = set(self.vocabulary.added)
        words = split_words(text)
        return self.piece_ids([p for word in words for p in ([word] if word in added else self.sample_word(word, rng))])

    def piece_ids(self, pieces: Iterable[str]) -> list[int]:
        """The ids of pieces; a run of unknown ones is a single <unk>, as in sentencepiece."""
        ids: list[int] = []
        for piece in pieces:
            id = self.vocabulary.token_id(piece)
            if id is not None:
                ids.append(id)
            elif self.byte_fallback or ids[-1:] != [UNK]:
                ids.extend(self.vocabulary.fallback_ids(piece))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Ids → text: "▁" becomes a space, except the first, which is dropped."""
        return self.vocabulary.decode(ids).replace(SPACE_MARKER, " ").removeprefix(" ")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.vocabulary.name(id) for id in ids]

    def __len__(self) -> int:
        return len(self.vocabulary)

    def to_files(self) -> dict[str, bytes]:
        """tokenizer.json, and the sentencepiece model with its SHA-256 in it."""
        digest = hashlib.sha256(self.model).hexdigest()
        extra, added = tuple(self.vocabulary.extra_symbols), tuple(self.vocabulary.added)
        fallback = self.byte_fallback
        learned = TokenizerFile(kind=self.kind, extra=extra, added=added, byte_fallback=fallback, sha256=digest)
        return {TOKENIZER_FILE: learned.to_bytes(), MODEL_FILE: self.model}

    def restore(self, files: dict[str, bytes]) -> None:
        learned = TokenizerFile.parse(files, self.kind)
        if MODEL_FILE not in files:
            raise ModelError(f"{MODEL_FILE} of the {self.kind} tokenizer is missing; copy the model folder again")
        if hashlib.sha256(files[MODEL_FILE]).hexdigest() != learned.sha256:
            raise ModelError(
                f"{MODEL_FILE} is not the model that {TOKENIZER_FILE} was written with; copy the model folder again"
            )
        try:
            self._load_model(files[MODEL_FILE], learned.extra, learned.byte_fallback, learned.added)
        except ValueError as error:
            raise ModelError(f"{TOKENIZER_FILE} is damaged ({error}); copy the model folder again") from None

    def _load_model(
        self, model: bytes, extra_symbols: Sequence[str], byte_fallback: bool, added: Sequence[str] = ()
    ) -> None:
        """Load a sentencepiece model: its pieces as our vocabulary, and their scores; ModelError if they do not fit."""
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(model)
        except RuntimeError:
            raise ModelError(f"{MODEL_FILE} is not a sentencepiece model; copy the model folder again") from None
        names = [processor.id_to_piece(i) for i in range(len(processor))]
        symbols, reserved = (len(Vocabulary((), extra_symbols, byte_fallback=on)) for on in (False, byte_fallback))

        def has_expected_type(i: int) -> bool:
            if i < symbols:
                return bool(processor.is_unknown(i) if i == UNK else processor.is_control(i))
            return bool(processor.is_byte(i) == (i < reserved) and not processor.is_control(i))

        vocabulary = Vocabulary(names[reserved:], extra_symbols, byte_fallback=byte_fallback)
        if vocabulary.names != names or not all(map(has_expected_type, range(len(names)))):
            raise ModelError(f"{MODEL_FILE} and {TOKENIZER_FILE} do not belong together; copy the model folder again")
        if any(SPACE_MARKER in name[1:] for name in vocabulary.tokens):
            raise ModelError(f"{MODEL_FILE} has pieces that span a space; only models learned by Dragoman can be read")
        self.model, self.byte_fallback, self._processor = model, byte_fallback, processor
        self.vocabulary = vocabulary.extended(added)
        self.scores: dict[str, float] = {names[i]: processor.get_score(i) for i in range(reserved, len(names))}
        self.max_piece_length = max(map(len, self.scores), default=1)

    def __getstate__(self) -> dict[str, object]:
        """Pickle the model as bytes; the tables are rebuilt from it."""
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if self.model:
            self._load_model(self.model, self.vocabulary.extra_symbols, self.byte_fallback, self.vocabulary.added)


def split_words(text: str) -> list[str]:
    """Split a text before every space or "▁", as sentencepiece does; each word begins with "▁"."""
    if not text:
        return []
    return [SPACE_MARKER + word for word in replace_surrogates(text).replace(" ", SPACE_MARKER).split(SPACE_MARKER)]


def split_symbols(words: Counter[str], extra_symbols: Sequence[str]) -> Counter[str]:
    """Split words that contain a special symbol, and words that are too long, as the trainer needs it.

    The trainer removes text that is spelled like a special symbol, and would not learn its letters.
    So the first letter of such text counts as one word, and the rest as another.
    """
    reserved = re.compile(f"({'|'.join(map(re.escape, [*SPECIALS, *extra_symbols]))}|<0x[0-9A-F]{{2}}>)")
    counts: Counter[str] = Counter()
    for word in sorted(words):
        for part in reserved.sub(lambda symbol: f"{symbol[0][0]} {symbol[0][1:]}", word).split(" "):
            for start in range(0, len(part), MAX_WORD_LENGTH):
                counts[part[start : start + MAX_WORD_LENGTH]] += words[word]
    return counts


# For the trainer, a tab separates a word from its count, and a word with "▅" is skipped. Neither is learned.
_SEPARATORS = str.maketrans({SPACE_MARKER: " ", "\t": " ", "\u2585": " "})
