"""Compute loss and gradient of a packed batch as one CUDA graph.

    Batch ─pack→ PackedBatch ─copy→ fixed buffers ─replay→ gradients added to the parameters', the loss in a buffer

A Transformer's training step is some 1,500 small kernels: launched one by one from Python, they take longer to launch
than to run. A shape that comes up a second time is captured; shapes are rounded up, so that there are few. Beyond
MAX_GRAPHS, or where memory is short, new ones run uncaptured. A rare shape uses the graph of a slightly larger one.
The usual Transformer runs through fused_transformer.py; other models that support packing run compiled modules.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dragoman.config import TrainingOptions
from dragoman.core import tree
from dragoman.core.types import Batch, PackedBatch
from dragoman.data.objectives import objectives
from dragoman.engines.cuda.packed_weights import head_width_blocker
from dragoman.engines.training.fused_transformer import MAX_POSITIONS, FusedTransformer, fused_transformer_blocker
from dragoman.engines.training.packing import PackedShape, can_hold, pack, packed_shape, packed_tensors
from dragoman.nn.attention import MultiHeadAttention
from dragoman.nn.seq2seq import Seq2Seq

logger = logging.getLogger("dragoman")

MAX_GRAPHS = 128  # different shapes that are captured
# Sizes that a side of a full batch is rounded to: 16 add 2.9 % of padding on average; 32 had 1.5 % and 142 shapes.
SIDE_SIZES = 16
RARE, SLACK = 3, 1.1  # a shape is rare up to this count; how much more positions a larger one may have
SHORT, LONG = 32, 64  # bounds on the length of rows that attention has tiles for; the second is for all longer ones


@dataclass
class CapturedGraph:
    """The graph of one shape, with the buffers it reads and the loss it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    count: Tensor
    loss: Tensor


class GraphStep:
    """Adds the gradients of packed batches to the parameters of a model."""

    def __init__(self, model: Seq2Seq, smoothing: float, precision: str, tokens: int, r_drop: float = 0.0) -> None:
        self.model, self.smoothing, self.precision, self.r_drop = model, smoothing, precision, r_drop
        self.multiple = max(tokens // SIDE_SIZES, 64)
        self.captured: dict[tuple[int, ...], CapturedGraph] = {}
        self.seen: set[tuple[int, ...]] = set()
        self.shape_counts: Counter[PackedShape] = Counter()
        self.max_graphs = MAX_GRAPHS
        self.pool: torch.cuda._POOL_HANDLE | None = None
        self.device = next(model.parameters()).device
        self.trained = [p for p in model.parameters() if p.requires_grad]
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.fused = FusedTransformer(model, dtype) if fused_transformer_blocker(model) is None else None
        if self.fused is None:
            for stack in (model.encoder.stack, model.decoder.stack):
                for block in stack.blocks:
                    block.compile(dynamic=True)

    def prepare(self, batch: Batch) -> Batch:
        """The batch with its packed form, in pinned memory, unless its rows are too long. May run in a thread."""
        packed = pack(batch, into=self.choose_shape(batch))
        longest = max(packed.sources.max_length, packed.targets.max_length)
        if longest > MAX_POSITIONS:
            return batch
        longest = LONG if longest > SHORT else SHORT
        sources, targets = (replace(side, max_length=longest) for side in (packed.sources, packed.targets))
        packed = replace(packed, sources=sources, targets=targets)
        return replace(batch, packed=tree.map(lambda x: x.pin_memory(), packed))

    def choose_shape(self, batch: Batch) -> PackedShape:
        """The shape to pack a batch into: its own, or while that is rare, the smallest captured one that fits."""
        own = packed_shape(batch, self.multiple)
        self.shape_counts[own] += 1
        captured = {PackedShape(*key[:3]) for key in list(self.captured)}
        if own in captured or self.shape_counts[own] > RARE:
            return own
        limit = SLACK * (own.N + own.M)
        larger = [shape for shape in captured if limit >= shape.N + shape.M and can_hold(shape, batch, own)]
        return min(larger, key=lambda shape: shape.N + shape.M, default=own)

    def release_graphs(self) -> None:
        """Free all captured graphs and their memory."""
        self.captured.clear()
        self.pool = None  # torch frees a pool with its last graph, which makes the handle useless

    def zero_grad(self) -> None:
        """Set all gradients to zero in buffers that keep their address: a graph adds to them by address."""
        if any(p.grad is None for p in self.trained):
            for p in self.trained:
                p.grad = torch.zeros_like(p)
        torch._foreach_zero_([p.grad for p in self.trained if p.grad is not None])

    def __call__(self, batch: Batch, count: float) -> Tensor:
        """Add the gradient of loss / count to the parameters' gradients; returns the loss."""
        packed = batch.packed or self.prepare(batch).packed
        if packed is None:  # its rows are too long
            return self._padded_step(batch, count)
        key = (packed.source.shape[1], packed.target.shape[1], len(packed.sources.lengths), packed.sources.max_length)
        if key in self.seen and key not in self.captured and len(self.captured) < self.max_graphs:
            self._capture(key, packed)
        self.seen.add(key)
        if self.fused is not None:
            self.fused.seed.fill_(torch.initial_seed())  # of its dropout
        if key not in self.captured:
            return self._packed_step(self._to_device(packed), torch.tensor(count, device=self.device))
        captured = self.captured[key]
        for buffer, new in zip(captured.inputs, packed_tensors(packed), strict=True):
            buffer.copy_(new, non_blocking=True)
        captured.count.fill_(count)
        captured.graph.replay()
        return captured.loss

    def _padded_step(self, batch: Batch, count: float) -> Tensor:
        """Add the gradient of loss / count on the padded batch, by the model's own modules; returns the loss."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self.precision == "bfloat16"):
            loss = self.model.loss(batch.to(self.device), self.smoothing, r_drop=self.r_drop)
        torch.autograd.backward(loss / count)
        return loss.detach()

    def _to_device(self, batch: PackedBatch) -> PackedBatch:
        return tree.map(lambda x: x.to(self.device, non_blocking=True), batch)

    def _packed_step(self, batch: PackedBatch, count: Tensor) -> Tensor:
        """Add the gradient of loss / count on a packed batch, by fused kernels or modules; returns the loss."""
        if self.fused is not None:
            loss = self.fused(batch, self.smoothing, self.r_drop)
        else:
            half = self.precision == "bfloat16"
            with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
                loss = self.model.packed_loss(batch, self.smoothing, self.r_drop)
        # Not backward(): that launches one kernel for each parameter to add its gradient.
        gradients = torch.autograd.grad(loss / count, self.trained, allow_unused=True)
        pairs = [
            (p.grad, g) for p, g in zip(self.trained, gradients, strict=True) if p.grad is not None and g is not None
        ]
        torch._foreach_add_([total for total, _ in pairs], [g for _, g in pairs])
        return loss.detach()

    def _capture(self, key: tuple[int, ...], batch: PackedBatch) -> None:
        """Capture the step of a shape that has run before, computing nothing; without memory, capture no more."""
        static, count = self._to_device(batch), torch.ones((), device=self.device)
        graph = torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        try:
            # Other threads may pin memory meanwhile.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                loss = self._packed_step(static, count)
        except torch.OutOfMemoryError:
            self.max_graphs = 0
            logger.warning("The GPU has no memory for more captured steps; other shapes run uncaptured.")
            return
        self.captured[key] = CapturedGraph(graph, packed_tensors(static), count, loss)


def graph_step_blocker(model: Seq2Seq, device: torch.device, options: TrainingOptions) -> str | None:
    """Why a training of this model on this device cannot run as packed graph steps; None: it can."""
    if device.type != "cuda":
        return f"it runs on a GPU, and the device is {device.type}"
    if options.scheduled_sampling.name != "teacher_forcing":
        return "training.scheduled_sampling needs all logits"
    if not objectives.build(options.objective).supports_packing:
        return f"objective '{options.objective.name}' has rows that are not a source and a target alone"
    if (blocker := model.packing_blocker()) is not None:
        return blocker
    blocks = [block for block, _ in (*model.encoder.stack.layers(), *model.decoder.stack.layers())]
    attentions = [attention for block in blocks for attention in (block.mixer, block.cross_attention)]
    blockers = (head_width_blocker(a) for a in attentions if isinstance(a, MultiHeadAttention))
    return next((blocker for blocker in blockers if blocker is not None), None)
