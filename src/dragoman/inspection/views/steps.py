"""Each step of greedy decoding with the most probable next tokens: free-running, and teacher-forced along a target.

    free     y_t = prefix_t, then argmax p(y | y_<t, x) under the constraints of the config
    forced   y_t = the target's: what the model predicts after each prefix of the right answer

    rank = 1 + the number of tokens more probable than y_t         entropy = −Σ_y p(y | y_<t, x) log p(y | y_<t, x)

Probabilities are the model's own in float32, before any constraint. For a language model the source is the text that it
continues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from rich.console import Console

from dragoman.core.errors import UserError
from dragoman.core.types import BOS, EOS, PAD, Capacity, Example
from dragoman.inspection.blockers import decoder_blocker
from dragoman.inspection.render.terminal_tree import render_steps
from dragoman.inspection.views import RequestSize, ViewData, pass_cost, register_view

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.inference.inputs import ModelInput
    from dragoman.inference.pipeline import Pipeline
    from dragoman.search import SearchConstraints

TokenId = Annotated[int, Field(ge=0, le=1_000_000)]


def _decoding_blocker(pipeline: Pipeline) -> str | None:
    from dragoman.inference.ensemble import ShallowFusion

    if isinstance(pipeline.model, ShallowFusion):
        return "with shallow fusion scores of a step are no probabilities; load the model without the language model"
    return decoder_blocker(pipeline)


def _print_steps(out: Console, data: ViewData) -> None:
    out.print(render_steps(data, width=out.width), end="")


def _steps_cost(size: RequestSize) -> int:
    steps = sum(size.sources) + len(size.options["prefix"]) + (sum(size.targets) if size.has_targets else 0)
    return pass_cost(sum(size.sources)) + 8 * steps  # each sorts the vocabulary and is described in Python


@register_view("steps", inputs="pair", cost=_steps_cost, print_view=_print_steps, blocker=_decoding_blocker)
def trace_steps(
    pipeline: Pipeline,
    source: str | Example,
    target: str | None = None,
    *,
    prefix: Annotated[Sequence[TokenId], Field(max_length=4096)] = (),
    top: Annotated[int, Field(ge=1, le=100)] = 8,
) -> ViewData:
    """The most probable next tokens at each step of a greedy search, from a prefix on and along a target."""
    from dragoman.inspection.teacher_forcing import read_example, read_source, source_line

    _check_request(pipeline, target, prefix, top)
    example = read_example(pipeline, source)
    model_input = read_source(pipeline, example)
    free = _decode_steps(pipeline, example, model_input, prefix, top)
    forced = None
    if target is not None:
        ids = pipeline.codec.encode_target(replace(example, target=target))
        forced = _decode_steps(pipeline, example, model_input, ids, top)
    return {
        "source_text": source_line(example),
        "prefix": list(prefix),
        "free": free,
        "forced": forced,
        "diverges": None if forced is None else first_difference(free["steps"], forced["steps"]),
    }


def _check_request(pipeline: Pipeline, target: str | None, prefix: Sequence[int], top: int) -> None:
    if pipeline.continues_text and target is not None:
        raise UserError("a language model has no target; give the text as its source, or its tokens as the prefix")
    size = len(pipeline.codec.target)
    for id in prefix:
        if id in (PAD, BOS, EOS) or not 0 <= id < size:
            raise UserError(f"the prefix has the token {id}; allowed are ids from {EOS + 1} to {size - 1}")
    if top < 1:
        raise UserError(f"top is {top}; it must be at least 1")


def _decode_steps(
    pipeline: Pipeline, example: Example, model_input: ModelInput, forced: Sequence[int], top: int
) -> ViewData:
    """Decode along the forced tokens, then greedily until </s> or the maximum length; describe each step."""
    import torch

    from dragoman.inference.constraints import build_constraints
    from dragoman.inspection.teacher_forcing import batch_of_one, check_length

    processor = pipeline.input_processor
    pipeline.model.eval()
    prefix = [id for id in forced if id != EOS]
    check_length("target", [*prefix, EOS], processor.max_target_length(len(processor.source_labels(model_input))))
    ids: list[int] = []
    steps: list[ViewData] = []
    with torch.inference_mode():
        lengths = torch.tensor([len(model_input.source)], device=pipeline.device)
        constraints = build_constraints(processor, lengths, [0], [pipeline.config.generation], [example])
        max_length = max(int(constraints.max_lengths[0]), len(prefix))
        step, start, ctc_processors = pipeline.start_decoding(batch_of_one(pipeline, model_input.row))
        state = start(Capacity(1, max_length + 1))
        constraints = replace(constraints, processors=[*ctc_processors, *constraints.processors])
        for t in range(max_length + 1):
            last = torch.tensor([[ids[-1] if ids else BOS]], device=pipeline.device)
            log_p, state = step(last, state)
            is_forced = t < len(forced)
            token = forced[t] if is_forced else choose_token(log_p, ids, constraints)
            if token is None or (t == max_length and token != EOS):  # no token is valid, or only </s>
                break
            ids.append(token)
            steps.append(_step_data(pipeline, log_p[0, 0].double(), token, is_forced, top))
            if token == EOS:
                break
    text = pipeline.codec.decode([*model_input.source, *ids] if pipeline.continues_text else ids, example.source)
    return {"text": text, "log_prob": sum(one["log_prob"] for one in steps), "steps": steps}


def choose_token(log_p: Tensor, ids: Sequence[int], constraints: SearchConstraints) -> int | None:
    """Return the most probable token that the constraints allow, log_p (1, 1, V); None where they allow none."""
    import torch

    from dragoman.search.logits_processors import apply_constraints

    history = torch.tensor([[list(ids)]], dtype=torch.long, device=log_p.device)  # (1, 1, t)
    rows = torch.zeros(1, dtype=torch.long, device=log_p.device)
    best, token = apply_constraints(log_p, history, rows, constraints).max(-1)
    return None if best.item() == -math.inf else int(token)


def _step_data(pipeline: Pipeline, log_p: Tensor, token: int, is_forced: bool, top: int) -> ViewData:
    from dragoman.inspection.attention_maps import entropy

    best, ids = log_p.topk(min(top, int((log_p > -math.inf).sum())))
    pieces = pipeline.codec.target.pieces([token, *ids.tolist()])
    return {
        "id": token,
        "token": pieces[0],
        "log_prob": float(log_p[token]),
        "rank": 1 + int((log_p > log_p[token]).sum()),
        "entropy": float(entropy(log_p.exp())),
        "forced": is_forced,
        "top": [
            {"id": id, "token": piece, "log_prob": value}
            for id, piece, value in zip(ids.tolist(), pieces[1:], best.tolist(), strict=True)
        ],
    }


def first_difference(free: Sequence[ViewData], forced: Sequence[ViewData]) -> int | None:
    """Return the index of the first step whose tokens differ, or where one side has ended; None if equal."""
    ids = [one["id"] for one in free], [one["id"] for one in forced]
    return next((t for t, (one, other) in enumerate(zip_longest(*ids)) if one != other), None)
