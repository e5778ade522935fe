"""From GenerationOptions to SearchConstraints: the length bounds and logits processors of some sources.

    max_length = max_new_tokens, or ⌊max_length_ratio · S⌋ + max_length_extra
    min_length = max(min_new_tokens, ⌊min_length_ratio · S⌋)

S counts the source's tokens, or the encoder states of a modality. Per-request options override the config's; the
decoder's maximum length overrides both. Phrases are split by the target tokenizer as texts of their own are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch
from torch import Tensor

from dragoman.core import generation
from dragoman.core.errors import UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.types import UNK, Example
from dragoman.inference.inputs import InputProcessor
from dragoman.search import LogitsProcessor, SearchConstraints, logits_processors
from dragoman.search.force_phrases import ForcePhrasesProcessor
from dragoman.search.output_forms import ChoicesProcessor, PatternProcessor
from dragoman.text.codec import Codec

OnToken = Callable[[int, int], None]  # (the index of a source in the whole input, a token of its output)


class SentenceSubsetProcessor:
    """Applies a processor to some sentences of a request; the others stay as they are."""

    def __init__(self, processor: LogitsProcessor, sentences: Sequence[int], count: int) -> None:
        self.processor = processor
        self.index = torch.full((count,), -1)  # of each sentence among those of the processor
        self.index[list(sentences)] = torch.arange(len(sentences))

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        self.index = self.index.to(rows.device)  # once
        index = self.index[rows]
        selected = (index >= 0).nonzero()[:, 0]
        if len(selected):
            log_p = log_p.clone()
            log_p[selected] = self.processor(log_p[selected], history[selected], index[selected])
        return log_p


def build_constraints(
    inputs: InputProcessor,
    source_lengths: Tensor,
    input_indices: Sequence[int],
    options: Sequence[GenerationOptions],
    examples: Sequence[Example],
    trace: bool = False,
    on_token: OnToken | None = None,
) -> SearchConstraints:
    """Build the search constraints of sources with these lengths (in positions) and these options, one for each."""
    max_lengths, min_lengths = length_bounds(inputs, source_lengths, options, examples)
    processors = build_processors(options, examples, inputs.codec)
    report = None if on_token is None else partial(_report_tokens, on_token, input_indices)
    return SearchConstraints(max_lengths, min_lengths, input_indices, processors, {} if trace else None, report)


def _report_tokens(on_token: OnToken, indices: Sequence[int], rows: Tensor, tokens: Tensor) -> None:
    for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
        on_token(indices[row], token)


def length_bounds(
    inputs: InputProcessor, lengths: Tensor, options: Sequence[GenerationOptions], examples: Sequence[Example]
) -> tuple[Tensor, Tensor]:
    """Return the maximum and minimum output length of each source, (B,) each, from options and model limits."""
    model, device = inputs.model, lengths.device
    counts = [inputs.count_length_units(n) for n in lengths.tolist()]
    lengths = torch.tensor(counts, dtype=torch.long, device=device)
    needed = [count_needed_tokens(one, example, inputs.codec) for one, example in zip(options, examples, strict=True)]
    bounds = [generation.length_bounds(*each) for each in zip(options, counts, needed, strict=True)]
    max_lengths, min_lengths = torch.tensor(bounds, dtype=torch.long, device=device).view(-1, 2).unbind(1)
    positions = model.max_target_positions
    if positions is not None:
        free = positions - 1 - (lengths if model.is_decoder_only else 0 * lengths)
        max_lengths = torch.minimum(max_lengths, free).clamp(min=1)
    return max_lengths, torch.minimum(min_lengths, max_lengths)


def build_processors(
    options: Sequence[GenerationOptions], examples: Sequence[Example], codec: Codec
) -> list[LogitsProcessor]:
    """Build the logits processors that the options of some sentences need."""
    processors: list[LogitsProcessor] = []

    def encode_each(texts: Callable[[GenerationOptions], Sequence[str]]) -> list[list[list[int]]]:
        pairs = zip(options, examples, strict=True)
        return [[encode_phrase(codec, text, example.source) for text in texts(one)] for one, example in pairs]

    def add_by_value(
        value: Callable[[GenerationOptions], Hashable], build: Callable[[GenerationOptions], LogitsProcessor]
    ) -> None:
        """Add a processor for each value that is set (not 0, "" or None), for the sentences that have it."""
        groups: dict[Hashable, list[int]] = {}
        for i, one in enumerate(options):
            groups.setdefault(value(one), []).append(i)
        for key, sentences in groups.items():
            if key:
                built = build(options[sentences[0]])
                whole = len(sentences) == len(options)
                processors.append(built if whole else SentenceSubsetProcessor(built, sentences, len(options)))

    given = [codec.target_prefix(example) for example in examples]
    if any(given) or any(one.prefix for one in options):
        prefixes = [[*ids, *texts[0]] for ids, texts in zip(given, encode_each(lambda one: [one.prefix]), strict=True)]
        processors.append(logits_processors.PrefixProcessor(prefixes, len(codec.target_template.prefix)))
    if any(one.forbid_phrases for one in options):
        pairs = zip(options, examples, strict=True)  # what the vocabulary lacks cannot be generated anyway
        ids = [[codec.encode_phrase(text, one.source) for text in each.forbid_phrases] for each, one in pairs]
        processors.append(
            logits_processors.ForbidPhrasesProcessor([[phrase for phrase in each if UNK not in phrase] for each in ids])
        )
    if sentences := [i for i, one in enumerate(options) if one.choices]:
        every = encode_each(lambda one: one.choices)
        choices = ChoicesProcessor([every[i] for i in sentences])
        processors.append(SentenceSubsetProcessor(choices, sentences, len(options)))
    if any(one.pattern for one in options):
        pieces, drop_space = token_texts(codec)
        add_by_value(lambda one: one.pattern, lambda one: PatternProcessor(one.pattern, pieces, drop_space=drop_space))
    add_by_value(
        lambda one: one.no_repeat_ngram_size,
        lambda one: logits_processors.NoRepeatNgramProcessor(one.no_repeat_ngram_size),
    )
    add_by_value(
        lambda one: one.repetition_penalty if one.repetition_penalty != 1.0 else None,
        lambda one: logits_processors.RepetitionPenaltyProcessor(one.repetition_penalty),
    )
    add_by_value(lambda one: not one.allow_unk, lambda one: logits_processors.NoUnkProcessor())
    if any(one.force_phrases for one in options):  # last: what is forbidden otherwise cannot be forced
        phrases = encode_each(lambda one: one.force_phrases)
        processors.append(ForcePhrasesProcessor(phrases, [one.force_phrases_ordered for one in options]))
    return processors


def count_needed_tokens(options: GenerationOptions, example: Example, codec: Codec) -> int:
    """Return how many tokens an output needs for its prefix and forced phrases, or its longest choice."""
    given = len(codec.target_template.prefix)
    if not (options.prefix or options.force_phrases or options.choices):
        return given

    def count(text: str) -> int:
        return len(codec.encode_phrase(text, example.source))

    return given + max(count(options.prefix) + sum(map(count, options.force_phrases)), *map(count, options.choices), 0)


def encode_phrase(codec: Codec, text: str, source: str) -> list[int]:
    """Encode a phrase as token ids without </s>; raise UserError if the vocabulary lacks a part of it."""
    ids = codec.encode_phrase(text, source)
    if UNK in ids:
        raise UserError(f"'{text}' is not covered by the model's vocabulary, so no output can contain it")
    return ids


def token_texts(codec: Codec) -> tuple[list[str | None], bool]:
    """Return the text that each token adds to an output (None: special), and whether decoding drops a first space."""
    first = codec.target.vocabulary.symbol_count
    anchor = codec.target.decode([first])
    texts: list[str | None] = [None] * len(codec.target)
    drops_space = False
    for id in range(first, len(codec.target)):
        if codec.target.vocabulary.is_symbol(id):
            continue
        both = codec.target.decode([first, id])
        texts[id] = both.removeprefix(anchor) if both.startswith(anchor) and "\ufffd" not in both else None
        drops_space = drops_space or (texts[id] == f" {codec.target.decode([id])}")
    return texts, drops_space
