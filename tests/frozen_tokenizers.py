"""Tokenizers of imported models: their files are made here by the programs that such files come from."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

from dragoman.core.registry import Part
from dragoman.text.frozen_tokenizer import FrozenTokenizer
from dragoman.text.tokenizers import tokenizers

KINDS = ("huggingface", "sentencepiece")


def frozen_tokenizer(kind: str, lines: Sequence[str], extra_symbols: Sequence[str] = ()) -> FrozenTokenizer:
    """A tokenizer of a kind that cannot be learned, with a file that was made of some lines."""
    model, tokens = {"sentencepiece": train_sentencepiece, "huggingface": train_byte_level_bpe}[kind](lines)
    tokenizer = tokenizers.build(Part(kind))
    assert isinstance(tokenizer, FrozenTokenizer)
    tokenizer.load(model, tokens, extra_symbols)
    return tokenizer


def train_sentencepiece(lines: Sequence[str]) -> tuple[bytes, list[str]]:
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*lines, " ".join(sorted(set("".join(lines))))]),  # it leaves </s> and the like out
        model_writer=out,
        model_type="bpe",
        vocab_size=400,
        hard_vocab_limit=False,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        num_threads=1,
    )
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(out.getvalue())
    return out.getvalue(), [processor.id_to_piece(id) for id in range(3, processor.vocab_size())]


def train_byte_level_bpe(lines: Sequence[str]) -> tuple[bytes, list[str]]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    text = tokenizer.to_str()
    return text.encode(), list(json.loads(text)["model"]["vocab"])
