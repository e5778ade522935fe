"""Image files of "alignment" views: heat maps of the soft alignment or of every head, or weights over media."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dragoman.core.errors import UserError
from dragoman.inspection.render.image import AttentionPanel, draw_attention
from dragoman.inspection.render.media_image import MediaAttention, draw_media_attention
from dragoman.inspection.views import ViewData

MAPS = ("soft", "cross", "encoder", "second_source", "decoder")


def draw_alignments(paths: Sequence[Path], alignments: Sequence[tuple[str, ViewData]], maps: str) -> None:
    """Draw the `maps` (of MAPS) of each (model name or '', alignment) into each file; UserError if there are none."""
    media = [item for name, data in alignments for item in _media_items(name, data)] if maps == "soft" else []
    panels = [panel for name, data in alignments for panel in _panels(name, data, maps)]
    if not panels:
        reason = "; ".join(dict.fromkeys(image_blocker(data, maps) for _, data in alignments))
        reason = reason or "there is no source, or no source can be shown; leave the image out"
        raise UserError(f"{', '.join(map(str, paths))}: there is nothing to draw: {reason}")
    for path in paths:
        if media:
            draw_media_attention(path, media)
        else:
            draw_attention(path, panels)


def image_blocker(data: ViewData, maps: str) -> str:
    """Return why an alignment has no attention maps of the kind `maps` to draw, and what to do."""
    if maps == "soft":
        return str(data["soft_blocker"])
    if maps in data["left_out"]:
        return f"the {maps} attention is too large to show; shorten the text"
    reason = "" if data["maps"] else ", because heads are shown only of a single model with a decoder"
    return f"the view has no {maps} attention{reason}; leave the image out"


def _media_items(name: str, data: ViewData) -> Iterator[MediaAttention]:
    preview = data["media_preview"]
    if preview is not None and data["soft"] is not None:
        unit = data if preview["kind"] == "audio" else data["words"] or data  # a panel for each word, not each subword
        yield MediaAttention(preview, unit["soft"], unit["target"], data["source_text"], data["target_text"], name)


def _panels(name: str, data: ViewData, maps: str) -> Iterator[AttentionPanel]:
    name = f"{name}: " if name else ""
    if maps == "soft":
        if data["soft"] is not None:
            title = f"{name}{data['source_text']} → {data['target_text']}"
            yield AttentionPanel(data["soft"], data["source"], data["target"], title)
        return
    for layer in (layer for layer in data["maps"] if layer["kind"] == maps):
        own = layer.get("tokens", data["source"])
        earlier = layer.get("tokens", data["inputs"])  # with the source in a decoder-only model
        axes = {"cross": (data["source"], data["target"]), "decoder": (earlier, data["target"])}
        columns, rows = axes.get(maps, (own, own))
        for i, head in enumerate(layer["heads"], 1):
            yield AttentionPanel(head["weights"], columns, rows, f"{name}layer {layer['layer']}, head {i}")
