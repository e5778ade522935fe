"""Text → text and pairs → scores, with a trained model. What `import dragoman` offers.

    model = load("runs/g2p")
    model.predict(["dragoman"], beam=5, nbest=3)
    model.score([("dragoman", "D R AE G AH M AH N")])

Inputs are sorted by length and cut into batches inside; neither changes a result, and results come back in the order of
the inputs. A blank input has a blank result. To a language model an input is the beginning of a text, which it goes on
with; a model with a head answers with labels. To a model of two sources an input is both, with a tab between them.
"""

from __future__ import annotations

import itertools
import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dragoman import checkpoint, ensemble, runtime, shapes
from dragoman.config import Config, validated_generation
from dragoman.constraints import Constraints, room
from dragoman.constraints import rules as constraint_rules
from dragoman.core.errors import DataError, UserError
from dragoman.core.interfaces import BOS, EOS, PAD, Batch, Capacity, Example, Hypothesis
from dragoman.core.registry import Part
from dragoman.data.batching import collate
from dragoman.data.objectives import Objective, Row, objectives
from dragoman.evaluation.metrics import metrics
from dragoman.nn.attention import watching
from dragoman.nn.losses import token_log_probs
from dragoman.runtime import Engine
from dragoman.search import Limits, Rule, Search, mbr, searches
from dragoman.search.ctc import CTCPrefix
from dragoman.text.codec import Codec

logger = logging.getLogger("dragoman")

Traces = dict[int, list[dict[str, Any]]]  # by row
Source = Any  # list[int], or (S, F) numbers where the source is no text
Tell = Callable[[int, int], None]  # (the place of a source, a token of its result)

WINDOW = 4096  # inputs that are sorted together while streaming
PRECISIONS = ("float32", "bfloat16", "int8")
NOTHING = Constraints()
PATIENCE = 4  # a source may be this many times as long as those in training before it is cut


@dataclass(frozen=True)
class Prediction:
    """One result; `alternatives` are the next best. Scores are log-probabilities: higher is better."""

    text: str
    score: float  # under the search's length rule
    log_prob: float  # of the whole sequence
    tokens: list[str]
    log_probs: list[float]  # of each token, and of </s> where the result ended by itself
    ended: str  # "end", "length", or "blank" for a blank source
    source_tokens: list[str]
    cut: bool = False  # the source was too long and only its beginning was read
    alternatives: list[Prediction] = field(default_factory=list)
    attention: np.ndarray | None = None  # (target tokens with </s>, source tokens), on request
    medium: dict[str, Any] | None = field(default=None, repr=False)  # with it, the picture of a source that is no text
    trace: list[dict[str, Any]] | None = None  # what the beam kept and dropped at each step, on request
    ids: list[int] = field(default_factory=list, repr=False)  # the tokens as numbers


class Given(NamedTuple):
    """What a model reads of an input."""

    source: Source
    second: Source | None  # where it reads two
    cut: bool

    @property
    def row(self) -> Row:
        return Row(self.source, [EOS], second=self.second)

    @property
    def longer(self) -> Source:
        return self.source if self.second is None or len(self.source) > len(self.second) else self.second


@dataclass
class Prompted:
    """The state of a language model that has read the beginning of a text, all but its last token."""

    state: Any
    last: Tensor  # (B, 1): that token, which takes the place of the <s> that a search begins with
    fresh: Tensor  # (B, 1): whether it is still to be read


@dataclass(frozen=True)
class Asked:
    """What was asked of the sources of a window."""

    search: Search
    nbest: int
    attention: bool
    trace: bool
    first: int  # the place of the window's first source in the whole input
    wishes: Sequence[Constraints]
    tell: Tell | None = None


@dataclass
class Pipeline:
    """A model with its tokenizers, on a device."""

    model: Any  # a Seq2Seq, or what has its surface: an ensemble, or a model that a language model joins
    codec: Codec
    config: Config
    device: torch.device
    path: Path | None = None
    precision: str = "float32"  # of searching
    fast: bool = False  # through an engine where there is one; it copies the weights, so they must not change any more

    draws: ClassVar[Callable[[Pipeline, Given], dict[str, Any] | None] | None] = None  # set by what knows pictures

    @cached_property
    def engine(self) -> Engine | None:
        """The faster way to search on this device, if there is one for this model."""
        found = None
        if self.fast and self.model.head is None and not self.goes_on:
            found = runtime.engine(self.model.eval(), self.device, self.precision)
        if found is None and self.precision == "int8":
            logger.warning("this model is not served in int8 here; its results are computed in float32")
        return found

    # -- text → text -----------------------------------------------------------------------------------------------

    def predict(
        self,
        sources: Sequence[str | Example],
        *,
        beam: int | None = None,
        nbest: int = 1,
        search: Part | None = None,
        attention: bool = False,
        constraints: Constraints | Sequence[Constraints] | None = None,
        trace: bool = False,
    ) -> list[Prediction]:
        """One Prediction for each source, in order. `beam=1` is greedy; the config's search is the default.

        Constraints are one for all sources, or one for each. A trace needs a beam.
        """
        if isinstance(constraints, Sequence) and len(constraints) != len(sources):
            raise UserError(f"there are {len(sources)} sources and {len(constraints)} sets of constraints")
        wanted = {"attention": attention, "constraints": constraints, "trace": trace}
        return list(self.stream(sources, beam=beam, nbest=nbest, search=search, **wanted))  # type: ignore[arg-type]

    def stream(
        self,
        sources: Iterable[str | Example],
        *,
        beam: int | None = None,
        nbest: int = 1,
        search: Part | None = None,
        attention: bool = False,
        constraints: Constraints | Sequence[Constraints] | None = None,
        trace: bool = False,
        first: int = 0,
        tell: Tell | None = None,
    ) -> Iterator[Prediction]:
        """The same for any number of sources: reads and answers a window at a time, in order.

        `first` is the place of the first source in the whole input, where others answer the rest of it: what is drawn
        for a source depends on its place. `tell` hears of each token as soon as a greedy search has chosen it; other
        searches, which may still change their minds, do not tell.
        """
        if isinstance(sources, str):
            raise UserError("predict takes a list of sources; for one source give a list with one: [source]")
        part = self.search_part(beam, nbest, search)
        searching = searches.build(part)
        if trace and not searching.traces:
            raise UserError(
                f"a trace is of a beam, and the search is '{part.name}'; leave the trace out or take a beam"
            )
        given = constraints if isinstance(constraints, Sequence) else [constraints or NOTHING]
        if not searching.seeks and any(wish.require for wish in given):
            raise UserError(f"required phrases need a beam, and the search is '{part.name}'; take another search")
        if nbest < 1 or (nbest > searching.size and self.model.head is None):
            what = "as many samples" if searching.draws else f"a beam of at least {nbest}"
            raise UserError(f"{nbest} best results need {what}, not {searching.size}")
        examples = (self._example(source) for source in sources)
        pairs = zip(examples, for_each(constraints), strict=False)
        while window := list(itertools.islice(pairs, WINDOW)):
            asked = Asked(searching, nbest, attention, trace, first, [wish for _, wish in window], tell)
            yield from self._window([example for example, _ in window], asked)
            first += len(window)

    def with_generation(
        self,
        *,
        no_repeat: int | None = None,
        repetition: float | None = None,
        unknown: bool | None = None,
        mbr: str | None = None,
    ) -> Pipeline:
        """The same with other settings of `generation` than the config's; None leaves one as it is."""
        given = {"no_repeat": no_repeat, "repetition": repetition, "unknown": unknown, "mbr": mbr}
        changes = {key: value for key, value in given.items() if value is not None}
        if not changes:
            return self
        generation = validated_generation(self.config, changes)
        other = replace(self, config=self.config.model_copy(update={"generation": generation}))
        if "engine" in self.__dict__:
            other.__dict__["engine"] = self.engine  # which knows nothing of the config
        return other

    def with_files(self, places: Sequence[str]) -> Pipeline:
        """The same with more folders and archives in which the files that sources name are looked for, these first."""
        if not places:
            return self
        media = {"medium": self.codec.medium, "second": self.codec.second}
        found = {name: _looks_in(medium, places) for name, medium in media.items()}
        if found == media:
            raise UserError("the model reads texts, so there are no files to look for; leave --files out")
        for place in places:
            if not Path(place).exists():
                raise DataError("there is no such folder or archive to look for files in", place)
        other = replace(self, codec=replace(self.codec, **found))
        if "engine" in self.__dict__:
            other.__dict__["engine"] = self.engine  # which knows nothing of files
        return other

    def search_part(self, beam: int | None, nbest: int, part: Part | None = None) -> Part:
        """Which search to run: the one given, or the config's with another beam size where one is asked for."""
        if beam is not None and beam < 1:
            raise UserError(f"beam is {beam}; it must be at least 1")
        if part is not None:
            return part
        part = self.config.generation.search
        if beam is None:
            return part
        kept = part.options if part.name == "beam" else {}
        if part.name != "beam" and "length" in part.options:
            kept = {"length": part.options["length"]}
        return Part("greedy") if beam == nbest == 1 else Part("beam", {**kept, "size": beam})

    def _window(self, window: list[Example], asked: Asked) -> Iterator[Prediction]:
        results: list[Prediction | None] = [None] * len(window)
        sources = [self._read(example) for example in window]
        for i, example in enumerate(window):
            if blank(example) and not self.goes_on:
                results[i] = Prediction("", 0.0, 0.0, [], [], "blank", self._pieces(sources[i]))
        waiting = [i for i in range(len(window)) if results[i] is None]
        for rows, batch, found, traces in self._searched(window, sources, waiting, asked):
            for n, (i, hypotheses) in enumerate(zip(rows, found, strict=True)):
                if not self._agrees:  # nobody looks at more than was asked for
                    hypotheses = hypotheses[: asked.nbest]
                every = [self._prediction(h, window[i], sources[i]) for h in hypotheses]
                best = self._agreed(every, asked)[: asked.nbest]
                if not best:  # nothing keeps to all that was asked
                    pieces = self._pieces(sources[i])
                    best = [Prediction("", -math.inf, -math.inf, [], [], "stuck", pieces, sources[i].cut)]
                results[i] = replace(best[0], alternatives=best[1:], trace=self._named(traces.get(n), asked))
            if asked.attention and batch is not None:
                self._look(batch, results, rows, sources)
        yield from (result for result in results if result is not None)

    def _searched(
        self, window: list[Example], sources: list[Given], waiting: list[int], asked: Asked
    ) -> Iterator[tuple[list[int], Batch | None, Sequence[Sequence[Hypothesis]], Traces]]:
        """Some of the waiting rows, their batch, their results and how they were found, until none is left."""

        def limits(rows: list[int], lengths: Tensor) -> Limits:
            wishes, texts = [asked.wishes[i] for i in rows], [window[i].source for i in rows]
            found = self.limits(lengths, [asked.first + i for i in rows], wishes, texts, asked.trace)
            return found if asked.tell is None else replace(found, tell=by_place(asked.tell, found.numbers))

        plain = asked.attention or self.config.generation.ctc > 0  # which no engine knows
        if self.engine is not None and waiting and not plain:
            all_limits = limits(waiting, torch.tensor([len(sources[i].source) for i in waiting]))
            if self.engine.serves(asked.search, all_limits):
                with torch.inference_mode():
                    yield waiting, None, self.engine([sources[i].source for i in waiting], asked.search, all_limits), {}
                return
        for rows in self._batches(waiting, [given.longer for given in sources], asked.search.size):
            batch = collate([sources[i].row for i in rows], [asked.first + i for i in rows]).to(self.device)
            found, traces = self._search(batch, asked, partial(limits, rows))
            yield rows, batch, found, traces

    @torch.inference_mode()
    def _search(
        self, batch: Batch, asked: Asked, limits_for: Callable[[Tensor], Limits]
    ) -> tuple[list[list[Hypothesis]], Traces]:
        """The results of a batch, best first, and where it was asked for, how they were found."""
        self.model.eval()
        if self.model.head is not None:
            return self._answer(batch, asked.nbest), {}
        limits = limits_for(batch.source_lengths)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            if self.goes_on and not self.model.sees_whole_prefix:
                found = asked.search(self.go_on, lambda capacity: self.prompted(batch, capacity), limits)
            else:
                memory = self.model.encode(*batch.given)
                looks = asked.search.looks
                limits = replace(limits, rules=[*self._heard(memory), *limits.rules])
                found = asked.search(self.model.step, lambda room: self.model.start(memory, room, looks), limits)
        return found, limits.traces or {}

    def _heard(self, memory: Any) -> list[Rule]:
        """What the encoder alone hears, as a rule, where it has a say."""
        weight = self.config.generation.ctc
        if not weight:
            return []
        log_p, lengths = self.model.hear(memory)
        return [CTCPrefix(log_p, lengths, weight)]

    def limits(
        self, lengths: Tensor, numbers: list[int], wishes: Sequence[Constraints], sources: Sequence[str], trace: bool
    ) -> Limits:
        """What the results of some sources of these lengths must keep to, as the config and the wishes have it."""
        options = self.config.generation
        if self.codec.medium is not None:
            lengths = torch.tensor([self.states(n) for n in lengths.tolist()], device=lengths.device)
        longest = (lengths * options.ratio).long() + options.extra
        shortest = (lengths * options.shortest_ratio).long().clamp(min=options.shortest)
        for i, wish in enumerate(wishes):
            if wish == NOTHING:  # by far the most: each line below waits for the device
                continue
            needed = room(wish, sources[i], self.codec)
            longest[i] = longest[i].clamp(min=needed) if wish.longest is None else wish.longest
            if wish.shortest is not None:
                shortest[i] = wish.shortest
        longest = torch.maximum(longest, shortest.clamp(min=1))
        reach = self.model.longest_target
        if reach is not None:
            longest = torch.minimum(longest, reach - 1 - (lengths if self.model.one_sequence else 0 * lengths))
            longest = longest.clamp(min=1)
        shortest = torch.minimum(shortest, longest)
        rules = constraint_rules(wishes, sources, self.codec, options.no_repeat, options.repetition, options.unknown)
        return Limits(longest, shortest, numbers, rules, {} if trace else None)

    @property
    def _agrees(self) -> bool:
        """Whether results are chosen by how much they agree."""
        return self.config.generation.mbr is not None and self.model.head is None

    def _agreed(self, every: list[Prediction], asked: Asked) -> list[Prediction]:
        """Results by how much they agree with all of them, where the config wants minimum Bayes risk."""
        part = self.config.generation.mbr
        if part is None or not self._agrees or len(every) < 2:
            return every
        metric = metrics.build(part)
        sign = 1.0 if metric.higher_is_better else -1.0

        def utility(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
            statistics = metric.statistics(hypotheses, [[reference] for reference in references])
            return (sign * metric.score(statistics)).tolist()  # type: ignore[no-any-return]

        weights = None if asked.search.draws else mbr.posterior([p.log_prob for p in every])
        return [every[i] for i in mbr.choose([p.text for p in every], utility, weights)]

    def _named(self, trace: list[dict[str, Any]] | None, asked: Asked) -> list[dict[str, Any]] | None:
        """A trace with its tokens as pieces."""
        if not asked.trace or trace is None:
            return None
        return [node | {"piece": self.codec.target_pieces([node["token"]])[0]} for node in trace]

    def _example(self, source: str | Example) -> Example:
        """An input with its second source, where the model reads two and both stand in one line."""
        example = source if isinstance(source, Example) else Example(source)
        both = bool(example.second) or example.second_content is not None
        if self.codec.second is None or both or blank(example):
            return example
        first, _, second = example.source.partition("\t")
        if not second.strip():
            raise DataError(
                "the model reads two sources, and found one; put both on one line, with a tab between them",
                example.file or None,
                example.line or None,
            )
        return replace(example, source=first, second=second)

    def _read(self, example: Example) -> Given:
        """What the model reads of an input, as far as it reads."""
        nothing = blank(example)  # which names no file
        source = [] if nothing and self.codec.medium is not None else self.encode(example)
        second = None if nothing or self.codec.second is None else self.codec.encode_second(example)
        cut = example.cut or len(source) > self.longest
        if second is not None and len(second) > self.longest_second:
            second, cut = shortened(second, self.longest_second), True
        return Given(source if len(source) <= self.longest else shortened(source, self.longest), second, cut)

    def _pieces(self, given: Given) -> list[str]:
        """What stands at the positions that attention looks at."""
        first = self._labels(given.source, self.model, self.codec.medium is None)
        if given.second is None:
            return first
        return [*first, *self._labels(given.second, self.model.second, self.codec.second == "text")]

    def _labels(self, source: Source, part: Any, text: bool) -> list[str]:
        if not text:
            labels: list[str] = part.labels(len(source)) if len(source) else []
            return labels
        pieces = self.codec.target_pieces(source) if self.goes_on else self.codec.source_pieces(source)
        return pieces if part.stride == 1 else grouped(pieces, part.stride)

    def _look(self, batch: Batch, results: list[Prediction | None], rows: Sequence[int], sources: list[Given]) -> None:
        """Add to the results of a batch where the model looked for each of their tokens."""
        if self.model.head is not None:
            maps: Iterable[np.ndarray | None] = self._pooled(batch)
        elif self.goes_on:
            return
        else:
            maps = self.attend(batch, [found.ids for i in rows if (found := results[i]) is not None])
        for i, weights in zip(rows, maps, strict=True):
            found = results[i]
            assert found is not None
            picture = None if self.draws is None else self.draws(sources[i])
            results[i] = replace(found, attention=weights, medium=picture)

    # -- other shapes of models --------------------------------------------------------------------------------------

    @property
    def goes_on(self) -> bool:
        """Whether this is a language model: what it is given is the beginning of a text."""
        return self.objective.goes_on

    def encode(self, example: Example) -> Source:
        """What the model reads before it says anything."""
        if self.codec.medium is not None:
            return self.codec.medium.read(example)
        if self.goes_on:
            return self.codec.encode_target(example.source)[:-1]
        ids = self.codec.encode_source(example)
        return ids if self.objective.ends_source else ids[:-1]

    def prompted(self, batch: Batch, capacity: Capacity) -> Prompted:
        """Read <s> and the beginning of a text; the last of these tokens is left for the first step.

        Not so where a prefix is seen in both directions (UniLM): there it is a source of its own, and <s> comes after.
        """
        lengths = batch.source_lengths
        whole = torch.cat([torch.full_like(lengths[:, None], BOS), batch.source], 1)
        memory = self.model.encode(whole[:, :-1], lengths)
        last = whole.gather(1, lengths[:, None])
        return Prompted(self.model.start(memory, capacity), last, torch.ones_like(last, dtype=torch.bool))

    def go_on(self, tokens: Tensor, state: Prompted) -> tuple[Tensor, Prompted]:
        tokens = torch.where(state.fresh, state.last, tokens)
        log_p, after = self.model.step(tokens, state.state)
        return log_p, Prompted(after, state.last, torch.zeros_like(state.fresh))

    def _answer(self, batch: Batch, count: int) -> list[list[Hypothesis]]:
        """Labels from a head."""
        output = self.model.head(self.model.encode(*batch.given))
        log_p = torch.log_softmax(self.model.logits(output.o).float(), -1)
        return self.model.head.choose(log_p, batch.source_lengths, count)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def _pooled(self, batch: Batch) -> list[np.ndarray | None]:
        """What a head looked at."""
        output = self.model.head(self.model.encode(*batch.given))
        if output.attention is None:
            return [None] * len(batch)
        weights = output.attention.float().cpu().numpy()
        return [weights[i, :, :n] for i, n in enumerate(self._states(batch))]

    def _states(self, batch: Batch) -> list[int]:
        """How many states, of one source or two, stand for each row of a batch."""

        def states(part: Any, text: bool, n: int) -> int:
            return -(-n // part.stride) if text else len(part.labels(n))

        first = [states(self.model, self.codec.medium is None, n) for n in batch.source_lengths.tolist()]
        if batch.second_lengths is None:
            return first
        text = self.codec.second == "text"
        seconds = [states(self.model.second, text, n) for n in batch.second_lengths.tolist()]
        return [n + m for n, m in zip(first, seconds, strict=True)]

    def _prediction(self, hypothesis: Hypothesis, example: Example, given: Given) -> Prediction:
        said = [*given.source, *hypothesis.tokens] if self.goes_on else hypothesis.tokens
        return Prediction(
            self.codec.decode(said, example.source),
            hypothesis.score,
            hypothesis.total,
            self.codec.target_pieces(hypothesis.tokens),
            hypothesis.log_probs,
            hypothesis.ended,
            self._pieces(given),
            given.cut,
            ids=hypothesis.tokens,
        )

    def states(self, length: int) -> int:
        """What `generation.ratio` counts of a source of so many positions: tokens, or the states made of a medium's."""
        return length if self.codec.medium is None else len(self.model.labels(length))

    @cached_property
    def longest(self) -> int:
        """The most source positions that are read; what is longer is cut and flagged."""
        return self._positions(self.model, self.model.longest_source, self.codec.medium is None)

    @cached_property
    def longest_second(self) -> int:
        """The same of a second source."""
        return self._positions(self.model.second, self.model.longest_second, self.codec.second == "text")

    def _positions(self, part: Any, reach: int | None, text: bool) -> int:
        """How much of a source is read where the encoder's own positions reach so far; of sounds, several frames make
        one of these."""
        most = PATIENCE * shapes.longest_source(self.config)
        if reach is None or text:
            return most if reach is None else reach
        return bisect_right(range(1, most + 1), reach, key=lambda n: len(part.labels(n)))

    def _batches(self, rows: list[int], sources: list[Source], hypotheses: int) -> Iterator[list[int]]:
        """Rows of like length, as many as a budget of padded tokens allows."""
        budget = max((65536 if self.device.type == "cuda" else 4096) // hypotheses, 1)
        ordered = sorted(rows, key=lambda i: len(sources[i]), reverse=True)
        while ordered:
            count = max(budget // max(len(sources[ordered[0]]), 1), 1)
            yield ordered[:count]
            ordered = ordered[count:]

    # -- pairs → scores ----------------------------------------------------------------------------------------------

    def score(self, pairs: Iterable[tuple[str, str] | Example | str]) -> list[float]:
        """log p(target | source) of each pair; to a language model, log p of each text."""
        return [sum(tokens) for tokens in self.token_scores(pairs)]

    @torch.inference_mode()
    def token_scores(self, pairs: Iterable[tuple[str, str] | Example | str]) -> list[list[float]]:
        """log p of every target token, </s> included, for each pair."""
        self.model.eval()
        examples = [self._example(Example(*pair) if isinstance(pair, tuple) else pair) for pair in pairs]
        every = [self._row(example) for example in examples]
        results: list[list[float]] = [[] for _ in examples]
        sizes = [
            max((side for side in (row.source, row.target, row.second) if side is not None), key=len) for row in every
        ]
        for rows in self._batches(list(range(len(examples))), sizes, 1):
            batch = collate([every[i] for i in rows], rows).to(self.device)
            _, gold, _ = found = self.model(batch)
            log_probs = token_log_probs(found.logits, gold)
            for i, row, asked in zip(rows, log_probs.tolist(), (gold != PAD).tolist(), strict=True):
                results[i] = [p for p, real in zip(row, asked, strict=True) if real]
        return results

    def _row(self, example: Example) -> Row:
        """A pair, or a text, as the model would have learned from it."""
        if self.model.head is not None and not self.objective.paired:
            raise UserError("a masked language model gives no probability of a whole text; score with another model")
        if self.goes_on:
            text = example.source if example.target is None else example.target
            row = Row([], self.codec.encode_target(text))
        else:
            row = Row(self.encode(example), self.codec.encode_target(example.target or "", source=example.source))
        if self.model.head is not None:
            problem = self.objective.problem(row.source, row.target)
            if problem:
                raise DataError(
                    f"{problem}; see `dragoman list objectives`", example.file or None, example.line or None
                )
            row = self.objective(row.source, row.target, np.random.default_rng(0))
        both = self.states(len(row.source)) if self.model.one_sequence else 0
        if self.codec.second is not None:
            second = self.codec.encode_second(example)
            row = row._replace(second=second)
            self._reach("second source", len(second), self.model.longest_second and self.longest_second, example)
        self._reach("source", len(row.source), self.model.longest_source and self.longest, example)
        self._reach("target", len(row.target) + both, self.model.longest_target, example)
        return row

    @cached_property
    def objective(self) -> Objective:
        """What the model learned to predict from what."""
        objective = objectives.build(self.config.training.objective)
        objective.prepare(self.codec)
        return objective

    @staticmethod
    def _reach(side: str, length: int, longest: int | None, example: Example) -> None:
        """A pair is scored whole or not at all."""
        if longest is not None and length > longest:
            text = (
                f"the {side} has {length:,} tokens, and the model's positions reach only {longest:,}. Shorten the pair"
            )
            raise DataError(text, example.file or None, example.line or None)

    @torch.inference_mode()
    def attend(self, batch: Batch, targets: Sequence[Sequence[int]]) -> Iterator[np.ndarray | None]:
        """Where the decoder looked for each token of given targets (and </s>), from one watched pass."""
        forced = collate([([], [*target, EOS]) for target in targets], list(range(len(targets)))).to(self.device)
        with watching():
            memory = self.model.encode(*batch.given)
            output = self.model.decode(forced.target[:, :-1], memory)
        if output.attention is None:
            yield from (None for _ in targets)
            return
        weights = output.attention.float().cpu().numpy()
        for i, (target, length) in enumerate(zip(targets, self._states(batch), strict=True)):
            yield weights[i, : len(target) + 1, :length]


def grouped(pieces: Sequence[str], count: int) -> list[str]:
    """Pieces joined, so many at a time, as one state stands for them."""
    return ["".join(pieces[i : i + count]) for i in range(0, len(pieces), count)]


def shortened(ids: Source, longest: int) -> Source:
    """The beginning of a source that is too long; a text ends as every text does."""
    if isinstance(ids, list) and ids[-1] == EOS:
        return [*ids[: longest - 1], EOS]
    return ids[:longest]


def blank(example: Example) -> bool:
    """Whether there is nothing to read."""
    return not example.source.strip() and example.content is None


def _looks_in(medium: Any, places: Sequence[str]) -> Any:
    """A medium that looks in these places first; what is none, a text's, as it is."""
    if medium is None or isinstance(medium, str):
        return medium
    return replace(medium, files=(*places, *medium.files))


def by_place(tell: Tell, places: Sequence[int]) -> Callable[[Tensor, Tensor], None]:
    """What a search of the sources at some places tells, token by token."""

    def hear(rows: Tensor, tokens: Tensor) -> None:
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            tell(places[row], token)

    return hear


def for_each(constraints: Constraints | Sequence[Constraints] | None) -> Iterator[Constraints]:
    """The constraints of every source: the same for all, or one after the other."""
    if not isinstance(constraints, Sequence):
        yield from itertools.repeat(constraints or NOTHING)
        return
    yield from constraints
    raise UserError(f"there are more sources than sets of constraints, {len(constraints)}; give one for each, or one")


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else Apple's GPU, else the CPU; a device that is not there is an error."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, found in there.items() if found)
    if not there.get(name.split(":")[0], False):
        raise UserError(
            f"there is no device '{name}' here; use {' or '.join(k for k, found in there.items() if found)}"
        )
    if name.startswith("cuda"):  # cuDNN's RNNs would round to TF32: 1e-4 per token off the CPU's results
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)


def load(path: str | Path, device: str = "auto", *, precision: str | None = None, plain: bool = False) -> Pipeline:
    """A trained model from its model folder or run folder; `a+b` is an ensemble of two.

    `precision` is that of searching: float32, bfloat16 or int8 (None: as the config has it); `plain` turns the fast
    paths off.
    """
    place = pick_device(device)
    models = ensemble.open_models(path)
    return _opened(ensemble.as_one(models), models[0], place, precision, plain)


def load_fused(
    path: str | Path,
    lm: str | Path,
    weight: float,
    device: str = "auto",
    *,
    precision: str | None = None,
    plain: bool = False,
) -> Pipeline:
    """A trained model whose search a language model joins, log p + weight · log p_LM."""
    place, models, other = pick_device(device), ensemble.open_models(path), checkpoint.load(lm)
    ensemble.check_language_model(models[0], other)
    fused = ensemble.Fused(ensemble.as_one(models), other.model, weight)
    return _opened(fused, models[0], place, precision, plain)


def _opened(model: Any, first: checkpoint.Model, place: torch.device, precision: str | None, plain: bool) -> Pipeline:
    options = first.config.runtime
    precision = precision or options.precision
    if precision not in PRECISIONS:
        raise UserError(f"precision is '{precision}'; it must be one of {', '.join(PRECISIONS)}")
    fast = options.path == "fast" and not plain
    return Pipeline(model.to(place), first.codec, first.config, place, first.path, precision, fast)
