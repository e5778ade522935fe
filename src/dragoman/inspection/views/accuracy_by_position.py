"""Accuracy of the next token by source position: what the encoder read long ago is forgotten first.

The most probable token after each prefix of a reference is compared with the reference's own. Target token t of T is
counted at the source position that lies beside it, j = ⌈t S / T⌉.

S source tokens, T target tokens, both without </s>.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.inspection.blockers import encoder_decoder_blocker, source_order_blocker
from dragoman.inspection.views import RequestSize, ViewData, pass_cost, register_view

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline

BATCH_TOKENS = 4096  # of the longer side, padding included: each has logits over the whole vocabulary


def _order_blocker(pipeline: Pipeline) -> str | None:
    return encoder_decoder_blocker(pipeline) or source_order_blocker(pipeline)


def _print_accuracy(out: Console, data: ViewData) -> None:
    for point in data["points"]:
        out.print(f"position {point['position']}: {point['correct']:.1%} of {point['count']}", markup=False)


def _accuracy_cost(size: RequestSize) -> int:
    return len(size.sources) + pass_cost(2 * size.positions)  # the shorter side is padded


@register_view(
    "accuracy_by_position",
    inputs="pairs",
    cost=_accuracy_cost,
    print_view=_print_accuracy,
    blocker=_order_blocker,
)
def measure_accuracy(pipeline: Pipeline, pairs: Sequence[Example]) -> ViewData:
    """How often the next token of a reference is the most probable one, by source position; </s> is not counted."""
    import torch

    from dragoman.data.batching import collate
    from dragoman.engines.length_batches import batch_by_length
    from dragoman.inspection.length_units import strip_eos
    from dragoman.inspection.teacher_forcing import prepare_pair

    forced = [prepare_pair(pipeline, pair, pair.target) for pair in pairs if pair.source.strip() and pair.target]
    if not forced:
        raise DataError("there is no pair; a pair is a source and a target")
    sides = [(len(strip_eos(pair.pieces)), len(pair.target) - 1) for pair in forced]
    count, correct = defaultdict[int, int](int), defaultdict[int, int](int)
    for indices in batch_by_length([max(S, T + 1) for S, T in sides], BATCH_TOKENS):
        batch = collate([forced[i].row for i in indices], indices).to(pipeline.device)
        with torch.inference_mode():
            output = pipeline.model.eval()(batch)
            is_correct = (output.logits.argmax(-1) == output.gold).tolist()
        for i, hits in zip(indices, is_correct, strict=True):
            S, T = sides[i]
            for t, hit in enumerate(hits[:T], 1):
                j = math.ceil(t * S / T)
                count[j], correct[j] = count[j] + 1, correct[j] + hit
    return {"points": [{"position": j, "count": count[j], "correct": correct[j] / count[j]} for j in sorted(count)]}
