"""How alike places look to a model: a matrix over pairs of places, for any position scheme.

    added to x        cos(p_i, p_j) of the vectors added                               sinusoidal, learned
    turns q and k     mean over contents u, |u| = 1, of (R_i u) · (R_j u)              rotary
    added to scores   e_ij, the mean over heads                                        t5, alibi
                      cos(A_ij, A_ii), where what is added is q_i · A_ij               shaw
    nothing           1: all places are alike                                          none

Which of these a scheme does is found out by asking it (see nn/positions.py), so that a new one needs nothing here. A
scheme that every block has its own of is averaged over the blocks. `trained` is whether learned weights are in it.

L places, H heads, D width of what is added, d width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.core.errors import UserError, nearest
from dragoman.core.registry import Part
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection import MAX_POSITIONS
from dragoman.nn.positions import Inside, positions
from dragoman.nn.seq2seq import Seq2Seq

SIDES = ("encoder", "decoder")
COSINE = "The cosine between the vectors that are added to what stands at place i and at place j."
TURNED = (
    "The score of a query at place i with a key at place j of the same content, as a share of what it is at one place, "
    "on average over contents."
)
BIAS = "What is added to the score of a query at place i with a key at place j, on average over heads."
CONTENT = (
    "What is added to a score is the query times a vector of the distance: the cosine between that vector for places "
    "i and j and the one for i and i."
)
NOTHING = "Nothing tells places apart: every two of them are as alike as one and itself."
CAUSAL = " Only keys at or before the query's place are looked at, j ≤ i."


def similarity(pipeline: Pipeline, *, side: str | None = None, length: int = 64) -> dict[str, Any]:
    """The matrix of a model's own positions, on one of its sides; on the first that has any where none is named."""
    if side is not None and side not in SIDES:
        raise UserError(f"side is '{side}'; it must be one of {', '.join(SIDES)}{nearest(side, SIDES)}")
    if not isinstance(pipeline.model, Seq2Seq):
        raise UserError("several models have several position schemes; look at one of them alone")
    parts: dict[str, Any] = {one: part for one in SIDES if (part := getattr(pipeline.model, one)) is not None}
    having = [one for one, part in parts.items() if schemes_of(part)]
    if not having:
        named = " and ".join(f"the {one} '{getattr(pipeline.config.model, one).name}'" for one in parts)
        raise UserError(f"no position scheme is in {named}; look at a model with positions, a Transformer, say")
    side = side or having[0]
    if side not in having:
        raise UserError(f"the model's {side} has no position scheme; look at its {having[0]}")
    part = parts[side]
    schemes = schemes_of(part)
    trained = any(True for scheme in schemes for _ in scheme.parameters())
    found = matrix_of(schemes, head_width(part), side == "decoder", length)
    return {"view": "positions", **found, "side": side, "trained": trained}


def of_part(part: Part, d: int, length: int = 64, *, heads: int = 8, causal: bool = False) -> dict[str, Any]:
    """The matrix of any scheme as it is before training, in a model of width d."""
    if heads < 1 or d < 1 or d % heads:
        raise UserError(f"width {d} cannot be shared evenly by {heads} heads; change one of them")
    scheme: Any = positions.build(part, d, Inside(heads, d // heads, causal))
    found = matrix_of([scheme], d // heads, causal, length)
    return {"view": "positions", **found, "side": "no model", "trained": False}


def schemes_of(part: Any) -> list[Any]:
    """The schemes of an encoder or decoder: one, or one for each block."""
    several = getattr(getattr(part, "stack", None), "positions", None)
    return list(several) if several is not None else [s for s in [getattr(part, "position", None)] if s is not None]


def head_width(part: Any) -> int | None:
    """How wide a head is; None where places act only outside of attention."""
    blocks = getattr(getattr(part, "stack", None), "blocks", None)
    mixer: Any = blocks[0].mixer if blocks is not None else None
    return mixer.Wq.out_features // mixer.heads if hasattr(mixer, "Wq") else None


@torch.no_grad()
def matrix_of(schemes: Sequence[Any], d: int | None, causal: bool, length: int) -> dict[str, Any]:
    """The scheme's name, what its matrix is, and the matrix (L, L)."""
    if not 1 <= length <= MAX_POSITIONS:
        raise UserError(f"length is {length}; it must be from 1 to {MAX_POSITIONS}")
    first = schemes[0]
    length = min(length, first.length or length)
    found = [likeness(scheme, d, length) for scheme in schemes]
    what = found[0][0]
    names = [name for name in positions.names if positions[name] is type(first)]
    return {
        "scheme": names[0] if names else type(first).__name__,
        "what": what + CAUSAL if causal and what in (BIAS, CONTENT) else what,
        "matrix": torch.stack([matrix for _, matrix in found]).mean(0).tolist(),
    }


def likeness(scheme: Any, d: int | None, length: int) -> tuple[str, Tensor]:
    """What a scheme does, and its matrix (L, L)."""
    device = next((x.device for x in [*scheme.parameters(), *scheme.buffers()]), torch.device("cpu"))
    t = torch.arange(length, device=device)[None]  # (1, L)
    added = scheme(torch.zeros(1, length, 1, device=device), t)[0]  # (L, D): zeros of any width take on what is added
    if added.any():
        return COSINE, cosine(exact(added)[:, None], exact(added)[None])
    if d is not None:
        u = torch.eye(d, device=device)[:, None, None].expand(d, 1, length, d)  # in each row another content
        turned = exact(scheme.turn(u, t))[:, 0]  # (d, L, d)
        if not torch.allclose(turned, exact(u)[:, 0]):
            # The mean of u · R u over all directions u is that over any orthogonal ones, here the units.
            return TURNED, torch.einsum("uid,ujd->ij", turned, turned) / d
        if scheme.biases:
            return biased(scheme, u, t)
    return NOTHING, torch.ones(length, length, dtype=torch.float64)


def biased(scheme: Any, u: Tensor, t: Tensor) -> tuple[str, Tensor]:
    """What is added to scores; where that depends on the query, the vectors it is multiplied with."""
    bare = exact(scheme.bias(torch.zeros_like(u[:1]), t, t))  # (1, H, L, L)
    vectors = exact(scheme.bias(u, t, t)) - bare  # (d | 1, H, L, L): component by component
    if not vectors.any():
        return BIAS, bare[0].mean(0)
    a = vectors.mean(1).permute(1, 2, 0)  # (L, L, d)
    return CONTENT, cosine(a, a.diagonal(dim1=0, dim2=1).T[:, None])


def exact(x: Tensor) -> Tensor:
    return x.cpu().double()  # in this order: not every device has doubles


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Along the last dimension; what is 0 is like nothing."""
    return torch.nn.functional.cosine_similarity(a, b, -1)
