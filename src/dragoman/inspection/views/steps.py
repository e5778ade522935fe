"""What a model says at each step, and what else it might have said: free-running, and along a given target.

    free     y_t = prefix_t, then argmax p(y | y_<t, x) under the rules of the config, as greedy search
    forced   y_t = the target's: what the model would have said after the beginning of the right answer

    rank = 1 + how many tokens are more probable than y_t          entropy = −Σ_y p(y | y_<t, x) log p(y | y_<t, x)

Probabilities are the model's own, whatever the rules forbid, in float32. To a language model a source is the beginning
of a text, which it goes on with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import BOS, EOS, PAD, Capacity, Example
from dragoman.data.batching import collate
from dragoman.inference.ensemble import Fused
from dragoman.inference.inputs import Given
from dragoman.inference.length_limits import NOTHING, limits_for
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.pair import line, reach, read
from dragoman.inspection.views.alignment import entropy
from dragoman.search import Limits
from dragoman.search.logits_processors import constrained


def walk(
    pipeline: Pipeline,
    source: str | Example,
    target: str | None = None,
    *,
    prefix: Sequence[int] = (),
    top: int = 8,
) -> dict[str, Any]:
    """The steps of a greedy search that begins with the tokens of `prefix`, beside those along a target."""
    check(pipeline, target, prefix, top)
    example = pipeline.reading.example(source)
    if not example.source.strip() and not pipeline.continues_text:
        raise UserError("the source is blank, so there is nothing to go through; give a text")
    given = read(pipeline, example)
    free = _walk(pipeline, example, given, prefix, top)
    forced = None
    if target is not None:
        gold = pipeline.codec.encode_target(target, source=example.source)
        forced = _walk(pipeline, example, given, gold, top)
    return {
        "view": "steps",
        "source_text": line(example),
        "prefix": list(prefix),
        "free": free,
        "forced": forced,
        "diverges": None if forced is None else divergence(free["steps"], forced["steps"]),
    }


def check(pipeline: Pipeline, target: str | None, prefix: Sequence[int], top: int) -> None:
    """Refuse what has no steps, or steps that are no probabilities, and beginnings that no result can have."""
    if pipeline.model.head is not None:
        raise UserError("this model answers with labels at once; steps are of a model with a decoder")
    if isinstance(pipeline.model, Fused):
        raise UserError("a language model joins this search, so its steps are no probabilities; load the model alone")
    if pipeline.continues_text and target is not None:
        raise UserError("a language model has no target; give the text as its source, or its tokens as the prefix")
    size = len(pipeline.codec.target)
    for id in prefix:
        if id in (PAD, BOS, EOS) or not 0 <= id < size:
            raise UserError(
                f"the prefix holds the token {id}, which no beginning can hold; give ids from {EOS + 1} to {size - 1}"
            )
    if top < 1:
        raise UserError(f"top is {top}; it must be at least 1")


@torch.inference_mode()
def _walk(pipeline: Pipeline, example: Example, source: Given, given: Sequence[int], top: int) -> dict[str, Any]:
    """Along the given tokens, and on from there until </s> or the limit."""
    pipeline.model.eval()
    beginning = [id for id in given if id != EOS]
    reach("target", [*beginning, EOS], pipeline.reading.longest_target(len(pipeline.reading.pieces(source))))
    lengths = torch.tensor([len(source.source)], device=pipeline.device)
    limits = limits_for(pipeline.reading, lengths, [0], [NOTHING], [example.source])
    longest = max(int(limits.longest[0]), len(beginning))
    step, start, heard = pipeline.begin(collate([source.row], [0]).to(pipeline.device))
    state = start(Capacity(1, longest + 1))
    limits = replace(limits, rules=[*heard, *limits.rules])
    said: list[int] = []
    steps: list[dict[str, Any]] = []
    for t in range(longest + 1):
        token = torch.tensor([[said[-1] if said else BOS]], device=pipeline.device)
        log_p, state = step(token, state)
        forced = t < len(given)
        chosen = given[t] if forced else choice(log_p, said, limits)
        if chosen is None or (t == longest and chosen != EOS):  # nothing is allowed, or nothing but the end
            break
        said.append(chosen)
        steps.append(_plain(pipeline, log_p[0, 0].double(), chosen, forced, top))
        if chosen == EOS:
            break
    text = pipeline.codec.decode([*source.source, *said] if pipeline.continues_text else said, example.source)
    return {"text": text, "log_prob": sum(one["log_prob"] for one in steps), "steps": steps}


def choice(log_p: Tensor, said: Sequence[int], limits: Limits) -> int | None:
    """The most probable token that the rules allow, log_p (1, 1, V); None where they allow none."""
    history = torch.tensor([[list(said)]], dtype=torch.long, device=log_p.device)  # (1, 1, t)
    best, token = constrained(log_p, history, torch.zeros(1, dtype=torch.long, device=log_p.device), limits).max(-1)
    return None if best.item() == -math.inf else int(token)


def _plain(pipeline: Pipeline, log_p: Tensor, chosen: int, forced: bool, top: int) -> dict[str, Any]:
    """A step from log p (V,)."""
    best, ids = log_p.topk(min(top, len(log_p)))
    pieces = pipeline.codec.target_pieces([chosen, *ids.tolist()])
    return {
        "id": chosen,
        "token": pieces[0],
        "log_prob": float(log_p[chosen]),
        "rank": 1 + int((log_p > log_p[chosen]).sum()),
        "entropy": float(entropy(log_p.exp())),
        "forced": forced,
        "top": [
            {"id": id, "token": piece, "log_prob": value}
            for id, piece, value in zip(ids.tolist(), pieces[1:], best.tolist(), strict=True)
        ],
    }


def divergence(free: Sequence[dict[str, Any]], forced: Sequence[dict[str, Any]]) -> int | None:
    """The first step at which the tokens differ, or one has ended; None where they are the same."""
    ids = [one["id"] for one in free], [one["id"] for one in forced]
    if ids[0] == ids[1]:
        return None
    pairs = zip(*ids, strict=False)
    return next((t for t, (one, other) in enumerate(pairs) if one != other), min(map(len, ids)))
