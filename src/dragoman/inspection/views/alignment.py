"""Which source tokens a model looked at for each target token, head by head, and what a head is worth.

    source, target ─one watched, teacher-forced pass→ a (T, S) of every head, log p(y_t | y_<t, x)
    off(h)         the same pass with c_h = 0, the context of head h: what it adds is log p − log p_off

    soft      a_tj, the decoder's own word on alignment           words    Σ over the pieces of a source word,
    entropy   −Σ_j a_tj log a_tj, the mean over the rows t                  the mean over those of a target word

A head is named kind.layer.number: cross.1.2 looks from target to source, encoder.1.2 from source to source, decoder.1.2
from target to what was read before; second.1.2 is of a second source. Where source and target are one sequence, one
head does all three, and each of its names switches it off; what the target looks back at is the source, too, so that
such a decoder's map has S + T columns. No model file knows of this: weights are watched, contexts are changed by hooks.

A source that is no text has states all the same: the cells of an image, spans of a sound. `medium` says where they lie
on its picture (medium.py). A long sound has many: what they look at among themselves may be too much for a view and is
left out then, `left_out` names it. How much there will be is counted before the pass, so that nothing is kept of what
is left out, and nothing computed where even the looks from target to source are too many.

T target tokens with </s>, S source tokens with </s>, or states of another source, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.errors import UserError
from dragoman.core.types import SPECIALS, UNK, Example
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.media_preview import medium
from dragoman.inspection.pair import Pair, forced, line, pair
from dragoman.nn.attention import Attention, Look, MultiHead, Seen, record_attention
from dragoman.nn.losses import token_log_probs
from dragoman.nn.seq2seq import Predicted, Seq2Seq
from dragoman.nn.token_mixers import ParameterFree
from dragoman.text.tokenizers import Tokenizer
from dragoman.text.vocabulary import MARK

DIGITS = 4  # of a weight: 6 × 8 heads of 60 × 60 are 4 MB of JSON with these and 11 MB with all of them
MOST = 4_000_000  # weights in a view: a page with more is of no use to anybody
KINDS = ("cross", "decoder", "second_source", "encoder")  # what a view has room for first, and last
WHOLE = ("words", "symbols")  # tokenizers whose tokens are words already

# -- heads -------------------------------------------------------------------------------------------------------------


class Head(NamedTuple):
    """One head of an attention."""

    module: nn.Module
    number: int  # from 0


class Map(NamedTuple):
    """The heads of one layer and their weights (H, rows, columns)."""

    kind: str
    layer: int
    module: nn.Module
    weights: Tensor

    def name(self, number: int) -> str:
        return f"{self.kind}.{self.layer}.{number + 1}"


def maps(model: Seq2Seq, seen: Seen, S: int) -> list[Map]:
    """What was seen of every attention of encoders and decoder, layer by layer: cross, encoder, second, decoder."""
    found: dict[str, list[tuple[nn.Module, Tensor]]] = {"cross": [], "encoder": [], "second_source": [], "decoder": []}
    for name, module in model.named_modules():
        side = name.split(".")[0]
        if module not in seen or side not in (
            "encoder",
            "second_source",
            "decoder",
        ):  # a pointer's weights are in `soft`
            continue
        calls = [a if a.dim() == 4 else a[:, None] for a in seen[module]]  # (1, H, T, S); an RNN looks step by step
        # A layer that is used again and again (`shared`) looks as often; its heads are switched off in all its uses.
        for a in calls if isinstance(module, MultiHead) else [torch.cat(calls, 2)]:
            for kind, part in _parts(model, side, name, module, a[0], S).items():
                found[kind].append((module, part))
    return [Map(kind, i, *one) for kind, layers in found.items() for i, one in enumerate(layers, 1)]


def _parts(model: Seq2Seq, side: str, name: str, module: nn.Module, a: Tensor, S: int) -> dict[str, Tensor]:
    """Which kinds of looks the weights (H, rows, columns) of an attention are."""
    kind = _kind(side, name, module)
    if kind == "decoder" and model.is_decoder_only:  # what a row x_1 … x_S y_1 … y_T looks at
        return {"cross": a[:, S:, :S], "encoder": a[:, :S, :S], "decoder": a[:, S:]}
    return {kind: a}


def _kind(side: str, name: str, module: nn.Module) -> str:
    across = isinstance(module, Attention) or name.endswith("cross_attention")
    return "cross" if side == "decoder" and across else side


def _looking(model: Seq2Seq) -> Iterator[tuple[str, nn.Module]]:
    """Every attention that runs in encoders and decoder with the kind of its looks, as often as it runs."""
    for name, module in model.named_modules(remove_duplicate=False):
        side = name.split(".")[0]
        if side in ("encoder", "second_source", "decoder") and isinstance(
            module, MultiHead | Attention | ParameterFree
        ):
            yield _kind(side, name, module), module


def expected(pipeline: Pipeline, mine: Pair) -> dict[str, int]:
    """How many weights of each kind a watched pass over a pair will have."""
    model, T, S = pipeline.model, len(mine.target), len(mine.pieces)
    first = (
        S if mine.read.second_source is None else len(pipeline.reading.pieces(mine.read._replace(second_source=None)))
    )
    alone = {"cross": T * S, "encoder": first**2, "second_source": (S - first) ** 2, "decoder": T**2}
    as_one = {"cross": T * S, "encoder": S**2, "decoder": T * (S + T)}
    sizes = dict.fromkeys(KINDS, 0)
    for kind, module in _looking(model):
        parts = as_one if kind == "decoder" and model.is_decoder_only else {kind: alone[kind]}
        for part, size in parts.items():
            sizes[part] += getattr(module, "heads", 1) * size
    return sizes


def heads(every: Sequence[Map]) -> dict[str, Head]:
    return {one.name(i): Head(one.module, i) for one in every for i in range(one.weights.shape[0])}


@contextmanager
def switched_off(which: Sequence[Head]) -> Iterator[None]:
    """Inside, the contexts of these heads are zero."""
    with ExitStack() as hooks:
        for module, number in which:
            if isinstance(module, MultiHead):
                handle = module.Wo.register_forward_pre_hook(_without(number, module.heads))
            else:
                handle = module.register_forward_hook(_nothing)
            hooks.callback(handle.remove)
        yield


def _without(number: int, count: int) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    """What W_O reads, (…, T, H · D), with zeros where one head stands."""

    def hook(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        side_by_side = given[0].clone().view(*given[0].shape[:-1], count, -1)
        side_by_side[..., number, :] = 0.0
        return (side_by_side.flatten(-2),)

    return hook


def _nothing(_: nn.Module, __: Any, result: Look | Tensor) -> Look | Tensor:
    return result._replace(c=torch.zeros_like(result.c)) if isinstance(result, Look) else torch.zeros_like(result)


# -- the view ----------------------------------------------------------------------------------------------------------


def look(
    pipeline: Pipeline,
    source: str | Example,
    target: str | None = None,
    *,
    beam: int | None = None,
    off: Sequence[str] = (),
) -> dict[str, Any]:
    """The alignment of a source with a target, or with the model's output; `off` names heads to switch off."""
    mine = pair(pipeline, source, target, beam=beam)
    kept = _kept(expected(pipeline, mine))
    found, every = _watched(pipeline, mine, kept)
    shown, log_probs = [one for one in every if one.kind in kept], _log_probs(found)
    without = None
    if off:
        with switched_off(_named(heads(every), off)):
            without = _log_probs(forced(pipeline, mine))
    pieces = mine.pieces, pipeline.codec.target_pieces(mine.target)
    soft = None if found.output.attention is None else found.output.attention[0]
    return {
        "view": "alignment",
        "source_text": line(mine.example),
        "target_text": mine.text,
        "given": mine.given,
        "source": pieces[0],
        "target": pieces[1],
        "inputs": ["<s>", *pieces[1][:-1]],
        "log_probs": log_probs,
        "log_prob": sum(log_probs),
        "soft": None if soft is None else _numbers(soft),
        "soft_blocker": soft_blocker(pipeline, [one.kind for one in every]) if soft is None else None,
        "maps": [_plain(one) | _own_tokens(pipeline, mine, one.kind) for one in shown],
        "left_out": sorted({one.kind for one in every} - {one.kind for one in shown}),
        "words": None if soft is None else words(pipeline, mine, soft),
        "medium": medium(pipeline, mine.read),
        "off": list(dict.fromkeys(off)),
        "log_prob_off": None if without is None else sum(without),
        "log_probs_off": without,
    }


def said(pipeline: Pipeline, source: str | Example, *, beam: int | None = None) -> dict[str, Any]:
    """The same view of what `look` cannot look into: a model that answers with labels or goes on with a text, or
    several as one. It shows what a prediction shows.
    """
    example = pipeline.reading.example(source)
    found = pipeline.predict([example], beam=beam, attention=True)[0]
    soft = None if found.attention is None else _numbers(torch.from_numpy(found.attention))
    target = [*found.tokens, "</s>"][: None if soft is None else len(soft)]
    return {
        "view": "alignment",
        "source_text": line(example),
        "target_text": found.text,
        "given": False,
        "source": found.source_tokens,
        "target": target,
        "inputs": ["<s>", *target[:-1]],
        "log_probs": found.log_probs,
        "log_prob": found.log_prob,
        "soft": soft,
        "soft_blocker": soft_blocker(pipeline) if soft is None else None,
        "maps": [],
        "left_out": [],
        "words": None,
        "medium": medium(pipeline, pipeline.reading.given(example)),
        "off": [],
        "log_prob_off": None,
        "log_probs_off": None,
    }


def soft_blocker(pipeline: Pipeline, kinds: Sequence[str] = ()) -> str:
    """Why a model has no soft alignment, and what to do instead; `kinds` are those of the heads it has."""
    model, shown = pipeline.model, "the alignment shows attention from target to source, and"
    if not isinstance(model, Seq2Seq):
        return f"{shown} these models give none together; look at one of them alone"
    if pipeline.continues_text:
        return f"{shown} a language model has none of that kind, for its text has no source; take --view steps"
    if model.head is not None:
        config: Any = pipeline.config
        head: str = config.model.head.name
        kind = "masked language model" if config.training.objective.name == "masked" else head
        remedy = "train with model.head.pool: attention to see its pooling" if head == "classifier" else "--view space"
        return f"{shown} a {kind} has none of that kind: it writes no target; use a model with a decoder, or {remedy}"
    if "cross" in kinds:
        return f"{shown} this model has it only in its heads, over one sequence; draw them: --png FILE --maps decoder"
    return f"{shown} the decoder has none of that kind; draw the heads there are: --png FILE --maps {kinds[0]}"


def effects(pipeline: Pipeline, source: str | Example, target: str | None = None) -> dict[str, float]:
    """What log p(target | source) changes by when one head alone is switched off, for every head."""
    mine = pair(pipeline, source, target)
    found, every = _watched(pipeline, mine, ())
    whole, changes = sum(_log_probs(found)), dict[Head, float]()
    for head in heads(every).values():
        if head not in changes:  # one head may have three names
            with switched_off([head]):
                changes[head] = sum(_log_probs(forced(pipeline, mine))) - whole
    return {name: changes[head] for name, head in heads(every).items()}


def _watched(pipeline: Pipeline, mine: Pair, kept: Collection[str]) -> tuple[Predicted, list[Map]]:
    """A pass, and its weights of the kinds that are kept; of the others the heads alone."""
    looking = list(_looking(pipeline.model))
    needed = {module for kind, module in looking if kind in kept or (kept and pipeline.model.is_decoder_only)}
    with record_attention(counted={module for _, module in looking} - needed) as seen:
        found = forced(pipeline, mine)
    every = maps(pipeline.model, seen, len(mine.pieces))
    if not every and found.output.attention is None:
        raise UserError("this model has no attention weights to show; look at its steps or its beam")
    return found, every


def _kept(sizes: Mapping[str, int]) -> set[str]:
    """As much as a view can hold: what looks from target to source first, what looks within the source last."""
    kinds, room = set[str](), MOST
    for kind in KINDS:
        size = sizes[kind]
        if size > room and kind == "cross":
            raise UserError(
                f"there are {size:,} weights from target to source, and a view has {room:,}; take less text"
            )
        if size <= room:
            kinds, room = kinds | {kind}, room - size
    return kinds


def _log_probs(found: Predicted) -> list[float]:
    numbers: list[float] = token_log_probs(found.logits, found.gold)[0].tolist()
    return numbers


def _named(every: dict[str, Head], names: Sequence[str]) -> list[Head]:
    for name in names:
        if name not in every:
            there = f"{next(iter(every))} … {list(every)[-1]}" if every else "none"
            raise UserError(f"there is no head '{name}' in this model; there are {there} (kind.layer.number)")
    return list(dict.fromkeys(every[name] for name in names))


def _plain(one: Map) -> dict[str, Any]:
    each = [
        {"name": one.name(i), "entropy": float(entropy(a).mean()), "weights": _numbers(a)}
        for i, a in enumerate(one.weights)
    ]
    return {"kind": one.kind, "layer": one.layer, "heads": each}


def _own_tokens(pipeline: Pipeline, mine: Pair, kind: str) -> dict[str, list[str]]:
    """The columns of a map that are not those of its kind: within one of two sources, or over one whole sequence."""
    if pipeline.model.is_decoder_only:
        inputs = ["<s>", *pipeline.codec.target_pieces(mine.target)[:-1]]
        return {"tokens": [*mine.pieces, *inputs]} if kind == "decoder" else {}
    if mine.read.second_source is None or kind not in ("encoder", "second_source"):
        return {}
    first = len(pipeline.reading.pieces(mine.read._replace(second_source=None)))
    return {"tokens": mine.pieces[:first] if kind == "encoder" else mine.pieces[first:]}


def entropy(a: Tensor) -> Tensor:
    """−Σ a log a of each row, in nats."""
    nats: Tensor = torch.special.entr(a.double()).sum(-1)
    return nats


def _numbers(a: Tensor) -> list[list[float]]:
    rounded: list[list[float]] = a.double().cpu().numpy().round(DIGITS).tolist()
    return rounded


# -- words -------------------------------------------------------------------------------------------------------------


def words(pipeline: Pipeline, mine: Pair, soft: Tensor) -> dict[str, Any] | None:
    """The map between whole words; None where all pieces are words already. States that are no pieces stay as they
    are."""
    codec, options = pipeline.codec, pipeline.config.tokenizer
    pieced = codec.modality is None and codec.second_source is None and pipeline.model.stride == 1
    whole = [part.name in WHOLE for part in (options.source, options.target or options.source)]
    if whole[1] and (whole[0] or not pieced):
        return None
    columns = [(j, j + 1) for j in range(len(mine.pieces))]
    names = mine.pieces
    if pieced:
        columns = groups(codec.source, mine.source, whole[0])
        names = [spelled(codec.source, mine.source[start:end]) for start, end in columns]
    rows = groups(codec.target, mine.target, whole[1])
    a = torch.stack([soft[:, start:end].sum(1) for start, end in columns], 1)  # (T, words)
    a = torch.stack([a[start:end].mean(0) for start, end in rows])
    said = [spelled(codec.target, mine.target[start:end]) for start, end in rows]
    return {"source": names, "target": said, "soft": _numbers(a)}


def groups(tokenizer: Tokenizer, ids: Sequence[int], whole: bool) -> list[tuple[int, int]]:
    """Where each word begins and ends: at a space, and around </s> and language tags; everywhere if pieces are whole.

    What is unknown belongs to the word it stands in.
    """
    alone = [whole or symbolic(tokenizer, id) for id in ids]
    spaces = [piece.startswith((MARK, "␣")) for piece in tokenizer.pieces(ids)]
    starts = [i for i in range(len(ids)) if i == 0 or spaces[i] or alone[i] or alone[i - 1]]
    return list(zip(starts, [*starts[1:], len(ids)], strict=True))


def symbolic(tokenizer: Tokenizer, id: int) -> bool:
    """Whether an id stands for no text."""
    return id < len(SPECIALS) + len(tokenizer.extra) and id != UNK


def spelled(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.pieces(ids)[0] if symbolic(tokenizer, ids[0]) else tokenizer.decode(ids).strip() or "␣"
