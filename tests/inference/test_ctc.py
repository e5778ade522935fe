"""What a CTC layer hears has its say in a pipeline's searches, alone and in an ensemble; states that stand for several
tokens are labeled so."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.errors import ConfigError, UserError
from dragoman.core.types import EOS
from dragoman.inference.ensemble import Ensemble, ShallowFusion
from dragoman.inference.pipeline import Pipeline
from dragoman.search.ctc import CTCPrefixScorer

LETTERS = "abcdefgh"
HEARS = (
    "model.ctc=true",
    "training.ctc_weight=0.3",
    "generation.ctc_weight=0.4",
    "model.encoder.heads=2",
    "model.decoder.heads=2",
)
PYRAMID = ("model.encoder={name: pyramid, layers: 1}", "model.decoder=rnn")
SOURCES = ["abc", "h", "gfedcba", "bbaa"]


@cache
def tiny(*sets: str, seed: int = 0) -> LoadedModel:
    common = ["data.train=a.tsv", "model.width=16", "tokenizer.source=characters", "generation.max_length_extra=4"]
    config = configs.load(None, "transformer-tiny", [*common, *sets]).config
    codec = learn_codec(config.tokenizer.source, config.tokenizer.source, True, "nfc", [LETTERS], [LETTERS], [])
    torch.manual_seed(seed)
    model = configs.build_model(config, len(codec.source), len(codec.target)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    return LoadedModel(Path(f"model-{seed}"), config, model, codec)


def opened(model: Any, like: LoadedModel, fast: bool = False) -> Pipeline:
    return Pipeline(model, like.codec, like.config, torch.device("cpu"), fast=fast)


@torch.no_grad()
def by_hand(pipeline: Pipeline, source: str, ids: list[int], ended: bool) -> float:
    """Σ (1 − λ) log p(y_t) + λ (log ψ(y_≤t) − log ψ(y_<t)), one teacher-forced pass and one look at CTC."""
    x = torch.tensor([[*pipeline.codec.source.encode(source), EOS]])
    memory = pipeline.model.encode(x, torch.tensor([x.shape[1]]))
    y = [*ids, *[EOS] * ended]
    logits = pipeline.model.logits(pipeline.model.decode(torch.tensor([[1, *y[:-1]]]), memory).o)[0]
    log_p = logits[:, EOS:].log_softmax(-1)  # <pad> and <s> take no part
    said = sum(float(log_p[t, token - EOS]) for t, token in enumerate(y))
    rule = CTCPrefixScorer(*pipeline.model.ctc_log_probs(memory), 0.5)
    heard = rule.prefix_state(torch.tensor([[ids]]), torch.tensor([0]))
    last = float(rule.extension_scores(heard)[0, 0, EOS]) if ended else float(heard.psi)
    return 0.6 * said + 0.4 * last


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("fast", [False, True])
def test_a_result_is_scored_by_what_is_said_and_what_is_heard(beam: int, fast: bool) -> None:
    one = tiny(*HEARS)
    pipeline = opened(one.model, one, fast)
    for source, found in zip(SOURCES, pipeline.predict(SOURCES, beam=beam), strict=True):
        assert found.log_prob == pytest.approx(
            by_hand(pipeline, source, found.ids, found.finish_reason == "eos"), abs=1e-4
        )


def test_the_score_of_a_pair_is_what_is_said_alone() -> None:
    """docs/search.md tells it apart from `log_prob` of a result, which has what is heard in it."""
    one = tiny(*HEARS)
    pipeline, silent = opened(one.model, one), opened(one.model, tiny(*HEARS[:2], *HEARS[3:]))
    assert silent.config.generation.ctc_weight == 0
    results = zip(SOURCES, pipeline.predict(SOURCES), strict=True)
    ended = [(source, found) for source, found in results if found.finish_reason == "eos"]
    pairs = [(source, found.text) for source, found in ended]
    assert pairs
    assert pipeline.score(pairs) == silent.score(pairs)
    for (_, found), said in zip(ended, pipeline.score(pairs), strict=True):
        assert found.log_prob != pytest.approx(said, abs=1e-3)


def test_an_ensemble_hears_the_mean_of_what_its_members_hear() -> None:
    one, two = tiny(*HEARS), tiny(*HEARS, seed=1)
    together = Ensemble([one.model, two.model])
    x, n = torch.tensor([[4, 5, 6, EOS]]), torch.tensor([4])
    with torch.no_grad():
        log_p, lengths = together.ctc_log_probs(together.encode(x, n))
        each = [m.ctc_log_probs(m.encode(x, n))[0].exp() for m in (one.model, two.model)]
    torch.testing.assert_close(log_p.exp(), (each[0] + each[1]) / 2)
    assert lengths.tolist() == [4]
    twice = opened(Ensemble([one.model, one.model]), one).predict(SOURCES)
    for a, b in zip(opened(one.model, one).predict(SOURCES), twice, strict=True):
        assert (a.text, a.score) == (b.text, pytest.approx(b.score, abs=1e-4))
    fused = ShallowFusion(
        one.model,
        tiny(
            "model.encoder=none",
            "model.decoder={name: rnn, source: prefix}",
            "training.objective=lm",
            "tokenizer.joint=true",
            "model.tie=all",
        ).model,
        0.0,
    )
    for a, b in zip(opened(one.model, one).predict(SOURCES), opened(fused, one).predict(SOURCES), strict=True):
        assert a.text == b.text


def test_members_that_hear_at_different_positions_are_refused() -> None:
    one, two = tiny(*HEARS), tiny(*HEARS[:3], *PYRAMID)
    with pytest.raises(UserError, match="different positions"):
        opened(Ensemble([one.model, two.model]), one).predict(SOURCES)


@pytest.mark.parametrize("nested", [False, True])
def test_a_state_that_stands_for_two_tokens_is_called_by_both(nested: bool) -> None:
    one = tiny(*PYRAMID)
    model = Ensemble([one.model, one.model]) if nested else one.model
    for source, found in zip(SOURCES, opened(model, one).predict(SOURCES, attention=True), strict=True):
        pieces = [*source, "</s>"]
        assert found.source_tokens == ["".join(pieces[i : i + 2]) for i in range(0, len(pieces), 2)]
        assert found.attention is not None
        assert found.attention.shape == (len(found.tokens) + 1, len(found.source_tokens))
        np.testing.assert_allclose(found.attention.sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["training.ctc_weight=0.3"], "training.ctc_weight is 0.3, but the model has no such layer"),
        (["generation.ctc_weight=0.3"], "generation.ctc_weight is 0.3, but the model has no such layer"),
        (["model.ctc=true"], "training.ctc_weight is 0"),
    ],
)
def test_ctc_is_a_layer_that_is_taught_before_it_is_used(sets: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        configs.load(None, "transformer-tiny", ["data.train=a.tsv", *sets])
