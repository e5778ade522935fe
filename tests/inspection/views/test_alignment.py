"""What is shown is what the model computed: weights, words, entropies, and what a head is worth."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import EOS, Example
from dragoman.inference import ensemble
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection import attention_maps
from dragoman.inspection.teacher_forcing import prepare_pair
from dragoman.inspection.views import alignment
from dragoman.inspection.views.alignment import compute_alignment, compute_head_effects
from dragoman.nn.attention import MultiHeadAttention
from dragoman.text.tokenizers import tokenizers

SOURCES = {"transformer": "the old bridges", "rnn": "hgfed ba", "convolutional": "abc d"}
TARGETS = {"transformer": "an older bridge", "rnn": "abc", "convolutional": "h gfe"}
ROUNDED = 6e-5  # weights have four digits


def changed(pipeline: Pipeline, change: Callable[[Any], None]) -> Pipeline:
    """The same pipeline around a copy of its model with other weights."""
    model = copy.deepcopy(pipeline.model)
    with torch.no_grad():
        change(model)
    return replace(pipeline, model=model, fast=False)


def without_head(name: str) -> Callable[[Any], None]:
    """Zeros in the columns of W_O that a head of a Transformer stands in front of."""
    kind, layer, number = name.split(".")

    def change(model: Any) -> None:
        side = model.encoder if kind == "encoder" else model.decoder
        block = side.stack.blocks[int(layer) - 1]
        attention = block.cross_attention if kind == "cross" else block.mixer
        width = attention.Wo.in_features // attention.heads
        attention.Wo.weight[:, (int(number) - 1) * width : int(number) * width] = 0.0

    return change


def names(view: dict[str, Any]) -> list[str]:
    return [head["name"] for one in view["maps"] for head in one["heads"]]


def weights(view: dict[str, Any], name: str) -> np.ndarray:
    return np.array(next(head["weights"] for one in view["maps"] for head in one["heads"] if head["name"] == name))


# -- weights -----------------------------------------------------------------------------------------------------------


def projections(model: nn.Module, run: Callable[[], object]) -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """The queries and keys, (T, H · D) and (S, H · D), that every attention computed while something ran."""
    found: dict[str, dict[str, np.ndarray]] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            for letter in ("Wq", "Wk"):

                def keep(_: Any, __: Any, out: torch.Tensor, name: str = name, letter: str = letter) -> None:
                    found.setdefault(name, {})[letter] = out[0].detach().double().numpy()

                handles.append(getattr(module, letter).register_forward_hook(keep))
    run()
    for handle in handles:
        handle.remove()
    modules = dict(model.named_modules())
    return {name: (both["Wq"], both["Wk"], modules[name].heads) for name, both in found.items()}  # type: ignore[misc]


def attended(q: np.ndarray, k: np.ndarray, causal: bool) -> list[list[float]]:
    """softmax(q kᵀ / √D) in plain loops."""
    rows = []
    for t in range(len(q)):
        e = [sum(q[t] * k[j]) / math.sqrt(len(q[t])) for j in range(t + 1 if causal else len(k))]
        p = [math.exp(x - max(e)) for x in e]
        rows.append([x / sum(p) for x in p] + [0.0] * (len(k) - len(e)))
    return rows


def test_every_head_of_a_transformer_weighs_by_the_softmax_of_its_queries_and_keys(transformer: Pipeline) -> None:
    pair = SOURCES["transformer"], TARGETS["transformer"]
    view = compute_alignment(transformer, *pair)
    found = projections(transformer.model, lambda: transformer.token_scores([pair]))
    places = {"mixer": "decoder", "cross_attention": "cross"}
    seen = set()
    for name, (q, k, heads) in found.items():
        side, _, _, layer, part = name.split(".")  # decoder.stack.blocks.0.cross_attention
        kind = "encoder" if side == "encoder" else places[part]
        q, k = (x.reshape(len(x), heads, -1) for x in (q, k))
        for h in range(heads):
            head = f"{kind}.{int(layer) + 1}.{h + 1}"
            truth = attended(q[:, h], k[:, h], causal=kind == "decoder")
            np.testing.assert_allclose(weights(view, head), truth, atol=ROUNDED)
            seen.add(head)
    assert seen == set(names(view))
    assert len(seen) == 2 * 2 * 3  # layers, heads, kinds


def test_an_rnn_looks_by_its_additive_score(rnn: Pipeline) -> None:
    view = compute_alignment(rnn, SOURCES["rnn"], TARGETS["rnn"])
    attention = rnn.model.decoder.attention
    queries: list[np.ndarray] = []
    keys: list[np.ndarray] = []

    def keep(_: Any, given: tuple[Any, ...], __: Any) -> None:
        queries.append(given[0][0, 0].double().numpy())
        keys.append(given[1].keys[0, 0].double().numpy())

    handle = attention.register_forward_hook(keep)
    rnn.token_scores([(SOURCES["rnn"], TARGETS["rnn"])])
    handle.remove()
    W, v = attention.score.W1.weight.detach().double().numpy(), attention.score.v.weight[0].detach().double().numpy()
    assert names(view) == ["cross.1.1"]
    for t, (q, k) in enumerate(zip(queries, keys, strict=True)):
        e = np.array([v @ np.tanh(W @ q + k_j) for k_j in k])
        truth = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
        np.testing.assert_allclose(weights(view, "cross.1.1")[t], truth, atol=ROUNDED)
        np.testing.assert_allclose(view["soft"][t], truth, atol=ROUNDED)
    assert len(queries) == len(view["target"]) == len(TARGETS["rnn"]) + 1


@pytest.mark.parametrize("kind", ["transformer", "convolutional"])
def test_the_soft_alignment_is_the_mean_of_all_heads_that_look_across(kind: str, request: Any) -> None:
    view = compute_alignment(request.getfixturevalue(kind), SOURCES[kind], TARGETS[kind])
    across = [weights(view, name) for name in names(view) if name.startswith("cross")]
    np.testing.assert_allclose(view["soft"], np.mean(across, 0), atol=2 * ROUNDED)
    np.testing.assert_allclose(np.sum(view["soft"], 1), 1.0, atol=1e-3)


@pytest.mark.parametrize("kind", SOURCES)
def test_entropies_are_those_of_the_weights(kind: str, request: Any) -> None:
    view = compute_alignment(request.getfixturevalue(kind), SOURCES[kind])
    for one in view["maps"]:
        for head in one["heads"]:
            a = np.array(head["weights"])
            truth = -np.sum(a * np.log(np.where(a > 0, a, 1.0)), 1).mean()
            assert head["entropy"] == pytest.approx(truth, abs=3e-3)  # of rounded weights


def test_one_sequence_is_cut_into_what_looks_across_and_what_looks_back(decoder_only: Pipeline) -> None:
    view = compute_alignment(decoder_only, "abc", "dc")
    assert view["soft"] is None
    for layer, head in [(1, 1), (1, 2), (2, 1), (2, 2)]:
        across, back, reading = (weights(view, f"{kind}.{layer}.{head}") for kind in ("cross", "decoder", "encoder"))
        assert (across.shape, back.shape, reading.shape) == ((3, 4), (3, 4 + 3), (4, 4))
        np.testing.assert_allclose(back.sum(1), 1.0, atol=1e-3)
        np.testing.assert_array_equal(back[:, :4], across)
        assert (np.triu(back, 4 + 1) == 0).all()
        assert (np.triu(reading, 1) == 0).all()
    q, k, heads = projections(decoder_only.model, lambda: decoder_only.token_scores([("abc", "dc")]))[
        "decoder.stack.blocks.0.mixer"
    ]
    whole = np.array(attended(*(x.reshape(len(x), heads, -1)[:, 1] for x in (q, k)), causal=True))
    np.testing.assert_allclose(weights(view, "cross.1.2"), whole[4:, :4], atol=ROUNDED)
    np.testing.assert_allclose(weights(view, "decoder.1.2"), whole[4:], atol=ROUNDED)


@pytest.mark.parametrize("source", ["prefix", "full_prefix"])
def test_where_source_and_target_are_one_sequence_the_decoder_looks_back_at_both(
    build: Callable[..., Pipeline], source: str
) -> None:
    view = compute_alignment(build("none", {**TRANSFORMER, "source": source}), "abc", "dc")
    columns = [*view["source"], *view["inputs"]]
    assert columns == ["a", "b", "c", "</s>", "<s>", "d", "c"]
    decoder = [one for one in view["maps"] if one["kind"] == "decoder"]
    assert [one["tokens"] for one in decoder] == [columns] * 2
    for head in (head for one in decoder for head in one["heads"]):
        assert np.shape(head["weights"]) == (len(view["target"]), len(columns))
        np.testing.assert_allclose(np.sum(head["weights"], 1), 1.0, atol=1e-3)


# -- the pair ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOURCES)
def test_log_probabilities_are_those_of_scoring_the_pair(kind: str, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    view = compute_alignment(pipeline, Example(SOURCES[kind]), TARGETS[kind])
    truth = pipeline.token_scores([(SOURCES[kind], TARGETS[kind])])[0]
    np.testing.assert_allclose(view["log_probs"], truth, atol=1e-5)
    assert view["log_prob"] == pytest.approx(sum(truth), abs=1e-4)
    assert view["has_user_target"]
    assert len(view["source"]) == len(view["soft"][0])
    assert len(view["target"]) == len(view["inputs"]) == len(view["soft"]) == len(truth)
    assert view["inputs"] == ["<s>", *view["target"][:-1]]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("beam", [None, 1])
def test_without_a_target_the_models_own_output_is_shown(kind: str, beam: int | None, request: Any) -> None:
    pipeline = request.getfixturevalue(kind)
    view = compute_alignment(pipeline, SOURCES[kind], beam=beam)
    truth = pipeline.predict([SOURCES[kind]], beam=beam, attention=True)[0]
    assert not view["has_user_target"]
    assert (view["target_text"], view["target"]) == (truth.text, [*truth.tokens, "</s>"])
    assert view["source"] == truth.source_tokens
    np.testing.assert_allclose(view["soft"], truth.attention, atol=ROUNDED)


# -- words -------------------------------------------------------------------------------------------------------------


def runs(pieces: list[str]) -> list[list[int]]:
    """The places of the pieces of each word: a new one at every ▁ or space, and at </s>."""
    found: list[list[int]] = []
    for i, piece in enumerate(pieces):
        if not found or piece[0] in "▁␣" or piece == "</s>":
            found.append([])
        found[-1].append(i)
    return found


@pytest.mark.parametrize("kind", ["transformer", "rnn"])
def test_words_are_sums_over_source_pieces_and_means_over_target_pieces(kind: str, request: Any) -> None:
    view = compute_alignment(
        request.getfixturevalue(kind), SOURCES[kind], "bridges ended" if kind == "transformer" else "ab cd"
    )
    merged, soft = view["words"], np.array(view["soft"])
    columns, rows = runs(view["source"]), runs(view["target"])
    assert merged["source"] == [*SOURCES[kind].split(), "</s>"]
    assert merged["target"] == [*view["target_text"].split(), "</s>"]
    assert len(columns) < len(view["source"]), "there must be something to merge"
    assert len(rows) < len(view["target"])
    truth = [[np.mean([sum(soft[t, j] for j in word) for t in said]) for word in columns] for said in rows]
    np.testing.assert_allclose(merged["soft"], truth, atol=len(soft[0]) * ROUNDED)


def test_words_by_hand(rnn: Pipeline) -> None:
    mine = prepare_pair(rnn, "ab c", "d e")
    soft = torch.tensor(
        [
            [0.1, 0.2, 0.3, 0.3, 0.1],  # d        a b ␣ c </s>
            [0.0, 0.0, 0.5, 0.5, 0.0],  # ␣
            [0.4, 0.2, 0.2, 0.2, 0.0],  # e
            [0.0, 0.0, 0.0, 0.0, 1.0],  # </s>
        ]
    )
    merged = attention_maps.merge_words(rnn, mine, soft)
    assert merged is not None
    assert (merged["source"], merged["target"]) == (["ab", "c", "</s>"], ["d", "e", "</s>"])
    np.testing.assert_allclose(merged["soft"], [[0.3, 0.6, 0.1], [0.3, 0.7, 0.0], [0.0, 0.0, 1.0]], atol=1e-6)


def test_tags_stand_alone_and_what_is_unknown_belongs_to_its_word() -> None:
    tokenizer = tokenizers.build(Part("characters"))
    tokenizer.learn(["ab "], ["<to:de>"])
    ids = [4, *tokenizer.encode("a?b ba"), EOS]
    assert tokenizer.pieces(ids) == ["<to:de>", "a", "<unk>", "b", "␣", "b", "a", "</s>"]
    places = attention_maps.word_spans(tokenizer, ids, tokens_are_words=False)
    assert places == [(0, 1), (1, 4), (4, 7), (7, 8)]
    assert [attention_maps.spell_word(tokenizer, ids[a:b]) for a, b in places] == ["<to:de>", "a\u2047b", "ba", "</s>"]
    assert attention_maps.word_spans(tokenizer, ids, tokens_are_words=True) == [(i, i + 1) for i in range(8)]


# -- heads switched off ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [["cross.1.2"], ["encoder.2.1"], ["decoder.1.1"], ["cross.2.1", "encoder.1.2"]])
def test_a_head_switched_off_is_a_head_whose_columns_of_the_output_are_zero(
    transformer: Pipeline, off: list[str]
) -> None:
    pair = SOURCES["transformer"], TARGETS["transformer"]
    view, other = compute_alignment(transformer, *pair, ablate=off), transformer
    for name in off:
        other = changed(other, without_head(name))
    truth = other.token_scores([pair])[0]
    np.testing.assert_allclose(view["log_probs_ablated"], truth, atol=1e-5)
    assert view["log_prob_ablated"] == pytest.approx(sum(truth), abs=1e-4)
    assert abs(view["log_prob_ablated"] - view["log_prob"]) > 1e-3, "the head must matter for this to mean much"
    assert view["ablated"] == off
    np.testing.assert_allclose(view["log_probs"], transformer.token_scores([pair])[0], atol=1e-5)


def test_an_rnn_without_its_head_reads_no_context(rnn: Pipeline) -> None:
    def no_context(model: Any) -> None:
        d_in, d_memory, d = model.embedding.d, model.encoder.d, model.decoder.d
        model.decoder.stack.layers[0].rnn.weight_ih_l0[:, d_in:] = 0.0  # of [y; c]
        model.decoder.readout.weight[:, d : d + d_memory] = 0.0  # of [s; c; y]

    pair = SOURCES["rnn"], TARGETS["rnn"]
    truth = changed(rnn, no_context).token_scores([pair])[0]
    np.testing.assert_allclose(
        compute_alignment(rnn, *pair, ablate=["cross.1.1"])["log_probs_ablated"], truth, atol=1e-5
    )


def test_a_convolution_without_its_head_adds_no_context(convolutional: Pipeline) -> None:
    def no_context(model: Any) -> None:
        model.decoder.layers[1].Wo.weight.zero_()

    pair = SOURCES["convolutional"], TARGETS["convolutional"]
    truth = changed(convolutional, no_context).token_scores([pair])[0]
    np.testing.assert_allclose(
        compute_alignment(convolutional, *pair, ablate=["cross.2.1"])["log_probs_ablated"], truth, atol=1e-5
    )


def test_effects_are_the_changes_when_each_head_alone_is_off(transformer: Pipeline) -> None:
    pair = SOURCES["transformer"], TARGETS["transformer"]
    found, whole = compute_head_effects(transformer, *pair)["effects"], transformer.score([pair])[0]
    assert list(found) == names(compute_alignment(transformer, *pair))
    for name, change in found.items():
        truth = changed(transformer, without_head(name)).score([pair])[0] - whole
        assert change == pytest.approx(truth, abs=1e-4)


def test_a_head_of_one_sequence_goes_by_three_names(decoder_only: Pipeline) -> None:
    found = compute_head_effects(decoder_only, "abc", "dc")["effects"]
    assert found["cross.2.1"] == found["encoder.2.1"] == found["decoder.2.1"]
    truth = changed(decoder_only, without_head("decoder.2.1")).score([("abc", "dc")])[0]
    assert found["cross.2.1"] == pytest.approx(truth - decoder_only.score([("abc", "dc")])[0], abs=1e-4)


def test_a_model_is_as_before_after_a_look(transformer: Pipeline, rnn: Pipeline) -> None:
    for kind, pipeline in {"transformer": transformer, "rnn": rnn}.items():
        before = pipeline.score([(SOURCES[kind], TARGETS[kind])])
        compute_alignment(pipeline, SOURCES[kind], TARGETS[kind], ablate=["cross.1.1"])
        compute_head_effects(pipeline, SOURCES[kind], TARGETS[kind])
        assert pipeline.score([(SOURCES[kind], TARGETS[kind])]) == before
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in pipeline.model.modules())


# -- what cannot be shown ----------------------------------------------------------------------------------------------


def test_what_is_too_much_for_a_view_is_left_out_within_the_source_first(
    transformer: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compute_alignment(transformer, SOURCES["transformer"], TARGETS["transformer"])
    size = dict.fromkeys(("cross", "decoder", "encoder"), 0)
    for one in whole["maps"]:
        size[one["kind"]] += sum(np.array(head["weights"]).size for head in one["heads"])
    assert whole["left_out"] == []
    for most, left in ((sum(size.values()) - 1, ["encoder"]), (size["cross"], ["decoder", "encoder"])):
        monkeypatch.setattr(alignment, "MAX_WEIGHTS", most)
        view = compute_alignment(transformer, SOURCES["transformer"], TARGETS["transformer"], ablate=["encoder.1.1"])
        assert view["left_out"] == left
        assert view["maps"] == [one for one in whole["maps"] if one["kind"] not in left]
        assert view["log_prob_ablated"] is not None  # what is not shown can be switched off all the same
    monkeypatch.setattr(alignment, "MAX_WEIGHTS", size["cross"] - 1)
    with pytest.raises(UserError, match="shorten the text"):
        compute_alignment(transformer, SOURCES["transformer"], TARGETS["transformer"])


RNN, CONVOLUTIONS = {"name": "rnn", "cell": "gru"}, {"name": "conv", "layers": 2}
TRANSFORMER = {"name": "transformer", "layers": 2, "heads": 2, "feedforward": 32}
SHARED = {**TRANSFORMER, "layers": 3, "shared": True}
MIXED = {**TRANSFORMER, "mixer": "parameter_free"}


@pytest.mark.parametrize("parts", [(SHARED, TRANSFORMER), (MIXED, MIXED), (RNN, SHARED), (CONVOLUTIONS, TRANSFORMER)])
def test_the_weights_of_a_pass_are_counted_before_it(build: Callable[..., Pipeline], parts: tuple[Any, Any]) -> None:
    pipeline = build(*parts)
    check_count(pipeline, "abcd", "hgf")


@pytest.mark.parametrize("kind", ["transformer", "rnn", "convolutional", "decoder_only"])
def test_the_weights_of_a_pass_of_every_model_here_are_counted_before_it(kind: str, request: Any) -> None:
    check_count(request.getfixturevalue(kind), "a bee", "a b")


def check_count(pipeline: Pipeline, source: str, target: str) -> None:
    counted = attention_maps.count_weights(pipeline, prepare_pair(pipeline, source, target))
    seen = dict.fromkeys(counted, 0)
    for one in compute_alignment(pipeline, source, target)["maps"]:
        seen[one["kind"]] += sum(np.array(head["weights"]).size for head in one["heads"])
    assert counted == seen


def test_nothing_is_computed_for_a_view_that_would_be_refused_nor_kept_of_what_is_left_out(
    transformer: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = prepare_pair(transformer, SOURCES["transformer"], TARGETS["transformer"])
    size = attention_maps.count_weights(transformer, mine)
    passes: list[None] = []
    counting = transformer.model.register_forward_hook(lambda *_: passes.append(None))
    monkeypatch.setattr(alignment, "MAX_WEIGHTS", size["cross"] - 1)
    with pytest.raises(UserError, match="shorten the text"):
        compute_alignment(transformer, SOURCES["transformer"], TARGETS["transformer"])
    counting.remove()
    assert passes == []
    _, every = attention_maps.run_recorded(transformer, mine, {"cross"})
    assert {one.kind: one.weights.numel() > 0 for one in every} == {"cross": True, "encoder": False, "decoder": False}
    _, every = attention_maps.run_recorded(transformer, mine, ())
    assert len(attention_maps.name_heads(every)) == 12
    assert not any(one.weights.numel() for one in every)  # what a head is worth needs its name alone


def test_what_has_nothing_to_show_says_why(
    transformer: Pipeline, no_attention: Pipeline, language_model: Pipeline, classifier: Pipeline, rnn: Pipeline
) -> None:
    with pytest.raises(UserError, match="no attention weights; use --view steps or --view beam"):
        compute_alignment(no_attention, "abc")
    with pytest.raises(UserError, match="language model"):
        compute_alignment(language_model, "abc")
    with pytest.raises(UserError, match="labels"):
        compute_alignment(classifier, "abc")
    with pytest.raises(UserError, match="blank"):
        compute_alignment(transformer, " \t")
    with pytest.raises(UserError, match=r"no head 'cross\.3\.1'.*cross\.1\.1 … decoder\.2\.2"):
        compute_alignment(transformer, "a bee", ablate=["cross.3.1"])
    with pytest.raises(UserError, match="tokens"):
        compute_alignment(rnn, "a" * (rnn.input_processor.max_source_length + 1))
    both = replace(rnn, model=ensemble.Ensemble([rnn.model, rnn.model]), fast=False)
    with pytest.raises(UserError, match="alone"):
        compute_alignment(both, "abc")


def test_a_view_without_a_soft_alignment_says_what_is_missing_and_what_to_do(
    rnn: Pipeline, decoder_only: Pipeline, language_model: Pipeline, classifier: Pipeline, build: Any
) -> None:
    both = replace(decoder_only, model=ensemble.Ensemble([decoder_only.model, decoder_only.model]), fast=False)
    for view, missing, remedy in (
        (alignment.predicted_alignment(classifier, "abc"), "a classifier has none", "model.head.pool: attention"),
        (alignment.predicted_alignment(language_model, "abc"), "a language model has none", "--view steps"),
        (alignment.predicted_alignment(both, "abc"), "these models have none in common", "alone"),
        (compute_alignment(decoder_only, "abc"), "over one sequence", "--maps decoder"),
        (
            compute_alignment(build(TRANSFORMER, {**RNN, "source": "context"}), "abc"),
            "the decoder has none",
            "--maps encoder",
        ),
    ):
        assert view["soft"] is None
        said, _, then = view["soft_blocker"].partition("; ")
        assert "attention from target to source" in said
        assert missing in said
        assert remedy in then
    assert compute_alignment(rnn, "abc")["soft_blocker"] is None


@pytest.mark.parametrize("kind", [*SOURCES, "decoder_only"])
def test_a_view_is_plain_data(kind: str, request: Any) -> None:
    view = compute_alignment(request.getfixturevalue(kind), SOURCES.get(kind, "abc"), ablate=["cross.1.1"])
    assert json.loads(json.dumps(view, allow_nan=False)) == view
