"""Every shape of a model builds, is rehearsed, and answers as it should; what does not go together says what to do."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.errors import ConfigError, UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, Capacity, Example
from dragoman.data.objectives import objectives
from dragoman.inference.pipeline import Pipeline
from dragoman.nn.seq2seq import Seq2Seq

TINY = ["data.train=a.tsv", "model.width=8", "tokenizer.source=characters"]
ONE = ["model.encoder=none", "model.decoder.source=prefix"]
HEAD = ["model.decoder=null"]
APART = ["tokenizer.joint=false", "model.tie=none"]
FULL = "runtime.sharding=full"
SHAPES = {
    "encoder-decoder": [],
    "denoising": ["training.objective=denoising"],
    "spans": ["training.objective=span_corruption"],
    "one network": ONE,
    "one network that predicts the source": [*ONE, "training.objective={name: pairs, source_loss: true}"],
    "prefix language model": [*ONE[:1], "model.decoder.source=full_prefix", "training.objective=unilm"],
    "a text cut in two": [*ONE, "training.objective=prefix"],
    "language model": [*ONE, "training.objective=lm"],
    "recurrent language model": [ONE[0], "model.decoder={name: rnn, source: prefix}", "training.objective=lm"],
    "convolutional language model": [ONE[0], "model.decoder={name: conv, source: prefix}", "training.objective=lm"],
    "classifier": [*HEAD, *APART, "model.head=classifier", "training.objective=labels"],
    "tagger": [*HEAD, *APART, "model.head=tagger", "training.objective=tags"],
    "masked language model": [*HEAD, "model.head=tagger", "training.objective=masked"],
    "pointer": ["model.pointer=general"],
}


def loaded(*sets: str) -> configs.Config:
    return configs.load(None, "transformer-tiny", [*TINY, *sets]).config


def problems(*sets: str) -> list[str]:
    try:
        loaded(*sets)
    except ConfigError as error:
        return error.problems
    return []


# -- what goes together ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_the_table_is_right_and_rehearsed(shape: str) -> None:
    assert problems(*SHAPES[shape]) == []


REFUSED = {
    "model.tie is 'embeddings', but tokenizer.joint is false": ["tokenizer.joint=false", "model.tie=embeddings"],
    "training.objective is denoising, so source and target are of one kind": [*APART, "training.objective=denoising"],
    "model.pointer needs one vocabulary": [*APART, "model.pointer=general"],
    "training.objective is labels, which an encoder answers alone": [*APART, "training.objective=labels"],
    "training.objective is lm, so one table": [*ONE, "training.objective=lm", "model.tie=output"],
    "training.objective is lm, which needs a decoder-only model": ["training.objective=lm"],
    "training.objective is lm, which reads from left": [
        ONE[0],
        "model.decoder.source=full_prefix",
        "training.objective=lm",
    ],
    "training.objective is unilm, which sees words from both sides": [*ONE, "training.objective=unilm"],
    "model.pointer copies from the source": [*ONE, "training.objective=lm", "model.pointer=general"],
    "training.objective is unilm, which needs a decoder-only model": ["training.objective=unilm"],
    "pairs with source_loss, which needs a decoder-only model": ["training.objective={name: pairs, source_loss: true}"],
    "pairs with source_loss, which reads from left": [
        ONE[0],
        "model.decoder.source=full_prefix",
        "training.objective={name: pairs, source_loss: true}",
    ],
    "model.decoder.source is prefix, so the decoder": ["model.decoder.source=prefix"],
    "model.encoder is none, so the decoder": ["model.encoder=none"],
    "runtime.sharding is full, which works on": [FULL, "model.encoder=rnn"],
    "activation_checkpointing is true, which works on": ["runtime.activation_checkpointing=true", "model.decoder=conv"],
    "runtime.sharding is full, but the matrices of": [FULL, "training.adapter=lora", "training.start_from=a"],
    "runtime.sharding is full, but training.optimizer adafactor": [FULL, "training.optimizer=adafactor"],
    "runtime.sharding is full, and samples": [FULL, "training.scheduled_sampling=linear"],
    "runtime.sharding is full, so all ranks": [FULL, "model.decoder.layer_drop=0.1"],
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_does_not_go_together_is_refused_and_the_remedy_of_the_sentence_helps(sentence: str) -> None:
    found = problems(*REFUSED[sentence])
    [told] = [problem for problem in found if sentence in problem]
    remedies = re.findall(r"(?:set|and) ([\w.]+) to (\w+)", told)
    assert remedies, told
    after = problems(*REFUSED[sentence], *(f"{key}={value}" for key, value in remedies))
    assert not any(sentence in problem for problem in after)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["data.columns=[source]"], "data.columns must name 'target'"),
        (["training.objective=denoising", "training.validate_metrics=[bleu]", "data.valid=b"], "leave it empty"),
        ([*HEAD, "model.head=classifier"], "but training.objective is pairs: it must be labels"),
        ([*HEAD, "model.head=tagger"], "it must be masked or tags"),
        (["model.decoder.position={name: learned, length: 9}"], "data.max_target is 256, but model.decoder.position"),
        (["model.encoder.position={name: learned, length: 9}"], "data.max_source is 256, but model.encoder.position"),
        ([*ONE, "model.decoder.position={name: learned, length: 300}"], "data.max_source + data.max_target is 512"),
        (
            [*ONE, "training.objective=denoising", "model.decoder.position={name: learned, length: 300}"],
            "data.max_source + data.max_target is 512",
        ),
        (["training.start_parts=[encoder]"], "start_from is missing"),
        (
            [*HEAD, "model.head=tagger", "training.objective={name: masked, mask: 1.0}"],
            "training.objective: mask is 1.0 and random is 0.1; together they must not exceed 1",
        ),
        ([*APART, "model.head=tagger", "training.objective=tags"], "set a decoder or a head"),
    ],
)
def test_other_sentences_say_what_must_change(sets: list[str], words: str) -> None:
    assert any(words in problem for problem in problems(*sets)), problems(*sets)


def test_a_language_model_reads_texts_not_pairs() -> None:
    assert loaded(*SHAPES["language model"]).columns == ["source"]
    assert loaded(*SHAPES["language model"], "data.columns=[source]").columns == ["source"]
    assert loaded("data.columns=[-, source, target]").columns == ["-", "source", "target"]


# -- what a model of each shape answers --------------------------------------------------------------------------------

TEXTS = ["abcdefgh", "a b c"]


def opened(*sets: str) -> Pipeline:
    """Random weights, large enough to say something definite."""
    config = loaded(
        "generation.search=greedy", "generation.max_length_ratio=1.0", "generation.max_length_extra=6", *sets
    )
    tokenizing = config.tokenizer
    symbols = objectives.build(config.training.objective).extra_symbols
    codec = learn_codec(tokenizing.source, tokenizing.source, tokenizing.joint, "nfc", TEXTS, TEXTS, symbols)
    model = configs.build_model(config, len(codec.source), len(codec.target))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    return Pipeline(model, codec, config, torch.device("cpu"))


def stepped(model: Seq2Seq, source: list[int], before: list[int], room: int) -> list[int]:
    """The most probable token again and again, by hand: <s> and what stands before are read one by one."""
    model.eval()
    memory = model.encode(torch.tensor([source], dtype=torch.long), torch.tensor([len(source)]))
    state, said = model.start(memory, Capacity(1, len(before) + room + 2)), []
    with torch.no_grad():
        for token in [BOS, *before[:-1]] if before else []:
            _, state = model.step(torch.tensor([[token]]), state)
        token = before[-1] if before else BOS
        while len(said) < room:
            log_p, state = model.step(torch.tensor([[token]]), state)
            log_p[..., [0, 1]] = -math.inf
            token = int(log_p[0, 0].argmax())
            if token == EOS:
                break
            said.append(token)
    return said


PROMPTS = ["abc", "", "h", "ab cd ef gh", "bb"]


@pytest.mark.parametrize("shape", [name for name in SHAPES if name.endswith("language model") and "mask" not in name])
def test_a_language_model_goes_on_from_prompts_of_all_lengths(shape: str) -> None:
    """As stepping by hand does: from <s> through the prompt; where a prefix is seen whole, from <s> behind it."""
    pipeline = opened(*SHAPES[shape])
    together = pipeline.predict(PROMPTS)
    for prompt, found in zip(PROMPTS, together, strict=True):
        ids, room = pipeline.codec.encode_phrase(prompt), len(prompt) + 6
        source, before = (ids, []) if pipeline.model.has_bidirectional_prefix else ([], ids)
        said = stepped(pipeline.model, source, before, room)
        assert found.tokens == pipeline.codec.target.pieces(said)
        assert found.text == pipeline.codec.decode([*ids, *said])
        assert found.source_tokens == pipeline.codec.target.pieces(ids)
    assert [p.tokens for p in pipeline.predict([""])] == [together[1].tokens]  # an empty prompt with nothing beside it
    beam = pipeline.predict(PROMPTS, beam=3, nbest=2)
    for prompt, found in zip(PROMPTS, beam, strict=True):
        alone = pipeline.predict([prompt], beam=3, nbest=2)[0]
        assert (found.tokens, found.alternatives[0].tokens) == (alone.tokens, alone.alternatives[0].tokens)


def test_what_a_language_model_says_scores_as_the_texts_it_makes() -> None:
    pipeline = opened(*SHAPES["language model"])
    text = pipeline.predict(["ab"])[0]
    whole = pipeline.token_scores([text.text])[0]
    n = len(text.log_probs)
    if text.finish_reason == "eos":
        assert np.allclose(whole[-n:], text.log_probs, atol=1e-4)
    else:
        assert np.allclose(whole[-n - 1 : -1], text.log_probs, atol=1e-4)
    assert pipeline.score([text.text])[0] == pytest.approx(sum(whole))
    assert pipeline.score([("not looked at", text.text)])[0] == pytest.approx(sum(whole), abs=1e-4)


def test_a_prefix_is_read_alike_where_it_is_scored_and_where_it_is_gone_on_from() -> None:
    """The objective's sources have no </s>."""
    pipeline = opened(*SHAPES["a text cut in two"])
    found = pipeline.predict(["abc", "h"])
    for prompt, one in zip(["abc", "h"], found, strict=True):
        scores = pipeline.token_scores([(prompt, one.text)])[0]
        assert np.allclose(scores[: len(one.tokens)], one.log_probs[: len(one.tokens)], atol=1e-4)


def test_a_classifier_answers_with_labels_the_best_first_and_they_score_alike() -> None:
    pipeline = opened(*SHAPES["classifier"], "model.head={name: classifier, pool: attention}")
    sources = ["abcdefg", "h", "", "ab"]
    found = pipeline.predict(sources, nbest=3, attention=True)
    for source, one in zip(sources, found, strict=True):
        if not source:
            assert one.finish_reason == "empty_source"
            continue
        ranked = [one, *one.alternatives]
        assert [len(label.tokens) for label in ranked] == [1, 1, 1]
        assert [label.score for label in ranked] == sorted((label.score for label in ranked), reverse=True)
        assert pipeline.score([(source, label.text) for label in ranked]) == pytest.approx(
            [label.log_prob for label in ranked], abs=1e-5
        )
        assert one.attention is not None
        assert one.attention.shape == (1, len(source) + 1)
        assert one.attention.sum() == pytest.approx(1.0)
    with pytest.raises(UserError):
        pipeline.predict(["ab"], nbest=0)
    with pytest.raises(UserError, match="not one label"):
        pipeline.score([("ab", "ab")])


def test_a_tagger_answers_with_a_tag_for_each_token() -> None:
    pipeline = opened(*SHAPES["tagger"])
    sources = ["abcdefg", "h", "ab"]
    for source, one in zip(sources, pipeline.predict(sources), strict=True):
        assert len(one.tokens) == len(source)
        assert pipeline.token_scores([(source, one.text)])[0] == pytest.approx(one.log_probs, abs=1e-5)
    with pytest.raises(UserError, match="differ in number"):
        pipeline.score([("ab", "a")])


def test_a_masked_language_model_fills_positions_and_scores_no_text() -> None:
    pipeline = opened(*SHAPES["masked language model"])
    assert len(pipeline.predict(["abc"])[0].tokens) == 3
    with pytest.raises(UserError, match="score with another model"):
        pipeline.score(["abc"])


def test_samples_of_a_pipeline_depend_on_a_source_s_index_alone() -> None:
    # A high temperature: weights by chance may be all but sure that the text ends at once.
    pipeline, sample = opened(), GenerationOptions(search=Part("sample"), seed=5, temperature=10.0)
    sources = ["abc", "h", "abc", "defgh abc", *["abc"] * 12]
    found = pipeline.predict(sources, sample)
    assert [p.text for p in pipeline.predict(sources[:2], sample)] == [p.text for p in found[:2]]
    assert len({one.text for source, one in zip(sources, found, strict=True) if source == "abc"}) > 1
    examples = [Example(source) for source in sources]
    assert [p.text for p in pipeline.stream(iter(examples), sample)] == [p.text for p in found]


def test_a_pair_too_long_for_the_positions_of_one_sequence_is_not_scored() -> None:
    limits = ["data.max_source=8", "data.max_target=8", "model.decoder.position={name: learned, length: 16}"]
    pipeline: Any = opened(*ONE, *limits)
    assert (pipeline.model.max_source_positions, pipeline.model.max_target_positions) == (8, 16)
    assert len(pipeline.score([("abcdefg", "abcdefg")])) == 1
    with pytest.raises(UserError, match=r"the target has 9 tokens.*at most 8"):
        pipeline.score([("abcdefg", "abcdefgh")])
    assert pipeline.predict(["abcdefgh" * 9], beam=2)[0].source_truncated
