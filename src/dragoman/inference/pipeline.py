"""A trained model with its tokenizers on a device: text → text, and pairs → scores. What `import dragoman` offers.

    model = load("runs/g2p")
    model.predict(["dragoman"], beam=5, nbest=3)
    model.score([("dragoman", "D R AE G AH M AH N")])

Inputs are sorted by length and batched inside; neither changes a result, and results come back in the order of the
inputs. A blank input has a blank result. A language model continues its input; a model with a head answers with labels.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.checkpoint import model_folder
from dragoman.config import Config
from dragoman.core.errors import UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.types import UNK, Batch, Example, Hypothesis
from dragoman.data.batching import collate
from dragoman.engines import base as engines
from dragoman.engines.base import Engine, EngineReport
from dragoman.engines.length_batches import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, batch_by_length
from dragoman.inference import attention as attention_maps
from dragoman.inference import ensemble, scoring
from dragoman.inference.constraints import OnToken, build_constraints
from dragoman.inference.decode_start import DecodeStart, start_decoding
from dragoman.inference.device import select_device
from dragoman.inference.inputs import InputProcessor, ModelInput, is_blank, with_media_roots
from dragoman.inference.prediction import Prediction
from dragoman.inference.request import GenerationRequest, build_request, check_differences, resolve_options
from dragoman.inference.reranking import rank_by_mbr
from dragoman.inference.scoring import PairLike
from dragoman.inference.windows import MEDIA_WINDOW, WINDOW, Window, cut_windows
from dragoman.nn.losses import output_log_probs
from dragoman.search import SearchConstraints, Trace
from dragoman.text.codec import Codec

logger = logging.getLogger("dragoman")

SourceOptions = tuple[str | Example, GenerationOptions]

PRECISIONS = ("float32", "bfloat16", "int8")


@dataclass
class EncodedSource:
    """A source as the model reads it, with its options and its index in the whole input."""

    index: int
    example: Example
    input: ModelInput
    options: GenerationOptions


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
    # Set by dragoman/__init__.py, too: what these need stands above inference.
    evaluate: ClassVar[Callable[..., Any]]
    alignment: ClassVar[Callable[..., Any]]
    beam_tree: ClassVar[Callable[..., Any]]
    steps: ClassVar[Callable[..., Any]]
    blame: ClassVar[Callable[..., Any]]

    def __repr__(self) -> str:
        model, parameters = self.config.model, sum(p.numel() for p in self.model.parameters())
        last = model.decoder or model.head
        shape = f"{model.encoder.name} → {last.name if last is not None else 'none'}"
        return f"<Pipeline {self.path or 'without a folder'}: {shape}, {parameters:,} parameters, on {self.device}>"

    @cached_property
    def input_processor(self) -> InputProcessor:
        """What encodes inputs for the model."""
        return InputProcessor(self.model, self.codec, self.config)

    @property
    def continues_text(self) -> bool:
        """Whether this is a language model, whose input is the beginning of a text."""
        return self.input_processor.objective.continues_text

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

    def engine_name(self, request: GenerationRequest) -> str:
        """The name of the engine that decodes a request."""
        return engines.chosen_engine(self.report_engines(request).decoding)

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
        token_log_probs: bool = True,
    ) -> list[Prediction]:
        """Predict an output for each source, in order; `beam=1` is greedy search.

        Options that are set override the config's `generation:`. They are one for all sources, or one for each, which
        may then differ in lengths and constraints. A trace needs a beam search. Without `token_log_probs` an engine
        may save the time for them.
        """
        wanted: dict[str, Any] = {"attention": attention, "trace": trace, "token_log_probs": token_log_probs}
        return list(self.stream(sources, options, beam=beam, nbest=nbest, **wanted))

    def stream(
        self,
        sources: Iterable[str | Example],
        options: GenerationOptions | Sequence[GenerationOptions] | None = None,
        *,
        beam: int | None = None,
        nbest: int | None = None,
        attention: bool = False,
        trace: bool = False,
        token_log_probs: bool = True,
        first_index: int = 0,
        on_token: OnToken | None = None,
    ) -> Iterator[Prediction]:
        """Predict for any number of sources: reads and answers one window of them at a time, in order.

        `first_index` is the index of the first source in the whole input; sampling depends on it. `on_token` is called
        with each token that a greedy search chooses; other searches may still change their choice and do not call it.
        """
        check_is_list(sources, "predict", "sources")
        own: list[GenerationOptions] | None = None
        if isinstance(options, Sequence):
            sources, own = list(sources), list(options)
            if len(own) != len(sources):
                raise UserError(f"there are {len(sources)} sources and {len(own)} options; give one for each, or one")
            options = own[0] if own else None
        wanted: dict[str, Any] = {"attention": attention, "trace": trace, "token_log_probs": token_log_probs}
        request = self.request(options, beam=beam, nbest=nbest, on_token=on_token, **wanted)
        resolved: Iterable[GenerationOptions] = repeat(request.options)
        if own is not None:
            resolved = own = [self.resolve_options(one, beam=beam, nbest=nbest) for one in own]
            check_differences(own, request)
        for window in cut_windows(zip(sources, resolved, strict=False), size=self.window_size, first_index=first_index):
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
        token_log_probs: bool = True,
    ) -> GenerationRequest:
        """Resolve options against the config; raise UserError if this model or its search cannot serve them."""
        resolved = self.resolve_options(options, beam=beam, nbest=nbest)
        return build_request(self.input_processor, resolved, attention, trace, on_token, token_log_probs)

    def resolve_options(
        self, options: GenerationOptions | None = None, *, beam: int | None = None, nbest: int | None = None
    ) -> GenerationOptions:
        """Return the config's generation options, overridden by those set; `beam` and `nbest` override both."""
        return resolve_options(self.config.generation, options, beam, nbest)

    @property
    def reads_media(self) -> bool:
        """Whether the first or the second source is a media file."""
        return self.codec.modality is not None or self.codec.second_source not in (None, "text")

    @property
    def window_size(self) -> int:
        """How many inputs are read and sorted together: fewer for media."""
        return MEDIA_WINDOW if self.reads_media else WINDOW

    @property
    def _max_tokens(self) -> int:
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
        encoded: list[EncodedSource] = []
        error: Exception | None = None
        try:
            for index, (source, options) in enumerate(window.inputs, window.first_index):
                example = self.input_processor.to_example(source)
                encoded.append(EncodedSource(index, example, self.input_processor.encode_input(example), options))
        except Exception as raised:
            error = raised
        yield from self._predict(encoded, request)
        if error is not None:
            raise error

    def _predict(self, sources: list[EncodedSource], request: GenerationRequest) -> Iterator[Prediction]:
        """Yield the predictions of a window in order; a blank source has an empty one."""
        results: dict[int, Prediction] = {}
        pending: list[EncodedSource] = []
        for source in sources:
            if is_blank(source.example) and not self.continues_text:
                labels = self.input_processor.source_labels(source.input)
                results[source.index] = Prediction("", 0.0, 0.0, [], [], "empty_source", labels)
            else:
                pending.append(source)
        nbest = request.options.nbest
        for rows, batch, nbest_lists, traces in self._search_all(pending, request):
            if request.mbr_metric is None:  # only the outputs that are returned are decoded to text
                nbest_lists = [hypotheses[:nbest] for hypotheses in nbest_lists]
            if request.token_log_probs and self.engine is not None and lacks_token_log_probs(nbest_lists):
                nbest_lists = self.engine.add_token_log_probs([row.input.source for row in rows], nbest_lists)
            predictions = [
                [self._to_prediction(hypothesis, row) for hypothesis in hypotheses]
                for row, hypotheses in zip(rows, nbest_lists, strict=True)
            ]
            if request.options.replace_unk:
                self._replace_unk(predictions, rows)
            for n, (row, candidates) in enumerate(zip(rows, predictions, strict=True)):
                if request.mbr_metric is not None:
                    candidates = rank_by_mbr(candidates, request.mbr_metric, request.search.is_sampling)
                best = candidates[:nbest]
                if not best:  # no output satisfies the constraints
                    labels, truncated = self.input_processor.source_labels(row.input), row.input.source_truncated
                    best = [Prediction("", -math.inf, -math.inf, [], [], "no_valid_token", labels, truncated)]
                trace = traces.get(n)
                if trace is not None:
                    trace = [node | {"piece": self.codec.target.pieces([node["token"]])[0]} for node in trace]
                results[row.index] = replace(best[0], alternatives=best[1:], trace=trace)
            if request.attention and batch is not None:
                self._add_attention(batch, results, rows)
        yield from (results[source.index] for source in sources)

    def _search_all(
        self, pending: list[EncodedSource], request: GenerationRequest
    ) -> Iterator[tuple[list[EncodedSource], Batch | None, Sequence[Sequence[Hypothesis]], dict[int, Trace]]]:
        """Yield sources with their batch, n-best lists and traces, by the engine or batch by batch."""
        blocker = engines.request_blocker(request.attention, request.options.ctc_weight)
        if self.engine is not None and pending and blocker is None:
            sources = [row.input.source for row in pending]
            constraints = self._constraints(pending, torch.tensor([len(source) for source in sources]), request)
            if self.engine.serves(request.search, constraints):
                with torch.inference_mode():
                    nbest_lists = self.engine(sources, request.search, constraints)
                yield pending, None, nbest_lists, {}
                return
        lengths = [len(row.input.longer_source) for row in pending]
        for indices in batch_by_length(lengths, self._max_tokens // request.search.num_hypotheses):
            rows = [pending[index] for index in indices]
            batch = collate([row.input.row for row in rows], [row.index for row in rows]).to(self.device)
            yield rows, batch, *self._search_batch(batch, rows, request)

    def _constraints(self, rows: list[EncodedSource], lengths: Tensor, request: GenerationRequest) -> SearchConstraints:
        indices, options = [row.index for row in rows], [row.options for row in rows]
        examples = [row.example for row in rows]
        reports = request.trace, request.on_token
        return build_constraints(self.input_processor, lengths, indices, options, examples, *reports)

    @torch.inference_mode()
    def _search_batch(
        self, batch: Batch, rows: list[EncodedSource], request: GenerationRequest
    ) -> tuple[list[list[Hypothesis]], dict[int, Trace]]:
        """Return the n-best lists of a batch, by search or by the label head, and their traces where requested."""
        self.model.eval()
        if self.model.head is not None:
            output = self.model.head(self.model.encode(*batch.encoder_inputs))
            log_p = output_log_probs(self.model.logits(output.o))
            return self.model.head.predict_labels(log_p, batch.source_lengths, request.options.nbest), {}
        constraints = self._constraints(rows, batch.source_lengths, request)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            step, start, ctc_processors = self.start_decoding(
                batch, request.search.needs_attention, request.options.ctc_weight
            )
            processors = [*ctc_processors, *constraints.processors]
            nbest_lists = request.search(step, start, replace(constraints, processors=processors))
        return nbest_lists, constraints.traces or {}

    def start_decoding(
        self, batch: Batch, with_attention: bool = False, ctc_weight: float | None = None
    ) -> DecodeStart:
        """Encode a batch and prepare its decoding; the CTC weight is the config's unless given."""
        weight = self.config.generation.ctc_weight if ctc_weight is None else ctc_weight
        return start_decoding(self.model.eval(), batch, self.continues_text, weight, with_attention)

    def _to_prediction(self, hypothesis: Hypothesis, row: EncodedSource) -> Prediction:
        # A language model's text includes the source.
        ids = [*row.input.source, *hypothesis.tokens] if self.continues_text else hypothesis.tokens
        return Prediction(
            self.codec.decode(ids, row.example.source),
            hypothesis.score,
            hypothesis.total,
            self.codec.target.pieces(hypothesis.tokens),
            hypothesis.log_probs,
            hypothesis.finish_reason,
            self.input_processor.source_labels(row.input),
            row.input.source_truncated,
            ids=hypothesis.tokens,
        )

    # -- attention -----------------------------------------------------------------------------------------------------

    def _replace_unk(self, predictions: list[list[Prediction]], rows: list[EncodedSource]) -> None:
        """Replace <unk> in the texts of predictions by the most attended source words, in place."""
        with_unk = [(n, k) for n, each in enumerate(predictions) for k, one in enumerate(each) if UNK in one.ids]
        targets = [predictions[n][k].ids for n, k in with_unk]
        texts = [rows[n].example.source for n, _ in with_unk]
        inputs = [rows[n].input for n, _ in with_unk]
        words = attention_maps.most_attended_words(
            self.input_processor, inputs, texts, targets, self._max_tokens, self.device
        )
        for (n, k), text, ids, replacements in zip(with_unk, texts, targets, words, strict=True):
            predictions[n][k] = replace(predictions[n][k], text=self.codec.decode(ids, text, replacements))

    def _add_attention(self, batch: Batch, results: dict[int, Prediction], rows: list[EncodedSource]) -> None:
        """Add attention weights and media preview to the results of a batch, in place; not for language models."""
        if self.model.head is not None:
            maps = attention_maps.pooling_attention(self.input_processor, batch)
        elif self.continues_text:
            return
        else:
            targets = [results[row.index].ids for row in rows]
            maps = attention_maps.attention_to_source(self.input_processor, batch, targets)
        for row, weights in zip(rows, maps, strict=True):
            preview = None if self.preview_media is None else self.preview_media(row.input)
            results[row.index] = replace(results[row.index], attention=weights, media_preview=preview)

    # -- pairs → scores ----------------------------------------------------------------------------------------------

    def score(self, pairs: Iterable[PairLike]) -> list[float]:
        """Return log p(target | source) of each pair; of a language model, log p of each text."""
        return [sum(tokens) for tokens in self.token_scores(pairs)]

    def token_scores(self, pairs: Iterable[PairLike]) -> list[list[float]]:
        """Return log p of every target token, </s> included, for each pair."""
        check_is_list(pairs, "score", "pairs")
        windows = cut_windows(pairs, size=self.window_size)
        return [scores for window in windows for scores in self.score_window(window)]

    def score_window(self, window: Window[PairLike], skip: bool = False) -> Iterator[list[float]]:
        """Yield token scores of a window; a bad pair raises after those before it, or with `skip` yields []."""
        return scoring.score_window(self.input_processor, window, self._max_tokens, self.device, skip)


def lacks_token_log_probs(nbest_lists: Sequence[Sequence[Hypothesis]]) -> bool:
    """Whether an engine has returned log p of whole outputs alone."""
    return any(hypothesis.sum_log_probs is not None for nbest in nbest_lists for hypothesis in nbest)


def check_is_list(values: Any, function: str, name: str) -> None:
    """Raise UserError if what should be a list of texts, or an iterator, is one text or nothing of the kind."""
    if isinstance(values, str | bytes | Example) or not isinstance(values, Iterable):
        found = type(values).__name__
        raise UserError(f"{function} takes a list of {name}, found {found}; for one give a list: [{name[:-1]}]")


def load(
    path: str | Path,
    device: str = "auto",
    *,
    precision: str | None = None,
    reference: bool = False,
    lm: str | Path | None = None,
    lm_weight: float = 0.3,
) -> Pipeline:
    """Load a trained model from its model folder or run folder; `a+b` is an ensemble of two.

    `precision` is that of decoding: float32, bfloat16 or int8 (None: the config's); `reference` turns the engines off.
    `lm` is a language model for shallow fusion, log p + lm_weight · log p_LM.
    """
    for name, value in {"path": path, "device": device, "lm": lm or ""}.items():
        if not isinstance(value, str if name == "device" else str | Path):
            raise UserError(f"{name} must be a text{'' if name == 'device' else ' or a Path'}, found {value!r:.60}")
    selected, models = select_device(device), ensemble.load_models(path)
    first = models[0]
    model: nn.Module = ensemble.combine(models)
    if lm is not None:
        language_model = model_folder.load(lm)
        ensemble.check_language_model(first, language_model)
        model = ensemble.ShallowFusion(ensemble.combine(models), language_model.model, lm_weight)
    precision = precision or first.config.runtime.precision
    if precision not in PRECISIONS:
        raise UserError(f"precision is '{precision}'; it must be one of {', '.join(PRECISIONS)}")
    fast = first.config.runtime.engine == "auto" and not reference
    return Pipeline(model.to(selected), first.codec, first.config, selected, first.path, precision, fast)
