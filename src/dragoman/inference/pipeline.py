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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from dragoman.checkpoint import model_folder
from dragoman.config import Config, validated_generation
from dragoman.core.errors import DataError, UserError
from dragoman.core.registry import Part
from dragoman.core.types import PAD, UNK, Batch, Example, Hypothesis
from dragoman.data.batching import collate
from dragoman.data.objectives import Row
from dragoman.engines import base
from dragoman.engines.base import Engine
from dragoman.engines.length_batches import ON_CPU, ON_GPU, batches
from dragoman.evaluation.metrics import metrics
from dragoman.inference import attention as looking
from dragoman.inference import device as devices
from dragoman.inference import ensemble
from dragoman.inference.constraints import Constraints
from dragoman.inference.decode_start import Beginning, begin
from dragoman.inference.inputs import Given, Reading, blank, looking_in
from dragoman.inference.length_limits import NOTHING, for_each, limits_for
from dragoman.nn.losses import token_log_probs
from dragoman.search import Limits, Search, mbr, searches
from dragoman.text.codec import Codec

logger = logging.getLogger("dragoman")

Traces = dict[int, list[dict[str, Any]]]  # by row
Input = TypeVar("Input")
Read = TypeVar("Read")
Tell = Callable[[int, int], None]  # (the place of a source, a token of its result)

WINDOW = 4096  # inputs that are sorted together while streaming
FILES = 128  # where they are files, all of which are held at once: 4,096 clips of 16 frames of 224 pixels are 10 GB
PRECISIONS = ("float32", "bfloat16", "int8")


@dataclass(frozen=True)
class Prediction:
    """One result; `alternatives` are the next best. Scores are log-probabilities: higher is better."""

    text: str
    score: float  # under the search's length rule
    log_prob: float  # of the whole sequence; what joins in a search (a language model, CTC) is part of it
    tokens: list[str]
    log_probs: list[float]  # of each token, and of </s> where the result ended by itself
    finish_reason: str  # "eos"; "length", the limit; "no_valid_token", constraints allow nothing; "empty_source"
    source_tokens: list[str]
    source_truncated: bool = False  # the source was too long and only its beginning was read
    alternatives: list[Prediction] = field(default_factory=list)
    attention: np.ndarray | None = None  # (target tokens with </s>, source tokens), on request
    media_preview: dict[str, Any] | None = field(
        default=None, repr=False
    )  # with it, the picture of a source that is no text
    trace: list[dict[str, Any]] | None = None  # what the beam kept and dropped at each step, on request
    ids: list[int] = field(default_factory=list, repr=False)  # the tokens as numbers


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
    def reading(self) -> Reading:
        """What it reads of an input."""
        return Reading(self.model, self.codec, self.config)

    @property
    def continues_text(self) -> bool:
        """Whether this is a language model: what it is given is the beginning of a text."""
        return self.reading.objective.continues_text

    @cached_property
    def engine(self) -> Engine | None:
        """The faster way to search on this device, if there is one for this model."""
        found = None
        if self.fast and self.model.head is None and not self.continues_text:
            found = base.engine(self.model.eval(), self.device, self.precision)
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
        if self.config.generation.replace_unknown:
            looking.check_replaces(self.reading)
        given = constraints if isinstance(constraints, Sequence) else [constraints or NOTHING]
        if not searching.seeks and any(wish.require for wish in given):
            raise UserError(f"required phrases need a beam, and the search is '{part.name}'; take another search")
        if nbest < 1 or (nbest > searching.size and self.model.head is None):
            what = "as many samples" if searching.draws else f"a beam of at least {nbest}"
            raise UserError(f"{nbest} best results need {what}, not {searching.size}")
        for window in windows(zip(sources, for_each(constraints), strict=False), self._held, self._read):
            wishes = [wish for _, _, wish in window]
            asked = Asked(searching, nbest, attention, trace, first, wishes, tell)
            yield from self._window([example for example, _, _ in window], [given for _, given, _ in window], asked)
            first += len(window)

    @property
    def _held(self) -> int:
        """How many inputs are sorted together."""
        return WINDOW if self.codec.modality is None and self.codec.second_source in (None, "text") else FILES

    @property
    def _tokens(self) -> int:
        """How many tokens are computed together."""
        return ON_GPU if self.device.type == "cuda" else ON_CPU

    def with_generation(
        self,
        *,
        no_repeat: int | None = None,
        repetition: float | None = None,
        unknown: bool | None = None,
        replace_unknown: bool | None = None,
        mbr: str | None = None,
    ) -> Pipeline:
        """The same with other settings of `generation` than the config's; None leaves one as it is."""
        given = {
            "no_repeat": no_repeat,
            "repetition": repetition,
            "unknown": unknown,
            "replace_unknown": replace_unknown,
            "mbr": mbr,
        }
        changes = {key: value for key, value in given.items() if value is not None}
        if not changes:
            return self
        generation = validated_generation(self.config, changes)
        return self._engine_shared(replace(self, config=self.config.model_copy(update={"generation": generation})))

    def with_files(self, places: Sequence[str]) -> Pipeline:
        """The same with more folders and archives in which the files that sources name are looked for, these first."""
        if not places:
            return self
        return self._engine_shared(replace(self, codec=looking_in(self.codec, places)))

    def _engine_shared(self, other: Pipeline) -> Pipeline:
        """The other with the engine that is here already, which knows nothing of generation and files."""
        if "engine" in self.__dict__:
            other.__dict__["engine"] = self.engine
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
        kept = {key: part.options[key] for key in searches.schema("beam").model_fields if key in part.options}
        return Part("greedy") if beam == nbest == 1 else Part("beam", {**kept, "size": beam})

    def _read(self, wanted: tuple[str | Example, Constraints]) -> tuple[Example, Given, Constraints]:
        source, wish = wanted
        example = self.reading.example(source)
        return example, self.reading.given(example), wish

    def _window(self, window: list[Example], sources: list[Given], asked: Asked) -> Iterator[Prediction]:
        results: list[Prediction | None] = [None] * len(window)
        for i, example in enumerate(window):
            if blank(example) and not self.continues_text:
                results[i] = Prediction("", 0.0, 0.0, [], [], "empty_source", self.reading.pieces(sources[i]))
        waiting = [i for i in range(len(window)) if results[i] is None]
        for rows, batch, found, traces in self._searched(window, sources, waiting, asked):
            if not self._agrees:  # nobody looks at more than was asked for
                found = [hypotheses[: asked.nbest] for hypotheses in found]
            said = [
                [self._prediction(h, window[i], sources[i]) for h in hypotheses]
                for i, hypotheses in zip(rows, found, strict=True)
            ]
            if self.config.generation.replace_unknown:
                self._replace_unknown(said, [window[i] for i in rows], [sources[i] for i in rows])
            for n, (i, every) in enumerate(zip(rows, said, strict=True)):
                best = self._agreed(every, asked)[: asked.nbest]
                if not best:  # nothing keeps to all that was asked
                    pieces = self.reading.pieces(sources[i])
                    best = [
                        Prediction(
                            "", -math.inf, -math.inf, [], [], "no_valid_token", pieces, sources[i].source_truncated
                        )
                    ]
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
            places = [asked.first + i for i in rows]
            found = limits_for(self.reading, lengths, places, wishes, texts, asked.trace)
            return found if asked.tell is None else replace(found, tell=by_place(asked.tell, places))

        plain = asked.attention or self.config.generation.ctc > 0  # which no engine knows
        if self.engine is not None and waiting and not plain:
            all_limits = limits(waiting, torch.tensor([len(sources[i].source) for i in waiting]))
            if self.engine.serves(asked.search, all_limits):
                with torch.inference_mode():
                    yield waiting, None, self.engine([sources[i].source for i in waiting], asked.search, all_limits), {}
                return
        lengths = [len(sources[i].longer) for i in waiting]
        for places in batches(lengths, self._tokens // asked.search.size):
            rows = [waiting[place] for place in places]
            batch = collate([sources[i].row for i in rows], [asked.first + i for i in rows]).to(self.device)
            found, traces = self._search(batch, asked, partial(limits, rows))
            yield rows, batch, found, traces

    @torch.inference_mode()
    def _search(
        self, batch: Batch, asked: Asked, limited: Callable[[Tensor], Limits]
    ) -> tuple[list[list[Hypothesis]], Traces]:
        """The results of a batch, best first, and where it was asked for, how they were found."""
        self.model.eval()
        if self.model.head is not None:
            return self._answer(batch, asked.nbest), {}
        limits = limited(batch.source_lengths)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            step, start, heard = self.begin(batch, asked.search.looks)
            found = asked.search(step, start, replace(limits, rules=[*heard, *limits.rules]))
        return found, limits.traces or {}

    def _answer(self, batch: Batch, count: int) -> list[list[Hypothesis]]:
        """Labels from a head."""
        output = self.model.head(self.model.encode(*batch.given))
        log_p = torch.log_softmax(self.model.logits(output.o).float(), -1)
        return self.model.head.choose(log_p, batch.source_lengths, count)  # type: ignore[no-any-return]

    def begin(self, batch: Batch, looks: bool = False) -> Beginning:
        """How a search of the batch begins; one that `looks` has a state that says where the model does."""
        return begin(self.model.eval(), batch, self.continues_text, self.config.generation.ctc, looks)

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

    def _prediction(self, hypothesis: Hypothesis, example: Example, given: Given) -> Prediction:
        said = [*given.source, *hypothesis.tokens] if self.continues_text else hypothesis.tokens
        return Prediction(
            self.codec.decode(said, example.source),
            hypothesis.score,
            hypothesis.total,
            self.codec.target_pieces(hypothesis.tokens),
            hypothesis.log_probs,
            hypothesis.finish_reason,
            self.reading.pieces(given),
            given.source_truncated,
            ids=hypothesis.tokens,
        )

    # -- where it looked ----------------------------------------------------------------------------------------------

    def _replace_unknown(self, said: list[list[Prediction]], window: list[Example], sources: list[Given]) -> None:
        """Put the words of the source that were looked at into the texts of results that have <unk>."""
        lacking = [(n, k) for n, every in enumerate(said) for k, found in enumerate(every) if UNK in found.ids]
        targets = [said[n][k].ids for n, k in lacking]
        texts = [window[n].source for n, _ in lacking]
        words = looking.pointed(
            self.reading, [sources[n] for n, _ in lacking], texts, targets, self._tokens, self.device
        )
        for (n, k), text, ids, unknown in zip(lacking, texts, targets, words, strict=True):
            said[n][k] = replace(said[n][k], text=self.codec.decode(ids, text, unknown))

    def _look(self, batch: Batch, results: list[Prediction | None], rows: Sequence[int], sources: list[Given]) -> None:
        """Add to the results of a batch where the model looked for each of their tokens."""
        if self.model.head is not None:
            maps: Iterable[looking.Weights] = looking.pooled(self.reading, batch)
        elif self.continues_text:
            return
        else:
            targets = [found.ids for i in rows if (found := results[i]) is not None]
            maps = looking.attend(self.reading, batch, targets)
        for i, weights in zip(rows, maps, strict=True):
            found = results[i]
            assert found is not None
            picture = None if self.draws is None else self.draws(sources[i])
            results[i] = replace(found, attention=weights, media_preview=picture)

    # -- pairs → scores ----------------------------------------------------------------------------------------------

    def score(self, pairs: Iterable[tuple[str, str] | Example | str]) -> list[float]:
        """log p(target | source) of each pair; to a language model, log p of each text."""
        return [sum(tokens) for tokens in self.token_scores(pairs)]

    def token_scores(self, pairs: Iterable[tuple[str, str] | Example | str]) -> list[list[float]]:
        """log p of every target token, </s> included, for each pair."""
        return list(self.stream_scores(pairs))

    def stream_scores(
        self, pairs: Iterable[tuple[str, str] | Example | str], skip: bool = False
    ) -> Iterator[list[float]]:
        """The same for any number of pairs: reads and answers a window at a time, in order.

        A pair that cannot be scored (longer than the model's positions, or a file that cannot be read) stops it, or
        has no tokens where such pairs are to be skipped.
        """

        def row(pair: tuple[str, str] | Example | str) -> Row | None:
            try:
                return self.reading.row(self.reading.example(Example(*pair) if isinstance(pair, tuple) else pair))
            except DataError:
                if skip:
                    return None
                raise

        for every in windows(iter(pairs), self._held, row):
            found = iter(self._scored([one for one in every if one is not None]))
            yield from ([] if one is None else next(found) for one in every)

    @torch.inference_mode()
    def _scored(self, every: list[Row]) -> list[list[float]]:
        self.model.eval()
        results: list[list[float]] = [[] for _ in every]
        lengths = [
            max(len(side) for side in (row.source, row.target, row.second_source) if side is not None) for row in every
        ]
        for rows in batches(lengths, self._tokens):
            batch = collate([every[i] for i in rows], rows).to(self.device)
            _, gold, _ = found = self.model(batch)
            log_probs = token_log_probs(found.logits, gold)
            for i, row, asked in zip(rows, log_probs.tolist(), (gold != PAD).tolist(), strict=True):
                results[i] = [p for p, real in zip(row, asked, strict=True) if real]
        return results


def windows(inputs: Iterator[Input], size: int, read: Callable[[Input], Read]) -> Iterator[list[Read]]:
    """What is read of the inputs, so many at a time. An input that cannot be read stops after those before it."""
    problem: Exception | None = None
    while problem is None:
        window: list[Read] = []
        try:
            for one in itertools.islice(inputs, size):
                window.append(read(one))  # noqa: PERF401 - what was read before an error is kept
        except Exception as error:
            problem = error
        if not window:
            break
        yield window
    if problem is not None:
        raise problem


def by_place(tell: Tell, places: Sequence[int]) -> Callable[[Tensor, Tensor], None]:
    """What a search of the sources at some places tells, token by token."""

    def ctc_log_probs(rows: Tensor, tokens: Tensor) -> None:
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            tell(places[row], token)

    return ctc_log_probs


def load(path: str | Path, device: str = "auto", *, precision: str | None = None, plain: bool = False) -> Pipeline:
    """A trained model from its model folder or run folder; `a+b` is an ensemble of two.

    `precision` is that of searching: float32, bfloat16 or int8 (None: as the config has it); `plain` turns the fast
    paths off.
    """
    place = devices.pick(device)
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
    place, models, other = devices.pick(device), ensemble.open_models(path), model_folder.load(lm)
    ensemble.check_language_model(models[0], other)
    fused = ensemble.Fused(ensemble.as_one(models), other.model, weight)
    return _opened(fused, models[0], place, precision, plain)


def _opened(model: Any, first: model_folder.Model, place: torch.device, precision: str | None, plain: bool) -> Pipeline:
    options = first.config.runtime
    precision = precision or options.precision
    if precision not in PRECISIONS:
        raise UserError(f"precision is '{precision}'; it must be one of {', '.join(PRECISIONS)}")
    fast = options.path == "fast" and not plain
    return Pipeline(model.to(place), first.codec, first.config, place, first.path, precision, fast)
