"""How similar positions are to a model: a matrix over pairs of positions, for any position scheme.

    added to x        cos(p_i, p_j) of the added vectors                               sinusoidal, learned
    rotates q and k   mean over contents u, |u| = 1, of (R_i u) · (R_j u)              rotary
    added to scores   e_ij, the mean over heads                                        t5, alibi
                      cos(A_ij, A_ii), where q_i · A_ij is added                       shaw
    nothing           1: all positions are alike                                       none

What a scheme does is found by calling it (see nn/positions.py), so that a new scheme needs no change here. Where every
block has a scheme of its own, the matrices are averaged. `trained` is whether a scheme has learned parameters.

L positions, H heads, D width of an added vector, d width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from rich.console import Console

from dragoman.core.errors import UserError, did_you_mean
from dragoman.core.registry import Part
from dragoman.inspection.blockers import single_model_blocker
from dragoman.inspection.render.terminal import print_heat_map, scale_rows
from dragoman.inspection.views import RequestSize, ViewData, register_view

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dragoman.inference.pipeline import Pipeline
    from dragoman.nn.positions import PositionScheme

SIDES = ("encoder", "decoder")
MAX_POSITIONS = 256  # 65,536 numbers to send and to draw
COSINE = "The cosine between the vectors that are added at positions i and j."
ROTATION = (
    "The score of a query at position i with a key of the same content at position j, relative to the score at one "
    "position, averaged over contents."
)
BIAS = "The bias that is added to the score of a query at position i with a key at position j, averaged over heads."
CONTENT = (
    "The query is multiplied with a vector of the distance and added to the score: the cosine between that vector for "
    "positions i and j and the one for i and i."
)
NOTHING = "The model does not distinguish positions: all pairs are equally similar."
CAUSAL = " Queries attend only to keys at or before their own position, j ≤ i."


def _positions_blocker(pipeline: Pipeline) -> str | None:
    reason = single_model_blocker(pipeline)
    if reason is None and not any(map(find_schemes, _sides(pipeline).values())):
        parts = " and ".join(f"the {side} '{getattr(pipeline.config.model, side).name}'" for side in _sides(pipeline))
        return f"there is no position scheme in {parts}; use a model with positions, such as a Transformer"
    return reason


def _print_similarity(out: Console, data: ViewData) -> None:
    out.print(data["description"], markup=False, soft_wrap=True)
    labels = [str(i) for i in range(len(data["matrix"]))]
    print_heat_map(out, scale_rows(data["matrix"]), labels, labels)


def _similarity_cost(size: RequestSize) -> int:
    return 50 + int(size.options["length"]) ** 2 // 64


@register_view(
    "positions", inputs="none", cost=_similarity_cost, print_view=_print_similarity, blocker=_positions_blocker
)
def compute_position_similarity(
    pipeline: Pipeline,
    *,
    side: Literal["encoder", "decoder"] | None = None,
    length: Annotated[int, Field(ge=1, le=MAX_POSITIONS)] = 64,
) -> ViewData:
    """How similar two positions are to a model; without a side, on the first side that has positions."""
    if side is not None and side not in SIDES:
        raise UserError(f"side is '{side}'; it must be one of {', '.join(SIDES)}{did_you_mean(side, SIDES)}")
    with_positions = {name: part for name, part in _sides(pipeline).items() if find_schemes(part)}
    first = next(iter(with_positions))
    chosen = side or first
    if chosen not in with_positions:
        raise UserError(f"the model's {chosen} has no position scheme; use side '{first}'")
    part = with_positions[chosen]
    schemes = find_schemes(part)
    trained = any(True for scheme in schemes for _ in scheme.parameters())
    data = _similarity_data(schemes, head_width(part), chosen == "decoder", length)
    return data | {"side": chosen, "trained": trained}


def scheme_similarity(part: Part, d: int, length: int = 64, *, heads: int = 8, causal: bool = False) -> ViewData:
    """Compute the view of a new scheme, without a model, for width d; `causal` as in a decoder."""
    from dragoman.nn.positions import HeadSpec, positions

    if heads < 1 or d < 1 or d % heads:
        raise UserError(f"width {d} cannot be shared evenly by {heads} heads; change one of them")
    scheme = positions.build(part, d, HeadSpec(heads, d // heads, causal))
    data = _similarity_data([scheme], d // heads, causal, length)
    return {"view": "positions", **data, "side": "no model", "trained": False}


def _sides(pipeline: Pipeline) -> dict[str, nn.Module]:
    return {side: part for side in SIDES if (part := getattr(pipeline.model, side)) is not None}


def find_schemes(part: nn.Module) -> list[PositionScheme]:
    """Return the position schemes of an encoder or decoder: one for each block, one in all, or none."""
    per_layer = getattr(getattr(part, "stack", None), "positions", None)
    if per_layer is not None:
        return list(per_layer)
    scheme = getattr(part, "position", None)
    return [] if scheme is None else [scheme]


def head_width(part: nn.Module) -> int | None:
    """Return the width of an attention head of the first block; None for a part without attention."""
    blocks = getattr(getattr(part, "stack", None), "blocks", None)
    mixer: Any = blocks[0].mixer if blocks is not None else None
    return mixer.Wq.out_features // mixer.heads if hasattr(mixer, "Wq") else None


def _similarity_data(schemes: Sequence[PositionScheme], d: int | None, causal: bool, length: int) -> ViewData:
    """Return the first scheme's name and description (`causal` adds a note), and the schemes' mean matrix (L, L)."""
    import torch

    from dragoman.nn.positions import positions

    if not 1 <= length <= MAX_POSITIONS:
        raise UserError(f"length is {length}; it must be from 1 to {MAX_POSITIONS}")
    first = schemes[0]
    length = min(length, first.max_positions or length)
    with torch.no_grad():
        described = [similarity_matrix(scheme, d, length) for scheme in schemes]
    description = described[0][0]
    names = [name for name in positions.names if positions[name] is type(first)]
    return {
        "scheme": names[0] if names else type(first).__name__,
        "description": description + CAUSAL if causal and description in (BIAS, CONTENT) else description,
        "matrix": torch.stack([matrix for _, matrix in described]).mean(0).tolist(),
    }


def similarity_matrix(scheme: PositionScheme, d: int | None, length: int) -> tuple[str, Tensor]:
    """Return a sentence that describes a scheme's similarity, and its matrix (L, L); `d` is the width of a head."""
    import torch
    from torch.nn.functional import cosine_similarity

    device = next((x.device for x in [*scheme.parameters(), *scheme.buffers()]), torch.device("cpu"))
    t = torch.arange(length, device=device)[None]  # (1, L)
    added = scheme(torch.zeros(1, length, 1, device=device), t)[0]  # (L, D): zeros broadcast to the width of p
    if added.any():
        return COSINE, cosine_similarity(_to_double(added)[:, None], _to_double(added)[None], -1)
    if d is not None:
        u = torch.eye(d, device=device)[:, None, None].expand(d, 1, length, d)  # in each row another content
        rotated = _to_double(scheme.rotate(u, t))[:, 0]  # (d, L, d)
        if not torch.allclose(rotated, _to_double(u)[:, 0]):
            # The mean of u · R u over all directions u is that over any orthonormal basis, here the unit vectors.
            return ROTATION, torch.einsum("uid,ujd->ij", rotated, rotated) / d
        if scheme.has_score_bias:
            return _bias_similarity(scheme, u, t)
    return NOTHING, torch.ones(length, length, dtype=torch.float64)


def _bias_similarity(scheme: Any, u: Tensor, t: Tensor) -> tuple[str, Tensor]:
    """Return the mean score bias; where it depends on the query, the cosines of the vectors multiplied with it."""
    import torch
    from torch.nn.functional import cosine_similarity

    constant = _to_double(scheme.score_bias(torch.zeros_like(u[:1]), t, t))  # (1, H, L, L)
    vectors = _to_double(scheme.score_bias(u, t, t)) - constant  # (d | 1, H, L, L): component by component
    if not vectors.any():
        return BIAS, constant[0].mean(0)
    a = vectors.mean(1).permute(1, 2, 0)  # (L, L, d)
    return CONTENT, cosine_similarity(a, a.diagonal(dim1=0, dim2=1).T[:, None], -1)


def _to_double(x: Tensor) -> Tensor:
    return x.cpu().double()  # in this order: not every device has doubles
