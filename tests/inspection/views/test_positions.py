"""Similarities of places, against the equations of the schemes in plain loops."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.errors import PartError, UserError
from dragoman.core.registry import Part
from dragoman.inference import ensemble
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views.positions import MAX_POSITIONS, compute_position_similarity, scheme_similarity
from dragoman.nn.positions import positions

L = 12


def build(encoder: Any, decoder: Any, **changes: Any) -> Pipeline:
    value: dict[str, Any] = {
        "data": {"train": "nowhere.tsv", "max_source": 16, "max_target": 16},
        "model": {"width": 16, "tie": "none", "encoder": encoder, "decoder": decoder},
    }
    config = configs.validate(value | changes, "a test")
    part = config.tokenizer.source
    codec = learn_codec(part, part, False, "nfc", ["abcd"], ["abcd"], [])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    return Pipeline(model, codec, config, torch.device("cpu"))


def transformer(position: Any, layers: int = 2) -> dict[str, Any]:
    return {"name": "transformer", "layers": layers, "heads": 2, "feedforward": 16, "position": position}


def dot(a: Any, b: Any) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def cos(a: Any, b: Any) -> float:
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def equal(matrix: list[list[float]], expected: Any, tolerance: float = 1e-5) -> None:
    assert len(matrix) == L
    for i, row in enumerate(matrix):
        assert row == pytest.approx([expected(i, j) for j in range(L)], abs=tolerance)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_sinusoids_depend_on_the_distance_alone(layout: str) -> None:
    """sin a sin b + cos a cos b = cos(a − b): the cosine is the mean of cos((i − j) / 10000^(2k/D)) over k."""
    d = 24
    found = scheme_similarity(Part("sinusoidal", {"layout": layout}), d, L)
    rates = [10000 ** (-2 * k / d) for k in range(d // 2)]
    equal(found["matrix"], lambda i, j: sum(math.cos((i - j) * rate) for rate in rates) / len(rates))
    assert (found["scheme"], found["trained"]) == ("sinusoidal", False)
    assert "cosine" in found["description"]


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_turning_keeps_the_mean_cosine_of_the_angle_between(layout: str) -> None:
    d = 32 // 4
    found = scheme_similarity(Part("rotary", {"base": 100.0, "layout": layout}), 32, L, heads=4)
    rates = [100 ** (-2 * k / d) for k in range(d // 2)]
    equal(found["matrix"], lambda i, j: sum(math.cos((i - j) * rate) for rate in rates) / len(rates))


def test_slopes_fall_with_the_distance() -> None:
    found = scheme_similarity(Part("alibi"), 16, L, heads=2)
    equal(found["matrix"], lambda i, j: -abs(i - j) * (2**-4 + 2**-8) / 2)
    assert "j ≤ i" not in found["description"]
    assert "j ≤ i" in scheme_similarity(Part("alibi"), 16, L, heads=2, causal=True)["description"]


def test_without_positions_all_pairs_are_equally_similar() -> None:
    found = scheme_similarity(Part("none"), 16, L)
    equal(found["matrix"], lambda i, j: 1.0)
    assert "does not distinguish positions" in found["description"]


def test_learned_vectors_are_compared_and_end_where_the_table_ends() -> None:
    made = build(transformer({"name": "learned", "length": 20}), transformer({"name": "learned", "length": 18}))
    for side, reach in (("encoder", 20), ("decoder", 18)):
        table = getattr(made.model, side).stack.positions[0].table.weight.detach()
        found = compute_position_similarity(made, side=side, length=L)
        equal(found["matrix"], lambda i, j, table=table: cos(table[i], table[j]))
        assert (found["side"], found["trained"]) == (side, True)
        assert len(compute_position_similarity(made, side=side, length=64)["matrix"]) == reach


def test_t5s_biases_are_the_means_of_its_table() -> None:
    """Four buckets for what came earlier (0, 1, 2 and far, 3 and farther), four for what comes later."""
    options = {"name": "t5", "buckets": 8, "distance": 6}
    made = build(transformer(options), transformer(options))

    def bucket(distance: int) -> int:
        return 0 if distance < 1 else 1 if distance < 2 else 2 if distance < 4 else 3  # 2 · 3^(j/2): 2, 3.46

    table = made.model.encoder.stack.positions[0].table.weight.detach()
    found = compute_position_similarity(made, length=L)
    equal(found["matrix"], lambda i, j: float(table[bucket(abs(j - i)) + 4 * (j > i)].mean()))
    table = made.model.decoder.stack.positions[0].table.weight.detach()
    found = compute_position_similarity(made, side="decoder", length=L)
    assert found["matrix"][5][5] == pytest.approx(float(table[0].mean()))
    assert found["matrix"][5][4] == pytest.approx(float(table[1].mean()))
    assert found["trained"]
    assert "j ≤ i" in found["description"]


def test_shaws_vectors_are_compared_with_that_of_no_distance_over_all_blocks() -> None:
    made = build(transformer({"name": "shaw", "distance": 3}), transformer("none"))
    tables = [scheme.keys.detach() for scheme in made.model.encoder.stack.positions]
    assert len(tables) == 2

    def expected(i: int, j: int) -> float:
        return sum(cos(table[max(-3, min(3, j - i)) + 3], table[3]) for table in tables) / 2

    equal(compute_position_similarity(made, length=L)["matrix"], expected)


@pytest.mark.parametrize("name", positions.names)
def test_every_scheme_has_a_matrix_that_is_json_untrained_and_in_a_model(name: str) -> None:
    found = scheme_similarity(Part(name), 16, L, heads=2)
    made = build(transformer(name), transformer(name))
    for one in (
        found,
        compute_position_similarity(made, length=L),
        compute_position_similarity(made, side="decoder", length=L),
    ):
        one = json.loads(json.dumps(one, allow_nan=False))
        assert {*one} == {"view", "scheme", "side", "trained", "description", "matrix"}
        assert one["scheme"] == name
        assert [len(row) for row in one["matrix"]] == [L] * L
        assert one["trained"] == (one["side"] != "no model" and name in ("learned", "t5", "shaw", "xl"))


@pytest.mark.parametrize("kind", ["conv", "identity", "attention"])
def test_schemes_outside_of_transformers_are_found(kind: str) -> None:
    learned = {"name": "learned", "length": 16}
    encoder: Any = {"name": kind, "position": learned} if kind != "attention" else {"name": "identity"}
    decoder: Any = {"name": kind, "position": learned} if kind == "attention" else {"name": "rnn"}
    side = "decoder" if kind == "attention" else "encoder"
    made = build(encoder, decoder)
    table = getattr(made.model, side).position.table.weight.detach()
    equal(compute_position_similarity(made, side=side, length=L)["matrix"], lambda i, j: cos(table[i], table[j]))


def test_what_has_no_matrix_is_refused_with_a_sentence() -> None:
    made = build("rnn", transformer("none"))
    for options, words in (
        ({"side": "encoder"}, "encoder has no position scheme; use side 'decoder'"),
        ({"side": "decodr"}, "did you mean 'decoder'"),
        ({"side": "decoder", "length": MAX_POSITIONS + 1}, f"from 1 to {MAX_POSITIONS}"),
        ({"side": "decoder", "length": 0}, f"from 1 to {MAX_POSITIONS}"),
    ):
        with pytest.raises(UserError, match=words):
            compute_position_similarity(made, **options)  # type: ignore[arg-type]
    model = {"width": 16, "tie": "none", "encoder": transformer("none"), "decoder": None, "head": "classifier"}
    labeled = build(None, None, model=model, training={"objective": "labels"})
    with pytest.raises(UserError, match="decoder has no position scheme; use side 'encoder'"):
        compute_position_similarity(labeled, side="decoder")
    with pytest.raises(UserError, match="in the encoder 'rnn' and the decoder 'rnn'; use a model with positions"):
        compute_position_similarity(build("rnn", "rnn"))
    several = Pipeline(ensemble.Ensemble([made.model, made.model]), made.codec, made.config, made.device)
    with pytest.raises(UserError, match="several models"):
        compute_position_similarity(several)
    with pytest.raises(UserError, match="shared evenly by 8 heads"):
        scheme_similarity(Part("alibi"), 12, L)
    with pytest.raises(PartError, match="even width"):
        scheme_similarity(Part("sinusoidal"), 9, L, heads=3)


def test_where_no_side_is_named_the_first_that_has_positions_is_shown() -> None:
    for encoder, decoder, side in (
        ("rnn", "alibi", "decoder"),
        ("alibi", "rnn", "encoder"),
        ("t5", "alibi", "encoder"),
    ):
        made = build(*(one if one == "rnn" else transformer(one) for one in (encoder, decoder)))
        found = compute_position_similarity(made, length=L)
        assert found["side"] == side
        assert found == compute_position_similarity(made, side=side, length=L)
