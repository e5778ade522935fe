"""Models that see and hear: what is shown is what they read, where they looked, and where on it that lies."""

from __future__ import annotations

import base64
import copy
import io
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dragoman.core.errors import DataError, UserError
from dragoman.core.types import EOS, Example
from dragoman.data.batching import collate
from dragoman.data.objectives import TrainingRow
from dragoman.inference import ensemble
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection import attention_maps, media_layout
from dragoman.inspection.media_preview import draw_spectrogram, encode_png, preview_audio
from dragoman.inspection.teacher_forcing import prepare_pair
from dragoman.inspection.views import (
    accuracy_by_position,
    beam,
    embedding_space,
    saliency,
    sequential,
    steps,
)
from dragoman.inspection.views.alignment import compute_alignment, compute_head_effects, predicted_alignment
from dragoman.inspection.views.probes import run_probes
from dragoman.nn.attention import record_attention

KINDS = ("soft", "hard", "patches", "speech", "frames", "clip", "cells", "asked")
STATES = {"soft": 16, "hard": 16, "patches": 9, "speech": 8, "frames": 4, "clip": 3, "cells": 48, "asked": 6 + 16}
ROUNDED = 6e-5  # weights have four digits

Media = Callable[[str], Any]


def pixels(url: str) -> np.ndarray:
    """What a browser makes of a data URL."""
    kind, _, data = url.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data, validate=True))))


def row_of(pipeline: Pipeline, source: str, target: list[int]) -> TrainingRow:
    """A pair as the readers of the model's sources give it."""
    codec = pipeline.codec
    if codec.second_source is not None:
        first, second = source.split("\t")
        example = Example(first, second_source=second)
        return TrainingRow(codec.encode_source(example), target, second_source=codec.encode_second_source(example))
    assert codec.modality is not None
    return TrainingRow(codec.modality.read(Example(source)), target)


# -- where it looked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_view_shows_the_attention_of_a_pass_over_what_the_readers_give(kind: str, media: Media) -> None:
    model, source = media(kind)
    target = model.codec.encode_target(Example("", "a red square moves"))
    with torch.inference_mode(), record_attention() as seen:
        found = model.model.eval()(collate([row_of(model, source, target)], [0]))
    assert seen
    view = compute_alignment(model, source, "a red square moves")
    np.testing.assert_allclose(view["soft"], found.output.attention[0], atol=ROUNDED)
    assert len(view["source"]) == len(view["soft"][0]) == STATES[kind]
    assert view["log_prob"] == pytest.approx(model.score([(source, "a red square moves")])[0], abs=1e-4)
    json.dumps(view, allow_nan=False)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_target_the_view_is_of_the_models_own_output(kind: str, media: Media) -> None:
    model, source = media(kind)
    view, truth = compute_alignment(model, source), model.predict([source], attention=True)[0]
    assert (view["target_text"], view["source"]) == (truth.text, truth.source_tokens)
    assert view["source_text"] == source
    np.testing.assert_allclose(view["soft"], truth.attention, atol=ROUNDED)


def test_a_hard_model_looks_at_one_place_for_each_word(media: Media) -> None:
    model, source = media("hard")
    view = compute_alignment(model, source)
    for row in view["soft"]:
        assert sorted(row) == [0.0] * 15 + [1.0]
        grid = media_layout.grid_weights(view["media_preview"], row)[0]
        assert grid[divmod(int(np.argmax(row)), 4)] == 1.0
        assert grid.sum() == 1.0


def test_maps_within_one_of_two_sources_stand_on_its_own_states(media: Media) -> None:
    model, source = media("asked")
    view = compute_alignment(model, source)
    sides = {one["kind"]: one["tokens"] for one in view["maps"] if "tokens" in one}
    assert sides == {"encoder": view["source"][:6], "second_source": view["source"][6:]}
    assert view["source"][:2] == ["▁what", "▁color"]
    for one in view["maps"]:
        wide = len(one.get("tokens", view["source"]))
        assert all(len(row) == wide for head in one["heads"] for row in head["weights"])
    counted = attention_maps.count_weights(model, prepare_pair(model, source))
    every = [(one["kind"], head["weights"]) for one in view["maps"] for head in one["heads"]]
    assert counted == {kind: sum(np.array(a).size for mine, a in every if mine == kind) for kind in counted}
    off = compute_alignment(model, source, ablate=["second_source.2.1"])
    assert off["log_prob_ablated"] != pytest.approx(off["log_prob"], abs=1e-6)
    assert compute_head_effects(model, source)["effects"].keys() == {
        head["name"] for one in view["maps"] for head in one["heads"]
    }


# -- what was read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["soft", "patches", "asked"])
def test_the_picture_is_exactly_what_the_model_read(kind: str, media: Media) -> None:
    model, source = media(kind)
    found = compute_alignment(model, source)["media_preview"]
    reader = model.codec.second_source if kind == "asked" else model.codec.modality
    truth = reader.read(Example(source.split("\t")[-1]))
    np.testing.assert_array_equal(pixels(found["src"]).reshape(truth.shape), truth)
    assert (found["kind"], found["first"]) == ("image", 6 if kind == "asked" else 0)
    assert found["rows"] * found["columns"] == STATES[kind] - found["first"]


@pytest.mark.parametrize(("kind", "each"), [("clip", 1), ("cells", 16)])
def test_every_frame_of_a_clip_is_shown(kind: str, each: int, media: Media) -> None:
    model, source = media(kind)
    found = compute_alignment(model, source)["media_preview"]
    truth = model.codec.modality.read(Example(source))
    shown = np.stack([pixels(url) for url in found["frames"]])
    np.testing.assert_array_equal(shown.reshape(truth.shape), truth)
    assert (found["per_frame"], found["first"]) == (each, 0)


@pytest.mark.parametrize(("kind", "shift"), [("speech", 0.01), ("frames", 0.02)])
def test_spans_cover_the_width_once_and_in_order(kind: str, shift: float, media: Media) -> None:
    model, source = media(kind)
    view = compute_alignment(model, source)
    found, frames = view["media_preview"], len(model.codec.modality.read(Example(source)))
    assert found["seconds"] == pytest.approx(frames * shift)
    assert found["count"] == len(found["spans"]) == len(view["source"])
    ends = [0.0, *(end for _, end in found["spans"])]
    assert [start for start, _ in found["spans"]] == ends[:-1]
    assert ends[-1] == 1.0
    assert all(a < b for a, b in itertools.pairwise(ends))
    for (start, _), label in zip(found["spans"], view["source"], strict=True):  # the frontend's own times
        assert f"{start * found['seconds']:.2f} s" == label


def test_the_loudest_number_of_a_sound_is_black_at_its_time_with_low_bands_at_the_bottom() -> None:
    x = np.full((30, 8), -1.0, np.float16)
    x[20:26, 2] = 5.0
    picture = pixels(preview_audio(x, 4, 0.01)["src"])
    assert picture.shape == (8, 30)
    truth = np.full((8, 30), 255)
    truth[5, 20:26] = 0
    np.testing.assert_array_equal(picture, truth)


def test_a_long_sound_is_averaged_to_a_picture_that_is_not_too_wide() -> None:
    x = np.repeat(np.random.default_rng().normal(size=(1500, 3)), 4, 0)
    picture = draw_spectrogram(x)
    assert picture.shape == (3, 2000)
    assert picture.mean() == pytest.approx(draw_spectrogram(x[::4]).mean(), abs=5)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 4, 3)])
def test_any_pixels_come_out_of_a_png_as_they_went_in(shape: tuple[int, ...]) -> None:
    truth = np.random.default_rng().integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encode_png(truth)))), truth)


# -- the other views ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["soft", "speech", "asked"])
def test_gradient_norms_are_those_of_finite_differences(kind: str, media: Media) -> None:
    model, source = media(kind)
    view = saliency.compute_saliency(model, source, "a red bar")
    exact = copy.deepcopy(model.model).double().eval()
    batch = collate([row_of(model, source, model.codec.encode_target(Example("", "a red bar")))], [0])
    sides = [exact] if exact.second_source is None else [exact, exact.second_source]
    moved: dict[Any, torch.Tensor] = {}

    def move(part: torch.nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (given[0] + moved.get(part, 0.0), *given[1:])

    for side in sides:
        side.encoder.register_forward_pre_hook(move)

    @torch.inference_mode()
    def log_p(part: Any, j: int, i: int, by: float) -> torch.Tensor:
        step = torch.zeros(1, 1, 16, dtype=torch.double)
        step[0, 0, i] = by
        moved.clear()
        moved[part] = torch.nn.functional.pad(step, (0, 0, j, 10_000))[:, : widths[part]]
        found = exact(batch)
        log_p = found.logits[0, :, EOS:].log_softmax(-1)  # without <pad> and <s>
        return log_p[torch.arange(found.gold.shape[1]), found.gold[0] - EOS]

    counts = [len(view["source"])] if len(sides) == 1 else [6, 16]
    widths = {side.encoder: count for side, count in zip(sides, counts, strict=True)}
    first = 0
    for side, count in zip(sides, counts, strict=True):
        j = count // 2
        slopes = [
            (log_p(side.encoder, j, i, 1e-5) - log_p(side.encoder, j, i, -1e-5)) / 2e-5 for i in range(side.frontend.d)
        ]
        truth = torch.stack(slopes).norm(dim=0)  # (T,)
        np.testing.assert_allclose([row[first + j] for row in view["norms"]], truth, rtol=2e-3, atol=1e-6)
        first += count
    assert first == len(view["norms"][0])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_given_for_every_vector_that_an_encoder_reads(kind: str, media: Media) -> None:
    model, source = media(kind)
    view = saliency.compute_saliency(model, source)
    count = {"frames": 8}.get(kind, STATES[kind])  # whose encoder makes one state of two vectors
    assert len(view["source"]) == count
    assert {len(row) for row in view["norms"]} == {count}
    inside = media_layout.state_range(view["media_preview"])
    assert inside.stop == count
    assert bool(view["by_distance"]) == (kind not in ("soft", "hard", "patches", "asked"))


@pytest.mark.parametrize("kind", KINDS)
def test_free_steps_are_those_of_greedy_search_and_forced_ones_score_as_the_pair(kind: str, media: Media) -> None:
    model, source = media(kind)
    view = steps.trace_steps(model, source, "a red square")
    assert view["free"]["text"] == model.predict([source], beam=1)[0].text
    assert view["forced"]["log_prob"] == pytest.approx(model.score([(source, "a red square")])[0], abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reference_that_the_beam_found_has_the_score_it_was_found_with(kind: str, media: Media) -> None:
    model, source = media(kind)
    ended = [one for one in beam.trace_beam(model, source)["results"] if one["finish_reason"] == "eos"]
    for one in ended[:2]:
        view = beam.trace_beam(model, source, one["text"])
        if view["reference"]["tokens"] == one["tokens"]:  # else the text reads as other tokens
            assert view["reference"]["score"] == pytest.approx(one["score"], abs=1e-4)
    assert ended or kind != "speech"  # of which the encoder's own hearing is a part


def test_what_cannot_be_is_refused_and_the_rest_is_not(media: Media) -> None:
    seeing, photo = media("soft")
    hearing, tone = media("speech")
    with pytest.raises(UserError, match="no order"):
        accuracy_by_position.measure_accuracy(seeing, [Example(photo, "a red bar")])
    points = accuracy_by_position.measure_accuracy(hearing, [Example(tone, "a red bar")])["points"]
    assert [point["position"] for point in points] == [3, 6, 8]  # of 8 states, beside 3 words
    assert sequential.count_sequential_steps(media("asked").pipeline)["rows"][1]["part"] == "second encoder"
    for model in (seeing, media("asked").pipeline):
        with pytest.raises(UserError, match="probes sample texts for models of one text"):
            run_probes(model)
    with pytest.raises(DataError, match=r"no file 'lost\.png'"):
        compute_alignment(seeing, "lost.png")
    with pytest.raises(DataError, match="not an image"):
        compute_alignment(seeing, Example("photo.png", content=b"GIF89a and nothing else"))


def test_images_are_points_on_a_map(media: Media) -> None:
    model, source = media("soft")
    dark = io.BytesIO()
    Image.new("RGB", (40, 40)).save(dark, "png")
    found = embedding_space.project_embeddings(model, [source, Example("dark", content=dark.getvalue())])["points"]
    assert [point["text"] for point in found] == [source, "dark"]


def test_several_models_as_one_show_what_their_prediction_shows(media: Media) -> None:
    model, source = media("soft")
    both = replace(model, model=ensemble.Ensemble([model.model, model.model]), fast=False)
    view, alone = predicted_alignment(both, source), compute_alignment(model, source)
    assert view["media_preview"] == alone["media_preview"]
    np.testing.assert_allclose(view["soft"], alone["soft"], atol=2 * ROUNDED)
    assert view.keys() == alone.keys()


# -- places ------------------------------------------------------------------------------------------------------------

HEARD = {
    "kind": "audio",
    "src": "",
    "seconds": 2.0,
    "first": 1,
    "count": 4,
    "spans": [[i / 4, (i + 1) / 4] for i in range(4)],
}
FACE = {"kind": "image", "src": "", "rows": 2, "columns": 3, "first": 0}


def test_a_span_is_what_has_at_least_half_of_the_largest_weight() -> None:
    assert media_layout.peak_span(HEARD, [0.9, 0.01, 0.04, 0.03, 0.01]) == (0.25, 0.75)
    assert media_layout.peak_span(HEARD, [0.0, 0.5, 0.1, 0.1, 0.3]) == (0.0, 0.25)
    assert media_layout.describe_peak(HEARD, [0.9, 0.01, 0.04, 0.03, 0.01]) == "looks mostly from 0.50 s to 1.50 s"


def test_words_say_how_much_of_their_attention_lies_on_the_picture_where_it_may_lie_elsewhere() -> None:
    assert media_layout.word_titles(HEARD, ["▁a", "b"], [[0.9, 0.025, 0.025, 0.05, 0.0], [0.5, 0.5, 0, 0, 0]]) == [
        "a 10%",
        "b 50%",
    ]
    assert media_layout.word_titles(HEARD, ["gradient"], [[3.0, 1.0, 0.0, 4.0, 4.0]]) == ["gradient 75%"]
    assert media_layout.word_titles(FACE, ["▁dog", "▁"], [[0.5, 0.5, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]) == ["dog", "▁"]


def test_the_peak_is_described_by_row_and_column_and_frame() -> None:
    assert media_layout.describe_peak(FACE, [0, 0, 0, 0, 0.7, 0.3]) == "looks mostly at row 2, column 2"
    clip = {"kind": "video", "frames": ["", ""], "per_frame": 1, "first": 0}
    assert media_layout.describe_peak(clip, [0.2, 0.8]) == "looks mostly at frame 2"
    cells = clip | {"per_frame": 4}
    assert media_layout.describe_peak(cells, [0, 0, 0, 0, 0, 0, 1, 0]) == "looks mostly at frame 2, row 2, column 1"


@pytest.mark.parametrize("seconds", [0.03, 0.29, 1.0, 7.3, 61.0, 3600.0])
def test_the_times_of_an_axis_are_few_and_round(seconds: float) -> None:
    ticks = media_layout.time_ticks(seconds)
    assert 3 <= len(ticks) <= 6
    assert ticks[0] == 0.0
    assert ticks[-1] <= seconds * (1 + 1e-6)
    digits = f"{ticks[1]:e}".split("e")[0].rstrip("0").rstrip(".")
    assert digits in ("1", "2", "5")


def test_the_end_of_a_text_is_no_state_of_a_picture(media: Media) -> None:
    model, source = media("asked")
    view = compute_alignment(model, source)
    assert media_layout.other_states(view["media_preview"], len(view["source"])) == [0, 1, 2, 3, 4, 5]
    assert view["source"][5] == "</s>"
