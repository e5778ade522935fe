"""The gradient of one update, from batches of any size: a batch that does not fit into memory is split and retried.

    g = 1/N ∇ Σ_batches Σ_t −log p(y_t)          N: target tokens of all batches of the update, or their sentences

Every piece divides by the same N, so that splitting changes nothing but rounding. Random numbers are seeded from
(seed, step, piece): a retry draws the same numbers, and a resumed run needs no saved generator state.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dragoman.core.errors import UserError
from dragoman.core.types import Batch
from dragoman.engines.training.graph_step import GraphStep
from dragoman.engines.training.rnn_graph import release_captured_loops
from dragoman.inference.device import is_out_of_memory
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.training.gradient_buckets import OverlappedReduction


@dataclass
class GradientResult:
    """The summed loss of an update, its target tokens, and the largest batch area that fits into memory."""

    loss: float | Tensor  # a tensor as long as the device need not be waited for
    tokens: int
    max_area: int | None  # padded positions; None: nothing had to be split


def compute_gradient(
    model: Seq2Seq,
    batches: Sequence[Batch],
    loss_function: Callable[[Batch], Tensor],
    *,
    seed: int,
    step: int,
    device: torch.device,
    precision: str,
    max_area: int | None,
    loss_per: Literal["token", "sentence"] = "token",
    rank: int = 0,
    world_size: int = 1,
    graph_step: GraphStep | None = None,
    overlap: OverlappedReduction | None = None,
) -> GradientResult:
    """Compute the gradient of mean loss into `p.grad`; batches above `max_area` or out of memory are split.

    `overlap` sends gradients to the other ranks during the last backward pass.
    """
    tokens = sum(batch.tokens for batch in batches)
    count = tokens if loss_per == "token" else sum(len(batch) for batch in batches)
    while True:
        pieces = [piece for batch in batches for piece in split_batch(batch, max_area)]
        if graph_step is None:
            model.zero_grad(set_to_none=True)
        else:
            graph_step.zero_grad()
        total = torch.zeros((), dtype=torch.float64, device=device)
        done, loss = 0, None  # frees the graph of a failed attempt
        try:
            for piece in pieces:
                torch.manual_seed(piece_seed(seed, step, done * world_size + rank))  # different on every rank
                if graph_step is not None:
                    total += graph_step(piece, count)
                else:
                    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                        loss = loss_function(piece.to(device))
                    if overlap is not None and done == len(pieces) - 1:
                        overlap.arm()
                    torch.autograd.backward(loss / count)
                    total += loss.detach().double()
                done += 1
            return GradientResult(total, tokens, max_area)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            too_large = pieces[done]
            if overlap is not None:
                overlap.invalidate()
        # Not in the except block: there the traceback still holds the tensors that did not fit.
        if len(too_large) == 1:
            raise UserError(
                f"a single pair of {too_large.area:,} tokens does not fit into memory; "
                "lower data.max_source or data.max_target"
            )
        max_area = too_large.area // 2
        if graph_step is not None:
            graph_step.release_graphs()
        release_captured_loops(model.decoder)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def optimizer_step(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], clip: float | None, loss: float | Tensor
) -> tuple[float, float]:
    """Clip the gradient and take a step, unless loss or norm is not finite; returns loss and norm as numbers."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip or math.inf)
    is_sharded = hasattr(norm, "full_tensor")
    if is_sharded:
        norm = norm.full_tensor()  # type: ignore[attr-defined]
    if (
        not is_sharded
        and norm.is_cuda
        and isinstance(loss, Tensor)
        and getattr(optimizer, "_step_supports_amp_scaling", False)
    ):
        # The device itself skips a step that is not finite, so the host need not wait for the numbers first.
        both = torch.stack([loss.double(), norm.double()])
        optimizer.found_inf = (~both.isfinite().all()).float()  # type: ignore[attr-defined]
        optimizer.step()
        loss_value, norm_value = both.tolist()
        return loss_value, norm_value
    numbers = float(loss), float(norm)
    if all(math.isfinite(number) for number in numbers):
        optimizer.step()
    return numbers


def split_batch(batch: Batch, max_area: int | None) -> list[Batch]:
    """Split the rows of a batch into pieces of at most `max_area` padded positions, at least one row each."""
    if max_area is None or batch.area <= max_area or len(batch) == 1:
        return [batch]
    half = len(batch) // 2
    first, second = batch.slice_rows(0, half), batch.slice_rows(half, len(batch))
    return split_batch(first, max_area) + split_batch(second, max_area)


def piece_seed(seed: int, step: int, piece: int) -> int:
    """The seed of the random numbers for one piece of an update: a hash of the three numbers."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{piece}".encode()).digest()[:8], "little") >> 1
