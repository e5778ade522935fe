"""Greedy and beam search on one GPU: sentences in slots, each step of all slots one CUDA graph.

    sources ─encoder→ slots ─┬→ step (step.py) → logits → search (slot_search.py) ─┬→ results
                             └────────── one graph, launched again and again ──────┘

scheduler.py decides which sentence is in which slot and when. The result of a sentence does not depend on the others.

In float32 the results are those of the reference path. In bfloat16 weights, keys, values and the vectors between layers
are rounded; norms, softmaxes and the residual stream stay in float32, sums of log p in float64.

B slots of which the first b are in use, k hypotheses, S source and C target positions.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import ModuleType

import torch

from dragoman.core.types import Hypothesis
from dragoman.engines.cuda.encode import CUDASourceEncoder
from dragoman.engines.cuda.graphs import GraphRecorder
from dragoman.engines.cuda.scheduler import Scheduler, round_up_power
from dragoman.engines.cuda.slot_search import SlotSearch, build_slot_search, load_length_rule, slot_search_blocker
from dragoman.engines.cuda.step import (
    GraphUnsupported,
    ModuleStep,
    SlotStep,
    TransformerStep,
    TransformerWeights,
    transformer_step_blocker,
)
from dragoman.engines.reference import constraints_blocker, decode_with_reference
from dragoman.nn.kernels.packed import supports_triton
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Search, SearchConstraints
from dragoman.search.beam import Beam

logger = logging.getLogger("dragoman")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MAX_ROWS = 2560  # hypotheses of all slots together: with more, a step takes longer and no sentence gets cheaper
KEPT_GRAPHS = 4  # decode graphs that are kept for later calls


class DecodeGraph:
    """One decoding step of a search for sentences up to S and C tokens, recorded for each number of slots in use."""

    def __init__(
        self, slot_search: SlotSearch, step: SlotStep, B: int, requested: int, recorder: GraphRecorder
    ) -> None:
        """`requested`: the slots that were asked for; B may be fewer where memory is short."""
        self.slot_search, self.step, self.B, self.requested, self.recorder = slot_search, step, B, requested, recorder
        self.recorded: dict[tuple[int, int], Callable[[], object]] = {}

    def advance(self, b: int, count: int = 1) -> None:
        """Launch `count` steps of the first b slots as one graph, recorded the first time."""
        if (b, count) not in self.recorded:  # its kernels have run before, one step at a time
            self.recorded[b, count] = self.recorder.record(lambda: self._run(b, count), warmed_up=True)
        self.recorded[b, count]()

    def is_recorded(self, b: int) -> bool:
        return (b, 1) in self.recorded

    def prepare(self, b: int) -> None:
        """Record one step of the first b slots, unless it is. All must be done: it runs once and may change nothing."""
        if not self.is_recorded(b):
            self.recorded[b, 1] = self.recorder.record(lambda: self._run(b))

    def _run(self, b: int, count: int = 1) -> None:
        for _ in range(count):
            self.slot_search.advance(self.step(self.slot_search, b), b, self.step.ancestry)


class CUDAEngine:
    """Greedy and beam search of a sequence-to-sequence model on its GPU."""

    name = "cuda"

    def __init__(self, model: Seq2Seq, dtype: torch.dtype, kernels: ModuleType, max_rows: int = MAX_ROWS) -> None:
        """`kernels` is kernels/search.py."""
        self.model, self.dtype, self.kernels, self.max_rows = model, dtype, kernels, max_rows
        self.device = model.output.weight.device
        is_cast = model.output.weight.dtype == dtype
        self.cast_model = (model if is_cast else copy.deepcopy(model).to(dtype)).eval()
        self.graphs: OrderedDict[tuple[object, ...], DecodeGraph] = OrderedDict()
        with torch.inference_mode():
            self.recorder = GraphRecorder(self.device)
            self.weights = TransformerWeights(model, dtype) if transformer_step_blocker(model) is None else None
            if self.weights is not None:
                self.encoder = CUDASourceEncoder(model, self.cast_model, dtype, self.recorder)
        self.failed, self.lock = False, threading.Lock()

    def serves(self, search: Search, limits: SearchConstraints) -> bool:
        """Whether this engine decodes such a request; after a failure it decodes none."""
        return not self.failed and search_blocker(search, limits) is None

    @torch.inference_mode()
    def __call__(
        self, sources: Sequence[Sequence[int]], search: Search, limits: SearchConstraints
    ) -> Sequence[Sequence[Hypothesis]]:
        """The n-best list of every source, in their order; after a failure, by the reference path."""
        with self.lock:
            if self.model.training:  # `eval` visits every module: 1.5 ms for a Transformer-base
                self.model.eval()
            if not self.failed:
                try:
                    return Scheduler(self, sources, search, limits).run()
                except (GraphUnsupported, RuntimeError) as error:  # of torch, CUDA or Triton, memory included
                    self.failed = True
                    self.graphs.clear()
                    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                    logger.warning("The CUDA engine failed; the reference path takes over: %s", reason)
            return decode_with_reference(self.model, sources, search, limits)

    def add_token_log_probs(
        self, sources: Sequence[Sequence[int]], nbest_lists: Sequence[Sequence[Hypothesis]]
    ) -> Sequence[Sequence[Hypothesis]]:
        return nbest_lists  # which have them

    def decode_graph(self, search: Search, S: int, C: int, count: int) -> DecodeGraph:
        """A graph for sentences up to S and C tokens with up to `count` slots; the last few graphs are reused."""
        requested = min(round_up_power(count), max(self.max_rows // search.num_hypotheses, 1))
        stopping = (search.early_stopping, search.max_finished) if isinstance(search, Beam) else ()
        key = (type(search), search.num_hypotheses, *stopping, S, C)
        graph = self.graphs.pop(key, None)
        if graph is None or requested > graph.requested:
            del graph
            while len(self.graphs) >= KEPT_GRAPHS:
                self.graphs.popitem(last=False)
            graph = self._build_graph(search, S, C, requested)
        self.graphs[key] = graph
        load_length_rule(graph.slot_search, search)
        return graph

    def _build_graph(self, search: Search, S: int, C: int, requested: int) -> DecodeGraph:
        """A new decode graph with as many of the requested slots as memory allows, for lengths up to S and C."""
        V, k = self.model.output.out_features, search.num_hypotheses
        B = min(requested, self._slots_in_memory(search, S, C))
        step: SlotStep
        if self.weights is not None:
            step = TransformerStep(self.encoder, self.weights, B, k, S, C)
        else:
            step = ModuleStep(self.cast_model, B, k, S, C)
        slot_search = build_slot_search(search, B, C, V, self.device, self.kernels)
        return DecodeGraph(slot_search, step, B, requested, self.recorder)

    def _slots_in_memory(self, search: Search, S: int, C: int) -> int:
        """How many slots fit into a quarter of the free memory; GraphUnsupported if none does."""
        if self.device.type != "cuda":
            return self.max_rows
        free = torch.cuda.mem_get_info(self.device)[0]
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        if self.weights is not None:
            per_slot = TransformerStep.bytes_per_slot(self.encoder, self.weights, search.num_hypotheses, S, C)
        else:
            per_slot = ModuleStep.bytes_per_slot(self.cast_model, search.num_hypotheses, S, C)
        if free // 4 < per_slot:
            raise GraphUnsupported("the GPU has no memory left for the keys and values of one sentence")
        return int(free // 4 // per_slot)


def model_blocker(model: Seq2Seq, device: torch.device, precision: str) -> str | None:
    """Why this engine does not decode a model on a device in a precision; None: it does."""
    if device.type != "cuda":
        return f"it runs on a GPU, and the device is {device.type}"
    if precision not in DTYPES:
        return f"it computes in {' or '.join(DTYPES)}, not in {precision}"
    if type(model) is not Seq2Seq:
        return f"{type(model).__name__} extends Seq2Seq and may compute something else"
    if model.pointer is not None:
        return "the model copies words of the source (model.pointer)"
    return None


def search_blocker(search: Search, constraints: SearchConstraints) -> str | None:
    """Why this engine does not run a search under some constraints; None: it does."""
    return constraints_blocker(constraints) or slot_search_blocker(search)


def machine_blocker() -> str | None:
    """Why this machine cannot run the engine's kernels; None: it can."""
    return None if supports_triton() else "it needs Triton and a GPU of compute capability 8.0 or higher"
