"""Gradient saliency: how much each source position influences each output token.

    g_tj = ‖∂ log p(y_t | y_<t, x) / ∂ x_j‖        x_j: the embedded source token, or a frontend's vector for a cell of
                                                   an image or a moment of audio

`by_distance` is its mean by the number of recurrent steps between reading x_j and writing y_t (j, t from 1): S − j + t
for an encoder that reads from left to right, and j − 1 + t for one that reads in reverse. Without attention the
gradient vanishes with the distance.

S source tokens, T target tokens, D width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.console import Console

from dragoman.inspection.blockers import encoder_decoder_blocker, source_order_blocker
from dragoman.inspection.render.terminal import print_source_weights, scale_rows
from dragoman.inspection.views import RequestSize, ViewData, pass_cost, register_view

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dragoman.core.types import Example, Segments
    from dragoman.inference.pipeline import Pipeline


def _print_saliency(out: Console, data: ViewData) -> None:
    largest = max((x for row in data["norms"] for x in row), default=0.0)
    out.print(f"‖∂ log p / ∂ source‖, the largest is {largest:.3g}:", markup=False)
    print_source_weights(out, data, scale_rows(data["norms"]))


def _saliency_cost(size: RequestSize) -> int:
    return size.prediction_cost + 2 * (sum(size.targets) + 1) * pass_cost(size.positions)  # a backward pass for each


@register_view(
    "saliency", inputs="pair", cost=_saliency_cost, print_view=_print_saliency, blocker=encoder_decoder_blocker
)
def compute_saliency(pipeline: Pipeline, source: str | Example, target: str | None = None) -> ViewData:
    """The gradient norm of each output token's log-probability with respect to each source position."""
    import torch

    from dragoman.inspection.media_preview import build_media_preview, source_labels
    from dragoman.inspection.teacher_forcing import batch_of_one, prepare_pair, source_line
    from dragoman.nn.losses import output_log_probs, token_log_probs

    pair = prepare_pair(pipeline, source, target)
    batch, model = batch_of_one(pipeline, pair.row), pipeline.model.eval()
    embedded: list[Tensor] = []

    def track_input(_: nn.Module, args: tuple[Tensor, Segments]) -> tuple[Tensor, Segments]:
        """A forward pre-hook: replace an encoder's input by a leaf that records its gradient."""
        embedded.append(args[0].detach().requires_grad_())
        return embedded[-1], args[1]

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_hook(_let_signals_in).remove)
        for part in (model, *([] if model.second_source is None else [model.second_source])):
            hooks.callback(part.encoder.register_forward_pre_hook(track_input).remove)
        # cuDNN's recurrent layers have no gradient outside training.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            output = model(batch)
            log_p = token_log_probs(output_log_probs(output.logits), output.gold)[0]  # (T,)
            rows = [
                torch.cat([x[0].double().norm(dim=-1) for x in torch.autograd.grad(one, embedded, retain_graph=True)])
                for one in log_p
            ]  # (S,) each, of both sources
    norms: list[list[float]] = torch.stack(rows).tolist()  # (T, S)
    has_order = source_order_blocker(pipeline) is None
    reverse = getattr(model.encoder, "reverse", False)  # reads x_S first and x_1 last (Sutskever 2014)
    return {
        "source_text": source_line(pair.example),
        "target_text": pair.target_text,
        "source": source_labels(pipeline, pair.model_input),
        "target": pipeline.codec.target.pieces(pair.target),
        "norms": norms,
        "by_distance": mean_by_distance(norms, reverse=reverse) if has_order else [],
        "media_preview": build_media_preview(pipeline, pair.model_input, encoded=False),
    }


def _let_signals_in(_: nn.Module, __: object, output: object) -> None:
    """A forward hook: in the backward pass, call Python at this output, so that a server can cancel the view there."""
    import torch

    if isinstance(output, torch.Tensor) and output.requires_grad:
        output.register_hook(lambda _: None)  # type: ignore[no-untyped-call]


def mean_by_distance(norms: Sequence[Sequence[float]], *, reverse: bool = False) -> list[list[float]]:
    """Return [distance, mean norm] of each distance S − j + t, or j − 1 + t with `reverse`, in order."""
    by_distance: dict[int, list[float]] = defaultdict(list)
    for t, row in enumerate(norms, 1):
        for j, norm in enumerate(row, 1):
            by_distance[(j - 1 if reverse else len(row) - j) + t].append(norm)
    return [[distance, sum(some) / len(some)] for distance, some in sorted(by_distance.items())]
