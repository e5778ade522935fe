"""Which source tokens each target token attends to, head by head, and how much each head matters.

    soft      a_tj, the decoder's own attention                    words    Σ over the pieces of a source word,
    entropy   −Σ_j a_tj log a_tj, the mean over the rows t                  the mean over those of a target word
    effect    log p without head h − log p

attention_maps.py computes the weights and names the heads. The weights within a long audio source may be too many for a
view: `left_out` names the kinds that are left out. They are counted before the pass, so that nothing is kept of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from rich.console import Console

from dragoman.core.errors import UserError
from dragoman.inspection.blockers import encoder_decoder_blocker
from dragoman.inspection.render.terminal import print_source_weights
from dragoman.inspection.views import BeamSize, RequestSize, ViewData, pass_cost, register_view

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inspection.attention_maps import AttentionHead, LayerAttention
    from dragoman.inspection.teacher_forcing import ForcedPair

MAX_WEIGHTS = 4_000_000  # in a view: a page with more is of no use

WEIGHTS_PER_COST = 250  # attention weights that are rounded and written as JSON

HeadName = Annotated[str, Field(min_length=1, max_length=1000)]


def _print_alignment(out: Console, data: ViewData) -> None:
    line = f"{data['source_text']} → {data['target_text']}   (log p {data['log_prob']:.2f})"
    out.print(line, markup=False, soft_wrap=True)
    if data["soft"] is None:
        out.print(data["soft_blocker"], markup=False, soft_wrap=True)
    else:
        print_source_weights(out, data, data["soft"])


def predicted_alignment(pipeline: Pipeline, source: str | Example, *, beam: int | None = None) -> ViewData:
    """Show the prediction of a model that `compute_alignment` refuses, with the keys of the view but without heads."""
    import torch

    from dragoman.inspection.attention_maps import round_weights
    from dragoman.inspection.media_preview import build_media_preview
    from dragoman.inspection.teacher_forcing import source_line

    example = pipeline.input_processor.to_example(source)
    prediction = pipeline.predict([example], beam=beam, attention=True)[0]
    soft = None if prediction.attention is None else round_weights(torch.from_numpy(prediction.attention))
    target = [*prediction.tokens, "</s>"][: None if soft is None else len(soft)]
    return {
        "view": "alignment",
        "source_text": source_line(example),
        "target_text": prediction.text,
        "has_user_target": False,
        "source": prediction.source_tokens,
        "target": target,
        "inputs": ["<s>", *target[:-1]],
        "log_probs": prediction.log_probs,
        "log_prob": prediction.log_prob,
        "soft": soft,
        "soft_blocker": soft_blocker(pipeline) if soft is None else None,
        "maps": [],
        "left_out": [],
        "words": None,
        "media_preview": build_media_preview(pipeline, pipeline.input_processor.encode_input(example)),
        "ablated": [],
        "log_prob_ablated": None,
        "log_probs_ablated": None,
    }


def _alignment_cost(size: RequestSize) -> int:
    weights = min(size.heads * size.positions**2, MAX_WEIGHTS)
    passes = 2 + bool(size.options["ablate"])
    return size.prediction_cost + passes * pass_cost(size.positions) + weights // WEIGHTS_PER_COST


@register_view(
    "alignment",
    inputs="pair",
    cost=_alignment_cost,
    print_view=_print_alignment,
    blocker=encoder_decoder_blocker,
    fallback=predicted_alignment,
)
def compute_alignment(
    pipeline: Pipeline,
    source: str | Example,
    target: str | None = None,
    *,
    beam: BeamSize | None = None,
    ablate: Annotated[Sequence[HeadName], Field(max_length=1000)] = (),
) -> ViewData:
    """Which source tokens each target token attends to, layer by layer and head by head, with some heads ablated."""
    from dragoman.inspection import attention_maps
    from dragoman.inspection.media_preview import build_media_preview
    from dragoman.inspection.teacher_forcing import prepare_pair, run_teacher_forced, source_line

    pair = prepare_pair(pipeline, source, target, beam=beam)
    kept = _kept_kinds(attention_maps.count_weights(pipeline, pair))
    output, layers = attention_maps.run_recorded(pipeline, pair, kept)
    shown, log_probs = [layer for layer in layers if layer.kind in kept], attention_maps.target_log_probs(output)
    ablated = None
    if ablate:
        with attention_maps.ablate_heads(attention_maps.find_heads(attention_maps.name_heads(layers), ablate)):
            ablated = attention_maps.target_log_probs(run_teacher_forced(pipeline, pair))
    target_pieces = pipeline.codec.target.pieces(pair.target)
    soft = None if output.output.attention is None else output.output.attention[0]
    return {
        "source_text": source_line(pair.example),
        "target_text": pair.target_text,
        "has_user_target": pair.has_user_target,
        "source": pair.pieces,
        "target": target_pieces,
        "inputs": ["<s>", *target_pieces[:-1]],
        "log_probs": log_probs,
        "log_prob": sum(log_probs),
        "soft": None if soft is None else attention_maps.round_weights(soft),
        "soft_blocker": soft_blocker(pipeline, [layer.kind for layer in layers]) if soft is None else None,
        "maps": [_layer_data(layer) | _own_tokens(pipeline, pair, layer.kind) for layer in shown],
        "left_out": sorted({layer.kind for layer in layers} - {layer.kind for layer in shown}),
        "words": None if soft is None else attention_maps.merge_words(pipeline, pair, soft),
        "media_preview": build_media_preview(pipeline, pair.model_input),
        "ablated": list(dict.fromkeys(ablate)),
        "log_prob_ablated": None if ablated is None else sum(ablated),
        "log_probs_ablated": ablated,
    }


def _print_head_effects(out: Console, data: ViewData) -> None:
    for name, change in data["effects"].items():
        out.print(f"{name}  {change:+.3f}", markup=False)


def _head_effects_cost(size: RequestSize) -> int:
    return size.prediction_cost + (size.heads + 2) * pass_cost(size.positions)


@register_view(
    "head_effects",
    inputs="pair",
    cost=_head_effects_cost,
    print_view=_print_head_effects,
    blocker=encoder_decoder_blocker,
    has_module=False,
)
def compute_head_effects(pipeline: Pipeline, source: str | Example, target: str | None = None) -> ViewData:
    """How much log p(target | source) changes when one head alone is switched off, for every head."""
    from dragoman.inspection.attention_maps import ablate_heads, name_heads, run_recorded, target_log_probs
    from dragoman.inspection.teacher_forcing import prepare_pair, run_teacher_forced, source_line

    pair = prepare_pair(pipeline, source, target)
    output, layers = run_recorded(pipeline, pair, ())
    heads, log_prob, changes = name_heads(layers), sum(target_log_probs(output)), dict["AttentionHead", float]()
    for head in heads.values():
        if head not in changes:  # one head may have three names
            with ablate_heads([head]):
                changes[head] = sum(target_log_probs(run_teacher_forced(pipeline, pair))) - log_prob
    return {
        "source_text": source_line(pair.example),
        "target_text": pair.target_text,
        "effects": {name: changes[head] for name, head in heads.items()},
    }


def soft_blocker(pipeline: Pipeline, kinds: Sequence[str] = ()) -> str:
    """Return why a model has no soft alignment, and what to do instead; `kinds` are those of its attention heads."""
    from dragoman.nn.seq2seq import Seq2Seq

    model, shown = pipeline.model, "the alignment shows attention from target to source, and"
    if not isinstance(model, Seq2Seq):
        return f"{shown} these models have none in common; load one of them alone"
    if pipeline.continues_text:
        return f"{shown} a language model has none, because it reads no source; use --view steps"
    if model.head is not None:
        part = pipeline.config.model.head
        head, remedy = "" if part is None else part.name, "use --view embedding_space"
        if head == "classifier":
            remedy = "train with model.head.pool: attention to see its pooling"
        kind = "masked language model" if pipeline.config.training.objective.name == "masked" else head
        return f"{shown} a {kind} has none, because it writes no target; use a model with a decoder, or {remedy}"
    if "cross" in kinds:
        return f"{shown} this model has it only in its heads, over one sequence; draw them: --png FILE --maps decoder"
    return f"{shown} the decoder has none; draw the other heads: --png FILE --maps {kinds[0]}"


def _kept_kinds(counts: Mapping[str, int]) -> set[str]:
    """Return the kinds whose weights fit into a view together, the first first; UserError if cross does not fit."""
    kinds, left = set[str](), MAX_WEIGHTS
    for kind, count in counts.items():
        if count > left and kind == "cross":
            raise UserError(
                f"there are {count:,} weights from target to source, and a view holds {left:,}; shorten the text"
            )
        if count <= left:
            kinds, left = kinds | {kind}, left - count
    return kinds


def _layer_data(layer: LayerAttention) -> ViewData:
    from dragoman.inspection.attention_maps import entropy, round_weights

    heads = [
        {"name": layer.head_name(i), "entropy": float(entropy(a).mean()), "weights": round_weights(a)}
        for i, a in enumerate(layer.weights)
    ]
    return {"kind": layer.kind, "layer": layer.layer, "heads": heads}


def _own_tokens(pipeline: Pipeline, pair: ForcedPair, kind: str) -> dict[str, list[str]]:
    """Return {"tokens": …} for a map whose columns are not its kind's usual ones, else {}."""
    from dragoman.inspection.attention_maps import first_source_length

    if pipeline.model.is_decoder_only:
        inputs = ["<s>", *pipeline.codec.target.pieces(pair.target)[:-1]]
        return {"tokens": [*pair.pieces, *inputs]} if kind == "decoder" else {}
    if pair.model_input.second_source is None or kind not in ("encoder", "second_source"):
        return {}
    first = first_source_length(pipeline, pair)
    return {"tokens": pair.pieces[:first] if kind == "encoder" else pair.pieces[first:]}
