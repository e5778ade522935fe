"""The tokenizers of a run: those of another model, or new ones learned from the training files in one pass.

examples ─TokenizerLearner.add→ counts of characters, words …, language tags ─finish→ Codec
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from dragoman.checkpoint import model_folder
from dragoman.config import Config, build_codec, source_readers
from dragoman.core.errors import RunError
from dragoman.core.types import Example
from dragoman.data.objectives import objectives
from dragoman.text.codec import Codec, CodecLearner, copy_slot_symbols, has_text_source
from dragoman.text.frozen_tokenizer import FrozenTokenizer
from dragoman.text.normalization import normalize
from dragoman.text.tokenizers import tokenizers
from dragoman.training.prepare import expand_references, read_examples

MAX_EXAMPLES = 5_000_000  # that tokenizers are learned from


class TokenizerLearner:
    """Learns the tokenizers of a config from the examples of its training files, in one pass."""

    def __init__(self, config: Config) -> None:
        self.config, self.count = config, 0
        self.language_tags: set[str] = set()
        self.target_tags: set[str] = set()
        self.learner = CodecLearner(build_codec(config))

    def add(self, example: Example) -> None:
        """Count the texts of an example, up to MAX_EXAMPLES of them, and its language tags."""
        codec = self.learner.codec
        self.language_tags.update(codec.source_template.extra_symbols(example))
        self.target_tags.update(codec.target_template.extra_symbols(example))
        for pair in expand_references([example]):
            self.count += 1
            if self.count > MAX_EXAMPLES or pair.source_truncated:
                continue
            if self.learner.codec.modality is None:
                self.learner.add_source(pair.source)
            if self.learner.codec.second_source == "text":
                self.learner.add_source(pair.second_source)
            self.learner.add_target(pair.target or "")

    def finish(self) -> Codec:
        """Learn the tokenizers from the counts, with the objective's symbols, copy slots and language tags."""
        slots = self.config.tokenizer.copy_slots
        if slots is None:
            slots = 16 if getattr(self.config.model, "pointer", None) else 0
        symbols = objectives.build(self.config.training.objective).extra_symbols
        tags = self.language_tags | self.target_tags if self.learner.codec.is_joint else self.language_tags
        return self.learner.finish([*symbols, *copy_slot_symbols(slots), *sorted(tags)], sorted(self.target_tags))


def learns_tokenizers(config: Config) -> bool:
    """Whether a new run learns its tokenizers, and does not take those of another model."""
    return not (config.tokenizer.load or config.training.start_from)


def can_learn_while_checking(config: Config) -> bool:
    """Whether one pass over the training files serves the data check and the tokenizers.

    Not if one of them is the validation set, too: it may have further references, which the check of pairs refuses.
    """
    return learns_tokenizers(config) and all(corpus.path != config.data.valid for corpus in config.data.train)


def load_or_learn_codec(config: Config, learner: TokenizerLearner | None = None) -> tuple[Codec, Config]:
    """The tokenizers of a new run, from another model or learned now, and the config with their options.

    `learner` has seen the training examples already. With the tokenizers of another model, a tokenizer that the config
    names for the target is learned all the same: labels need not be words.
    """
    if learns_tokenizers(config):
        if learner is None:
            learner = TokenizerLearner(config)
            for example in _training_examples(config):
                learner.add(example)
        return learner.finish(), config
    other = config.tokenizer.load or config.training.start_from or ""
    model = model_folder.load(other)
    target = config.tokenizer.target
    if target is not None and not config.tokenizer.joint and not isinstance(model.codec.target, FrozenTokenizer):
        return _learn_target_tokenizer(config, model)
    config, codec = adopt_tokenizers(config, model.config), model.codec
    if config.model.tie == "all" and codec.source.vocabulary.names != codec.target.vocabulary.names:
        raise RunError(f"model.tie is 'all', but the tokenizers of {other} are two; one table needs one vocabulary")
    codec = _with_source_readers(codec, config)
    if config.model.extend is not None:
        codec.extend(config.model.extend.tokens, config.model.extend.languages)
    return codec, config


def adopt_tokenizers(config: Config, other: Config) -> Config:
    """The config with the tokenizer and normalization options of another model's config; its own `load` stays."""
    options = other.tokenizer.model_copy(update={"load": config.tokenizer.load})
    if has_text_source(*source_readers(config)) and not has_text_source(*source_readers(other)):
        # Without a text source the other model has one tokenizer, the target's; here it serves both sides.
        options = options.model_copy(update={"source": options.target or options.source, "target": None, "joint": True})
    data = config.data.model_copy(update={"normalization": other.data.normalization})
    return config.model_copy(update={"tokenizer": options, "data": data})


def _training_examples(config: Config) -> Iterator[Example]:
    return itertools.chain.from_iterable(read_examples(config, corpus.path) for corpus in config.data.train)


def _with_source_readers(codec: Codec, config: Config) -> Codec:
    """The tokenizers of another model with the source readers of this config."""
    modality, second_source = source_readers(config)
    source = codec.source if has_text_source(modality, second_source) else codec.target
    return replace(codec, source=source, modality=modality, second_source=second_source)


def _learn_target_tokenizer(config: Config, model: model_folder.LoadedModel) -> tuple[Codec, Config]:
    """The source tokenizer of another model and a target tokenizer learned now, and the config with both."""
    assert config.tokenizer.target is not None
    adopted = adopt_tokenizers(config, model.config)
    options = adopted.tokenizer.model_copy(update={"target": config.tokenizer.target, "joint": False})
    target = tokenizers.build(config.tokenizer.target)
    pairs = itertools.islice(expand_references(_training_examples(config)), MAX_EXAMPLES)
    texts = (pair.target or "" for pair in pairs if not pair.source_truncated)
    target.learn(normalize(text, adopted.data.normalization) for text in texts)
    source = model.codec.source if has_text_source(model.codec.modality, model.codec.second_source) else target
    codec = _with_source_readers(replace(model.codec, source=source, target=target), config)
    return codec, adopted.model_copy(update={"tokenizer": options})
