"""The engine in Chromium answers as Python's reference path: tokens, log p, attention, for every family of models."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.browser_engine.conftest import ENGINE, HOME, LOAD, EngineModel, answer_request
from tests.browser_engine.families import FAMILIES, RNN, TRANSFORMER, every_family
from tests.browser_engine.small_models import (
    find_difference,
    find_nbest_difference,
    random_texts,
    reference_predictions,
    small_pipeline,
)
from tests.codec_learning import learn_codec

from dragoman.browser import model_data as exporting
from dragoman.browser.engine_script import join_engine
from dragoman.browser.model_data import browser_blocker, model_data, unpack_tensors
from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views.alignment import compute_alignment
from dragoman.inspection.views.beam import trace_beam
from dragoman.inspection.views.steps import trace_steps
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.heads import heads
from dragoman.nn.layers import norms
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import positions
from dragoman.nn.scores import scores
from dragoman.nn.token_mixers import mixers
from dragoman.text.codec import CodecLearner, build_codec, copy_slot_symbols

Load = Callable[..., EngineModel]

GREEDY = {"beam": 1, "attention": True}
BEAM = {"beam": 5, "nbest": 5, "attention": True}
LABELS = {"nbest": 2}


def check_family(load_engine: Load, family: dict[str, Any], seed: int, with_trace: bool) -> None:
    pipeline = small_pipeline(**family, seed=seed)
    engine, texts = load_engine(pipeline), random_texts(3, seed)
    if family.get("objective") == "tags":
        texts = [" ".join(text) for text in texts]
    for options in [LABELS] if family.get("head") else [GREEDY, BEAM]:
        expected, found = reference_predictions(pipeline, texts, options), engine.predict(texts, options)
        for one, other in zip(expected, found, strict=True):
            difference = find_difference(one, other) if with_trace else find_nbest_difference(one, other)
            assert difference is None, (one["source_tokens"], options)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_engine_answers_as_python_does(load_engine: Load, name: str) -> None:
    check_family(load_engine, FAMILIES[name], list(FAMILIES).index(name), with_trace=True)


@pytest.mark.long
def test_the_engine_answers_as_python_does_with_every_part_and_option(load_engine: Load) -> None:
    for seed, (name, family) in enumerate(every_family().items()):
        try:
            check_family(load_engine, family, seed, with_trace=False)
        except AssertionError as error:
            raise AssertionError(f"{name}: {family}: {error}") from None


# -- precisions --------------------------------------------------------------------------------------------------------


def rounded(pipeline: Pipeline, precision: exporting.Precision) -> tuple[Pipeline, dict[str, Any], bytes]:
    """The pipeline with the weights that the engine has, and what the engine gets."""
    header, data = model_data(pipeline, precision)
    tensors = unpack_tensors(header, data)
    with torch.no_grad():
        for name, weight in pipeline.model.state_dict().items():
            weight.copy_(tensors[name])
    return pipeline, header, data


@pytest.mark.parametrize("precision", ["int8", "float16"])
@pytest.mark.parametrize("name", ["luong", "location", "transformer", "pointer", "decoder-only"])
def test_rounded_weights_answer_as_the_same_weights_in_python(load_engine: Load, name: str, precision: Any) -> None:
    pipeline, header, data = rounded(small_pipeline(**FAMILIES[name]), precision)
    engine = load_engine.data(header, data)  # type: ignore[attr-defined]
    for options in (GREEDY, BEAM):
        texts = random_texts(3)
        pairs = zip(reference_predictions(pipeline, texts, options), engine.predict(texts, options), strict=True)
        assert [find_nbest_difference(*pair) for pair in pairs] == [None] * len(texts)


def test_matrices_of_any_size_lie_one_after_the_other(load_engine: Load) -> None:
    one = RNN | {"directions": "one"}
    pipeline, header, data = rounded(small_pipeline(one, RNN, width=15), "int8")
    engine, texts = load_engine.data(header, data), random_texts(2)  # type: ignore[attr-defined]
    assert find_difference(reference_predictions(pipeline, texts, GREEDY), engine.predict(texts, GREEDY)) is None


def test_int8_takes_a_quarter_of_float32_and_tied_tensors_are_there_once() -> None:
    pipeline = small_pipeline(TRANSFORMER, TRANSFORMER, tie="all", joint=True, width=64)
    header, small = model_data(pipeline, "int8")
    _, large = model_data(pipeline, "float32")
    assert len(small) < 0.35 * len(large)  # biases, norms and scales stay in float32
    table = [entry for entry in header["tensors"] if "output.weight" in entry["names"]]
    assert [sorted(entry["names"]) for entry in table] == [
        ["embedding.table.weight", "frontend.table.weight", "output.weight"]
    ]


def test_no_weight_is_farther_from_its_rounded_value_than_half_a_step() -> None:
    W = torch.randn(50, 30).numpy()
    values, scales = exporting.round_to_int8(W)
    assert abs(W - values * scales[:, None]).max(1) == pytest.approx(abs(W - values * scales[:, None]).max(1))
    assert (abs(W - values * scales[:, None]) <= 0.501 * scales[:, None]).all()


# -- the product -------------------------------------------------------------------------------------------------------

PRODUCTS = """async () => {
    const { buildProductKernel } = await import("/product_kernel.js");
    const { Matrix, multiplyPlain } = await import("/tensors.js");
    const random = (count, scale) => Float32Array.from({ length: count }, () => scale * (2 * Math.random() - 1));
    const [rows, columns] = [37, 48];
    const kernel = buildProductKernel(2048 + 4 * rows * columns, rows, columns);
    const memory = kernel.bytes.buffer;
    const ints = new Int8Array(memory, 0, rows * columns);
    const scales = new Float32Array(memory, 1792, rows);
    const floats = new Float32Array(memory, 2048, rows * columns);
    ints.set(random(rows * columns, 127));
    scales.set(random(rows, 0.01));
    floats.set(random(rows * columns, 1));
    let [worst, largest] = [0, 0];
    for (const matrix of [new Matrix(rows, columns, ints, scales), new Matrix(rows, columns, floats)]) {
        for (const n of [1, 2, 3, 4, 5, 6, 13]) {
            const [x, y, z] = [random(n * columns, 1), new Float32Array(n * rows), new Float32Array(n * rows)];
            kernel.multiply(matrix, x, n, y);
            multiplyPlain(matrix, x, n, z);
            y.forEach((value, i) => {
                worst = Math.max(worst, Math.abs(value - z[i]));
                largest = Math.max(largest, Math.abs(z[i]));
            });
        }
    }
    return [worst, largest];
}"""


def test_the_kernel_multiplies_as_plain_javascript(engine_page: Any) -> None:
    worst, largest = engine_page.evaluate(PRODUCTS)
    assert largest > 5
    assert worst < 1e-5


def test_a_page_that_forbids_webassembly_gets_the_same_answers(engine_page: Any) -> None:
    header, data = model_data(small_pipeline(TRANSFORMER, TRANSFORMER))
    page = engine_page.context.browser.new_page()
    page.route("**/*", answer_request)
    scores = []
    for address in ("", "strict"):
        page.goto(HOME + address)
        page.evaluate(LOAD, [json.loads(json.dumps(header)), base64.b64encode(data).decode()])
        scores.append([one["log_prob"] for one in EngineModel(page).predict(random_texts(5), {})])
    page.close()
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


# -- the worker and its memory -----------------------------------------------------------------------------------------

WORKER = """async ([script, header, tensors, texts]) => {
    const start = `onmessage = async ({ data: { header, buffer, texts, options } }) => {
        const predictor = buildPredictor(header, await loadModel(header, buffer));
        postMessage("loaded");
        postMessage(await predictor.predict(texts, options));
    };`;
    const url = URL.createObjectURL(new Blob([script, start], { type: "text/javascript" }));
    const { buffer } = Uint8Array.from(atob(tensors), (character) => character.charCodeAt(0));
    async function predict(texts, options, until) {
        const worker = new Worker(url);
        const answer = await new Promise((resolve, reject) => {
            worker.onmessage = ({ data }) => until(data) && resolve(data);
            worker.onerror = ({ message }) => reject(new Error(message));
            worker.postMessage({ header, buffer, texts, options });
        });
        worker.terminate();
        return answer;
    }
    const endless = { beam: 100, max_new_tokens: 1000000 };
    const stopped = await predict(["abc"], endless, (data) => data === "loaded"); // it is terminated as it decodes
    return [stopped, await predict(texts, { beam: 3 }, Array.isArray)];
}"""


def test_a_worker_of_one_script_answers_and_can_be_terminated(engine_page: Any) -> None:
    pipeline, texts = small_pipeline(RNN, RNN), random_texts(4)
    header, data = model_data(pipeline, "float32")
    page = engine_page.context.browser.new_page()
    page.route("**/*", answer_request)
    page.goto(HOME + "worker")
    script = join_engine()
    stopped, found = page.evaluate(
        WORKER, [script, json.loads(json.dumps(header)), base64.b64encode(data).decode(), texts]
    )
    page.close()
    assert stopped == "loaded"
    assert find_difference(reference_predictions(pipeline, texts, {"beam": 3}), found) is None


ALLOCATED = """async ([header, tensors]) => {
    const { loadModel } = await import("/model_loading.js");
    const { buffer } = Uint8Array.from(atob(tensors), (character) => character.charCodeAt(0));
    const { Memory } = WebAssembly;
    let bytes = 0;
    WebAssembly.Memory = function openMemory(descriptor) {
        bytes += 65536 * descriptor.initial;
        return new Memory(descriptor);
    };
    const model = await loadModel(header, buffer);
    WebAssembly.Memory = Memory;
    structuredClone(buffer, { transfer: [buffer] }); // the file is gone, and the model needs it no more
    const { logP } = model.step([1], model.start([4, 5, 2]));
    return [bytes, logP.slice(2).every((x) => Number.isFinite(x))];
}"""


@pytest.mark.parametrize(("precision", "copies"), [("int8", 1.3), ("float16", 2.2), ("float32", 1.2)])
def test_a_model_in_memory_takes_little_more_than_its_weights(engine_page: Any, precision: Any, copies: float) -> None:
    pipeline = small_pipeline(TRANSFORMER, TRANSFORMER | {"feedforward": 1024}, width=256)
    header, data = model_data(pipeline, precision)
    allocated, is_usable = engine_page.evaluate(
        ALLOCATED, [json.loads(json.dumps(header)), base64.b64encode(data).decode()]
    )
    assert is_usable
    assert allocated <= copies * len(data)


# -- constraints and options -------------------------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {"prefix": "ba"},
    {"forbid_phrases": ["a", "bc"]},
    {"no_repeat_ngram_size": 1, "max_new_tokens": 5},
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.5, "beam": 3, "nbest": 3},
    {"min_new_tokens": 4, "max_new_tokens": 6},
    {"min_length_ratio": 0.7, "max_length_ratio": 1.2, "max_length_extra": 1},
    {"allow_unk": False, "beam": 2},
    {"length_penalty": 0.3, "beam": 4, "nbest": 4},
    {"length_rule": {"name": "gnmt", "alpha": 1.1}, "early_stopping": "never", "nbest": 5},
    {"length_rule": "none", "early_stopping": True, "patience": 1.0},
    {"early_stopping": False},
    {"beam": 3, "nbest": 3, "patience": 1.5},
    {"beam": 2, "patience": 4.0, "length_rule": "power", "length_penalty": 0.5},
    {"finished_policy": "shrink", "nbest": 5, "length_rule": "power"},
    {"coverage_penalty": 0.4, "beam": 3, "nbest": 3},
    {"beam": 1, "nbest": 1, "max_new_tokens": 3},
    {"beam": 1, "prefix": "ab"},
    {"search": "beam", "beam": 1},
]


@pytest.mark.parametrize("name", ["bahdanau", "transformer"])
def test_options_of_a_call_mean_the_same(load_engine: Load, name: str) -> None:
    pipeline = small_pipeline(**FAMILIES[name], seed=3)
    engine, texts = load_engine(pipeline), random_texts(2, seed=4)
    for options in OPTIONS:
        with_trace = options | {"trace": options.get("beam") != 1}
        expected, found = reference_predictions(pipeline, texts, with_trace), engine.predict(texts, with_trace)
        assert find_difference(expected, found) is None, options


def test_a_source_that_is_empty_or_too_long_or_unknown_is_answered_as_in_python(load_engine: Load) -> None:
    pipeline = small_pipeline(**FAMILIES["luong"])
    engine, texts = load_engine(pipeline), ["", "  ", "ab" * 500_000, "щ", "a\tb"]
    assert find_difference(reference_predictions(pipeline, texts, {}), engine.predict(texts, {})) is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"beams": 3}, "no option called 'beams'"),
        ({"beam": 0}, "beam is 0; it must be a whole number"),
        ({"nbest": 9, "beam": 3}, "nbest 9 needs a beam of at least 9"),
        ({"patience": 0.5}, "patience is 0.5; it must be a number from 1 to 4"),
        ({"patience": 3.0, "early_stopping": False}, "patience is 3; it needs early_stopping: true"),
        ({"prefix": "щ"}, "not covered by the model's vocabulary"),
        ({"beam": 1, "early_stopping": True}, "set search to beam"),
    ],
)
def test_a_wrong_option_is_named(load_engine: Load, options: dict[str, Any], sentence: str) -> None:
    engine = load_engine(small_pipeline(**FAMILIES["luong"]))
    with pytest.raises(Exception, match=re.escape(sentence)):
        engine.predict(["ab"], options)


def test_a_prediction_can_be_canceled_between_two_steps(engine_page: Any, load_engine: Load) -> None:
    load_engine(small_pipeline(RNN | {"width": 64}, RNN | {"width": 64}, ends=-99.0))
    canceled = engine_page.evaluate(
        """async () => {
            const controller = new AbortController();
            const options = { beam: 100, max_new_tokens: 1000000, signal: controller.signal };
            const running = predictor.predict("abc", options).then(() => "done", (error) => error.name);
            setTimeout(() => controller.abort(), 100);
            return running;
        }"""
    )
    assert canceled == "AbortError"


# -- views -------------------------------------------------------------------------------------------------------------


def check_views(engine: EngineModel, pipeline: Pipeline, source: str, target: str) -> dict[str, Any]:
    """Hold the views of a source and a target beside Python's; returns the alignment."""
    steps = engine.call(
        "traceSteps", "predictor", source, {"target": target, "prefix": [5], "top": 4}, module="view_data"
    )
    expected = trace_steps(pipeline, source, target, prefix=[5], top=4)
    assert find_difference({"view": "steps"} | expected, steps) is None
    beam = engine.call("traceBeam", "predictor", source, {"beam": 3}, module="view_data")
    assert find_difference({"view": "beam"} | trace_beam(pipeline, source, beam=3), beam) is None
    for own in (target, None):
        alignment: dict[str, Any] = engine.call(
            "computeAlignment", "predictor", source, {"target": own}, module="view_data"
        )
        wanted = {"view": "alignment"} | compute_alignment(pipeline, source, own)
        wanted["soft_blocker"] = alignment["soft_blocker"]  # Python's names options of the command line
        # Weights are rounded to 4 digits, so that two may differ by one unit of the last.
        assert find_difference(wanted, alignment, tolerance=2e-4) is None
    return alignment


@pytest.mark.parametrize("name", ["luong", "convs2s", "transformer", "cheap decoder", "decoder-only"])
def test_views_have_the_data_of_pythons(load_engine: Load, name: str) -> None:
    pipeline = small_pipeline(**FAMILIES[name] | {"generation": {"max_length_ratio": 1.0, "max_length_extra": 4}})
    check_views(load_engine(pipeline), pipeline, "ab  cd", "b ad")


LINE = "the old bridge crosses the river near a mill and the new road goes by the sea"
WORDS = LINE.split(" ")


@pytest.mark.parametrize(
    ("kind", "target", "is_merged"),
    [("bpe", "bpe", True), ("words", "bpe", True), ("bpe", "words", True), ("words", "words", False)],
)
def test_an_alignment_of_words_is_merged_from_pieces(
    load_engine: Load, kind: str, target: str, is_merged: bool
) -> None:
    parts = [Part(name, {"size": 60, "byte_fallback": False} if name == "bpe" else {}) for name in (kind, target)]
    lines = [" ".join(WORDS[i : i + 5]) for i in range(12)]
    codec = learn_codec(*parts, False, "nfc", lines, lines, [])
    pipeline = small_pipeline(TRANSFORMER, RNN, codec=codec)
    names = {"source": parts[0], "target": parts[1]}
    tokenizer = pipeline.config.tokenizer.model_copy(update=names)
    pipeline.config = pipeline.config.model_copy(update={"tokenizer": tokenizer})
    alignment = check_views(load_engine(pipeline), pipeline, "the new mill goes", "a xy road")
    assert (alignment["words"] is not None) is is_merged
    if is_merged:
        assert alignment["words"]["source"] == ["the", "new", "mill", "goes", "</s>"]


@pytest.mark.parametrize(
    ("view", "source", "options", "sentence"),
    [
        ("traceSteps", " ", {}, "the source is blank; give a text"),
        ("computeAlignment", "a" * 2000, {}, "the source has 2,001 tokens, and the model reads 24; shorten it"),
        ("computeAlignment", "a", {"target": "b" * 24}, "the target has 25 tokens, and the model reads 24; shorten it"),
        ("traceSteps", "a", {"target": "b" * 24}, "the target has 25 tokens, and the model reads 24; shorten it"),
        ("traceSteps", "a", {"prefix": [5, 2]}, "the prefix has the token 2; allowed are ids from 3 to"),
        ("traceSteps", "a", {"prefix": [9999]}, "the prefix has the token 9999; allowed are ids from 3 to"),
    ],
)
def test_a_view_refuses_in_a_sentence_what_python_refuses(
    load_engine: Load, view: str, source: str, options: dict[str, Any], sentence: str
) -> None:
    pipeline = small_pipeline(**FAMILIES["convs2s"])  # with positions for 24 tokens
    computed: Callable[..., Any] = trace_steps if view == "traceSteps" else compute_alignment
    with pytest.raises(UserError, match=sentence):
        computed(pipeline, source, **options)
    with pytest.raises(Exception, match=sentence):
        load_engine(pipeline).call(view, "predictor", source, options, module="view_data")


# -- copy slots and languages ------------------------------------------------------------------------------------------


def test_words_that_the_vocabulary_lacks_are_copied_from_the_source(load_engine: Load) -> None:
    lines = [LINE]
    codec = learn_codec(Part("words"), Part("words"), True, "nfc", lines, lines, copy_slot_symbols(2))
    pipeline = small_pipeline(RNN, RNN, pointer="additive", joint=True, codec=codec, larger=2.5)
    texts = ["the quokka near the zebra", "quokka zebra okapi quokka", "a bridge", "okapi okapi"]
    engine = load_engine(pipeline)
    copied = 0
    for sources, options in ((texts, GREEDY), (texts, BEAM), (texts[:2], {"prefix": "a zebra", "beam": 2})):
        expected, found = reference_predictions(pipeline, sources, options), engine.predict(sources, options)
        assert find_difference(expected, found) is None
        copied += sum("quokka" in one["text"] or "okapi" in one["text"] for one in found)
    assert copied > 1
    check_views(engine, pipeline, texts[0], "the zebra near the quokka")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("<from:{from}>? <to:{to}>? {text} </s>", "{text} </s>"),
        ("{text} </s> <lang:{from}>", "<lang:{to}> {text} </s>"),
    ],
)
def test_languages_of_a_call_are_those_of_an_example(load_engine: Load, source: str, target: str) -> None:
    symbols = [f"<{role}:{code}>" for role in ("from", "to", "lang") for code in ("en", "de")]
    part = Part("characters")
    templates: dict[str, Any] = {"source_template": source, "target_template": target}
    learner = CodecLearner(build_codec(part, part, True, "nfc", **templates))
    learner.add_source("a b c d e f g h")
    pipeline = small_pipeline(TRANSFORMER, RNN, codec=learner.finish(symbols), joint=True)
    engine, texts = load_engine(pipeline), random_texts(3)
    answers = []
    for languages in ({"source_lang": "en", "target_lang": "de"}, {"source_lang": "de", "target_lang": "en"}):
        examples = [Example(text, **languages) for text in texts]
        for options in (GREEDY, BEAM):
            expected = reference_predictions(pipeline, examples, options)
            found = engine.predict(texts, options | languages)
            assert find_difference(expected, found) is None
            answers.append([one["log_prob"] for one in found])
        alignment = engine.call("computeAlignment", "predictor", texts[0], {"beam": 1, **languages}, module="view_data")
        wanted = {"view": "alignment"} | compute_alignment(pipeline, examples[0], beam=1)
        assert find_difference(wanted, alignment, tolerance=2e-4) is None
        steps = engine.call("traceSteps", "predictor", texts[0], {"top": 99, **languages}, module="view_data")
        assert find_difference({"view": "steps"} | trace_steps(pipeline, examples[0], top=99), steps) is None
        beam = engine.call("traceBeam", "predictor", texts[0], languages, module="view_data")
        assert find_difference({"view": "beam"} | trace_beam(pipeline, examples[0]), beam) is None
    assert answers[0] != answers[2]
    with pytest.raises(Exception, match=r"the language tag <.*:xx> was not in the training data"):
        engine.predict(texts, {"source_lang": "xx", "target_lang": "de"})
    if target.startswith("<lang"):
        with pytest.raises(Exception, match="the model needs the target language of every text; give target_lang"):
            engine.predict(texts, {"source_lang": "en"})


# -- what cannot be exported or loaded ---------------------------------------------------------------------------------


def test_every_registered_part_is_the_engines() -> None:
    known = {
        "encoders": (encoders, exporting.ENCODERS),
        "decoders": (decoders, exporting.DECODERS),
        "heads": (heads, exporting.HEADS),
        "scores": (scores, exporting.SCORES),
        "normalizers": (normalizers, exporting.NORMALIZERS),
        "positions": (positions, exporting.POSITIONS),
        "norms": (norms, exporting.NORMS),
        "mixers": (mixers, exporting.MIXERS),
    }
    for kind, (registry, ours) in known.items():
        assert sorted(registry.names) == sorted(ours), kind


# Options that change training alone, or the shapes of weights, which the engine reads from the weights themselves.
TRAINING_OPTIONS = {"dropout", "attention_dropout", "layer_drop", "fold_scaling_into_initializer", "doubly_stochastic"}
TRAINING_OPTIONS |= {"penalty", "reward", "discount", "entropy", "soft", "weight_norm"}
SHAPE_OPTIONS = {"value_width", "bias", "filters", "length", "directions"}


def test_the_engine_knows_every_option_of_every_part() -> None:
    source = "".join(file.read_text("utf-8") for file in sorted(ENGINE.glob("*.js")))
    registries: list[Any] = [encoders, decoders, heads, scores, normalizers, positions, norms, mixers]
    for registry in registries:
        for name in registry.names:
            for option in set(registry.schema(name).model_fields) - TRAINING_OPTIONS - SHAPE_OPTIONS:
                assert re.search(rf"\b{option}\b", source), f"{registry.kind} {name}: {option}"


def test_what_the_engine_lacks_is_refused_in_one_sentence() -> None:
    for generation, sentence in [
        ({"search": "sample"}, "generation.search is 'sample'"),
        ({"replace_unk": True}, "generation.replace_unk"),
        ({"pattern": "a+"}, "generation.pattern"),
    ]:
        pipeline = small_pipeline(RNN, RNN, generation=generation)
        with pytest.raises(UserError, match=sentence):
            model_data(pipeline)
    pipeline = small_pipeline(RNN, RNN)
    custom = pipeline.config.model.model_copy(update={"encoder": Part("mine")})
    pipeline.config = pipeline.config.model_copy(update={"model": custom})
    assert browser_blocker(pipeline) == (
        "the engine has no encoder 'mine' (it has conv, identity, none, pyramid, rnn, transformer)"
    )


def test_weights_that_are_not_finite_are_refused() -> None:
    pipeline = small_pipeline(RNN, RNN)
    with torch.no_grad():
        pipeline.model.output.weight[5, 3] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        model_data(pipeline)


def test_a_file_that_was_changed_says_so(load_engine: Load) -> None:
    header, data = model_data(small_pipeline(RNN, RNN))
    edited = bytearray(data)
    edited[1000] ^= 1
    other, not_finite = {**header, "sha256": None}, bytearray(data)
    offset = next(entry["scales"] for entry in header["tensors"] if entry["dtype"] == "int8")
    not_finite[offset : offset + 4] = b"\0\0\xc0\x7f"
    consistent = {**header, "sha256": hashlib.sha256(not_finite).hexdigest()}
    for changed, content, sentence in [
        (header, data[:-100], "cut short"),
        (header, data + b"x", "too long"),
        (header, bytes(edited), "the file was changed"),
        ({**header, "format": 2}, data, "format 2, and this engine reads format 1"),
        (other, data, "the file was changed"),
        (consistent, bytes(not_finite), "no finite number"),
    ]:
        with pytest.raises(Exception, match=sentence):
            load_engine.data(changed, content)  # type: ignore[attr-defined]


# -- the modules -------------------------------------------------------------------------------------------------------


def test_the_modules_can_be_joined_to_one_script() -> None:
    declared: dict[str, str] = {}
    for file in sorted(ENGINE.glob("*.js")):
        source = file.read_text("utf-8")
        for line in re.findall(r"^import\b.*", source, re.MULTILINE):
            assert re.fullmatch(r'import \{ [^}]+ \} from "\./\w+\.js";', line), (file.name, line)
        for line in re.findall(r"^export\b.*", source, re.MULTILINE):
            assert re.match(r"export (function|const|class) \w+", line), (file.name, line)
        names = re.findall(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", source, re.MULTILINE)
        for name in names:
            assert name not in declared, f"{name} is declared in {declared[name]} and {file.name}"
            declared[name] = file.name
        assert not re.search(r"\beval\(|new Function|\bdocument\.|\bwindow\.|import\(", source), file.name
