"""What a beam kept and dropped at each step, as plain data that others can draw.

    {"step": 2, "id": 23, "parent": 12, "token": 7, "log_prob": -0.4, "total": -1.9, "score": -0.6,
     "fate": "kept", "reason": ""}

`id` is unique within a sentence; the parent of the first ones is 0, the empty hypothesis. Fates: kept, finished (among
the finished hypotheses after that step), dropped. The best 2k extensions of a step are recorded; none below can be
kept.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from dragoman.search import Trace
    from dragoman.search.beam import BeamState

FIELDS = ("step", "id", "parent", "token", "log_prob", "total", "score", "fate", "reason")


def record_step(
    traces: dict[int, Trace],
    rows: Tensor,
    t: int,
    active: BeamState,
    extended: BeamState,
    parents: Tensor,
    newly_finished: Tensor,
    finished: BeamState,
    kept: BeamState,
    slots: Tensor,
    is_running: Tensor,
    at_limit: Tensor,
) -> None:
    """Append a step's extensions, with fate and reason, to the trace of each running sentence; `slots` is (B, 1)."""
    columns = (
        active.node.gather(1, parents),
        extended.node,
        extended.tokens[:, :, t],
        extended.log_probs[:, :, t],
        extended.total,
        extended.score,
        extended.has_eos,
        newly_finished,
    )
    chosen = [column[is_running].tolist() for column in columns]
    active_nodes = kept.node.masked_fill(kept.total == -math.inf, -1)
    per_sentence = (rows, finished.node, active_nodes, slots[:, 0], at_limit)
    sentences = (x[is_running].tolist() for x in per_sentence)
    for row, finished_nodes, active_ids, k, is_over, *fields in zip(*sentences, *chosen, strict=True):
        trace = traces.setdefault(row, [])
        for parent, node, token, log_prob, total, score, has_eos, is_finished in zip(*fields, strict=True):
            if total == -math.inf:
                continue
            fate, reason = "dropped", f"not among the best {k}"
            if is_finished:
                fate, reason = (
                    "finished",
                    "" if node in finished_nodes else f"{len(finished_nodes)} that finished score higher",
                )
            elif has_eos:
                reason = f"</s>, but not among the best {k}"
            elif is_over:
                reason = "the maximum length was reached"
            elif node in active_ids:
                fate, reason = "kept", ""
            values = (t, node, parent, token, log_prob, total, score, fate, reason)
            trace.append(dict(zip(FIELDS, values, strict=True)))
