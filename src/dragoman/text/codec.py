"""Both sides of a pair ↔ ids: one tokenizer for each side (or one for both), Unicode normalization, language tags.

    source ids = [<from:xx>] [<to:yy>] tokens </s>          target ids = tokens </s>

A source is never empty, then: even a blank line has its </s>.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.core.errors import DataError, ModelError
from dragoman.core.interfaces import EOS, SPECIALS, Example
from dragoman.core.registry import Part
from dragoman.text.normalization import Form, normalize
from dragoman.text.tokenizers import Tokenizer, tokenizers

if TYPE_CHECKING:
    import numpy as np


def tags(example: Example) -> list[str]:
    """The symbols that say which language comes in and which shall come out."""
    return [
        *([f"<from:{example.source_lang}>"] if example.source_lang else []),
        *([f"<to:{example.target_lang}>"] if example.target_lang else []),
    ]


@dataclass
class Codec:
    """Text ↔ ids for both sides; with a joint vocabulary `source` and `target` are one object."""

    source: Tokenizer
    target: Tokenizer
    normalization: Form = "nfc"

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @property
    def samples(self) -> bool:
        return self.source.samples or self.target.samples

    @property
    def languages(self) -> list[str]:
        """The languages that can be asked for, where the model knows several."""
        return [symbol[4:-1] for symbol in self.source.extra if symbol.startswith("<to:")]

    def encode_source(self, example: Example, rng: np.random.Generator | None = None) -> list[int]:
        text = normalize(example.source, self.normalization)
        ids = self.source.encode(text) if rng is None else self.source.sample(text, rng)
        return [*(self._tag(tag, example) for tag in tags(example)), *ids, EOS]

    def encode_target(self, text: str, rng: np.random.Generator | None = None) -> list[int]:
        text = normalize(text, self.normalization)
        ids = self.target.encode(text) if rng is None else self.target.sample(text, rng)
        return [*ids, EOS]

    def decode(self, ids: Sequence[int]) -> str:
        """Target ids → text; <s>, </s> and padding are left out."""
        return self.target.decode([i for i in ids if i >= len(SPECIALS) - 1])

    def source_pieces(self, ids: Sequence[int]) -> list[str]:
        return self.source.pieces(ids)

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        return self.target.pieces(ids)

    def _tag(self, tag: str, example: Example) -> int:
        found = self.source.id(tag)
        if found is None:
            raise DataError(
                f"the language tag {tag} was not in the training data, so the model cannot know it",
                example.file or None,
                example.line or None,
            )
        return found

    # -- as files ------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """Everything learned, as the files of a model folder."""
        sides = {"joint": self.source} if self.joint else {"source": self.source, "target": self.target}
        return {f"{side}.{name}": data for side, tokenizer in sides.items() for name, data in tokenizer.state().items()}

    @property
    def fingerprint(self) -> str:
        """The same for codecs that give the same ids."""
        digest = hashlib.sha256(json.dumps([self.normalization, self.joint]).encode())
        for name, data in sorted(self.files().items()):
            digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
        return digest.hexdigest()


def learn(
    source: Part,
    target: Part,
    joint: bool,
    normalization: Form,
    sources: Iterable[str],
    targets: Iterable[str],
    extra: Sequence[str],
) -> Codec:
    """New tokenizers from the training texts; `extra` are the language tags, which belong to the source."""

    def clean(lines: Iterable[str]) -> Iterable[str]:
        return (normalize(line, normalization) for line in lines)

    first = tokenizers.build(source)
    if joint:
        first.learn((line for side in (sources, targets) for line in clean(side)), extra)
        return Codec(first, first, normalization)
    second = tokenizers.build(target)
    first.learn(clean(sources), extra)
    second.learn(clean(targets))
    return Codec(first, second, normalization)


def restore(source: Part, target: Part, joint: bool, normalization: Form, files: dict[str, bytes]) -> Codec:
    """The codec of a model folder from its files."""

    def one(side: str, part: Part) -> Tokenizer:
        mine = {name.removeprefix(f"{side}."): data for name, data in files.items() if name.startswith(f"{side}.")}
        if not mine:
            raise ModelError(f"the files of the {side} tokenizer are missing")
        tokenizer = tokenizers.build(part)
        tokenizer.restore(mine)
        return tokenizer

    if joint:
        both = one("joint", source)
        return Codec(both, both, normalization)
    return Codec(one("source", source), one("target", target), normalization)
