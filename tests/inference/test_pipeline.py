"""A result depends on its source alone: not on batch-mates, padding, order or windows (SPEC G8, FAULTS 31)."""

from __future__ import annotations

import inspect
import math
import random
import resource
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec_learning import learn_codec

import dragoman
from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.core.errors import DataError, ModelError, PartError, UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import EOS, Example
from dragoman.inference import pipeline
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.search import search_part

LETTERS = "abcdefgh"
MODELS: dict[str, dict[str, Any]] = {
    "rnn": {
        "width": 12,
        "tie": "none",
        "encoder": {"name": "rnn", "cell": "lstm", "width": 16, "dropout": 0.3},
        "decoder": {"name": "rnn", "cell": "gru", "order": "before", "width": 16, "dropout": 0.3},
    },
    "rnn with input feeding": {
        "width": 16,
        "tie": "output",
        "encoder": {"name": "rnn", "cell": "gru", "layers": 2},
        "decoder": {"name": "rnn", "cell": "lstm", "layers": 2, "input_feeding": True, "score": "general"},
    },
    "transformer": {
        "width": 16,
        "tie": "none",
        "encoder": {"name": "transformer", "layers": 2, "heads": 2, "dropout": 0.3},
        "decoder": {"name": "transformer", "layers": 2, "heads": 4, "dropout": 0.3},
    },
    "conv": {
        "width": 16,
        "tie": "none",
        "encoder": {"name": "conv", "layers": 2},
        "decoder": {"name": "conv", "layers": 2},
    },
}


def build(name: str, *, texts: tuple[str, ...] = (LETTERS, "a b"), seed: int = 0, **sections: Any) -> Pipeline:
    """A model with random weights that says something definite (they are large) and comes to an end now and then."""
    value = {"data": {"train": "nowhere.tsv"}, "model": MODELS[name], "tokenizer": {"joint": False}, **sections}
    config = configs.validate(value, "a test")
    tags = ["<from:de>", "<to:en>", "<to:fr>"]
    source = config.tokenizer.source
    codec = learn_codec(source, config.tokenizer.target or source, False, "nfc", texts, texts, tags)
    torch.manual_seed(seed)
    model = configs.build_model(config, len(codec.source), len(codec.target))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_({"transformer": 1.5, "conv": 0.8}.get(name, 2.5))  # more, and these magnify rounding at width 16
        model.output.bias[EOS] += 1.0
    return Pipeline(model, codec, config, torch.device("cpu"))


@cache
def opened(name: str) -> Pipeline:
    return build(name, generation={"max_length_ratio": 1.0, "max_length_extra": 5})


def some_sources(seed: int) -> list[str]:
    """Blank, of one token, of 100, and of lengths between."""
    rng = random.Random(seed)
    lengths = [1, 100, 1, 2, 70, *(rng.randrange(1, 30) for _ in range(8))]
    texts = ["".join(rng.choice(LETTERS + " ") for _ in range(n - 1)) + rng.choice(LETTERS) for n in lengths]
    return [*texts[:6], "", *texts[6:], "   ", "\t"]


def same(a: Prediction, b: Prediction) -> None:
    assert (a.text, a.tokens, a.finish_reason, a.source_tokens, a.source_truncated) == (
        b.text,
        b.tokens,
        b.finish_reason,
        b.source_tokens,
        b.source_truncated,
    )
    assert np.abs(np.array(a.log_probs) - np.array(b.log_probs)).max(initial=0.0) < 1e-5
    assert abs(a.log_prob - b.log_prob) <= 1e-5 * max(len(a.log_probs), 1)
    assert abs(a.score - b.score) <= 1e-5 * max(len(a.log_probs), 1)
    for one, other in zip(a.alternatives, b.alternatives, strict=True):
        same(one, other)


# -- independence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("beam", "nbest"), [(1, 1), (4, 3)])
def test_a_source_alone_or_in_any_batch_in_any_order_has_the_same_result(model: str, beam: int, nbest: int) -> None:
    p, sources = opened(model), some_sources(beam)
    alone = [p.predict([source], beam=beam, nbest=nbest)[0] for source in sources]
    assert len({prediction.text for prediction in alone}) > 3, (
        "the model must say different things for this to mean much"
    )
    order = list(range(len(sources)))
    for seed in range(2):
        random.Random(seed).shuffle(order)
        together = p.predict([sources[i] for i in order], beam=beam, nbest=nbest)
        for i, prediction in zip(order, together, strict=True):
            same(prediction, alone[i])


@pytest.mark.parametrize("model", MODELS)
def test_scores_are_the_same_alone_or_in_any_batch(model: str) -> None:
    p = opened(model)
    sources = some_sources(7)
    pairs = list(zip(sources, reversed(sources), strict=True))
    alone = [p.token_scores([pair])[0] for pair in pairs]
    order = list(range(len(pairs)))
    random.Random(1).shuffle(order)
    for i, row in zip(order, p.token_scores([pairs[i] for i in order]), strict=True):
        assert len(row) == len(pairs[i][1]) + 1  # a token for each character, and </s>
        np.testing.assert_allclose(row, alone[i], atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_samples_depend_on_the_seed_and_the_index_and_not_on_the_batch(model: str) -> None:
    p, sources = opened(model), some_sources(4)
    samples = GenerationOptions(search=Part("sample"), num_samples=3, temperature=2.0, seed=7)
    together = p.predict(sources, samples, nbest=3)
    for i, source in enumerate(sources):
        same(p.predict([""] * i + [source], samples, nbest=3)[i], together[i])
        fewer = p.predict([""] * i + [source], samples.merge(GenerationOptions(num_samples=1)))[i]
        assert fewer.tokens in [one.tokens for one in (together[i], *together[i].alternatives)]
    repeated = p.predict(["abcdefgh"] * 6, samples)
    assert len({one.text for one in repeated}) > 1
    other = p.predict(sources, samples.merge(GenerationOptions(seed=8)))
    assert [one.text for one in other] != [one.text for one in together]


def test_a_window_of_the_stream_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    p, sources = opened("rnn"), some_sources(3)
    whole = p.predict(sources)
    monkeypatch.setattr(pipeline, "WINDOW", 3)
    for a, b in zip(p.stream(iter(sources)), whole, strict=True):
        same(a, b)


def test_samples_and_constraints_go_by_the_index_in_the_whole_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    p, sources = opened("rnn"), some_sources(3)
    samples = GenerationOptions(search=Part("sample"), temperature=2.0, max_new_tokens=9)
    options = [samples.merge(GenerationOptions(prefix="ab" * (i % 3))) for i in range(len(sources))]
    whole = p.predict(sources, options)
    monkeypatch.setattr(pipeline, "WINDOW", 4)
    for a, b in zip(p.predict(sources, options), whole, strict=True):
        same(a, b)


def test_the_stream_reads_no_further_than_a_window_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "WINDOW", 4)
    taken: list[int] = []

    def endless() -> Any:
        i = 0
        while True:
            taken.append(i)
            yield "ab"
            i += 1

    results = opened("rnn").stream(endless(), beam=1)
    next(results)
    assert len(taken) == 4


def test_predictions_are_those_of_an_evaluated_model_even_after_training_steps() -> None:
    p = build("transformer")
    before = p.predict(["abc", "bad"])
    p.model.train()
    for a, b in zip(p.predict(["abc", "bad"]), before, strict=True):
        same(a, b)


# -- search and score agree --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("beam", [1, 4])
def test_the_score_of_a_prediction_is_the_log_probability_its_search_found(model: str, beam: int) -> None:
    p = opened(model)
    sources = [source for source in some_sources(beam + 10) if source.strip()]
    compared = 0
    for source, best in zip(sources, p.predict(sources, beam=beam, nbest=beam), strict=True):
        for prediction in [best, *best.alternatives]:
            assert len(prediction.log_probs) == len(prediction.tokens) + (prediction.finish_reason == "eos")
            assert math.isclose(sum(prediction.log_probs), prediction.log_prob, abs_tol=1e-9)
            again = p.token_scores([(source, prediction.text)])[0]
            assert len(again) == len(prediction.tokens) + 1
            np.testing.assert_allclose(prediction.log_probs, again[: len(prediction.log_probs)], atol=1e-5)
            if prediction.finish_reason == "eos":
                (total,) = p.score([(source, prediction.text)])
                assert abs(total - prediction.log_prob) <= 1e-5 * len(again)
                compared += 1
    assert compared


def test_alternatives_differ_and_come_in_order_of_their_scores_those_that_were_cut_off_last() -> None:
    for prediction in opened("transformer").predict(["abc", "hgf", "d"], beam=5, nbest=5):
        ranked = [prediction, *prediction.alternatives]
        assert len(ranked) == 5
        assert len({(*p.tokens, p.finish_reason) for p in ranked}) == 5
        assert ranked == sorted(ranked, key=lambda p: (p.finish_reason == "length", -p.score))


def test_token_scores_are_log_probabilities_worked_out_token_by_token() -> None:
    p = opened("rnn")
    (found,) = p.token_scores([("abc", "ba")])
    source = torch.tensor([[*p.codec.source.encode("abc"), EOS]])
    target = [1, *p.codec.target.encode("ba"), EOS]
    p.model.eval()
    with torch.no_grad():
        memory = p.model.encode(source, torch.tensor([4]))
        for t in range(3):
            o = p.model.decode(torch.tensor([target[: t + 1]]), memory).o[0, -1]
            expected = p.model.logits(o)[EOS:].softmax(-1)[target[t + 1] - EOS].log()  # without <pad> and <s>
            assert abs(found[t] - float(expected)) < 1e-5


def test_a_result_obeys_the_limits_of_the_config() -> None:
    short = build("transformer", generation={"max_length_ratio": 0.0, "max_length_extra": 3})
    assert all(len(p.tokens) <= 3 for p in short.predict(["abcdefgh" * 3, "a"], beam=3))
    long = build("transformer", generation={"max_length_ratio": 1.0, "max_length_extra": 12, "min_new_tokens": 10})
    assert all(len(p.tokens) >= 10 for p in long.predict(["abc", "a"], beam=3))


def test_a_coverage_penalty_adds_the_logarithm_of_how_much_each_source_token_was_looked_at() -> None:
    p, weight = opened("rnn"), 0.3
    options = GenerationOptions(beam=3, coverage_penalty=weight)
    compared = 0
    for found in p.predict(["abc", "hg", "dadada"], options, attention=True):
        if found.finish_reason == "eos":
            assert found.attention is not None
            looked = np.minimum(found.attention.sum(0), 1.0)
            expected = found.log_prob / len(found.log_probs) + weight * np.log(looked).sum()
            assert found.score == pytest.approx(expected, abs=1e-4)
            compared += 1
    assert compared


def test_a_language_model_that_joins_adds_its_log_p_with_its_weight(tmp_path: Path) -> None:
    shapes: list[dict[str, Any]] = [
        {"model": {"width": 12, "tie": "none", "encoder": "rnn", "decoder": "rnn"}},
        {
            "model": {"width": 12, "tie": "all", "encoder": "none", "decoder": {"name": "rnn", "source": "prefix"}},
            "training": {"objective": "lm"},
        },
    ]
    for name, shape in zip(("model", "lm"), shapes, strict=True):
        config = configs.validate({"data": {"train": "n.tsv"}, "tokenizer": {"joint": True}, **shape}, "a test")
        kind = config.tokenizer.source
        codec = learn_codec(kind, kind, True, "nfc", [LETTERS], [LETTERS], [])
        model = configs.build_model(config, len(codec.source), len(codec.target))
        model_folder.save(tmp_path / name, config, model_folder.unique_weights(model), codec, {})
    plain, lm = (pipeline.load(tmp_path / name, "cpu") for name in ("model", "lm"))
    for found in pipeline.load(tmp_path / "model", "cpu", lm=tmp_path / "lm", lm_weight=0.4).predict(["abc", "h"]):
        source = "".join(found.source_tokens[:-1])
        both = zip(plain.token_scores([(source, found.text)])[0], lm.token_scores([found.text])[0], strict=True)
        expected = [p + 0.4 * q for p, q in both]
        assert found.log_probs == pytest.approx(expected[: len(found.log_probs)], abs=1e-5)


# -- attention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_attention_has_a_row_for_each_target_token_that_sums_to_1(model: str) -> None:
    p, sources = opened(model), some_sources(5)
    for source, prediction in zip(sources, p.predict(sources, beam=2, attention=True), strict=True):
        if not source.strip():
            assert prediction.attention is None
            continue
        assert prediction.attention is not None
        assert prediction.attention.shape == (len(prediction.tokens) + 1, len(prediction.source_tokens))
        assert prediction.source_tokens == [*("␣" if c == " " else c for c in source), "</s>"]
        assert prediction.attention.min() >= 0.0
        np.testing.assert_allclose(prediction.attention.sum(1), 1.0, atol=1e-5)
    assert all(prediction.attention is None for prediction in p.predict(["abc"]))


def test_attention_is_the_same_alone_and_in_a_batch() -> None:
    p, sources = opened("transformer"), [s for s in some_sources(6) if s.strip()]
    together = p.predict(sources, beam=1, attention=True)
    for source, prediction in zip(sources, together, strict=True):
        np.testing.assert_allclose(
            prediction.attention, p.predict([source], beam=1, attention=True)[0].attention, atol=1e-5
        )


# -- any input ---------------------------------------------------------------------------------------------------------

ODD = st.one_of(
    st.text(max_size=12),
    st.text(st.characters(), max_size=8),  # lone surrogates too
    st.text(
        st.sampled_from("ab\n\r\t\0\x85\u2028\u200b\u202e\ufeff\U0001f9d1\u200d\u0301é\ud800\udfff</s>"), max_size=12
    ),
    st.sampled_from(["", " ", "\n", "</s>", "<s><pad>", "\u3000", "<to:en>", "\x00"]),
)


@given(sources=st.lists(ODD, max_size=10))
@settings(max_examples=100)
def test_as_many_results_as_sources_in_order_whatever_they_hold(sources: list[str]) -> None:
    p = opened("rnn")
    results = p.predict(sources, beam=1)
    assert len(results) == len(sources)
    for source, prediction in zip(sources, results, strict=True):
        assert (prediction.finish_reason == "empty_source") == (not source.strip())
        if not source.strip():
            assert (prediction.text, prediction.log_prob, prediction.tokens) == ("", 0.0, [])
        assert prediction.source_tokens == p.codec.source.pieces(p.codec.encode_source(Example(source)))
        assert math.isfinite(prediction.log_prob)
        prediction.text.encode()  # can be written
    assert len(p.score([(source, source) for source in sources])) == len(sources)


def test_no_sources_give_no_results() -> None:
    p = opened("rnn")
    assert p.predict([]) == []
    assert p.score([]) == []


def test_a_source_that_is_too_long_is_cut_and_flagged() -> None:
    p = build("rnn", data={"train": "nowhere.tsv", "max_source": 5})
    assert p.input_processor.max_source_length == 20
    whole, cut = p.predict(["a" * 19, "a" * 20], beam=1)
    assert (whole.source_truncated, cut.source_truncated) == (False, True)
    assert whole.source_tokens == cut.source_tokens == ["a"] * 19 + ["</s>"]


def test_positions_that_end_are_never_passed() -> None:
    part = {"name": "transformer", "layers": 1, "heads": 2, "position": {"name": "learned", "length": 16}}
    model = {"width": 16, "encoder": part, "decoder": part}
    p = build(
        "transformer",
        model=model,
        data={"train": "n", "max_source": 16, "max_target": 16},
        generation={"max_length_extra": 100},
    )
    long, short = p.predict(["abcdefgh" * 4, "a"], beam=3, attention=True)
    assert (long.source_truncated, short.source_truncated) == (True, False)
    assert len(long.source_tokens) == 16
    assert len(p.score([("a" * 15, "b" * 15)])) == 1
    for pair in [("a" * 16, "b"), ("a", "b" * 16)]:
        with pytest.raises(DataError, match="16"):
            p.score([("a", "b"), pair])


def test_language_tags_are_read_and_an_unknown_one_is_named() -> None:
    p = opened("transformer")
    (tagged,) = p.predict([Example("abc", source_lang="de", target_lang="en")])
    assert tagged.source_tokens == ["<from:de>", "<to:en>", "a", "b", "c", "</s>"]
    plain, english, french = p.predict(
        [Example("abc"), Example("abc", target_lang="en"), Example("abc", target_lang="fr")]
    )
    assert len({round(x.log_prob, 6) for x in (plain, english, french)}) == 3
    with pytest.raises(DataError, match=r"some\.txt:3.*<to:sw>"):
        p.predict([Example("abc", target_lang="sw", file="some.txt", line=3)])


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"beam": 2, "nbest": 3}, "nbest 3 needs a beam of at least 3, not 2"),
        ({"beam": 1, "nbest": 2}, "nbest 2 needs a beam of at least 2, not 1"),
        ({"nbest": 6}, "nbest 6 needs a beam of at least 6, not 5"),  # the config's beam
        ({"nbest": 0}, "nbest is 0; it must be at least 1"),
        ({"nbest": -1}, "nbest is -1"),
        ({"beam": 0}, "beam is 0"),
        ({"beam": -3}, "beam is -3"),
        (
            {"options": GenerationOptions(search=Part("greedy")), "nbest": 2},
            "nbest 2 needs a beam of at least 2, not 1",
        ),
        (
            {"options": GenerationOptions(search=Part("sample", {"num_samples": 2})), "nbest": 3},
            "nbest 3 needs as many num_samples, not 2",
        ),
        (
            {"options": GenerationOptions(search=Part("sample")), "trace": True},
            "trace needs a beam search, and the search is 'sample'",
        ),
        ({"beam": 1, "options": GenerationOptions(force_phrases=("a",))}, "force_phrases needs a beam search"),
        ({"options": GenerationOptions(search=Part("bean"))}, "search: no search called 'bean'; did you mean 'beam'"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        opened("rnn").predict(["abc"], **asked)


@pytest.mark.parametrize("search", ["beam", "sample", "diverse"])
def test_a_search_that_would_fill_the_memory_is_refused_before_it_begins(search: str) -> None:
    field = "num_samples" if search == "sample" else "beam"
    options = GenerationOptions.model_validate({"search": search, field: 1_000_000})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"1,000,000 hypotheses need about [\d.]+ GB.* lower beam, or num_samples"):
        opened("rnn").predict(["abc"], options)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: p.predict("abc"), "predict takes a list of sources, found str"),
        (lambda p: p.predict(5), "predict takes a list of sources, found int"),
        (lambda p: p.predict(None), "predict takes a list of sources, found NoneType"),
        (lambda p: p.predict(Example("a")), "predict takes a list of sources, found Example"),
        (lambda p: p.predict([5]), "a source must be a text or an Example, found int 5"),
        (lambda p: p.predict(["a", None]), "a source must be a text or an Example, found NoneType None"),
        (lambda p: p.predict([b"a"]), "a source must be a text or an Example, found bytes"),
        (lambda p: p.predict([Example(5)]), "a source must be a text or an Example, found int 5"),
        (lambda p: p.predict(["a"], beam="5"), "beam is '5'; it must be at least 1, a whole number"),
        (lambda p: p.predict(["a"], beam=2.5), "beam is 2.5"),
        (lambda p: p.predict(["a"], nbest=True), "nbest is True"),
        (lambda p: p.predict(["a"], {"beam": 5}), "options must be GenerationOptions.* found dict"),
        (lambda p: p.predict(["a"], [{"beam": 5}]), "options must be GenerationOptions.* found dict"),
        (lambda p: p.score("abc"), "score takes a list of pairs, found str"),
        (lambda p: p.score(5), "score takes a list of pairs, found int"),
        (lambda p: p.score([5]), "a source must be a text or an Example, found int 5"),
        (lambda p: p.score([["a", "b"]]), "found list"),
        (lambda p: p.score([("a",)]), "a pair must be two texts"),
        (lambda p: p.score([("a", 5)]), "a pair must be two texts"),
        (lambda p: p.score([(5, "a")]), "a source must be a text"),
        (lambda p: p.score([("a", "b", "c")]), "a pair must be two texts"),
        (lambda p: dragoman.load(5), "path must be a text or a Path, found 5"),
        (lambda p: dragoman.load(None), "path must be a text or a Path, found None"),
        (lambda p: dragoman.load("x", device=0), "device must be a text, found 0"),
        (lambda p: dragoman.load("x" * 300), "there is no such model"),
        (lambda p: dragoman.train(5), "config and run must be texts or Paths, found 5"),
        (lambda p: dragoman.train("a.yaml", run=5), "found 'a.yaml' and 5"),
        (lambda p: dragoman.train("a.yaml", set="a=1"), r"set takes a list of texts.*\['a=1'\]"),
    ],
)
def test_a_wrong_type_is_a_sentence_that_names_the_argument(call: Callable[[Pipeline], Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        call(opened("rnn"))


def test_the_config_decides_the_search_unless_the_request_does() -> None:
    rule = {"name": "power", "alpha": 0.5}
    p = build("rnn", generation={"search": "beam", "beam": 3, "length_rule": rule})

    def part(pipeline: Pipeline, options: GenerationOptions | None = None, **request: int) -> Part:
        return search_part(pipeline.resolve_options(options, **request))

    power = Part("power", {"alpha": 0.5, "uncounted": 0})
    assert (part(p).name, part(p).options["beam"], part(p).options["length_rule"]) == ("beam", 3, power)
    assert part(p, beam=1) == part(p, GenerationOptions(beam=1)) == Part("greedy")
    assert (part(p, beam=1, nbest=1).name, part(p, beam=1, nbest=2).name) == ("greedy", "beam")
    for other in (part(p, beam=7, nbest=2), part(p, GenerationOptions(beam=7))):
        assert (other.name, other.options["beam"], other.options["length_rule"]) == ("beam", 7, power)
    for prediction in p.predict(["abc", "d"], beam=7):
        assert math.isclose(prediction.score, prediction.log_prob / len(prediction.log_probs) ** 0.5, rel_tol=1e-6)


def test_a_beam_asks_for_the_models_own_search_where_that_has_one_and_else_for_beam_search() -> None:
    greedy = build("rnn", generation={"search": "greedy"})
    assert search_part(greedy.resolve_options()) == Part("greedy")
    assert search_part(greedy.resolve_options(beam=4)).options["beam"] == 4
    sampling = build("rnn", generation={"search": "sample", "temperature": 2.0, "seed": 3})
    assert sampling.resolve_options(beam=4).explicit == {"beam": 4}  # what the old search took is dropped
    diverse = build("rnn", generation={"search": "diverse", "beam": 4, "num_beam_groups": 2, "diversity_penalty": 1.0})
    wider = search_part(diverse.resolve_options(beam=6))
    assert (wider.name, wider.options["beam"], wider.options["num_beam_groups"]) == ("diverse", 6, 2)
    with pytest.raises(PartError, match="a diverse beam of 7 cannot be divided evenly into 2 groups"):
        diverse.predict(["abc"], beam=7)
    assert len(diverse.predict(["abc"], GenerationOptions(num_beam_groups=4), nbest=4)[0].alternatives) == 3


def test_a_beam_of_1_is_greedy() -> None:
    p = opened("rnn")
    beam = p.predict(["abc", "hh"], GenerationOptions(search=Part("beam"), beam=1))
    for a, b in zip(p.predict(["abc", "hh"], beam=1), beam, strict=True):
        assert a.tokens == b.tokens


def test_a_beam_wider_than_the_vocabulary_works() -> None:
    p = build("transformer", texts=("ab",))
    assert len(p.codec.target) < 12
    (best,) = p.predict(["ab"], beam=12, nbest=12)
    assert 1 <= 1 + len(best.alternatives) <= 12


# -- the package's surface ---------------------------------------------------------------------------------------------


def test_everything_in_all_is_there_and_everything_public_is_in_all() -> None:
    for name in dragoman.__all__:
        assert getattr(dragoman, name) is not None
    defined = {
        name
        for name, value in vars(dragoman).items()
        if inspect.isfunction(value) and value.__module__ == "dragoman" and not name.startswith("_")
    }
    assert defined == {"load", "train"}
    assert set(dragoman.__all__) == {
        "Example",
        "GenerationOptions",
        "Part",
        "Pipeline",
        "Prediction",
        "Report",
        "UserError",
        "__version__",
        *defined,
    }
    assert dir(dragoman) == sorted(dragoman.__all__)
    assert (dragoman.Pipeline, dragoman.Prediction) == (Pipeline, Prediction)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dragoman.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value"),
    [("output.bias", math.nan), ("frontend.table.weight", math.inf), ("embedding.table.weight", -math.inf)],
)
def test_a_weight_that_is_not_finite_is_named_when_the_model_is_loaded(name: str, value: float, tmp_path: Path) -> None:
    p = build("rnn")
    weights = {key: x.clone() for key, x in model_folder.unique_weights(p.model).items()}
    weights[name].view(-1)[-1] = value
    model_folder.save(tmp_path / "model", p.config, weights, p.codec, {})
    with pytest.raises(ModelError, match=f"model.safetensors: '{name}' has values that are NaN or infinite"):
        dragoman.load(tmp_path / "model", device="cpu")
    weights[name].view(-1)[-1] = 0.0
    weights["output.weight"].fill_(3e38)  # whose sum is infinite, and which are finite
    model_folder.save(tmp_path / "large", p.config, weights, p.codec, {})
    dragoman.load(tmp_path / "large", device="cpu")


def test_a_saved_model_loaded_from_its_folder_predicts_the_same(tmp_path: Path) -> None:
    p = build("rnn")
    model_folder.save(tmp_path / "model", p.config, model_folder.unique_weights(p.model), p.codec, {})
    again = dragoman.load(tmp_path / "model", device="cpu")
    for a, b in zip(again.predict(["abc", "", "hgfe"]), p.predict(["abc", "", "hgfe"]), strict=True):
        assert replace(a, alternatives=[]) == replace(b, alternatives=[])
    assert again.score([("abc", "b")]) == p.score([("abc", "b")])
    assert again.path == tmp_path / "model"
