"""Loss and gradient of a batch without padding, compiled, and replayed as one CUDA graph.

    Batch ─pack→ PackedBatch ─copy→ fixed buffers ─replay→ gradients added to the parameters', the loss in a buffer

A Transformer's training step is some 1,500 small kernels: launched one by one from Python they take longer to launch
than to run. A shape that comes a second time is captured, and from then on costs one launch. Shapes are rounded up, so
that there are few (77 for batches of 8,192 tokens of sentences around 25); past GRAPHS of them, or where memory does
not suffice, what is new runs uncaptured. A shape that has been rare so far takes the graph of a slightly larger one.

The usual Transformer runs through fused.py; others that can be packed run their own modules, compiled. `why_not` says
which models and options stay with the plain loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dragoman.core.types import Batch, PackedBatch
from dragoman.data.objectives import objectives
from dragoman.engines.training import fused_transformer
from dragoman.engines.training.fused_transformer import REACH, Fused
from dragoman.engines.training.packing import Shape, holds, pack, shape, tensors, with_tensors
from dragoman.nn.kernels.packed import triton_works
from dragoman.nn.seq2seq import Seq2Seq

logger = logging.getLogger("dragoman")

GRAPHS = 128  # different shapes that are captured
SHAPES = (
    16  # sizes a side of a full batch is rounded to: 2.9 % of padding on average, where 32 had 1.5 % and 142 shapes
)
RARE, SLACK = 3, 1.1  # a shape is rare until it has come so often; how much more a larger one may compute
SHORT, LONG = 32, 64  # bounds on the length of rows that attention has tiles for; the second is for all longer ones


@dataclass
class Captured:
    """One shape's graph with the buffers it reads and the loss it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    count: Tensor
    loss: Tensor


class Steps:
    """Adds the gradient of packed batches to the parameters of a model."""

    def __init__(self, model: Seq2Seq, smoothing: float, precision: str, tokens: int, r_drop: float = 0.0) -> None:
        self.model, self.smoothing, self.precision, self.r_drop = model, smoothing, precision, r_drop
        self.multiple = max(tokens // SHAPES, 64)
        self.captured: dict[tuple[int, ...], Captured] = {}
        self.seen: set[tuple[int, ...]] = set()
        self.came: Counter[Shape] = Counter()
        self.room = GRAPHS
        self.pool: Any = None
        self.device = next(model.parameters()).device
        self.trained = [p for p in model.parameters() if p.requires_grad]
        kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.fused = Fused(model, kind) if fused_transformer.serves(model) else None
        if self.fused is None:
            for stack in (model.encoder.stack, model.decoder.stack):
                for block in stack.blocks:
                    block.compile(dynamic=True)

    def prepare(self, batch: Batch) -> Batch:
        """The batch with its packed form, in pinned memory, from where copies need not wait. May run in a thread."""
        packed = pack(batch, into=self.shape(batch))
        if max(packed.sources.longest, packed.targets.longest) > REACH:
            return batch
        longest = (LONG if max(packed.sources.longest, packed.targets.longest) > SHORT else SHORT,) * 2
        return replace(batch, packed=with_tensors(packed, [x.pin_memory() for x in tensors(packed)], longest))

    def shape(self, batch: Batch) -> Shape:
        """The shape to lay a batch out in: its own, or while that is rare the smallest captured one that holds it."""
        own = shape(batch, self.multiple)
        self.came[own] += 1
        known = {Shape(*key[:3]) for key in list(self.captured)}
        if own in known or self.came[own] > RARE:
            return own
        most = SLACK * (own.N + own.M)
        larger = [room for room in known if most >= room.N + room.M and holds(room, batch, own)]
        return min(larger, key=lambda room: room.N + room.M, default=own)

    def forget(self) -> None:
        """Give back what was captured, with its memory."""
        self.captured.clear()
        self.pool = None  # torch frees a pool with its last graph, and its handle is of no use then

    def zero(self) -> None:
        """Gradients of zero, in buffers that stay where they are: a graph adds to them by address."""
        if any(p.grad is None for p in self.trained):
            for p in self.trained:
                p.grad = torch.zeros_like(p)
        torch._foreach_zero_([p.grad for p in self.trained if p.grad is not None])

    def __call__(self, given: Batch, count: float) -> Tensor:
        """Add the gradient of loss / count, and give the loss."""
        batch = given.packed or self.prepare(given).packed
        if batch is None:  # with rows too long for it
            return self._plain(given, count)
        key = (batch.source.shape[1], batch.target.shape[1], len(batch.sources.lengths), batch.sources.longest)
        if key in self.seen and key not in self.captured and len(self.captured) < self.room:
            self._capture(key, batch)
        self.seen.add(key)
        self._sow()
        if key not in self.captured:
            return self._run(self._moved(batch), torch.tensor(count, device=self.device))
        found = self.captured[key]
        for mine, new in zip(found.inputs, tensors(batch), strict=True):
            mine.copy_(new, non_blocking=True)
        found.count.fill_(count)
        found.graph.replay()
        return found.loss

    def _plain(self, batch: Batch, count: float) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.precision == "bfloat16"):
            loss = self.model.loss(batch.to(self.device), self.smoothing, r_drop=self.r_drop)
        (loss / count).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _moved(self, batch: PackedBatch) -> PackedBatch:
        moved = [x.to(self.device, non_blocking=True) for x in tensors(batch)]
        return with_tensors(batch, moved, (batch.sources.longest, batch.targets.longest))

    def _sow(self) -> None:
        """What is dropped follows from the generator's seed, as everywhere."""
        if self.fused is not None:
            self.fused.seed.fill_(torch.initial_seed())

    def _run(self, batch: PackedBatch, count: Tensor) -> Tensor:
        if self.fused is not None:
            loss = self.fused(batch, self.smoothing, self.r_drop)
        else:
            half = self.precision == "bfloat16"
            with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
                loss = self.model.packed_loss(batch, self.smoothing, self.r_drop)
        # Not backward(): adding each gradient to its parameter's would be a kernel for every one of them.
        found = torch.autograd.grad(loss / count, self.trained, allow_unused=True)
        pairs: list[Any] = [(p.grad, g) for p, g in zip(self.trained, found, strict=True) if g is not None]
        torch._foreach_add_([mine for mine, _ in pairs], [g for _, g in pairs])
        return loss.detach()

    def _capture(self, key: tuple[int, ...], batch: PackedBatch) -> None:
        """Record a shape that has run before; nothing is computed meanwhile."""
        static, count = self._moved(batch), torch.ones((), device=self.device)
        graph = torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        try:
            # Other threads may pin memory meanwhile.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                loss = self._run(static, count)
        except torch.OutOfMemoryError:
            self.room = 0
            logger.warning("the GPU's memory does not hold more captured steps; other shapes run uncaptured")
            return
        self.captured[key] = Captured(graph, tensors(static), count, loss)


@contextmanager
def eagerly() -> Iterator[None]:
    """Run compiled modules as they are written: for shapes that come once."""
    import torch.compiler

    with torch.compiler.set_stance("force_eager"):
        yield


def why_not(model: Seq2Seq, device: torch.device, options: Any) -> str | None:
    """Why a training cannot take the fast path, in a few words; None: it can."""
    if device.type != "cuda":
        return "it is made for CUDA"
    if not triton_works():
        return "Triton, or a GPU of compute capability 8.0, is missing"
    if options.teacher.name != "gold":
        return "training.teacher needs all logits"
    if not objectives.build(options.objective).packs:
        return f"objective '{options.objective.name}' has rows that are not a source and a target alone"
    return model.packs()
