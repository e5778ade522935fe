"""Reasons why a model cannot show a view. View files name them when they are imported, so nothing here loads torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline


def single_model_blocker(pipeline: Pipeline) -> str | None:
    """Return why a pipeline is not one model (but an ensemble or shallow fusion), or None."""
    from dragoman.nn.seq2seq import Seq2Seq

    if isinstance(pipeline.model, Seq2Seq):
        return None
    return "several models are loaded as one; load one of them alone"


def decoder_blocker(pipeline: Pipeline) -> str | None:
    """Return why a pipeline does not generate a target, or None."""
    if pipeline.model.head is not None:
        return "this model answers with labels and writes no target; use a model with a decoder"
    return None


def encoder_decoder_blocker(pipeline: Pipeline) -> str | None:
    """Return why a pipeline is not one model that generates a target from a source, or None."""
    reason = single_model_blocker(pipeline) or decoder_blocker(pipeline)
    if reason is None and pipeline.continues_text:
        return "a language model continues a text and has no source beside it; use --view steps instead"
    return reason


def source_order_blocker(pipeline: Pipeline) -> str | None:
    """Return why the positions of a source have no order (images, two sources), or None."""
    modality = pipeline.codec.modality
    if pipeline.codec.second_source is not None or (modality is not None and modality.kind == "image"):
        return "images, and two sources, have no order that a target follows; use a model of texts or audio"
    return None
