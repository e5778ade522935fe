"""The gradient of one update, from batches of any size: what does not fit into memory is split and tried again.

    g = 1/N ∇ Σ_batches Σ_t −log p(y_t)          N: target tokens of all batches of the update, or their rows

Every piece divides by the same N, so that splitting changes nothing but rounding. Random numbers are seeded from
(seed, step, piece): a retry draws the same ones, and a resumed run needs no saved generator.
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
from dragoman.engines.training.graph_step import Steps
from dragoman.engines.training.rnn_graph import forget
from dragoman.nn.seq2seq import Seq2Seq

SIGNS = (
    *("can't allocate memory", "not enough memory", "bad_alloc", "out of memory"),
    *("could not create a primitive", "could not execute a primitive"),  # all that oneDNN (LSTMs on a CPU) says
)


@dataclass
class Update:
    """What an update found: the summed loss, its tokens, and the new limit if something had to be split."""

    loss: float | Tensor  # a tensor where nobody has waited for the device yet
    tokens: int
    limit: int | None


def gradient(
    model: Seq2Seq,
    batches: Sequence[Batch],
    loss_of: Callable[[Batch], Tensor],
    *,
    seed: int,
    step: int,
    device: torch.device,
    precision: str,
    limit: int | None,
    per: Literal["token", "sentence"] = "token",
    rank: int = 0,
    ranks: int = 1,
    steps: Steps | None = None,
) -> Update:
    """Leave the gradient of some batches in the model; `limit` is the largest area known to fit.

    With `steps` the fast path computes it.
    """
    tokens = sum(batch.tokens for batch in batches)
    count = tokens if per == "token" else sum(len(batch) for batch in batches)
    pieces = [piece for batch in batches for piece in split(batch, limit)]
    while True:
        if steps is None:
            model.zero_grad(set_to_none=True)
        else:
            steps.zero()
        total = torch.zeros((), dtype=torch.float64, device=device)
        done, loss = 0, None  # no graph of a failed attempt outlives it
        try:
            for piece in pieces:
                torch.manual_seed(seed_of(seed, step, done * ranks + rank))  # no two ranks draw alike
                if steps is not None:
                    total += steps(piece, count)
                else:
                    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                        loss = loss_of(piece.to(device))
                    (loss / count).backward()  # type: ignore[no-untyped-call]
                    total += loss.detach().double()
                done += 1
            return Update(total, tokens, limit)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            too_large = pieces[done]
        # Outside the except block, where the traceback still holds the tensors that did not fit.
        if len(too_large) == 1:
            raise UserError(
                f"a single pair of {too_large.area:,} tokens does not fit into memory; "
                "lower data.max_source or data.max_target"
            )
        limit = too_large.area // 2
        pieces = [piece for batch in batches for piece in split(batch, limit)]
        if steps is not None:
            steps.forget()
        forget(model.decoder)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def descend(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], clip: float | None, loss: float | Tensor
) -> tuple[float, float]:
    """One step downhill; nothing changes where the loss or the gradient's norm is not finite. Both are given back."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip or math.inf)
    if norm.is_cuda and isinstance(loss, Tensor) and getattr(optimizer, "_step_supports_amp_scaling", False):
        # The device itself leaves out a step that is not finite: to ask it first would let it wait for the answer.
        both = torch.stack([loss.double(), norm.double()])
        optimizer.found_inf = (~both.isfinite().all()).float()  # type: ignore[attr-defined]
        optimizer.step()
        found = both.tolist()
        return found[0], found[1]
    numbers = float(loss), float(norm)
    if all(math.isfinite(x) for x in numbers):
        optimizer.step()
    return numbers


def split(batch: Batch, limit: int | None) -> list[Batch]:
    """Rows of a batch in pieces of at most `limit` padded positions, at least one row each."""
    if limit is None or batch.area <= limit or len(batch) == 1:
        return [batch]
    half = len(batch) // 2
    return [*split(batch.rows(0, half), limit), *split(batch.rows(half, len(batch)), limit)]


def seed_of(seed: int, step: int, piece: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{piece}".encode()).digest()[:8], "little") >> 1


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: torch has a class for it on a GPU, on the CPU only a text."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(sign in str(error) for sign in SIGNS)
