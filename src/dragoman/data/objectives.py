"""What is predicted from what: a stored pair, or a single text, becomes the row a model learns from.

    pairs             x → y                                         translation and the like
    lm                  → y                                         p(y) = Π p(y_t | y_<t)
    labels            x → one label                                 classification
    tags              x, one tag at each position                   tagging
    masked            x₁ <mask> x₃ x₄, at <mask>: x₂                BERT
    denoising         a noisy text → the text                       BART
    span_corruption   x₁ <extra_0> x₄ → <extra_0> x₂ x₃ <extra_1>   T5
    prefix            x₁ x₂ → x₃ x₄                                 a text cut in two
    unilm             lm, masked and prefix in turn                 UniLM

A row is (source, target, marks). The target is written from left to right; marks are predicted at the positions of the
source, and <pad> says that nothing is to be predicted there. Stored ids end with </s>. Objectives that are not paired
read a text from the target's side and put it, or pieces of it, on both sides: source ids and target ids must then mean
the same (`joint`).

Noise touches tokens alone. Symbols (ids below the first token: <unk>, language tags) are never masked, deleted or drawn
in place of something else. All chance comes from the generator given, so that a resumed run sees the very same noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dragoman.core.errors import ModelError, PartError
from dragoman.core.registry import Registry, UnitInterval
from dragoman.core.types import EOS, PAD, SPECIALS

if TYPE_CHECKING:
    from dragoman.text.codec import Codec

Ids = Sequence[int] | NDArray[Any]
Integers = NDArray[Any]
Proportion = Annotated[float, Field(ge=0.0, le=1.0)]
Weight = Annotated[float, Field(ge=0.0, le=1e6)]
Mean = Annotated[float, Field(ge=1.0, le=1000.0)]  # of the lengths of spans

MASK = "<mask>"
SENTENCE_ENDS = tuple(".!?。！？।؟")
KEPT = -1  # in a plan of spans: a token outside them


class Row(NamedTuple):
    """Ids to learn from; `marks`, where there are any, has one id for each of the source."""

    source: list[int]
    target: list[int]
    token_labels: list[int] | None = None
    second_source: Ids | None = None  # a second source, as it is stored


class Objective:
    """One way to make rows; a kind of it says how, what the lengths of its rows can be, and which model they teach."""

    paired = False  # made from pairs; else from single texts, which come as targets with an empty source
    joint = False  # whether source ids and target ids must mean the same
    trivial = False  # whether rows are the stored pairs themselves
    continues_text = False  # whether what it teaches is a language model, which goes on with a text it is given
    ends_source = True  # whether a source ends with </s>
    empty_source = False  # whether no row has a source
    token_labels = False  # whether rows have marks
    symbols: Sequence[str] = ()  # extra symbols that the vocabulary needs
    # What config/compatibility.py holds a config to:
    head: str | None = None  # the model.head that answers; None: a decoder does
    decoder_source: str | None = None  # the model.decoder.source it takes; None: any
    one_table = False  # whether source and target are pieces of one text, whose embeddings are one table

    @property
    def packs(self) -> bool:
        """Whether a row is a source, never an empty one, and a target to write, and nothing else."""
        return self.head is None and self.ends_source and not (self.empty_source or self.token_labels)

    def prepare(self, codec: Codec) -> None:
        """Look up ids, once; afterwards the objective can travel to other processes."""
        tokenizer = codec.target
        self.first, self.size = len(SPECIALS) + len(tokenizer.extra), len(tokenizer)  # tokens: first ≤ id < size
        self.ids: list[int] = []  # of the symbols
        for symbol in self.symbols:
            found = tokenizer.id(symbol)
            if found is None:
                raise ModelError(
                    f"the tokenizers were learned without the symbol {symbol}, which this objective needs; "
                    "learn new ones for it."
                )
            self.ids.append(found)

    def problem(self, source: Ids, target: Ids) -> str | None:
        """Why a stored pair cannot be used, in a few words; None where it can."""
        return None

    def lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        """From the lengths of stored pairs, bounds that the lengths of their rows never exceed."""
        raise NotImplementedError

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> Row:
        raise NotImplementedError


objectives: Registry[Objective] = Registry("objective")


def unfit(objective: Objective | None, source: Ids, target: Ids, max_source: int, max_target: int) -> str | None:
    """Why nothing can be learned from ids within these limits, in a few words; None where something can.

    Limits count all ids of a side, tags and </s> too.
    """
    paired = objective is None or objective.paired
    if len(source) > max_source:
        return "source too long"
    if len(target) > (max_target if paired else min(max_source, max_target)):  # a text may stand on either side
        return "target too long" if paired else "too long"
    if objective is None or objective.trivial:
        return None
    if problem := objective.problem(source, target):
        return problem
    longest = objective.lengths(np.array([len(source)]), np.array([len(target)]))
    return "too long" if int(longest[0][0]) > max_source or int(longest[1][0]) > max_target else None


# -- from pairs --------------------------------------------------------------------------------------------------------


@objectives.register("pairs")
class Pairs(Objective):
    """Predict the target from the source; with source_loss one network predicts the source's tokens as well."""

    paired = True

    def __init__(self, *, source_loss: bool = False) -> None:
        self.source_loss = self.joint = self.token_labels = source_loss
        self.trivial = not source_loss
        self.decoder_source = "prefix" if source_loss else None  # left to right: else it would see what it predicts

    def lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return source, target

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> Row:
        x = plain(source)
        return Row(x, plain(target), [*x[1:], PAD] if self.source_loss and x else None)


@objectives.register("labels")
class Labels(Objective):
    """Predict one label from the source: the target is a single token and has no </s>."""

    paired = True
    head = "classifier"

    def problem(self, source: Ids, target: Ids) -> str | None:
        return None if len(target) == 2 else "target is not one label"

    def lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return source, np.ones_like(target)

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> Row:
        return Row(plain(source), plain(target)[:1])


@objectives.register("tags")
class Tags(Objective):
    """Predict one tag at each token of the source: the target has as many tokens as the source."""

    paired = token_labels = True
    head = "tagger"

    def prepare(self, codec: Codec) -> None:
        super().prepare(codec)
        # <unk> is a token that has a tag; </s> and the language tags before the text have none.
        self.bare = {EOS, *range(len(SPECIALS), len(SPECIALS) + len(codec.source.extra))}

    def problem(self, source: Ids, target: Ids) -> str | None:
        tokens = sum(id not in self.bare for id in plain(source))
        return None if tokens == len(target) - 1 else "tags and tokens differ in number"

    def lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return source, np.zeros_like(target)

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> Row:
        x = plain(source)
        token_labels = [PAD] * len(x)
        tokens = [i for i, id in enumerate(x) if id not in self.bare]
        for i, tag in zip(tokens, plain(target)[:-1], strict=True):
            token_labels[i] = tag
        return Row(x, [], token_labels)


# -- from texts --------------------------------------------------------------------------------------------------------


@objectives.register("lm")
class LanguageModel(Objective):
    """Predict every token of a text from those before it."""

    continues_text = empty_source = one_table = True
    decoder_source = "prefix"

    def lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return np.zeros_like(source), target

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> Row:
        return Row([], plain(target))


@objectives.register("masked")
class Masked(Objective):
    """Hide some tokens of a text and predict them where they stood (BERT, RoBERTa).

    Of the chosen tokens a share `mask` becomes <mask>, a share `random` another token, and the rest stay as they are.
    """

    joint = token_labels = True
    head = "tagger"
    symbols = (MASK,)

    def __init__(self, *, share: UnitInterval = 0.15, mask: Proportion = 0.8, random: Proportion = 0.1) -> None:
        if mask + random > 1:
            raise PartError(f"mask is {mask} and random is {random}; together they must not exceed 1")
        self.share, self.mask, self.random = share, mask, random

    def problem(self, source: Ids, target: Ids) -> str | None:
        return None if any(id >= self.first for id in target) else "text has no token to mask"

    def lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return target, np.zeros_like(target)

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> Row:
        x = plain(target)
        token_labels = [PAD] * len(x)
        tokens = [i for i, id in enumerate(x) if id >= self.first]
        for i in rng.permutation(tokens)[: max(1, some(self.share, len(tokens), rng))].tolist():
            token_labels[i] = x[i]
            x[i] = self._replaced(x[i], rng)
        return Row(x, [], token_labels)

    def _replaced(self, id: int, rng: np.random.Generator) -> int:
        draw = rng.random()
        if draw < self.mask:
            return self.ids[0]
        return int(rng.integers(self.first, self.size)) if draw < self.mask + self.random else id


@objectives.register("denoising")
class Denoising(Objective):
    """Restore a text from a noisy one: sentences shuffled, text rotated, tokens deleted, spans masked (BART).

    In this order: `permute` shuffles the sentences, `rotate` begins at a random token and goes around, `delete` drops a
    share of the tokens. Of the tokens left, a share `infill` lies in spans that become one <mask> each, of lengths
    drawn from Poisson(span), where a span of no token inserts a <mask>; and a share `mask` becomes one <mask> each.
    """

    joint = True
    symbols = (MASK,)

    def __init__(
        self,
        *,
        infill: Proportion = 0.3,
        span: Mean = 3.0,
        mask: Proportion = 0.0,
        delete: UnitInterval = 0.0,
        permute: bool = False,
        rotate: bool = False,
    ) -> None:
        if infill + mask > 1:
            raise PartError(f"infill is {infill} and mask is {mask}; together they must not exceed 1")
        self.infill, self.span, self.mask, self.delete = infill, span, mask, delete
        self.permute, self.rotate = permute, rotate

    def prepare(self, codec: Codec) -> None:
        super().prepare(codec)
        pieces = codec.target.pieces(range(self.first, self.size))
        self.ends = {i for i, piece in enumerate(pieces, self.first) if piece.endswith(SENTENCE_ENDS)}

    def lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return target, target

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> Row:
        y = plain(target)
        x = y[:-1]
        if self.permute:
            x = self._shuffled(x, rng)
        if self.rotate and x:
            start = int(rng.integers(len(x)))
            x = x[start:] + x[:start]
        if self.delete:
            x = self._thinned(x, rng)
        if self.infill or self.mask:
            x = self._filled(x, len(y) - 1, rng)
        return Row([*x, EOS], y)

    def _shuffled(self, x: list[int], rng: np.random.Generator) -> list[int]:
        """The sentences in another order; "?!" and "..." end one sentence, not several."""
        cuts = [i for i in range(1, len(x)) if x[i - 1] in self.ends and x[i] not in self.ends]
        sentences = [x[start:stop] for start, stop in pairwise([0, *cuts, len(x)])]
        return [id for i in rng.permutation(len(sentences)) for id in sentences[i]]

    def _thinned(self, x: list[int], rng: np.random.Generator) -> list[int]:
        tokens = [i for i, id in enumerate(x) if id >= self.first]
        dropped = set(rng.permutation(tokens)[: some(self.delete, len(tokens), rng)].tolist())
        return [id for i, id in enumerate(x) if i not in dropped]

    def _filled(self, x: list[int], longest: int, rng: np.random.Generator) -> list[int]:
        """Spans as <mask>, in random places; at most `longest` ids, for which spans of no token give way."""
        tokens = sum(id >= self.first for id in x)
        spans = span_lengths(some(self.infill, tokens, rng), self.span, rng)
        kept = tokens - sum(spans)
        alone = min(some(self.mask, tokens, rng), kept)
        full = [length for length in spans if length] + [1] * alone
        room = longest - (len(x) - sum(full) + len(full))
        empty = [0] * min(spans.count(0), room)
        return self._carried_out(x, rng.permutation([*full, *empty, *[KEPT] * (kept - alone)]).tolist())

    def _carried_out(self, x: list[int], plan: list[int]) -> list[int]:
        """A text whose tokens, from left to right, are kept or lie in spans as planned; symbols pass."""
        noisy: list[int] = []
        i = 0
        for length in plan:
            if length != KEPT:
                noisy += self.ids
            wanted = 1 if length == KEPT else length
            while wanted:
                token = x[i] >= self.first
                if length == KEPT or not token:
                    noisy.append(x[i])
                wanted -= token
                i += 1
        return noisy + x[i:]


@objectives.register("span_corruption")
class SpanCorruption(Objective):
    """Predict the spans cut out of a text, each named by the sentinel that stands in its place (T5).

    A share of the tokens is cut out in spans of `span` tokens on average: both these tokens and the others are split
    into as many random segments as there are spans, and the segments alternate, beginning with one that stays.
    """

    joint = True

    def __init__(
        self, *, share: UnitInterval = 0.15, span: Mean = 3.0, sentinels: Annotated[int, Field(ge=2, le=10_000)] = 100
    ) -> None:
        self.share, self.span, self.sentinels = share, span, sentinels
        self.symbols = tuple(f"<extra_{i}>" for i in range(sentinels))

    def problem(self, source: Ids, target: Ids) -> str | None:
        return None if any(id >= self.first for id in target) else "text has no token to predict"

    def lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        # One sentinel before each span, one behind the last, and </s>, for every length there is.
        longest = np.array([sum(self._amounts(n - 1)) + 2 for n in range(int(target.max(initial=0)) + 1)])
        return target, longest[target]

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> Row:
        text = plain(target)[:-1]
        tokens = np.array(text) >= self.first
        noise = np.zeros(len(text), bool)
        noise[tokens] = self._noise(int(tokens.sum()), rng)
        _, most = self._amounts(len(text))
        x: list[int] = []
        y: list[int] = []
        spans = 0
        for cut, run in groupby(zip(noise.tolist(), text, strict=True), lambda place: place[0]):
            ids = [id for _, id in run]
            if cut and spans < most:  # symbols inside spans part them: what is more than was planned stays
                x.append(self.ids[spans])
                y += [self.ids[spans], *ids]
                spans += 1
            else:
                x += ids
        return Row([*x, EOS], [*y, self.ids[spans], EOS])

    def _amounts(self, tokens: int) -> tuple[int, int]:
        """How many of so many tokens are cut out, and in how many spans; a single token is all cut out."""
        cut = max(1, min(round(self.share * tokens), tokens - 1))
        return cut, max(1, min(round(cut / self.span), tokens - cut, self.sentinels - 1))

    def _noise(self, tokens: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """True where a token is cut out."""
        if not tokens:
            return np.zeros(0, bool)
        cut, spans = self._amounts(tokens)
        lengths = np.stack([segments(tokens - cut, spans, rng), segments(cut, spans, rng)], axis=1).ravel()
        return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)


@objectives.register("prefix")
class Prefix(Objective):
    """Predict the rest of a text from its beginning, cut at a random place."""

    joint = one_table = True
    ends_source = False

    def lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        return np.maximum(target - 2, 0), target

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> Row:
        y = plain(target)
        cut = int(rng.integers(1, len(y) - 1)) if len(y) > 2 else 0  # a token on each side, if there are two
        return Row(y[:cut], y[cut:])


@objectives.register("unilm")
class UniLM(Objective):
    """One network for three tasks in turn: left to right, masked in both directions, prefix (UniLM).

    The three options weigh the tasks against each other; `share` is the share of tokens chosen in the masked one.
    """

    joint = continues_text = token_labels = one_table = True
    decoder_source = "full_prefix"
    symbols = Masked.symbols

    def __init__(
        self, *, left_to_right: Weight = 1.0, both_ways: Weight = 1.0, prefix: Weight = 1.0, share: UnitInterval = 0.15
    ) -> None:
        self.weights = np.array([left_to_right, both_ways, prefix])
        if not self.weights.sum():
            raise PartError("left_to_right, both_ways and prefix are all 0; one of them must be more")
        self.tasks: list[Objective] = [LanguageModel(), Masked(share=share), Prefix()]

    def prepare(self, codec: Codec) -> None:
        super().prepare(codec)
        for task in self.tasks:
            task.prepare(codec)

    def problem(self, source: Ids, target: Ids) -> str | None:
        return next((found for task in self._drawn() if (found := task.problem(source, target))), None)

    def lengths(self, source: Integers, target: Integers) -> tuple[Integers, Integers]:
        each = [task.lengths(source, target) for task in self._drawn()]
        return np.max([x for x, _ in each], axis=0), np.max([y for _, y in each], axis=0)

    def __call__(self, source: Ids, target: Ids, rng: np.random.Generator) -> Row:
        task = self.tasks[rng.choice(len(self.tasks), p=self.weights / self.weights.sum())]
        return task(source, target, rng)

    def _drawn(self) -> list[Objective]:
        return [task for task, weight in zip(self.tasks, self.weights, strict=True) if weight]


# -- ids and chance ----------------------------------------------------------------------------------------------------


def plain(ids: Ids) -> Any:
    """A new list of Python's ints; numbers of a source that is no text stay as they are."""
    if isinstance(ids, np.ndarray) and ids.ndim > 1:
        return ids
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)


def some(share: float, count: int, rng: np.random.Generator) -> int:
    """share · count, rounded up or down at random, so that it is right on average for short texts too."""
    return int(share * count + rng.random())


def span_lengths(total: int, mean: float, rng: np.random.Generator) -> list[int]:
    """Poisson-distributed lengths, zeros among them, that add up to `total`; the last is cut to fit."""
    lengths: list[int] = []
    while total:
        lengths.append(min(int(rng.poisson(mean)), total))
        total -= lengths[-1]
    return lengths


def segments(total: int, parts: int, rng: np.random.Generator) -> Integers:
    """`total` as a sum of so many positive numbers, all such sums equally likely; 0 is a sum of one zero."""
    cuts = np.sort(rng.permutation(max(0, total - 1))[: parts - 1]) + 1
    return np.diff(cuts, prepend=0, append=total)
