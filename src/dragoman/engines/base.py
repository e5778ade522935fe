"""Which engine trains and decodes a model, and why the others do not.

    training    fused_transformer   packed rows, fused kernels, each step one CUDA graph        training/graph_step.py
                compiled            packed rows, compiled modules, each step one CUDA graph     training/graph_step.py
                rnn_graph           padded rows, the decoder's loop one CUDA graph              training/rnn_graph.py
                reference           padded rows, the model's own modules                        nn/
    decoding    cuda                sentences in slots, each step one CUDA graph                cuda/
                ctranslate2         greedy and beam search by CTranslate2                       cpu/ctranslate2.py
                cpu                 a Transformer's step on repacked weights                    cpu/
                reference           the model's own step and the search's own loop              nn/, search/

A blocker is the reason why an engine does not serve a model or a request, as a sentence without its full stop; None
means that it does. `report_engines` collects all of them, and engines are opened by the same functions, so that the
report says what happens. `runtime: reference` in a config, or `--reference`, allows no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dragoman.config import Config, RuntimeOptions, TrainingOptions, build_meta_model
from dragoman.core.generation import GenerationOptions, fields_of
from dragoman.core.types import Hypothesis
from dragoman.data.objectives import objectives
from dragoman.engines.cpu import ctranslate2
from dragoman.engines.cpu import engine as cpu
from dragoman.engines.cpu.transformer_step import encoder_blocker
from dragoman.engines.cuda import engine as cuda
from dragoman.engines.cuda.encode import packed_encoder_blocker
from dragoman.engines.cuda.step import transformer_step_blocker
from dragoman.engines.training.fused_transformer import fused_transformer_blocker
from dragoman.engines.training.graph_step import GraphStep, graph_step_blocker
from dragoman.engines.training.rnn_graph import CapturedLoop, captured_loop_blocker
from dragoman.nn.frontends.tokens import TokenEmbedding
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Search, SearchConstraints, build_search
from dragoman.search.logits_processors import NoUnkProcessor

NOT_ALLOWED = "runtime.engine is 'reference'"


class Engine(Protocol):
    """A faster way to the n-best lists of a search, in the order of the sources, for the requests that it serves."""

    name: str

    def serves(self, search: Search, limits: SearchConstraints) -> bool: ...

    def __call__(
        self, sources: Sequence[Sequence[int]], search: Search, limits: SearchConstraints
    ) -> Sequence[Sequence[Hypothesis]]:
        """Decode; the hypotheses may have log p of the whole output alone."""

    def add_token_log_probs(
        self, sources: Sequence[Sequence[int]], nbest_lists: Sequence[Sequence[Hypothesis]]
    ) -> Sequence[Sequence[Hypothesis]]:
        """The hypotheses that it found for some sources, with log p of their tokens."""


# -- the report --------------------------------------------------------------------------------------------------------


EngineChoices = dict[str, str | None]  # engine → why it is not used, None for the one that is; the preferred first


@dataclass(frozen=True)
class DecodingRequest:
    """What is asked of decoding, as far as it decides the engine."""

    search: Search
    constraints: SearchConstraints
    record_attention: bool = False
    ctc_weight: float = 0.0
    continues_text: bool = False  # the model is a language model, whose input is the beginning of a text

    @classmethod
    def from_options(
        cls,
        options: GenerationOptions,
        *,
        record_attention: bool = False,
        trace: bool = False,
        continues_text: bool = False,
    ) -> DecodingRequest:
        """A request with these options for many sentences, with stand-in constraints: only what decides the engine."""
        is_constrained = any(name in options.explicit for name in fields_of("constraint"))
        has_min_length = options.min_new_tokens > 0 or options.min_length_ratio > 0
        constraints = SearchConstraints(
            torch.tensor([options.max_new_tokens or 0]),
            int(has_min_length),
            processors=[NoUnkProcessor()] if is_constrained else [],
            traces={} if trace else None,
        )
        return cls(build_search(options), constraints, record_attention, options.ctc_weight, continues_text)


@dataclass(frozen=True)
class EngineReport:
    """Which engines are used for a model on a device."""

    device: str
    training: EngineChoices  # empty: the report is about decoding alone
    decoding: EngineChoices
    notes: list[str]  # what else a user may wonder about

    def lines(self) -> Iterator[str]:
        """The report as lines of text: the chosen engines, the blockers of the others, and the notes."""
        for purpose, choices in {"training": self.training, "decoding": self.decoding}.items():
            if choices:
                yield f"{purpose} on {self.device}: {chosen_engine(choices)}"
                yield from (f"  not {name}: {blocker}" for name, blocker in choices.items() if blocker is not None)
        yield from (f"  note: {note}" for note in self.notes)


def chosen_engine(choices: EngineChoices) -> str:
    """The name of the one engine without a blocker."""
    return next(name for name, blocker in choices.items() if blocker is None)


def choose_first(candidates: Iterable[tuple[str, str | None]]) -> EngineChoices:
    """All engines with blockers: the first without one is chosen, later ones yield to it; the reference comes last."""
    choices: EngineChoices = {}
    chosen: str | None = None
    for name, blocker in (*candidates, ("reference", None)):
        if blocker is None and chosen is not None:
            blocker = f"{chosen} is preferred"
        elif blocker is None:
            chosen = name
        choices[name] = blocker
    return choices


def report_engines(
    model: object,
    device: torch.device,
    precision: str = "float32",
    *,
    decoding: DecodingRequest,
    training: TrainingOptions | None = None,
    runtime: RuntimeOptions | None = None,
    reference_only: bool = False,
    on_this_machine: bool = True,
) -> EngineReport:
    """Say which engine trains a model and which one decodes a request, and why the others do not.

    With `on_this_machine` false, a machine is assumed that has what the engines need.
    """
    return EngineReport(
        device.type,
        {}
        if training is None
        else choose_training_engine(model, device, training, reference_only, on_this_machine, runtime),
        choose_decoding_engine(model, device, precision, decoding, reference_only, on_this_machine),
        list(_notes(model, device, precision, on_this_machine)),
    )


def report_config(
    config: Config,
    device: torch.device,
    *,
    with_training: bool = True,
    precision: str | None = None,
    reference_only: bool = False,
    on_this_machine: bool = True,
) -> EngineReport:
    """The report for a config; `precision` and `reference_only` override its `runtime:`. The model takes no memory."""
    continues_text = objectives.build(config.training.objective).continues_text
    return report_engines(
        build_meta_model(config),
        device,
        precision or config.runtime.precision,
        training=config.training if with_training else None,
        runtime=config.runtime,
        decoding=DecodingRequest.from_options(config.generation, continues_text=continues_text),
        reference_only=reference_only or config.runtime.engine == "reference",
        on_this_machine=on_this_machine,
    )


def _notes(model: object, device: torch.device, precision: str, on_this_machine: bool) -> Iterator[str]:
    """What the device's engine leaves to the model's own modules, and in which precision it decodes."""
    if not on_this_machine:
        yield "this machine may lack what these engines need, such as a GPU of compute capability 8.0 with Triton"
    if not isinstance(model, Seq2Seq) or source_blocker(model) is not None:
        return
    if cuda.model_blocker(model, device, precision) is None:
        blocker = transformer_step_blocker(model)
        if blocker is not None:
            yield f"cuda runs the decoder's own step: {blocker}"
        elif (blocker := packed_encoder_blocker(model, device)) is not None:
            yield f"cuda runs the model's own encoder on padded sources: {blocker}"
    if cpu.model_blocker(model, device, precision) is None:
        if (blocker := encoder_blocker(model)) is not None:
            yield f"cpu runs the model's own encoder: {blocker}"
        if precision == "int8":
            yield "cpu decodes in float32: only ctranslate2 computes in int8"


# -- training ----------------------------------------------------------------------------------------------------------


def choose_training_engine(
    model: object,
    device: torch.device,
    options: TrainingOptions,
    reference_only: bool = False,
    on_this_machine: bool = True,
    runtime: RuntimeOptions | None = None,
) -> EngineChoices:
    blocker = NOT_ALLOWED if reference_only else None if runtime is None else _runtime_blocker(runtime)
    if options.adapter is not None:
        blocker = blocker or "an adapter is trained (training.adapter), which only the model's own modules compute"
    if not isinstance(model, Seq2Seq):
        blocker = blocker or f"{type(model).__name__} is not a single model"
        return choose_first((name, blocker) for name in ("fused_transformer", "compiled", "rnn_graph"))
    graph_blocker = blocker or graph_step_blocker(model, device, options)
    if graph_blocker is None and on_this_machine:
        graph_blocker = cuda.machine_blocker()
    return choose_first(
        [
            ("fused_transformer", graph_blocker or fused_transformer_blocker(model)),
            ("compiled", graph_blocker),
            ("rnn_graph", blocker or captured_loop_blocker(model.decoder, device)),
        ]
    )


def _runtime_blocker(runtime: RuntimeOptions) -> str | None:
    """Why only the model's own modules train with these options; None: engines may."""
    if runtime.sharding != "none":
        return "runtime.sharding gathers the weights of a block when its module runs"
    if runtime.activation_checkpointing:
        return "runtime.activation_checkpointing runs each block's module a second time"
    return None


def open_training_engine(
    model: Seq2Seq,
    device: torch.device,
    options: TrainingOptions,
    reference_only: bool = False,
    runtime: RuntimeOptions | None = None,
) -> tuple[GraphStep | None, EngineChoices]:
    """Set up the engine that trains a model: return its graph step, if it is one, and the choice."""
    choices = choose_training_engine(model, device, options, reference_only, runtime=runtime)
    chosen = chosen_engine(choices)
    if chosen == "rnn_graph":
        model.decoder.step_loop = CapturedLoop(model.decoder)
    if chosen not in ("fused_transformer", "compiled"):
        return None, choices
    step = GraphStep(model, options.label_smoothing, options.precision, options.batch_tokens, options.r_drop)
    return step, choices


# -- decoding ----------------------------------------------------------------------------------------------------------


def choose_decoding_engine(
    model: object,
    device: torch.device,
    precision: str,
    request: DecodingRequest,
    reference_only: bool = False,
    on_this_machine: bool = True,
) -> EngineChoices:
    search, constraints = request.search, request.constraints
    blocker = NOT_ALLOWED if reference_only else source_blocker(model, request.continues_text)
    blocker = blocker or request_blocker(request.record_attention, request.ctc_weight)
    if blocker is not None or not isinstance(model, Seq2Seq):
        return choose_first((name, blocker) for name in ("cuda", "ctranslate2", "cpu"))
    cuda_blocker = cuda.model_blocker(model, device, precision) or cuda.search_blocker(search, constraints)
    cpu_blocker = cpu.model_blocker(model, device, precision) or cpu.search_blocker(search, constraints)
    ctranslate2_blocker = (
        cpu_blocker
        or cpu.ctranslate2_model_blocker(model, precision)
        or ctranslate2.search_blocker(model, search, constraints)
    )
    if on_this_machine:
        cuda_blocker = cuda_blocker or cuda.machine_blocker()
    return choose_first([("cuda", cuda_blocker), ("ctranslate2", ctranslate2_blocker), ("cpu", cpu_blocker)])


def source_blocker(model: object, continues_text: bool = False) -> str | None:
    """Why no engine decodes a model, whatever the device: what it reads, or what it answers with; None: one may."""
    if not isinstance(model, Seq2Seq):
        return f"{type(model).__name__} is not a single model"
    if model.decoder is None:
        return "the model has a head and no decoder"
    if not isinstance(model.frontend, TokenEmbedding):
        return "the sources are not token ids"
    if model.second_source is not None:
        return "the model reads two sources"
    if continues_text:
        return "a language model continues its input"
    return None


def request_blocker(record_attention: bool, ctc_weight: float) -> str | None:
    """Why no engine decodes a request, whatever the search (recorded attention, CTC weight); None: one may."""
    if record_attention:
        return "attention weights are asked for"
    if ctc_weight > 0:
        return "the CTC score of the encoder is part of the search (generation.ctc_weight)"
    return None


def open_engine(model: object, device: torch.device, precision: str, continues_text: bool = False) -> Engine | None:
    """Open the decoding engine for a model on a device; None where only the reference decodes it."""
    if source_blocker(model, continues_text) is not None or not isinstance(model, Seq2Seq):
        return None
    if cuda.model_blocker(model, device, precision) is None and cuda.machine_blocker() is None:
        from dragoman.engines.cuda.kernels import search

        return cuda.CUDAEngine(model, cuda.DTYPES[precision], search)
    if cpu.model_blocker(model, device, precision) is None:
        return cpu.CPUEngine(model, precision)
    return None
