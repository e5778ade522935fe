"""Training objectives: turn a stored pair, or a single text, into the row that a model is trained on.

    pairs             x → y                                         translation and the like
    lm                  → y                                         p(y) = Π p(y_t | y_<t)
    labels            x → one label                                 classification
    tags              x, one tag at each position                   tagging
    masked            x₁ <mask> x₃ x₄, at <mask>: x₂                BERT
    denoising         a noisy text → the text                       BART
    span_corruption   x₁ <extra_0> x₄ → <extra_0> x₂ x₃ <extra_1>   T5
    prefix            x₁ x₂ → x₃ x₄                                 a text cut in two
    unilm             lm, masked and prefix in turn                 UniLM

A row is (source, target, token labels). The target is decoded from left to right; token labels are
predicted at the positions of the source, with <pad> where nothing is predicted. Stored ids end with
</s>. Objectives that are not paired read a text from the target's side and put it, or pieces of it,
on both sides; source ids and target ids must then mean the same.

Noise changes tokens only. Symbols (ids below the first token: <unk>, language tags) are never
masked, deleted or used as a replacement. All randomness comes from the generator, so that a resumed
run sees the same noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dragoman.core.errors import ModelError, PartError
from dragoman.core.registry import Registry, UnitInterval
from dragoman.core.types import EOS, PAD, SPECIALS
from dragoman.text.codec import Codec

Ids = Sequence[int] | NDArray[Any]  # ids of a text, or the (S, F) numbers of a modality
Integers = NDArray[np.int64]
Proportion = Annotated[float, Field(ge=0.0, le=1.0)]
Weight = Annotated[float, Field(ge=0.0, le=1e6)]
MeanLength = Annotated[float, Field(ge=1.0, le=1000.0)]  # of spans

MASK_SYMBOL = "<mask>"
SENTENCE_ENDS = tuple(".!?。！？।؟")
KEPT_TOKEN = -1  # in a span plan: a token outside of spans


class TrainingRow(NamedTuple):
    """The ids of one training example; token_labels has one id for each source position."""

    source: Ids
    target: Ids
    token_labels: list[int] | None = None
    second_source: Ids | None = None  # as it is stored


class Objective:
    """Makes training rows from stored pairs or texts; class attributes describe the rows and the model they train."""

    is_paired = False  # learns from pairs; else from single texts, stored as targets with an empty source
    needs_joint_vocabulary = False  # source ids and target ids must mean the same
    is_identity = False  # rows are the stored pairs themselves
    continues_text = False  # trains a language model, which continues a text
    has_source_eos = True  # a source ends with </s>
    has_empty_source = False  # no row has a source
    has_token_labels = False  # rows have a label for each source position
    extra_symbols: Sequence[str] = ()  # that the vocabulary needs
    # Checked by config/compatibility.py:
    head: str | None = None  # the required model.head; None: a decoder
    decoder_source: str | None = None  # the required model.decoder.source; None: any
    shares_embeddings = False  # source and target are pieces of one text and share one embedding table

    @property
    def supports_packing(self) -> bool:
        """Whether rows can be packed: they have a non-empty source, a target for a decoder, and nothing else."""
        return self.head is None and self.has_source_eos and not (self.has_empty_source or self.has_token_labels)

    def bind_codec(self, codec: Codec) -> None:
        """Look up the ids that the objective needs; ModelError if a symbol is missing. Afterwards it can be pickled."""
        vocabulary = codec.target.vocabulary
        self.first_token, self.vocabulary_size = vocabulary.symbol_count, len(vocabulary)
        self.symbol_ids: list[int] = []  # of the extra symbols
        for symbol in self.extra_symbols:
            id = vocabulary.symbol_id(symbol)
            if id is None:
                raise ModelError(
                    f"the tokenizers were learned without the symbol {symbol}, which this objective needs; "
                    "learn new ones for it."
                )
            self.symbol_ids.append(id)

    def blocker(self, source: Ids, target: Ids) -> str | None:
        """None: every stored pair can be used. Objectives that need more return why not, in a few words."""
        return None

    def max_lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        """Upper bounds on the lengths of rows, from the lengths of the stored pairs."""
        raise NotImplementedError

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> TrainingRow:
        """Make a row from the ids of a stored pair."""
        raise NotImplementedError


objectives: Registry[Objective] = Registry("objective")


def training_blocker(objective: Objective, source: Ids, target: Ids, max_source: int, max_target: int) -> str | None:
    """Why a pair of ids, tags and </s> included, cannot be trained on within these length limits; None if it can."""
    if len(source) > max_source:
        return "source too long"
    # A single text may stand on either side.
    if len(target) > (max_target if objective.is_paired else min(max_source, max_target)):
        return "target too long" if objective.is_paired else "too long"
    if objective.is_identity:
        return None
    if blocker := objective.blocker(source, target):
        return blocker
    longest = objective.max_lengths(np.array([len(source)]), np.array([len(target)]))
    return "too long" if int(longest[0][0]) > max_source or int(longest[1][0]) > max_target else None


# -- from pairs --------------------------------------------------------------------------------------------------------


@objectives.register("pairs")
class Pairs(Objective):
    """Predict the target from the source; with source_loss one network predicts the source's tokens as well."""

    is_paired = True

    def __init__(self, *, source_loss: bool = False) -> None:
        self.source_loss = self.needs_joint_vocabulary = self.has_token_labels = source_loss
        self.is_identity = not source_loss
        self.decoder_source = "prefix" if source_loss else None  # causal: else it would see what it predicts

    def max_lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return source, target

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> TrainingRow:
        token_labels = [*to_list(source)[1:], PAD] if self.source_loss and len(source) else None
        return TrainingRow(source, target, token_labels)


@objectives.register("labels")
class Labels(Objective):
    """Predict one label for the source: the target is a single token without </s>."""

    is_paired = True
    head = "classifier"

    def blocker(self, source: Ids, target: Ids) -> str | None:
        return None if len(target) == 2 else "target is not one label"

    def max_lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return source, np.ones_like(target)

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> TrainingRow:
        return TrainingRow(source, target[:1])


@objectives.register("tags")
class Tags(Objective):
    """Predict one tag for each token of the source: the target has as many tokens as the source."""

    is_paired = has_token_labels = True
    head = "tagger"

    def bind_codec(self, codec: Codec) -> None:
        super().bind_codec(codec)
        # <unk> is a token with a tag; </s> and language tags have none.
        self.untagged_ids = {EOS, *range(len(SPECIALS), codec.source.vocabulary.symbol_count)}

    def blocker(self, source: Ids, target: Ids) -> str | None:
        tokens = sum(id not in self.untagged_ids for id in to_list(source))
        return None if tokens == len(target) - 1 else "tags and tokens differ in number"

    def max_lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return source, np.zeros_like(target)

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> TrainingRow:
        x = to_list(source)
        token_labels = [PAD] * len(x)
        tokens = [i for i, id in enumerate(x) if id not in self.untagged_ids]
        for i, tag in zip(tokens, to_list(target)[:-1], strict=True):
            token_labels[i] = tag
        return TrainingRow(x, [], token_labels)


# -- from texts --------------------------------------------------------------------------------------------------------


@objectives.register("lm")
class LanguageModel(Objective):
    """Predict every token of a text from those before it."""

    continues_text = has_empty_source = shares_embeddings = True
    decoder_source = "prefix"

    def max_lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return np.zeros_like(source), target

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> TrainingRow:
        return TrainingRow([], to_list(target))


@objectives.register("masked")
class MaskedLM(Objective):
    """Mask some tokens of a text and predict them at their positions (BERT, RoBERTa).

    Of the chosen tokens a share `mask` becomes <mask>, a share `random` a random token, and the rest stays unchanged.
    """

    needs_joint_vocabulary = has_token_labels = True
    head = "tagger"
    extra_symbols = (MASK_SYMBOL,)

    def __init__(self, *, share: UnitInterval = 0.15, mask: Proportion = 0.8, random: Proportion = 0.1) -> None:
        if mask + random > 1:
            raise PartError(f"mask is {mask} and random is {random}; together they must not exceed 1")
        self.share, self.mask, self.random = share, mask, random

    def blocker(self, source: Ids, target: Ids) -> str | None:
        return None if any(id >= self.first_token for id in target) else "text has no token to mask"

    def max_lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return target, np.zeros_like(target)

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> TrainingRow:
        x = to_list(target)
        token_labels = [PAD] * len(x)
        tokens = [i for i, id in enumerate(x) if id >= self.first_token]
        for i in rng.permutation(tokens)[: max(1, round_randomly(self.share, len(tokens), rng))].tolist():
            token_labels[i] = x[i]
            x[i] = self._corrupt_token(x[i], rng)
        return TrainingRow(x, [], token_labels)

    def _corrupt_token(self, id: int, rng: np.random.Generator) -> int:
        draw = rng.random()
        if draw < self.mask:
            return self.symbol_ids[0]
        return int(rng.integers(self.first_token, self.vocabulary_size)) if draw < self.mask + self.random else id


@objectives.register("denoising")
class Denoising(Objective):
    """Restore a text from a noisy copy: sentences shuffled, text rotated, tokens deleted, spans masked (BART).

    In this order: `permute` shuffles the sentences, `rotate` moves a random start of the text to
    its end, `delete` drops a share of the tokens. Of the remaining tokens, a share `infill` lies in
    spans that become one <mask> each, with lengths from Poisson(span), where an empty span inserts
    a <mask>; a share `mask` becomes one <mask> each.
    """

    needs_joint_vocabulary = True
    extra_symbols = (MASK_SYMBOL,)

    def __init__(
        self,
        *,
        infill: Proportion = 0.3,
        span: MeanLength = 3.0,
        mask: Proportion = 0.0,
        delete: UnitInterval = 0.0,
        permute: bool = False,
        rotate: bool = False,
    ) -> None:
        if infill + mask > 1:
            raise PartError(f"infill is {infill} and mask is {mask}; together they must not exceed 1")
        self.infill, self.span, self.mask, self.delete = infill, span, mask, delete
        self.permute, self.rotate = permute, rotate

    def bind_codec(self, codec: Codec) -> None:
        super().bind_codec(codec)
        pieces = codec.target.pieces(range(self.first_token, self.vocabulary_size))
        self.sentence_end_ids = {i for i, piece in enumerate(pieces, self.first_token) if piece.endswith(SENTENCE_ENDS)}

    def max_lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return target, target

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> TrainingRow:
        y = to_list(target)
        x = y[:-1]
        if self.permute:
            x = self._permute_sentences(x, rng)
        if self.rotate and x:
            start = int(rng.integers(len(x)))
            x = x[start:] + x[:start]
        if self.delete:
            x = self._delete_tokens(x, rng)
        if self.infill or self.mask:
            x = self._mask_spans(x, len(y) - 1, rng)
        return TrainingRow([*x, EOS], y)

    def _permute_sentences(self, x: list[int], rng: np.random.Generator) -> list[int]:
        """Shuffle the sentences; "?!" and "..." end one sentence, not several."""
        cuts = [i for i in range(1, len(x)) if x[i - 1] in self.sentence_end_ids and x[i] not in self.sentence_end_ids]
        sentences = [x[start:stop] for start, stop in pairwise([0, *cuts, len(x)])]
        return [id for i in rng.permutation(len(sentences)) for id in sentences[i]]

    def _delete_tokens(self, x: list[int], rng: np.random.Generator) -> list[int]:
        tokens = [i for i, id in enumerate(x) if id >= self.first_token]
        deleted = set(rng.permutation(tokens)[: round_randomly(self.delete, len(tokens), rng)].tolist())
        return [id for i, id in enumerate(x) if i not in deleted]

    def _mask_spans(self, x: list[int], max_length: int, rng: np.random.Generator) -> list[int]:
        """Replace random spans by <mask>; empty spans are dropped where the result would exceed max_length."""
        tokens = sum(id >= self.first_token for id in x)
        spans = sample_span_lengths(round_randomly(self.infill, tokens, rng), self.span, rng)
        kept = tokens - sum(spans)
        single = min(round_randomly(self.mask, tokens, rng), kept)
        full = [length for length in spans if length] + [1] * single
        max_empty = max_length - (len(x) - sum(full) + len(full))
        empty = [0] * min(spans.count(0), max_empty)
        return self._apply_span_plan(x, rng.permutation([*full, *empty, *[KEPT_TOKEN] * (kept - single)]).tolist())

    def _apply_span_plan(self, x: list[int], plan: list[int]) -> list[int]:
        """Keep or mask the tokens of a text from left to right as planned; symbols stay."""
        noisy: list[int] = []
        i = 0
        for length in plan:
            if length != KEPT_TOKEN:
                noisy += self.symbol_ids
            remaining = 1 if length == KEPT_TOKEN else length
            while remaining:
                is_token = x[i] >= self.first_token
                if length == KEPT_TOKEN or not is_token:
                    noisy.append(x[i])
                remaining -= is_token
                i += 1
        return noisy + x[i:]


@objectives.register("span_corruption")
class SpanCorruption(Objective):
    """Predict the spans removed from a text, each named by the sentinel that replaces it (T5).

    A share of the tokens is removed in spans of `span` tokens on average. Both the removed and the
    kept tokens are split into as many random segments as there are spans; the segments alternate,
    beginning with a kept one.
    """

    needs_joint_vocabulary = True

    def __init__(
        self,
        *,
        share: UnitInterval = 0.15,
        span: MeanLength = 3.0,
        sentinels: Annotated[int, Field(ge=2, le=10_000)] = 100,
    ) -> None:
        self.share, self.span, self.sentinels = share, span, sentinels
        self.extra_symbols = tuple(f"<extra_{i}>" for i in range(sentinels))

    def blocker(self, source: Ids, target: Ids) -> str | None:
        return None if any(id >= self.first_token for id in target) else "text has no token to predict"

    def max_lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        # The removed tokens, one sentinel before each span, one after the last, and </s>, for every length.
        longest = np.array([sum(self._count_noise(n - 1)) + 2 for n in range(int(target.max(initial=0)) + 1)])
        return target, longest[target]

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> TrainingRow:
        text = to_list(target)[:-1]
        tokens = np.array(text) >= self.first_token
        noise = np.zeros(len(text), bool)
        noise[tokens] = self._sample_noise_mask(int(tokens.sum()), rng)
        _, max_spans = self._count_noise(len(text))
        x: list[int] = []
        y: list[int] = []
        spans = 0
        for is_noise, run in groupby(zip(noise.tolist(), text, strict=True), lambda pair: pair[0]):
            ids = [id for _, id in run]
            if is_noise and spans < max_spans:  # symbols split spans; spans beyond the planned number stay
                x.append(self.symbol_ids[spans])
                y += [self.symbol_ids[spans], *ids]
                spans += 1
            else:
                x += ids
        return TrainingRow([*x, EOS], [*y, self.symbol_ids[spans], EOS])

    def _count_noise(self, tokens: int) -> tuple[int, int]:
        """How many tokens to remove, and in how many spans; a single token is removed."""
        removed = max(1, min(round(self.share * tokens), tokens - 1))
        return removed, max(1, min(round(removed / self.span), tokens - removed, self.sentinels - 1))

    def _sample_noise_mask(self, tokens: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """(tokens,): true where a token is removed."""
        if not tokens:
            return np.zeros(0, bool)
        removed, spans = self._count_noise(tokens)
        kept_lengths = sample_segments(tokens - removed, spans, rng)
        lengths = np.stack([kept_lengths, sample_segments(removed, spans, rng)], axis=1).ravel()
        return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)


@objectives.register("prefix")
class PrefixLM(Objective):
    """Predict the rest of a text from its beginning, split at a random position."""

    needs_joint_vocabulary = shares_embeddings = True
    has_source_eos = False

    def max_lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return np.maximum(target - 2, 0), target

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> TrainingRow:
        y = to_list(target)
        cut = int(rng.integers(1, len(y) - 1)) if len(y) > 2 else 0  # a token on each side, if there are two
        return TrainingRow(y[:cut], y[cut:])


@objectives.register("unilm")
class UniLM(Objective):
    """One network for three tasks: language model, masked in both directions, prefix (UniLM).

    The first three options weight the tasks; `share` is the share of tokens chosen in the masked one.
    """

    needs_joint_vocabulary = continues_text = has_token_labels = shares_embeddings = True
    decoder_source = "full_prefix"
    extra_symbols = MaskedLM.extra_symbols

    def __init__(
        self, *, left_to_right: Weight = 1.0, both_ways: Weight = 1.0, prefix: Weight = 1.0, share: UnitInterval = 0.15
    ) -> None:
        self.weights = np.array([left_to_right, both_ways, prefix])
        if not self.weights.sum():
            raise PartError("left_to_right, both_ways and prefix are all 0; one of them must be more")
        self.tasks: list[Objective] = [LanguageModel(), MaskedLM(share=share), PrefixLM()]

    def bind_codec(self, codec: Codec) -> None:
        super().bind_codec(codec)
        for task in self.tasks:
            task.bind_codec(codec)

    def blocker(self, source: Ids, target: Ids) -> str | None:
        return next((blocker for task in self._active_tasks() if (blocker := task.blocker(source, target))), None)

    def max_lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        each = [task.max_lengths(source, target) for task in self._active_tasks()]
        return np.max([x for x, _ in each], axis=0), np.max([y for _, y in each], axis=0)

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> TrainingRow:
        task = self.tasks[rng.choice(len(self.tasks), p=self.weights / self.weights.sum())]
        return task(source, target, rng)

    def _active_tasks(self) -> list[Objective]:
        return [task for task, weight in zip(self.tasks, self.weights, strict=True) if weight]


# -- ids and random numbers --------------------------------------------------------------------------------------------


def to_list(ids: Ids) -> list[int]:
    """The ids of a text as a new list of ints."""
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)


def round_randomly(share: float, count: int, rng: np.random.Generator) -> int:
    """share · count, rounded up or down at random, so that the mean is exact for short texts, too."""
    return int(share * count + rng.random())


def sample_span_lengths(total: int, mean: float, rng: np.random.Generator) -> list[int]:
    """Poisson-distributed lengths, zeros included, that add up to `total`; the last one is truncated."""
    lengths: list[int] = []
    while total:
        lengths.append(min(int(rng.poisson(mean)), total))
        total -= lengths[-1]
    return lengths


def sample_segments(total: int, parts: int, rng: np.random.Generator) -> Integers:
    """Split `total` into `parts` positive numbers, all splits equally likely; 0 gives one zero."""
    cuts = np.sort(rng.permutation(max(0, total - 1))[: parts - 1]) + 1
    return np.diff(cuts, prepend=0, append=total)
