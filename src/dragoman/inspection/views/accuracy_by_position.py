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

from dragoman.core.errors import DataError
from dragoman.core.types import EOS, SPECIALS, Example
from dragoman.inspection.blockers import encoder_decoder_blocker, source_order_blocker
from dragoman.inspection.views import ViewData, register_view

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.data.objectives import TrainingRow
    from dragoman.inference.pipeline import Pipeline

BATCH_TOKENS = 4096  # of the longer side, padding included: each has logits over the whole vocabulary


def order_blocker(pipeline: Pipeline) -> str | None:
    """Return why a model has no accuracy by source position, or None."""
    return encoder_decoder_blocker(pipeline) or source_order_blocker(pipeline)


def print_accuracy(out: Console, data: ViewData) -> None:
    """Print a line with accuracy and count for each source position."""
    for point in data["points"]:
        out.print(f"position {point['position']}: {point['correct']:.1%} of {point['count']}", markup=False)


@register_view("accuracy_by_position", inputs="pairs", print_view=print_accuracy, blocker=order_blocker)
def measure_accuracy(pipeline: Pipeline, pairs: Sequence[Example]) -> ViewData:
    """How often the next token of a reference is the most probable one, by source position; </s> is not counted."""
    import torch

    from dragoman.data.batching import collate

    rows = _encode_pairs(pipeline, pairs)
    rows.sort(key=lambda row: max(row[0], len(row[1].target)))
    count, correct = defaultdict[int, int](int), defaultdict[int, int](int)
    while rows:
        size = max(BATCH_TOKENS // max(rows[-1][0], len(rows[-1][1].target)), 1)
        some, rows = rows[-size:], rows[:-size]
        batch = collate([row for _, row in some], list(range(len(some)))).to(pipeline.device)
        with torch.inference_mode():
            output = pipeline.model.eval()(batch)
            is_correct = (output.logits.argmax(-1) == output.gold).tolist()
        for (S, row), hits in zip(some, is_correct, strict=True):
            T = len(row.target) - 1
            for t, hit in enumerate(hits[:T], 1):
                j = math.ceil(t * S / T)
                count[j], correct[j] = count[j] + 1, correct[j] + hit
    return {"points": [{"position": j, "count": count[j], "correct": correct[j] / count[j]} for j in sorted(count)]}


def _encode_pairs(pipeline: Pipeline, pairs: Sequence[Example]) -> list[tuple[int, TrainingRow]]:
    """Return (source length without </s>, row) of each pair with a source and a target; DataError if there is none."""
    from dragoman.inspection.teacher_forcing import check_length, read_source

    rows = []
    for example in pairs:
        if example.source.strip() and example.target:
            model_input = read_source(pipeline, example)
            target = pipeline.codec.encode_target(example.target, source=example.source)
            labels = pipeline.input_processor.source_labels(model_input)
            check_length("target", target, pipeline.input_processor.max_target_length(len(labels)))
            rows.append((len(labels) - (labels[-1] == SPECIALS[EOS]), model_input.row._replace(target=target)))
    if not rows:
        raise DataError("there is no pair; a pair is a source and a target")
    return rows
