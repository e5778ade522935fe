"""Several models as one: an ensemble says the mean of what its members say, wherever a Pipeline asks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.codec_learning import learn_codec
from torch import Tensor, nn

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.errors import ModelError, UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD
from dragoman.inference.ensemble import (
    Ensemble,
    ShallowFusion,
    check_compatible,
    check_language_model,
    combine,
    load_models,
)
from dragoman.inference.pipeline import Pipeline
from dragoman.nn.attention import record_attention

LETTERS = "abcdefgh"
RNN = ["model.encoder=rnn", "model.decoder=rnn"]
TRANSFORMER = ["model.encoder.heads=2", "model.decoder.heads=2"]
LM = ["model.encoder=none", "model.decoder={name: rnn, source: prefix}", "training.objective=lm"]
LM2 = ["model.encoder=none", "model.decoder={name: transformer, source: prefix, heads: 2}", "training.objective=lm"]
LABELS = ["model.decoder=null", "model.head=classifier", "training.objective=labels", "model.tie=none"]
TAGS = ["model.decoder=null", "model.head=tagger", "training.objective=tags", "model.tie=none"]
SOURCES = ["abc", "h", "gfedcba", "bb"]


@cache
def tiny(*sets: str, seed: int = 0, letters: str = LETTERS) -> LoadedModel:
    """A model with large random weights, which says something definite, and ends now and then."""
    common = ["data.train=a.tsv", "model.width=16", "tokenizer.source=characters", "generation.max_length_extra=4"]
    config = configs.load(None, "transformer-tiny", [*common, *sets]).config
    codec = learn_codec(config.tokenizer.source, config.tokenizer.source, True, "nfc", [letters], [letters], [])
    torch.manual_seed(seed)
    model = configs.build_model(config, len(codec.source), len(codec.target)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
        model.output.bias[EOS] += 1.0
    return LoadedModel(Path(f"model-{seed}"), config, model, codec)


def opened(model: Any, like: LoadedModel) -> Pipeline:
    return Pipeline(model, like.codec, like.config, torch.device("cpu"))


def forced(model: Any, source: list[int], tokens: list[int]) -> Tensor:
    """log p (T, V) after each beginning of the tokens, from a pass of its own for each."""
    with torch.no_grad():
        memory = model.encode(torch.tensor([source], dtype=torch.long).view(1, -1), torch.tensor([len(source)]))
        beginnings = [[BOS, *tokens[:t]] for t in range(len(tokens) + 1)]
        rows = [model.logits(model.decode(torch.tensor([y]), memory).o[0, -1]) for y in beginnings]
        return without_pad_and_start(torch.stack(rows)).double().log_softmax(-1)


def without_pad_and_start(logits: Tensor) -> Tensor:
    """Logits whose softmax leaves out what is never generated."""
    return logits.index_fill(-1, torch.tensor([PAD, BOS]), -torch.inf)


def numbers(p: Pipeline, source: str, text: str) -> tuple[list[int], list[int], list[int]]:
    """The source's ids, the target's, and what is to be predicted: the target's and </s>."""
    y = p.codec.target.encode(text)
    return [*p.codec.source.encode(source), EOS], y, [*y, EOS]


# -- an ensemble -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sets", [RNN, TRANSFORMER], ids=["rnn", "transformer"])
def test_a_model_twice_is_the_model(sets: list[str]) -> None:
    one = tiny(*sets)
    alone, twice = opened(one.model, one), opened(Ensemble([one.model, one.model]), one)
    asked = {"beam": 3, "nbest": 2, "attention": True}
    for a, b in zip(alone.predict(SOURCES, **asked), twice.predict(SOURCES, **asked), strict=True):
        assert (a.text, a.finish_reason, a.alternatives[0].text) == (b.text, b.finish_reason, b.alternatives[0].text)
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-5)
        np.testing.assert_allclose(a.attention, b.attention, atol=1e-5)


@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
def test_an_rnn_and_a_transformer_together_say_the_mean_of_their_probabilities(weights: list[float] | None) -> None:
    a, b = tiny(*RNN), tiny(*TRANSFORMER, seed=1)
    p, w = opened(Ensemble([a.model, b.model], weights), a), (0.25, 0.75) if weights else (0.5, 0.5)
    ended = set()
    for source, best in zip(SOURCES, p.predict(SOURCES, beam=4, nbest=4), strict=True):
        for found in [best, *best.alternatives]:
            x, y, gold = numbers(p, source, found.text)
            truth = (w[0] * forced(a.model, x, y).exp() + w[1] * forced(b.model, x, y).exp()).log()
            expected = [float(truth[t, v]) for t, v in enumerate(gold)]
            np.testing.assert_allclose(found.log_probs, expected[: len(found.log_probs)], atol=1e-4)
            np.testing.assert_allclose(p.token_scores([(source, found.text)])[0], expected, atol=1e-4)
            ended.add((found.finish_reason, len(y)))
    assert len(ended) > 3, "results of several lengths must have been reordered and taken out of the batch"


def test_attention_is_the_mean_where_all_have_one_and_else_none() -> None:
    a, b = tiny(*RNN), tiny(*TRANSFORMER, seed=1)
    source, lengths, target = torch.tensor([[4, 5, 6, EOS]]), torch.tensor([4]), torch.tensor([[BOS, 7, 8]])
    together = Ensemble([a.model, b.model], [1, 3])
    with torch.no_grad(), record_attention():
        looks = [m.decode(target, m.encode(source, lengths)).attention for m in (a.model, b.model)]
        mean = together.decode(target, together.encode(source, lengths)).attention
    torch.testing.assert_close(mean, 0.25 * looks[0] + 0.75 * looks[1])
    with torch.no_grad():  # unwatched, the Transformer's kernel forms no weights
        assert together.decode(target, together.encode(source, lengths)).attention is None


def test_language_models_go_on_with_a_text_together() -> None:
    a, b = tiny(*LM), tiny(*LM2, seed=1)
    p = opened(Ensemble([a.model, b.model]), a)
    for source, found in zip(["abc", "", "h"], p.predict(["abc", "", "h"], beam=3), strict=True):
        y = p.codec.target.encode(found.text)  # the beginning that was given, and what was said
        truth = ((forced(a.model, [], y).exp() + forced(b.model, [], y).exp()) / 2).log()
        expected = [float(truth[t, v]) for t, v in enumerate([*y, EOS])][len(source) :]
        np.testing.assert_allclose(found.log_probs, expected[: len(found.log_probs)], atol=1e-4)


@pytest.mark.parametrize("sets", [LABELS, TAGS], ids=["labels", "tags"])
def test_heads_answer_with_the_mean_of_their_probabilities(sets: list[str]) -> None:
    a, b = tiny(*sets), tiny(*sets, "model.encoder=rnn", seed=1)
    p = opened(Ensemble([a.model, b.model]), a)
    (found,) = p.predict(["cafe"])
    x = torch.tensor([[*p.codec.source.encode("cafe"), EOS]])
    with torch.no_grad():
        logits = [m.logits(m.head(m.encode(x, torch.tensor([5]))).o)[0] for m in (a.model, b.model)]
    answers = [without_pad_and_start(one).softmax(-1) for one in logits]
    best = ((answers[0] + answers[1]) / 2)[: len(found.tokens), 4:].max(-1)
    assert found.tokens == p.codec.target.pieces((best.indices + 4).tolist())
    np.testing.assert_allclose(found.log_probs, best.values.log(), atol=1e-5)
    assert p.score([("cafe", found.text)]) == pytest.approx([found.log_prob], abs=1e-4)


def test_an_ensemble_reaches_as_far_as_the_member_that_reaches_least() -> None:
    def reach(n: int) -> list[str]:
        position = f"position={{name: learned, length: {n}}}"
        limits = [f"data.max_source={n}", f"data.max_target={n}"]
        return [*TRANSFORMER, *limits, f"model.encoder.{position}", f"model.decoder.{position}"]

    members = [tiny(*RNN), tiny(*reach(9)), tiny(*reach(12))]
    p = opened(combine(members), members[0])
    assert (p.model.max_source_positions, p.model.max_target_positions, p.model.is_decoder_only) == (9, 9, False)
    long, short = p.predict(["abcdefgh" * 2, "ab"], beam=2)
    assert (long.source_truncated, short.source_truncated) == (True, False)
    one = tiny("model.encoder=none", "model.decoder={name: transformer, source: prefix, heads: 2}")
    assert one.model.is_decoder_only
    assert not Ensemble([one.model, members[1].model]).is_decoder_only  # the positions that they share never end


def test_a_search_that_asks_is_told_where_the_members_look() -> None:
    a, b = tiny(*RNN), tiny(*TRANSFORMER, seed=1)
    options = GenerationOptions(beam=3, length_rule=Part("none"), coverage_penalty=0.5)
    both = Ensemble([a.model, b.model], [1, 3])
    for model in (both, ShallowFusion(both, tiny(*LM, seed=2).model, 0.3)):
        p = opened(model, a)
        every = [p.predict([source], options, attention=True)[0] for source in SOURCES]
        assert any(found.finish_reason == "eos" for found in every)
        for found in every:
            assert found.attention is not None  # from another pass, over the whole result
            if found.finish_reason == "eos":
                covered = np.log(np.clip(found.attention.sum(0, dtype=float), 1e-6, 1.0)).sum()
                assert found.score == pytest.approx(found.log_prob + 0.5 * covered, abs=1e-3)


# -- a language model beside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LM, LM2], ids=["rnn", "transformer"])
@pytest.mark.parametrize("count", [1, 2])
def test_what_a_fused_search_adds_up_is_log_p_and_the_language_models_share(kind: list[str], count: int) -> None:
    models, lm = [tiny(*RNN), tiny(*TRANSFORMER, seed=1)][:count], tiny(*kind, seed=2)
    p, changed = opened(ShallowFusion(combine(models), lm.model, 0.7), models[0]), False
    for source, best in zip(SOURCES, p.predict(SOURCES, beam=3, nbest=3, attention=True), strict=True):
        assert best.attention is not None
        for found in [best, *best.alternatives]:
            x, y, gold = numbers(p, source, found.text)
            log_p = (sum(forced(m.model, x, y).exp() for m in models) / count).log()
            s = log_p + 0.7 * forced(lm.model, [], y)
            expected = [float(s[t, v]) for t, v in enumerate(gold)]
            np.testing.assert_allclose(found.log_probs, expected[: len(found.log_probs)], atol=1e-4)
            plain = [float(log_p[t, v]) for t, v in enumerate(gold)]  # a pair's probability is the model's own
            np.testing.assert_allclose(p.token_scores([(source, found.text)])[0], plain, atol=1e-4)
            changed |= abs(sum(plain) - sum(expected)) > 0.1
    assert changed


def test_a_language_model_without_weight_changes_nothing() -> None:
    one = tiny(*RNN)
    fused = opened(ShallowFusion(one.model, tiny(*LM).model, 0.0), one)
    for a, b in zip(opened(one.model, one).predict(SOURCES), fused.predict(SOURCES), strict=True):
        assert (a.text, a.log_probs) == (b.text, pytest.approx(b.log_probs, abs=1e-5))


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(UserError, match="must be 0 or more"):
        ShallowFusion(tiny(*RNN).model, tiny(*LM).model, weight)


def test_only_a_language_model_of_the_same_target_vocabulary_joins_a_model_that_writes() -> None:
    check_language_model(tiny(*RNN), tiny(*LM, seed=2))
    for model, other, words in [
        (tiny(*RNN), tiny(*TRANSFORMER, seed=1), "model-1 .* objective pairs; shallow fusion needs a language model"),
        (tiny(*LM), tiny(*LM2, seed=1), "model-0 does not generate a target from a source"),
        (tiny(*LABELS), tiny(*LM, seed=2), "model-0 does not generate a target from a source"),
        (tiny(*RNN), tiny(*LM, seed=3, letters="abc"), "model-0 and model-3 .* vocabularies.*tokenizer.load: model-0"),
    ]:
        with pytest.raises(ModelError, match=words):
            check_language_model(model, other)


# -- from disk ---------------------------------------------------------------------------------------------------------


def save(folder: Path, model: LoadedModel) -> Path:
    model_folder.save(folder, model.config, model_folder.unique_weights(model.model), model.codec, {})
    return folder


def test_names_with_a_plus_between_them_open_models_that_work_as_one(tmp_path: Path) -> None:
    models = [tiny(*RNN), tiny(*TRANSFORMER, seed=1)]
    a, b = (save(tmp_path / name, model) for name, model in zip("ab", models, strict=True))
    found = load_models(f"{a}+{b}")
    assert [model.path for model in found] == [a, b]
    whole = opened(combine(found), found[0]).predict(SOURCES)
    for one, other in zip(whole, opened(combine(models), models[0]).predict(SOURCES), strict=True):
        assert (one.text, one.log_probs) == (other.text, other.log_probs)


def test_a_folder_with_a_plus_in_its_name_is_one_model(tmp_path: Path) -> None:
    both = save(tmp_path / "a+b", tiny(*RNN))
    [only] = load_models(both)
    assert only.path == both
    assert isinstance(combine([only]), nn.Module)
    assert combine([only]) is only.model


def test_a_member_that_is_not_there_or_not_named_is_said(tmp_path: Path) -> None:
    a = save(tmp_path / "a", tiny(*RNN))
    for path, words in [(f"{a}+{tmp_path}/c", "c: there is no such"), (f"{a}+", "named before or after a '\\+'")]:
        with pytest.raises(ModelError, match=words):
            load_models(path)


def test_members_must_share_tokenizers_and_objective() -> None:
    one = tiny(*RNN)
    for other, words in [
        (tiny(*RNN, seed=3, letters="abc"), "model-0 and model-3 have different tokenizers.*tokenizer.load: model-0"),
        (tiny(*LM, seed=2), "model-0 .* objective pairs and model-2 for lm"),
    ]:
        with pytest.raises(ModelError, match=words):
            check_compatible([one, one, other])
