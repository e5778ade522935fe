"""Texts in the browser: the tokenizers, the normalization and the codec of the engine give what Python's give.

odd texts, random ids ─Python→ ids, texts          the same ─Chromium→ ids, texts          equal
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.browser_engine.odd_texts import LINES, odd_texts
from tests.frozen_tokenizers import frozen_tokenizer

from dragoman.browser.codec_data import codec_data, input_data, tokenizer_data, unassigned_ranges
from dragoman.browser.sentencepiece_file import SentencePieceFile
from dragoman.core.errors import ModelError, UserError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference.inputs import InputProcessor
from dragoman.text.codec import Codec, CodecLearner, build_codec, copy_slot_symbols
from dragoman.text.normalization import Form, normalize
from dragoman.text.tokenizers import Tokenizer, tokenizers

ENGINE = Path(__file__).parents[2] / "src" / "dragoman" / "browser" / "engine"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=function |const |class )", re.MULTILINE)
COUNT = 1000

# -- the engine in Chromium --------------------------------------------------------------------------------------------


def join_engine(*names: str) -> str:
    """The modules of these names and all that they import as one script."""
    order: list[str] = []

    def add(name: str) -> None:
        if name not in order:
            for imported in IMPORT.findall((ENGINE / f"{name}.js").read_text("utf-8")):
                add(imported)
            order.append(name)

    for name in names:
        add(name)
    return "".join(EXPORT.sub("", IMPORT.sub("", (ENGINE / f"{name}.js").read_text("utf-8"))) for name in order)


class Engine:
    """Calls functions of the engine's modules in a page."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.script = join_engine("text_codec", "text_inputs")

    def call(self, function: str, *values: Any) -> Any:
        """The value of a JavaScript function; values travel as ASCII JSON, which keeps lone surrogates."""
        body = f"(json) => {{ {self.script}\n return JSON.stringify(({function})(...JSON.parse(json))); }}"
        return json.loads(self.page.evaluate(body, json.dumps(values)))


@pytest.fixture(scope="module")
def engine(engine_page: Any) -> Engine:
    return Engine(engine_page)


def assert_equal(found: Sequence[Any], expected: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Both lists are equal; the first difference is shown with its input."""
    assert len(found) == len(expected)
    for one, other, given in zip(found, expected, inputs, strict=True):
        assert one == other, f"{ascii(given)[:300]}: {ascii(one)[:300]} in the browser, {ascii(other)[:300]} in Python"


def chance() -> random.Random:
    return random.Random(torch.initial_seed())


# -- tokenizers --------------------------------------------------------------------------------------------------------


def learned(kind: str, **options: Any) -> Tokenizer:
    tokenizer = tokenizers.build(Part(kind, options))
    tokenizer.learn(LINES, ["<to:de>", "<to:fr>"])
    return tokenizer


def extended(tokenizer: Tokenizer, words: Sequence[str]) -> Tokenizer:
    tokenizer.extend(words, ["<to:hu>"])
    return tokenizer


def imported(**options: Any) -> Tokenizer:
    """An imported sentencepiece model, whose vocabulary has its pieces in another order, and not all of them."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        hard_vocab_limit=False,
        character_coverage=1.0,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    pieces = [piece for piece in SentencePieceFile.parse(model.getvalue()).pieces if not re.match("</?[su]", piece)]
    tokenizer = tokenizers.build(Part("sentencepiece"))
    tokenizer.load(model.getvalue(), ["strange", *sorted(pieces)[3:], "▁very▁strange"], ["<to:de>"])
    return tokenizer


TOKENIZERS = {
    "characters": lambda: learned("characters"),
    "characters with bytes": lambda: learned("characters", byte_fallback=True, min_count=2),
    "characters with features": lambda: extended(learned("characters", features=True), ["ü", "Ж"]),
    "bytes": lambda: learned("bytes"),
    "symbols": lambda: extended(learned("symbols"), ["AE2", "ß"]),
    "words": lambda: learned("words"),
    "words in lower case": lambda: learned("words", lowercase=True),
    "words with bytes": lambda: extended(learned("words", byte_fallback=True), ["newer"]),
    "bpe": lambda: learned("bpe", size=480, byte_fallback=True),
    "bpe without bytes": lambda: extended(learned("bpe", size=200, byte_fallback=False), ["bridge", "newer", "zzz"]),
    "unigram": lambda: extended(learned("unigram", size=480), ["newer", "the"]),
    "unigram without bytes": lambda: learned("unigram", size=180, byte_fallback=False),
    "sentencepiece": lambda: frozen_tokenizer("sentencepiece", LINES, ["<to:de>"]),
    "sentencepiece unigram": lambda: imported(
        model_type="unigram", vocab_size=150, user_defined_symbols=["the o", "▁!", "👩"]
    ),
    "sentencepiece bpe": lambda: extended(
        imported(
            model_type="bpe",
            vocab_size=600,
            byte_fallback=True,
            normalization_rule_name="nfkc_cf",
            user_defined_symbols=["new", "the", "ﬁ"],
            treat_whitespace_as_suffix=True,
        ),
        ["bridge"],
    ),
    "sentencepiece over spaces": lambda: imported(
        model_type="bpe",
        vocab_size=480,
        split_by_whitespace=False,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="nmt_nfkc",
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_encodes_and_decodes_like_pythons(engine: Engine, name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    draw = chance()
    texts = odd_texts(draw, COUNT)
    data = tokenizer_data(tokenizer) | {"unassigned": unassigned_ranges()}
    sequences = [draw.choices(range(-1, len(tokenizer) + 2), k=draw.randrange(30)) for _ in range(COUNT)]
    found = engine.call(
        """(data, texts, sequences) => {
            const tokenizer = buildTokenizer(data, codePointPattern(data.unassigned));
            const ids = texts.map(tokenizer.encode);
            const decode = (ids) => [tokenizer.decode(ids), tokenizer.pieces(ids)];
            return [ids, ids.map(decode), sequences.map(decode)];
        }""",
        data,
        texts,
        sequences,
    )
    ids = [tokenizer.encode(text) for text in texts]

    def decode(ids: Sequence[int]) -> list[Any]:
        return [tokenizer.decode(ids), tokenizer.pieces(ids)]

    assert_equal(found[0], ids, texts)
    assert_equal(found[1], [decode(one) for one in ids], texts)
    assert_equal(found[2], [decode(one) for one in sequences], sequences)


def a_field(number: int, value: int | float | bytes) -> bytes:
    """A field of a protocol buffer; a number below 128."""
    if isinstance(value, int):
        return bytes((*_varint(number << 3), value))
    if isinstance(value, float):
        return bytes(_varint(number << 3 | 5)) + struct.pack("<f", value)
    return bytes((*_varint(number << 3 | 2), *_varint(len(value)))) + value


def _varint(number: int) -> list[int]:
    return [number] if number < 128 else [number & 127 | 128, *_varint(number >> 7)]


def random_model(draw: random.Random) -> Tokenizer:
    """An imported sentencepiece model of random pieces of few letters: scores tie, and some letters have no piece."""
    algorithm, byte_fallback = draw.choice([1, 2]), draw.random() < 0.3
    letters = draw.sample(["a", "b", "c", "é", "👩", "▁"], 5)
    names = {"".join(draw.choices(letters, k=draw.choice([1, 1, 2, 2, 3, 4, 5]))) for _ in range(60)}
    scores = [draw.uniform(-9.0, -0.1) for _ in range(draw.choice([2, 5, 60]))]
    types = [1] * 12 + ([] if draw.random() < 0.3 else [4, 4, 5])
    rows = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    rows += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256) if byte_fallback]
    rows += [(name, draw.choice(scores), draw.choice(types)) for name in sorted(names)]
    pieces = [a_field(1, name.encode()) + a_field(2, score) + a_field(3, type) for name, score, type in rows]
    trainer = a_field(3, algorithm) + a_field(24, draw.randrange(2)) + a_field(35, int(byte_fallback))
    normalizer = b"".join(a_field(number, draw.randrange(2)) for number in (3, 4, 5))
    model = b"".join(a_field(1, piece) for piece in pieces) + a_field(2, trainer) + a_field(3, normalizer)
    tokenizer = tokenizers.build(Part("sentencepiece"))
    tokenizer.load(model, [*(name for name, _, _ in rows[3:]), "strange▁one"], ["<to:de>"])
    return tokenizer


def test_random_subword_models_split_and_join_like_pythons(engine: Engine) -> None:
    draw = chance()
    models = [random_model(draw) for _ in range(60)]
    texts = ["".join(draw.choices("aabbcé👩 ▁z", k=draw.randrange(25))) for _ in range(60)]
    texts += ["".join(draw.choices("abcé👩 ", k=2000)) for _ in range(2)]
    sequences = [
        [draw.choices(range(len(model)), k=6) + draw.choices(range(len(model) - 40, len(model)), k=6) for _ in texts]
        for model in models
    ]
    found = engine.call(
        """(models, texts, sequences) => models.map((data, i) => {
            const tokenizer = buildTokenizer(data, codePointPattern([]));
            return [texts.map(tokenizer.encode), sequences[i].map(tokenizer.decode)];
        })""",
        [tokenizer_data(model) for model in models],
        texts,
        sequences,
    )
    for one, model, ids in zip(found, models, sequences, strict=True):
        shown = tokenizer_data(model)["model"] | {"pieces": "", "scores": ""}
        assert_equal(one[0], [model.encode(text) for text in texts], [[text, shown] for text in texts])
        assert_equal(one[1], [model.decode(row) for row in ids], [[row, shown] for row in ids])


@pytest.mark.parametrize("name", ["characters", "bytes", "words", "words with bytes", "unigram", "sentencepiece bpe"])
def test_bytes_that_are_no_text_decode_like_pythons(engine: Engine, name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    draw = chance()
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    bytes_at = [id for id, token in enumerate(tokenizer.pieces(range(len(tokenizer)))) if token in names]
    byte_ids = bytes_at or list(range(4, len(tokenizer)))
    texts = [text.encode("utf-8", "surrogatepass")[draw.randrange(3) :] for text in odd_texts(draw, 200)]
    first = tokenizer.vocabulary.symbol_count
    sequences = [draw.choices(byte_ids, k=draw.randrange(12)) for _ in range(COUNT)]
    if tokenizer.vocabulary.byte_fallback:
        sequences += [[first + byte for byte in data] for data in texts]
    found = engine.call(
        "(data, sequences) => sequences.map(buildTokenizer(data, codePointPattern([])).decode)",
        tokenizer_data(tokenizer),
        sequences,
    )
    assert_equal(found, [tokenizer.decode(ids) for ids in sequences], sequences)


@pytest.mark.parametrize("name", ["bytes", "words", "bpe", "unigram", "sentencepiece bpe"])
def test_a_hundred_thousand_characters_take_well_under_a_second(engine: Engine, name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    texts = [(" ".join(LINES) * 400)[:100_000], "a" * 100_000, " " * 99_999 + "a", "é\u0301" * 50_000]
    times, ids = engine.call(
        """(data, texts, unassigned) => {
            const pattern = codePointPattern(unassigned);
            const tokenizer = buildTokenizer(data, pattern);
            const times = [], ids = [];
            for (const text of texts) {
                const start = performance.now();
                ids.push(tokenizer.encode(normalizeText(text, "nfc", pattern)));
                tokenizer.decode(ids.at(-1));
                times.push(performance.now() - start);
            }
            return [times, ids];
        }""",
        tokenizer_data(tokenizer),
        texts,
        unassigned_ranges(),
    )
    print(f"{name}: {[round(time) for time in times]} ms")
    assert_equal(ids, [tokenizer.encode(normalize(text, "nfc")) for text in texts], texts)
    assert max(times) < 5_000  # on a busy machine; what is quadratic takes minutes


# -- Unicode -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["nfc", "nfd", "nfkc", "none"])
def test_every_character_and_odd_texts_are_normalized_like_pythons(engine: Engine, form: Form) -> None:
    texts = odd_texts(chance(), COUNT)
    single, many = engine.call(
        """(form, unassigned, texts, last) => {
            const pattern = codePointPattern(unassigned);
            const changed = [];
            for (let code = 0; code <= last; code++) {
                const character = String.fromCodePoint(code);
                const normalized = normalizeText(character, form, pattern);
                if (normalized !== character) changed.push([code, normalized]);
            }
            return [changed, texts.map((text) => normalizeText(text, form, pattern))];
        }""",
        form,
        unassigned_ranges(),
        texts,
        sys.maxunicode,
    )
    changed = {code: text for code in range(sys.maxunicode + 1) if (text := normalize(chr(code), form)) != chr(code)}
    assert dict(single) == changed
    assert_equal(many, [normalize(text, form) for text in texts], texts)


def test_every_character_has_pythons_lower_case_and_white_space(engine: Engine) -> None:
    texts = odd_texts(chance(), COUNT)
    lower, spaces, many = engine.call(
        """(unassigned, texts, last) => {
            const pattern = codePointPattern(unassigned);
            const codes = Array.from({ length: last + 1 }, (_, code) => code);
            const textOf = (code) => String.fromCodePoint(code);
            const pairs = codes.map((code) => [code, lowercaseText(textOf(code), pattern)]);
            const aboutText = (text) =>
                [lowercaseText(text, pattern), splitAtSpaces(text), trimSpaces(text), isBlankText(text)];
            return [
                pairs.filter(([code, text]) => text !== textOf(code)),
                codes.filter((code) => splitAtSpaces(`a${textOf(code)}b`).length === 2),
                texts.map(aboutText),
            ];
        }""",
        unassigned_ranges(),
        texts,
        sys.maxunicode,
    )
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    assert {chr(code): text for code, text in lower} == {c: c.lower() for c in characters if c.lower() != c}
    assert spaces == [ord(c) for c in characters if len(f"a{c}b".split()) == 2]
    expected = [[text.lower(), text.split(), text.strip(), not text.strip()] for text in texts]
    assert_equal(many, expected, texts)


# -- the codec ---------------------------------------------------------------------------------------------------------


def a_codec(
    kind: str, *, joint: bool, symbols: Sequence[str] = (), normalization: Form = "nfc", **options: Any
) -> Codec:
    part = Part(kind, {name: options.pop(name) for name in tuple(options) if name in ("size", "byte_fallback")})
    learner = CodecLearner(build_codec(part, part, joint, normalization, **options))
    for line in LINES:
        learner.add_source(line)
        learner.add_target(line[::-1])
    return learner.finish(symbols, [] if joint else symbols)


CODECS = {
    "joint": lambda: a_codec("bpe", joint=True, size=480),
    "separate": lambda: a_codec("unigram", joint=False, size=480, normalization="nfkc"),
    "pointer": lambda: a_codec("words", joint=True, symbols=copy_slot_symbols(3)),
    "pointer with bytes": lambda: a_codec("words", joint=True, symbols=copy_slot_symbols(3), byte_fallback=True),
    "second source": lambda: a_codec("characters", joint=False, second_source="text", normalization="nfd"),
}
LANGUAGES: list[dict[str, str]] = [
    {},
    {"sourceLanguage": "en"},
    {"sourceLanguage": "en", "targetLanguage": "de"},
    {"targetLanguage": "fr"},
    {"targetLanguage": "xx"},
]


def to_example(text: str, target: str, languages: dict[str, str]) -> Example:
    codes = {"source_lang": languages.get("sourceLanguage"), "target_lang": languages.get("targetLanguage")}
    return Example(text, target, second_source=target, **codes)


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_encodes_and_decodes_like_pythons(engine: Engine, name: str) -> None:
    codec = CODECS[name]()
    draw = chance()
    texts = odd_texts(draw, COUNT)
    if name == "pointer with bytes":  # Python has no bytes for the words of a text with lone surrogates
        texts = [re.sub("[\ud800-\udfff]", "", text) for text in texts]
    pairs = [[text, draw.choice([text, *draw.sample(texts, 3)])] for text in texts]
    ids = [
        draw.choices(range(len(codec.target)), k=5) + draw.choices([3, 4, 5, 6, 7, len(codec.target) - 1], k=5)
        for _ in texts
    ]
    unknown = [draw.choices(["", "a", "⁇", "Ü"], k=draw.randrange(4)) for _ in texts]
    found = engine.call(
        """(data, pairs, ids, unknown) => {
            const codec = buildCodec(data);
            return pairs.map(([source, target], i) => [
                codec.encodeSource(source),
                codec.encodeSecondSource(target),
                codec.encodeTarget(target, source),
                codec.encodePhrase(target),
                codec.decodeTarget(codec.encodeTarget(target, source), source),
                codec.decodeTarget(ids[i], source),
                codec.decodeTarget(ids[i], source, unknown[i]),
                codec.sourceWords(codec.encodeSource(source), source),
            ]);
        }""",
        codec_data(codec),
        pairs,
        ids,
        unknown,
    )
    second = codec if codec.second_source else Codec(codec.source, codec.target, codec.normalization, None, "text")
    expected = []
    for i, (source, target) in enumerate(pairs):
        example = Example(source, target, second_source=target)
        source_ids, target_ids = codec.encode_source(example), codec.encode_target(example)
        expected.append(
            [
                source_ids,
                second.encode_second_source(example),
                target_ids,
                codec.encode_phrase(target),
                codec.decode(target_ids, source),
                codec.decode(ids[i], source),
                codec.decode(ids[i], source, unknown[i]),
                codec.source_words(source_ids, source),
            ]
        )
    assert_equal(found, expected, pairs)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("<from:{from}>? <to:{to}>? {text} </s>", "{text} </s>"),
        ("{text} </s> <lang:{from}>", "<lang:{to}> {text} </s>"),
        ("<from:{from}> {text} </s>", "</s> <to:{to}>? {text} </s>"),
    ],
)
def test_language_tags_stand_where_the_templates_say(engine: Engine, source: str, target: str) -> None:
    codes = ("en", "de", "fr")
    symbols = [f"<{role}:{code}>" for role in ("from", "to", "lang") for code in codes]
    codec = a_codec("characters", joint=False, symbols=symbols, source_template=source, target_template=target)
    codec.extend([], ["hu"])
    found = engine.call(
        """(data, languages) => {
            const codec = buildCodec(data);
            const attempt = (f) => { try { return f(); } catch (error) { return error.message; } };
            return [codec.sourceLanguages, codec.targetLanguages, languages.map((one) => [
                attempt(() => codec.encodeSource("the bridge", one)),
                attempt(() => codec.encodeTarget("the bridge", "", one)),
                attempt(() => codec.targetPrefix(one)),
            ])];
        }""",
        codec_data(codec),
        [*LANGUAGES, {"sourceLanguage": "hu", "targetLanguage": "hu"}],
    )

    def attempt(method: Any, languages: dict[str, str]) -> Any:
        try:
            return method(to_example("the bridge", "the bridge", languages))
        except UserError as error:
            return re.sub("; give --(source|target)-lang.*", r"; give \1_lang", str(error))

    assert found[:2] == [codec.source_languages, codec.target_languages]
    cases = [*LANGUAGES, {"sourceLanguage": "hu", "targetLanguage": "hu"}]
    methods = (codec.encode_source, codec.encode_target, codec.target_prefix)
    assert_equal(found[2], [[attempt(method, one) for method in methods] for one in cases], cases)


@pytest.mark.parametrize(
    ("name", "continues_text", "has_source_eos"),
    [
        ("joint", False, True),
        ("joint", False, False),
        ("joint", True, True),  # a language model, which has one source
        ("second source", False, True),
        ("second source", False, False),
    ],
)
def test_an_input_is_truncated_and_labeled_like_pythons(
    engine: Engine, name: str, continues_text: bool, has_source_eos: bool
) -> None:
    codec = CODECS[name]()
    stride = 1 if codec.second_source is not None else 3
    model = SimpleNamespace(stride=stride, second_source=SimpleNamespace(stride=1))
    inputs = InputProcessor(model, codec, SimpleNamespace())  # type: ignore[arg-type]
    objective = SimpleNamespace(continues_text=continues_text, has_source_eos=has_source_eos)
    vars(inputs).update(max_source_length=9, max_second_source_length=5, objective=objective)
    texts = odd_texts(chance(), 300)
    texts += [f"{text}\t{text}" for text in texts]
    found = engine.call(
        """(data, limits, texts) => {
            const inputs = buildInputs(buildCodec(data), limits);
            return texts.map((text) => {
                try {
                    const input = inputs.encodeInput(text);
                    return [input.source, input.secondSource, input.isTruncated, inputs.sourceLabels(input)];
                } catch (error) {
                    return error.message;
                }
            });
        }""",
        codec_data(codec),
        input_data(inputs),
        texts,
    )

    def encode(text: str) -> Any:
        try:
            one = inputs.encode_input(inputs.to_example(text))
        except UserError as error:
            return str(error)
        return [one.source, one.second_source, one.source_truncated, inputs.source_labels(one)]

    assert_equal(found, [encode(text) for text in texts], texts)


# -- what cannot be exported, and damaged files ------------------------------------------------------------------------


def test_what_a_browser_cannot_do_is_one_sentence() -> None:
    with pytest.raises(UserError, match="a tokenizer 'huggingface' cannot run in a browser"):
        tokenizer_data(frozen_tokenizer("huggingface", LINES))
    with pytest.raises(UserError, match="of type 'char' cannot run in a browser"):
        tokenizer_data(imported(model_type="char", vocab_size=200))
    codec = CODECS["joint"]()
    codec.modality = SimpleNamespace(kind="image")  # type: ignore[assignment]
    with pytest.raises(UserError, match="a source of this one is image"):
        codec_data(codec)


def test_the_data_are_json_and_small() -> None:
    data = codec_data(CODECS["joint"]())
    encoded = json.dumps(data, allow_nan=False)
    assert json.loads(encoded) == data
    assert len(encoded) < 25_000


def test_a_damaged_sentencepiece_file_is_an_error_of_the_model() -> None:
    model = learned("bpe", size=480).to_files()["tokenizer.model"]
    draw = chance()
    for _ in range(300):
        damaged = bytearray(model[: draw.choice([len(model), draw.randrange(len(model))])] or b"\xff")
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        with contextlib.suppress(ModelError):  # and no other error
            SentencePieceFile.parse(bytes(damaged))
