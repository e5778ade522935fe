"""Tokenizers, text ↔ ids: one file for each kind; the folder is the registry.

    tokenizer = tokenizers.build(Part("bpe", {"size": 8000}))     # options only
    tokenizer.learn(lines, ["<to:de>"])                           # once, from the training texts
    tokenizer.to_files() → files …  tokenizer.restore(files)      # plain bytes; no pickle

`encode` depends on the text alone. `sample` draws a random split of the text for subword
regularization. It depends on the generator and nothing else, so that a resumed run sees the same
splits. Tokenizers never add <s> or </s>; the codec does.
"""

from __future__ import annotations

from dragoman.core.registry import Registry
from dragoman.text.frozen_tokenizer import FrozenTokenizer
from dragoman.text.sentencepiece_model import SentencePieceTokenizer
from dragoman.text.vocabulary import LookupTokenizer

Tokenizer = LookupTokenizer | SentencePieceTokenizer | FrozenTokenizer  # every kind is a subclass of one of them

tokenizers: Registry[Tokenizer] = Registry("tokenizer", __name__)
