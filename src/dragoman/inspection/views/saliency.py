"""Why attention: how far what a model says depends on each source position, and how long one step waits for another.

    gradients     g_tj = ‖∂ log p(y_t | y_<t, x) / ∂ x_j‖, x_j the embedded source token, or what a frontend makes of
                  a cell of an image, of a moment of a sound; its mean by the distance, the recurrent steps between
                  reading x_j and saying y_t (j, t from 1): S − j + t where the source is read from left to right, and
                  j − 1 + t where it is read in reverse; without attention the gradient vanishes along it
    by position   how often the most probable token after the reference's beginning is the reference's, by the place of
                  the source that stands beside it, j = ⌈t S / T⌉: what is far back is forgotten first
    sequential    how many layers must run one after the other, counted while they run: a layer over all positions is
                  one step, a recurrent layer one for each position

S source tokens, T target tokens, D width.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.core.errors import DataError, UserError
from dragoman.core.types import BOS, EOS, SPECIALS, UNK, Capacity, Example, Segments
from dragoman.data.batching import collate
from dragoman.data.objectives import Row
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.media_preview import labels, medium
from dragoman.inspection.pair import check, line, pair, reach, read
from dragoman.nn.blocks import Block
from dragoman.nn.convolution import GatedConvolution
from dragoman.nn.losses import token_log_probs
from dragoman.nn.recurrent import Layer, ResetBefore
from dragoman.nn.seq2seq import Seq2Seq

TOKENS = 4096  # of the longer side, padding included, in a pass over pairs: each has logits of the whole vocabulary
LONG = 16  # tokens, </s> included: steps are counted for so many, and for half as many

# -- gradients ---------------------------------------------------------------------------------------------------------


def gradients(pipeline: Pipeline, source: str | Example, target: str | None = None) -> dict[str, Any]:
    """How far log p of each token of a target, or of the model's output, depends on each source token."""
    mine = pair(pipeline, source, target)
    batch, model = mine.batch(pipeline), pipeline.model.eval()
    embedded: list[Tensor] = []

    def from_here(_: nn.Module, given: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        embedded.append(given[0].detach().requires_grad_())
        return embedded[-1], given[1]

    with ExitStack() as hooks:
        for part in (model, *([] if model.second_source is None else [model.second_source])):
            hooks.callback(part.encoder.register_forward_pre_hook(from_here).remove)
        # cuDNN's recurrent layers have no gradient outside training.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            found = model(batch)
            log_p = token_log_probs(found.logits, found.gold)[0]  # (T,)
            rows = [
                torch.cat([x[0].double().norm(dim=-1) for x in torch.autograd.grad(one, embedded, retain_graph=True)])
                for one in log_p
            ]  # (S,) each, of both sources
    norms: list[list[float]] = torch.stack(rows).tolist()  # (T, S)
    return {
        "view": "why",
        "source_text": line(mine.example),
        "target_text": mine.text,
        "source": labels(pipeline, mine.read),
        "target": pipeline.codec.target_pieces(mine.target),
        "norms": norms,
        "by_distance": by_distance(norms, reverse=reads_backwards(pipeline)) if follows(pipeline) else [],
        "medium": medium(pipeline, mine.read, encoded=False),
    }


def follows(pipeline: Pipeline) -> bool:
    """Whether the source has one order, in which it may be read: an image has none, and two sources have two."""
    first = pipeline.codec.modality
    return pipeline.codec.second_source is None and (first is None or first.kind != "image")


def reads_backwards(pipeline: Pipeline) -> bool:
    """Whether the encoder reads x_S first and x_1 last (Sutskever 2014)."""
    return bool(getattr(pipeline.model.encoder, "reverse", False))


def by_distance(norms: Sequence[Sequence[float]], *, reverse: bool = False) -> list[list[float]]:
    """(distance, mean norm) for every distance there is: S − j + t, or j − 1 + t for sources read in reverse."""
    found: dict[int, list[float]] = defaultdict(list)
    for t, row in enumerate(norms, 1):
        for j, norm in enumerate(row, 1):
            found[(j - 1 if reverse else len(row) - j) + t].append(norm)
    return [[distance, sum(found[distance]) / len(found[distance])] for distance in sorted(found)]


# -- quality by source position ----------------------------------------------------------------------------------------


@torch.inference_mode()
def by_position(pipeline: Pipeline, examples: Iterable[Example]) -> dict[str, Any]:
    """How often the next token of a reference is the most probable one, by source position; </s> is not counted."""
    check(pipeline)
    if not follows(pipeline):
        raise UserError("an image, or two sources, have no order that a target follows; look at texts or sounds")
    rows: list[tuple[int, Row]] = []
    for example in examples:
        if example.source.strip() and example.target:
            given, target = (
                read(pipeline, example),
                pipeline.codec.encode_target(example.target, source=example.source),
            )
            pieces = pipeline.reading.pieces(given)
            reach("target", target, pipeline.reading.longest_target(len(pieces)))
            rows.append((len(pieces) - (pieces[-1] == SPECIALS[EOS]), given.row._replace(target=target)))
    if not rows:
        raise DataError("there is no pair to look at; a pair is a source and a target")
    rows.sort(key=lambda row: max(row[0], len(row[1].target)))
    count, right = defaultdict[int, int](int), defaultdict[int, int](int)
    while rows:
        many = max(TOKENS // max(rows[-1][0], len(rows[-1][1].target)), 1)
        some, rows = rows[-many:], rows[:-many]
        batch = collate([row for _, row in some], list(range(len(some)))).to(pipeline.device)
        found = pipeline.model.eval()(batch)
        hits = (found.logits.argmax(-1) == found.gold).tolist()
        for (S, made), row in zip(some, hits, strict=True):
            T = len(made.target) - 1
            for t, hit in enumerate(row[:T], 1):
                j = math.ceil(t * S / T)
                count[j], right[j] = count[j] + 1, right[j] + hit
    points = [{"position": j, "count": count[j], "correct": right[j] / count[j]} for j in sorted(count)]
    return {"view": "by_position", "points": points}


# -- sequential steps --------------------------------------------------------------------------------------------------


def sequential(pipeline: Pipeline) -> dict[str, Any]:
    """Steps that wait for each other, for a source, for a target in training, and for a target while searching."""
    model = pipeline.model
    if not isinstance(model, Seq2Seq):
        raise UserError("several models work here as one; load one of them alone to count its steps")
    long = min(LONG, model.max_source_positions or LONG, model.longest_target or LONG)
    lengths = (long // 2, long)
    rows = [_row("encoder", "the source", lengths, [_reading(pipeline, n, model) for n in lengths])]
    if model.second_source is not None:
        steps = [_reading(pipeline, n, model.second_source) for n in lengths]
        rows.append(_row("second encoder", "the second source", lengths, steps))
    if model.head is None:
        rows.append(_row("decoder in training", "the target", lengths, [_forced(pipeline, n) for n in lengths]))
        rows.append(_row("decoder in search", "the target", lengths, [_searching(pipeline, n) for n in lengths]))
    return {"view": "sequential", "lengths": list(lengths), "rows": rows}


def _row(part: str, what: str, lengths: tuple[int, int], steps: Sequence[int]) -> dict[str, Any]:
    (short, long), (few, many) = lengths, steps
    if few == many:
        found = f"{few} step{'s' * (few != 1)}, however long {what} is"
    elif few * long == many * short and few % short == 0:
        found = f"{few // short} step{'s' * (few != short)} for each token of {what}"
    else:
        found = f"{few} steps for {short} tokens of {what} and {many} for {long}"
    return {"part": part, "steps": list(steps), "sentence": f"{part}: {found}"}


class NonNegativeInt:
    """Steps so far."""

    steps = 0


@contextmanager
def counting(part: nn.Module) -> Iterator[NonNegativeInt]:
    """Count the layers of a part that run inside: each waits for the one before it."""
    count = NonNegativeInt()

    def one(_: nn.Module, __: Any, ___: Any) -> None:
        count.steps += 1

    def each_position(_: nn.Module, given: tuple[Any, ...], __: Any) -> None:
        count.steps += given[0].shape[1]  # (B, T, D); two directions run side by side

    with ExitStack() as hooks:
        for module in part.modules():
            if isinstance(module, Layer | ResetBefore):
                hooks.callback(module.register_forward_hook(each_position).remove)
            elif isinstance(module, Block):  # whose step is not a call of its own, but calls this
                hooks.callback(module.feedforward.register_forward_hook(one).remove)
            elif isinstance(module, GatedConvolution):
                hooks.callback(module.register_forward_hook(one).remove)
        yield count


def _memory(pipeline: Pipeline, length: int, part: Any = None) -> Any:
    """An encoder's memory of so many tokens, or of what else it reads; what they are does not matter."""
    part = pipeline.model.eval() if part is None else part
    x = torch.zeros(1, length, part.frontend.d, device=pipeline.device)
    memory = part.encoder(x, Segments(torch.tensor([length], device=pipeline.device)))
    memory.source = torch.full((1, length), UNK, device=pipeline.device)
    return memory


@torch.inference_mode()
def _reading(pipeline: Pipeline, length: int, part: Any) -> int:
    with counting(part.encoder) as count:
        _memory(pipeline, length, part)
    return count.steps


@torch.inference_mode()
def _forced(pipeline: Pipeline, length: int) -> int:
    model = pipeline.model
    memory = _memory(pipeline, 0 if model.is_decoder_only else 1)  # which the decoder itself would have to read
    target = torch.tensor([[BOS] + [UNK] * (length - 1)], device=pipeline.device)
    with counting(model.decoder) as count:
        model.decode(target, memory)
    return max(count.steps, 1)  # a decoder without layers is one


@torch.inference_mode()
def _searching(pipeline: Pipeline, length: int) -> int:
    model = pipeline.model
    state = model.start(_memory(pipeline, 0 if model.is_decoder_only else 1), Capacity(1, length))
    token = torch.tensor([[BOS]], device=pipeline.device)
    with counting(model.decoder) as count:
        for _ in range(length):
            _, state = model.step(token, state)
    return max(count.steps, length)
