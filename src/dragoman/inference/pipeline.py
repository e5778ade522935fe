"""A trained model with its tokenizers on a device: text → text, and pairs → scores. What `import dragoman` offers.

    model = load("runs/g2p")
    model.predict(["dragoman"], beam=5, nbest=3)
    model.score([("dragoman", "D R AE G AH M AH N")])

Inputs are sorted by length and batched inside; neither changes a result, and results come back in the order of the
inputs. A blank input has a blank result. To a language model an input is the beginning of a text, which it continues; a
model with a head answers with labels. To a model with two sources an input is both, with a tab between them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import ValidationError
from pydantic_core import PydanticCustomError
from torch import Tensor

from dragoman.checkpoint import model_folder
from dragoman.config import Config
from dragoman.core.errors import DataError, UserError
from dragoman.core.generation import GenerationOptions, fields_of
from dragoman.core.registry import Part
from dragoman.core.types import PAD, UNK, Batch, Example, Hypothesis
from dragoman.data.batching import collate
from dragoman.data.objectives import TrainingRow
from dragoman.engines import base as engines
from dragoman.engines.base import Engine, EngineReport
from dragoman.engines.length_batches import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, batch_by_length
from dragoman.evaluation.metrics import Metric, metrics
from dragoman.inference import attention as attention_maps
from dragoman.inference import ensemble
from dragoman.inference.constraints import build_constraints
from dragoman.inference.decode_start import DecodeStart, start_decoding
from dragoman.inference.device import select_device
from dragoman.inference.inputs import InputProcessor, ModelInput, is_blank, with_media_roots
from dragoman.inference.windows import MEDIA_WINDOW, WINDOW, Window, cut_windows
from dragoman.nn.losses import token_log_probs
from dragoman.search import Search, SearchConstraints, Trace, apply_overrides, build_search, mbr
from dragoman.text.codec import Codec

logger = logging.getLogger("dragoman")

PairLike = tuple[str, str] | Example | str  # a pair to score; to a language model, a text
OnToken = Callable[[int, int], None]  # (the index of a source, a token of its output)
SourceOptions = tuple[str | Example, GenerationOptions | None]  # a source and its own options, if it has any

PRECISIONS = ("float32", "bfloat16", "int8")


@dataclass(frozen=True)
class Prediction:
    """One output; `alternatives` are the next best. Scores are log-probabilities: higher is better."""

    text: str
    score: float  # under the search's length rule
    log_prob: float  # of the whole sequence, a fused language model and CTC included
    tokens: list[str]
    log_probs: list[float]  # of each token, and of </s> where the output ended with it
    finish_reason: str  # "eos"; "length", the limit; "no_valid_token", constraints allow nothing; "empty_source"
    source_tokens: list[str]
    source_truncated: bool = False  # the source was too long and only its beginning was read
    alternatives: list[Prediction] = field(default_factory=list)
    attention: np.ndarray | None = None  # (target tokens with </s>, source tokens), on request
    media_preview: dict[str, Any] | None = field(default=None, repr=False)  # with attention: the picture of the source
    trace: Trace | None = None  # what the beam kept and dropped at each step, on request
    ids: list[int] = field(default_factory=list, repr=False)  # the tokens' ids


@dataclass(frozen=True)
class GenerationRequest:
    """What is asked of a pipeline: options for all sources, and what to return besides the outputs."""

    options: GenerationOptions
    search: Search
    attention: bool = False
    trace: bool = False
    on_token: OnToken | None = None


@dataclass
class Pipeline:
    """A model with its tokenizers, on a device."""

    model: Any  # a Seq2Seq, an ensemble, or a model fused with a language model
    codec: Codec
    config: Config
    device: torch.device
    path: Path | None = None
    precision: str = "float32"  # of decoding
    fast: bool = False  # use an engine where there is one; it copies the weights, which must not change any more

    preview_media: ClassVar[Callable[[Pipeline, ModelInput], dict[str, Any] | None] | None] = None  # set by __init__.py

    @cached_property
    def input_processor(self) -> InputProcessor:
        """What encodes inputs for the model."""
        return InputProcessor(self.model, self.codec, self.config)

    @property
    def continues_text(self) -> bool:
        """Whether this is a language model, whose input is the beginning of a text."""
        return self.input_processor.objective.continues_text

    @cached_property
    def _requests(self) -> dict[tuple[int | None, int | None, bool], GenerationRequest]:
        """Requests without options that were checked already, by (beam, nbest, trace)."""
        return {}

    @cached_property
    def engine(self) -> Engine | None:
        """The decoding engine for this model and device; None if there is none, or `fast` is false."""
        engine = None
        if self.fast:
            engine = engines.open_engine(self.model.eval(), self.device, self.precision, self.continues_text)
        if engine is None and self.precision == "int8":
            logger.warning("this model is not served in int8 here; its results are computed in float32")
        return engine

    def report_engines(self, request: GenerationRequest) -> EngineReport:
        """Report which engine decodes a request, and why the others do not."""
        decoding = engines.DecodingRequest.from_options(
            request.options,
            record_attention=request.attention,
            trace=request.trace,
            continues_text=self.continues_text,
        )
        return engines.report_engines(
            self.model, self.device, self.precision, decoding=decoding, reference_only=not self.fast
        )

    # -- text → text -----------------------------------------------------------------------------------------------

    def predict(
        self,
        sources: Sequence[str | Example],
        options: GenerationOptions | Sequence[GenerationOptions] | None = None,
        *,
        beam: int | None = None,
        nbest: int | None = None,
        attention: bool = False,
        trace: bool = False,
    ) -> list[Prediction]:
        """Predict an output for each source, in order; `beam=1` is greedy search.

        Options that are set override the config's `generation:`. They are one for all sources, or one for each, which
        may then differ in lengths and constraints. A trace needs a beam search.
        """
        if isinstance(options, Sequence) and len(options) != len(sources):
            raise UserError(f"there are {len(sources)} sources and {len(options)} options; give one for each, or one")
        return list(self.stream(sources, options, beam=beam, nbest=nbest, attention=attention, trace=trace))

    def stream(
        self,
        sources: Iterable[str | Example],
        options: GenerationOptions | Sequence[GenerationOptions] | None = None,
        *,
        beam: int | None = None,
        nbest: int | None = None,
        attention: bool = False,
        trace: bool = False,
        first_index: int = 0,
        on_token: OnToken | None = None,
    ) -> Iterator[Prediction]:
        """Predict for any number of sources: reads and answers one window of them at a time, in order.

        `first_index` is the index of the first source in the whole input; sampling depends on it. `on_token` is called
        with each token that a greedy search chooses; other searches may still change their choice and do not call it.
        """
        if isinstance(sources, str):
            raise UserError("predict takes a list of sources; for one source give a list with one: [source]")
        shared, own = (options[0] if options else None, options) if isinstance(options, Sequence) else (options, None)
        request = self.request(shared, beam=beam, nbest=nbest, attention=attention, trace=trace, on_token=on_token)
        pairs: Iterable[SourceOptions] = (
            ((source, None) for source in sources)
            if own is None
            else pair_options(sources, self._resolve(own, request, beam, nbest))
        )
        for window in cut_windows(pairs, size=self.window_size, first_index=first_index):
            yield from self.predict_window(window, request)

    def request(
        self,
        options: GenerationOptions | None = None,
        *,
        beam: int | None = None,
        nbest: int | None = None,
        attention: bool = False,
        trace: bool = False,
        on_token: OnToken | None = None,
    ) -> GenerationRequest:
        """Resolve options against the config; raise UserError if this model or its search cannot serve them."""
        if options is not None:
            return replace(self._check_request(options, beam, nbest, trace), attention=attention, on_token=on_token)
        key = beam, nbest, trace  # the same few again and again: resolving takes 0.1 ms
        if key not in self._requests:
            self._requests[key] = self._check_request(options, beam, nbest, trace)
        return replace(self._requests[key], attention=attention, on_token=on_token)

    def _check_request(
        self, options: GenerationOptions | None, beam: int | None, nbest: int | None, trace: bool
    ) -> GenerationRequest:
        """Resolve and check a request, without `attention` and `on_token`."""
        resolved = self.resolve_options(options, beam=beam, nbest=nbest)
        search = build_search(resolved)
        name = resolved.search.name
        if trace and not search.supports_trace:
            raise UserError(f"trace needs a beam search, and the search is '{name}'; set search to beam")
        if resolved.mbr is not None:
            build_mbr_metric(resolved.mbr)
        if resolved.replace_unk:
            attention_maps.check_replace_unk(self.input_processor)
        if resolved.force_phrases and not search.supports_force_phrases:
            raise UserError(f"force_phrases needs a beam search, and the search is '{name}'; set search to beam")
        if resolved.nbest > search.num_hypotheses and self.model.head is None:
            needs = "as many num_samples" if search.is_sampling else f"a beam of at least {resolved.nbest}"
            raise UserError(f"nbest {resolved.nbest} needs {needs}, not {search.num_hypotheses}")
        return GenerationRequest(resolved, search, trace=trace)

    def resolve_options(
        self, options: GenerationOptions | None = None, *, beam: int | None = None, nbest: int | None = None
    ) -> GenerationOptions:
        """Return the config's generation options, overridden by those set; `beam` and `nbest` override both."""
        overrides = options or GenerationOptions()
        for name, value in {"beam": beam, "nbest": nbest}.items():
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}; it must be at least 1")
        if beam is not None:
            overrides = overrides.merge(GenerationOptions(beam=beam))
        if nbest is not None:
            overrides = overrides.merge(GenerationOptions(nbest=nbest))
        for problem in overrides.problems():
            raise UserError(problem)
        return apply_overrides(self.config.generation, overrides)

    def _resolve(
        self, options: Sequence[GenerationOptions], request: GenerationRequest, beam: int | None, nbest: int | None
    ) -> list[GenerationOptions]:
        """Resolve the options of each source; raise UserError if they differ in more than lengths and constraints."""
        resolved = [self.resolve_options(one, beam=beam, nbest=nbest) for one in options]
        for one in resolved:
            for name in fields_of("search", "output"):
                if getattr(one, name) != getattr(request.options, name):
                    raise UserError(f"{name} differs between sources; only lengths and constraints may differ")
            if one.force_phrases and not request.search.supports_force_phrases:
                raise UserError(f"force_phrases needs a beam search, and the search is '{one.search.name}'")
        return resolved

    @property
    def window_size(self) -> int:
        """How many inputs are read and sorted together: fewer for media."""
        is_text = self.codec.modality is None and self.codec.second_source in (None, "text")
        return WINDOW if is_text else MEDIA_WINDOW

    @property
    def _max_tokens(self) -> int:
        """How many tokens are computed in one batch on this device."""
        return GPU_BATCH_TOKENS if self.device.type == "cuda" else CPU_BATCH_TOKENS

    def with_media_roots(self, roots: Sequence[str]) -> Pipeline:
        """Return a pipeline that searches these folders and archives first for media files; itself without any."""
        if not roots:
            return self
        other = replace(self, codec=with_media_roots(self.codec, roots))
        if "engine" in self.__dict__:  # which does not depend on where files are
            other.__dict__["engine"] = self.engine
        return other

    def predict_window(self, window: Window[SourceOptions], request: GenerationRequest) -> Iterator[Prediction]:
        """Predict for a window of sources. An input that cannot be read raises after the results of those before it."""
        examples: list[Example] = []
        inputs: list[ModelInput] = []
        error: Exception | None = None
        try:
            for source, _ in window.inputs:
                example = self.input_processor.to_example(source)
                inputs.append(self.input_processor.encode_input(example))
                examples.append(example)
        except Exception as raised:
            error = raised
        options = [own or request.options for _, own in window.inputs[: len(examples)]]
        yield from self._predict(examples, inputs, options, window.first_index, request)
        if error is not None:
            raise error

    def _predict(
        self,
        examples: list[Example],
        inputs: list[ModelInput],
        options: list[GenerationOptions],
        first_index: int,
        request: GenerationRequest,
    ) -> Iterator[Prediction]:
        """Yield the predictions of a window's encoded inputs in order; a blank source has an empty one."""
        results: list[Prediction | None] = [None] * len(examples)
        for i, example in enumerate(examples):
            if is_blank(example) and not self.continues_text:
                labels = self.input_processor.source_labels(inputs[i])
                results[i] = Prediction("", 0.0, 0.0, [], [], "empty_source", labels)
        pending = [i for i in range(len(examples)) if results[i] is None]
        nbest = request.options.nbest
        for rows, batch, nbest_lists, traces in self._search_all(
            examples, inputs, options, pending, first_index, request
        ):
            if not self._uses_mbr(request):  # only the outputs that are returned are decoded to text
                nbest_lists = [hypotheses[:nbest] for hypotheses in nbest_lists]
            predictions = [
                [self._to_prediction(hypothesis, examples[i], inputs[i]) for hypothesis in hypotheses]
                for i, hypotheses in zip(rows, nbest_lists, strict=True)
            ]
            if request.options.replace_unk:
                self._replace_unk(predictions, [examples[i] for i in rows], [inputs[i] for i in rows])
            for n, (i, candidates) in enumerate(zip(rows, predictions, strict=True)):
                best = self._rank_by_mbr(candidates, request)[:nbest]
                if not best:  # no output satisfies the constraints
                    labels, truncated = self.input_processor.source_labels(inputs[i]), inputs[i].source_truncated
                    best = [Prediction("", -math.inf, -math.inf, [], [], "no_valid_token", labels, truncated)]
                trace = self._with_pieces(traces.get(n)) if request.trace else None
                results[i] = replace(best[0], alternatives=best[1:], trace=trace)
            if request.attention and batch is not None:
                self._add_attention(batch, results, rows, inputs)
        yield from (result for result in results if result is not None)

    def _search_all(
        self,
        examples: list[Example],
        inputs: list[ModelInput],
        options: list[GenerationOptions],
        pending: list[int],
        first_index: int,
        request: GenerationRequest,
    ) -> Iterator[tuple[list[int], Batch | None, Sequence[Sequence[Hypothesis]], dict[int, Trace]]]:
        """Yield rows of the window with their batch, n-best lists and traces, by the engine or batch by batch."""

        def constraints(rows: list[int], lengths: Tensor) -> SearchConstraints:
            """Build the search constraints of some rows of the window."""
            indices = [first_index + i for i in rows]
            built = build_constraints(
                self.input_processor,
                lengths,
                indices,
                [options[i] for i in rows],
                [examples[i].source for i in rows],
                request.trace,
            )
            if request.on_token is None:
                return built
            return replace(built, on_token=by_input_index(request.on_token, indices))

        blocker = engines.request_blocker(request.attention, request.options.ctc_weight)
        if self.engine is not None and pending and blocker is None:
            all_constraints = constraints(pending, torch.tensor([len(inputs[i].source) for i in pending]))
            if self.engine.serves(request.search, all_constraints):
                with torch.inference_mode():
                    sources = [inputs[i].source for i in pending]
                    yield pending, None, self.engine(sources, request.search, all_constraints), {}
                return
        lengths = [len(inputs[i].longer_source) for i in pending]
        for indices in batch_by_length(lengths, self._max_tokens // request.search.num_hypotheses):
            rows = [pending[index] for index in indices]
            batch = collate([inputs[i].row for i in rows], [first_index + i for i in rows]).to(self.device)
            nbest_lists, traces = self._search_batch(batch, request, partial(constraints, rows))
            yield rows, batch, nbest_lists, traces

    @torch.inference_mode()
    def _search_batch(
        self, batch: Batch, request: GenerationRequest, constraints: Callable[[Tensor], SearchConstraints]
    ) -> tuple[list[list[Hypothesis]], dict[int, Trace]]:
        """Return the n-best lists of a batch, by search or by the label head, and their traces where requested."""
        self.model.eval()
        if self.model.head is not None:
            return self._predict_labels(batch, request.options.nbest), {}
        built = constraints(batch.source_lengths)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            step, start, ctc_processors = self.start_decoding(
                batch, request.search.needs_attention, request.options.ctc_weight
            )
            nbest_lists = request.search(step, start, replace(built, processors=[*ctc_processors, *built.processors]))
        return nbest_lists, built.traces or {}

    def _predict_labels(self, batch: Batch, count: int) -> list[list[Hypothesis]]:
        """Return the `count` best labels of a classification or tagging head for each row."""
        output = self.model.head(self.model.encode(*batch.encoder_inputs))
        log_p = torch.log_softmax(self.model.logits(output.o).float(), -1)
        return self.model.head.predict_labels(log_p, batch.source_lengths, count)  # type: ignore[no-any-return]

    def start_decoding(
        self, batch: Batch, with_attention: bool = False, ctc_weight: float | None = None
    ) -> DecodeStart:
        """Encode a batch and prepare its decoding; the CTC weight is the config's unless given."""
        weight = self.config.generation.ctc_weight if ctc_weight is None else ctc_weight
        return start_decoding(self.model.eval(), batch, self.continues_text, weight, with_attention)

    def _uses_mbr(self, request: GenerationRequest) -> bool:
        """Whether a request ranks by minimum Bayes risk; a model with a label head never does."""
        return request.options.mbr is not None and self.model.head is None

    def _rank_by_mbr(self, candidates: list[Prediction], request: GenerationRequest) -> list[Prediction]:
        """Return the candidates ranked by minimum Bayes risk if the request asks for it, else unchanged."""
        part = request.options.mbr
        if part is None or not self._uses_mbr(request) or len(candidates) < 2:
            return candidates
        metric = build_mbr_metric(part)
        sign = 1.0 if metric.higher_is_better else -1.0

        def utility(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
            """Score each hypothesis against its reference, higher being better."""
            statistics = metric.statistics(hypotheses, [[reference] for reference in references])
            return (sign * metric.score(statistics)).tolist()  # type: ignore[no-any-return]

        log_probs = [candidate.log_prob for candidate in candidates]
        weights = None if request.search.is_sampling else mbr.posterior_weights(log_probs)
        texts = [candidate.text for candidate in candidates]
        return [candidates[i] for i in mbr.rank_by_utility(texts, utility, weights)]

    def _with_pieces(self, trace: Trace | None) -> Trace | None:
        """Return a trace with the text piece of each token added; None stays None."""
        if trace is None:
            return None
        return [node | {"piece": self.codec.target_pieces([node["token"]])[0]} for node in trace]

    def _to_prediction(self, hypothesis: Hypothesis, example: Example, model_input: ModelInput) -> Prediction:
        """Turn a hypothesis into a Prediction; a language model's text includes the source."""
        ids = [*model_input.source, *hypothesis.tokens] if self.continues_text else hypothesis.tokens
        return Prediction(
            self.codec.decode(ids, example.source),
            hypothesis.score,
            hypothesis.total,
            self.codec.target_pieces(hypothesis.tokens),
            hypothesis.log_probs,
            hypothesis.finish_reason,
            self.input_processor.source_labels(model_input),
            model_input.source_truncated,
            ids=hypothesis.tokens,
        )

    # -- attention -----------------------------------------------------------------------------------------------------

    def _replace_unk(
        self, predictions: list[list[Prediction]], examples: list[Example], inputs: list[ModelInput]
    ) -> None:
        """Replace <unk> in the texts of predictions by the most attended source words, in place."""
        with_unk = [(n, k) for n, each in enumerate(predictions) for k, one in enumerate(each) if UNK in one.ids]
        targets = [predictions[n][k].ids for n, k in with_unk]
        texts = [examples[n].source for n, _ in with_unk]
        words = attention_maps.most_attended_words(
            self.input_processor, [inputs[n] for n, _ in with_unk], texts, targets, self._max_tokens, self.device
        )
        for (n, k), text, ids, replacements in zip(with_unk, texts, targets, words, strict=True):
            predictions[n][k] = replace(predictions[n][k], text=self.codec.decode(ids, text, replacements))

    def _add_attention(
        self, batch: Batch, results: list[Prediction | None], rows: Sequence[int], inputs: list[ModelInput]
    ) -> None:
        """Add attention weights and media preview to the results of a batch, in place; not for language models."""
        if self.model.head is not None:
            maps: Iterable[attention_maps.Weights] = attention_maps.pooling_attention(self.input_processor, batch)
        elif self.continues_text:
            return
        else:
            targets = [result.ids for i in rows if (result := results[i]) is not None]
            maps = attention_maps.attention_to_source(self.input_processor, batch, targets)
        for i, weights in zip(rows, maps, strict=True):
            result = results[i]
            assert result is not None
            preview = None if self.preview_media is None else self.preview_media(inputs[i])
            results[i] = replace(result, attention=weights, media_preview=preview)

    # -- pairs → scores ----------------------------------------------------------------------------------------------

    def score(self, pairs: Iterable[PairLike]) -> list[float]:
        """Return log p(target | source) of each pair; of a language model, log p of each text."""
        return [sum(tokens) for tokens in self.token_scores(pairs)]

    def token_scores(self, pairs: Iterable[PairLike]) -> list[list[float]]:
        """Return log p of every target token, </s> included, for each pair."""
        return list(self.stream_scores(pairs))

    def stream_scores(self, pairs: Iterable[PairLike], skip: bool = False) -> Iterator[list[float]]:
        """Yield token scores for any number of pairs: reads and scores one window of them at a time, in order.

        A pair that cannot be scored (longer than the model's positions, or an unreadable file) raises an error, or with
        `skip` gets an empty list.
        """
        for window in cut_windows(pairs, size=self.window_size):
            yield from self.score_window(window, skip)

    def score_window(self, window: Window[PairLike], skip: bool = False) -> Iterator[list[float]]:
        """Yield token scores of a window; a bad pair raises after those before it, or with `skip` yields []."""
        rows: list[TrainingRow | None] = []
        error: Exception | None = None
        for pair in window.inputs:
            try:
                example = self.input_processor.to_example(Example(*pair) if isinstance(pair, tuple) else pair)
                rows.append(self.input_processor.encode_pair(example))
            except DataError as raised:
                if not skip:
                    error = raised
                    break
                rows.append(None)
            except Exception as raised:
                error = raised
                break
        scores = iter(self._score_rows([row for row in rows if row is not None]))
        yield from ([] if row is None else next(scores) for row in rows)
        if error is not None:
            raise error

    @torch.inference_mode()
    def _score_rows(self, rows: list[TrainingRow]) -> list[list[float]]:
        """Return log p of every target token of each row, computed in batches by length."""
        self.model.eval()
        results: list[list[float]] = [[] for _ in rows]
        sides = [[side for side in (row.source, row.target, row.second_source) if side is not None] for row in rows]
        for indices in batch_by_length([max(map(len, each)) for each in sides], self._max_tokens):
            batch = collate([rows[i] for i in indices], indices).to(self.device)
            predicted = self.model(batch)
            log_probs = token_log_probs(predicted.logits, predicted.gold)
            for i, row, is_scored in zip(indices, log_probs.tolist(), (predicted.gold != PAD).tolist(), strict=True):
                results[i] = [p for p, real in zip(row, is_scored, strict=True) if real]
        return results


def build_mbr_metric(part: Part) -> Metric:
    """Build the metric of minimum Bayes risk decoding; a UserError says what is wrong with it."""
    try:
        return metrics.build(metrics.parse(part))
    except PydanticCustomError as error:
        raise UserError(f"mbr: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"mbr: {'.'.join(map(str, first['loc']))}: {first['msg']}, found {first['input']!r}") from None


def pair_options(
    sources: Iterable[str | Example], options: Sequence[GenerationOptions]
) -> Iterator[tuple[str | Example, GenerationOptions]]:
    """Yield each source with its own options; raise UserError if there are too few options."""
    remaining = iter(options)
    for source in sources:
        own = next(remaining, None)
        if own is None:
            raise UserError(f"there are more sources than options, {len(options)}; give one for each, or one")
        yield source, own


def by_input_index(on_token: OnToken, indices: Sequence[int]) -> Callable[[Tensor, Tensor], None]:
    """Wrap a token callback for a search: rows of the batch become indices in the whole input."""

    def call(rows: Tensor, tokens: Tensor) -> None:
        """Call `on_token` with the input index and token of each row."""
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            on_token(indices[row], token)

    return call


def load(path: str | Path, device: str = "auto", *, precision: str | None = None, reference: bool = False) -> Pipeline:
    """Load a trained model from its model folder or run folder; `a+b` is an ensemble of two.

    `precision` is that of decoding: float32, bfloat16 or int8 (None: the config's); `reference` turns the engines off.
    """
    selected = select_device(device)
    models = ensemble.load_models(path)
    return _build(ensemble.combine(models), models[0], selected, precision, reference)


def load_with_language_model(
    path: str | Path,
    lm: str | Path,
    weight: float,
    device: str = "auto",
    *,
    precision: str | None = None,
    reference: bool = False,
) -> Pipeline:
    """Load a model with a language model for shallow fusion, log p + weight · log p_LM."""
    selected, models, language_model = select_device(device), ensemble.load_models(path), model_folder.load(lm)
    ensemble.check_language_model(models[0], language_model)
    fused = ensemble.ShallowFusion(ensemble.combine(models), language_model.model, weight)
    return _build(fused, models[0], selected, precision, reference)


def _build(
    model: Any, first: model_folder.LoadedModel, device: torch.device, precision: str | None, reference: bool
) -> Pipeline:
    """Move a model to the device and wrap it as a Pipeline, with codec and config of `first`; checks the precision."""
    options = first.config.runtime
    precision = precision or options.precision
    if precision not in PRECISIONS:
        raise UserError(f"precision is '{precision}'; it must be one of {', '.join(PRECISIONS)}")
    fast = options.engine == "auto" and not reference
    return Pipeline(model.to(device), first.codec, first.config, device, first.path, precision, fast)
