"""Every parser of bytes that strangers write, as a function of those bytes.

A parser may return or raise an error for users; anything else (another exception, a signal, more than its share of
memory or time) is a bug.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp

from tests import frozen_tokenizers
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.checkpoint import model_folder, packing
from dragoman.core.errors import DragomanError
from dragoman.core.registry import Part
from dragoman.core.types import Example, Modality
from dragoman.data.documents import open_document
from dragoman.data.documents.languages import Languages
from dragoman.data.documents.segments import Translation
from dragoman.data.readers import read_pairs, read_sources
from dragoman.data.readers.columns import propose_columns
from dragoman.data.store.builder import build_store
from dragoman.data.store.store import open_store
from dragoman.modalities.audio import AudioModality
from dragoman.modalities.features import FeatureModality
from dragoman.modalities.image import ImageModality
from dragoman.modalities.video import VideoModality
from dragoman.reports.card import read_card, render_card
from dragoman.serve import libretranslate, schema, uploads
from dragoman.serve.schema import APIError
from dragoman.serve.settings import ServerSettings
from dragoman.text.sentencepiece_model import MODEL_FILE
from dragoman.text.tokenizers import tokenizers
from dragoman.text.tokenizers.huggingface import HuggingFace

CORPUS = Path(__file__).parent / "corpus"
ALLOWED = (DragomanError, APIError)
TEXTS = ["abc ab", "cab é", "b"]
TOKENIZER_FILE, STORE_FILE = "tokenizer.json", "store.json"
LIMITS = ServerSettings()


@dataclass(frozen=True)
class Parser:
    """A function of bytes, and words that its inputs are made of; its name is that of the folder of kept inputs."""

    parse: Callable[[bytes], None]
    words: tuple[str, ...] = ()
    suffix: str = ""  # .gz: the inputs are compressed after they are changed

    def __call__(self, data: bytes) -> None:
        with suppress(*ALLOWED):
            self.parse(data)


@cache
def scratch() -> Path:
    return Path(mkdtemp(prefix="fuzz-"))


def file_with(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.write_bytes(data)
    return path


# -- configs and model folders -----------------------------------------------------------------------------------------


def parse_config(data: bytes) -> None:
    configs.load(file_with("config.yaml", data))


@cache
def whole_model() -> dict[str, bytes]:
    """The files of a small model folder."""
    folder = scratch() / "whole"
    part = {"name": "rnn", "cell": "gru"}
    value = {"data": {"train": "t.tsv"}, "model": {"width": 8, "tie": "none", "encoder": part, "decoder": part}}
    config = configs.validate(value, "a test")
    tokenizer = config.tokenizer.source
    codec = learn_codec(tokenizer, tokenizer, config.tokenizer.joint, "nfc", TEXTS, TEXTS, [])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, {})
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def load_model(**changed: bytes) -> None:
    """Load the model with some files changed, under a manifest that fits: a stranger can sign what he likes."""
    folder, files = scratch() / "changed", {**whole_model(), **changed}
    folder.mkdir(exist_ok=True)
    if "manifest.json" not in changed:
        files["manifest.json"] = model_folder.build_manifest({k: v for k, v in files.items() if k != "manifest.json"})
    for name, data in files.items():
        (folder / name).write_bytes(data)
    model_folder.load(folder)


@cache
def whole_archive() -> bytes:
    """The small model as one zip."""
    whole_model()
    packing.pack(scratch() / "whole", scratch() / "whole.zip", {"card.json": b"{}"})
    return (scratch() / "whole.zip").read_bytes()


def parse_archive(data: bytes) -> None:
    path = file_with("model.zip", data)
    with suppress(DragomanError):
        read_card(path)
    model_folder.load(path)


def parse_card(data: bytes) -> None:
    """The card of a packed model: what can be read can be shown."""
    (scratch() / "carded").mkdir(exist_ok=True)
    card = read_card(file_with("carded/card.json", data).parent)
    assert card is not None
    assert render_card(card, "model.zip")


def parse_manifest(data: bytes) -> None:
    """A manifest; one that is JSON is signed again."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key != "sha256"}
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        data = (json.dumps(value | {"sha256": digest}, indent=1, sort_keys=True) + "\n").encode()
    load_model(**{"manifest.json": data})


def tokenizer_parser(kind: str) -> Callable[[bytes], None]:
    """The file of a tokenizer; if it is that of another program, under a checksum that fits."""

    def parse(data: bytes) -> None:
        files = dict(learned_tokenizer(kind))
        model_file = next((name for name in (MODEL_FILE, HuggingFace.model_file) if name in files), None)
        if model_file is not None:
            learned = json.loads(files[TOKENIZER_FILE])
            files[TOKENIZER_FILE] = json.dumps(learned | {"sha256": hashlib.sha256(data).hexdigest()}).encode()
            files[model_file] = data
        else:
            files[TOKENIZER_FILE] = data
        tokenizer = tokenizers.build(part_of(kind))
        tokenizer.restore(files)
        ids = tokenizer.encode("abc é \u2028</s>")
        tokenizer.decode(ids)
        assert all(0 <= i < len(tokenizer) for i in ids)

    return parse


def part_of(kind: str) -> Part:
    return Part(kind, {"size": 30, "byte_fallback": False} if kind in ("bpe", "unigram") else {})


@cache
def learned_tokenizer(kind: str) -> dict[str, bytes]:
    if kind in frozen_tokenizers.KINDS:
        return frozen_tokenizers.frozen_tokenizer(kind, TEXTS * 20, ["<to:de>"]).to_files()
    tokenizer = tokenizers.build(part_of(kind))
    tokenizer.learn(TEXTS * 20, ["<to:de>"])
    return tokenizer.to_files()


# -- data --------------------------------------------------------------------------------------------------------------


def lines_parser(name: str) -> Callable[[bytes], None]:
    def parse(data: bytes) -> None:
        path = file_with(name, data)
        deque(read_pairs(path, on_error="skip"), 0)
        deque(read_sources(path, on_error="skip"), 0)
        deque(read_pairs(path, extra_targets=True), 0)

    return parse


@cache
def whole_store() -> Path:
    """A small token store with texts."""
    codec = learn_codec(part_of("characters"), part_of("characters"), False, "nfc", TEXTS, TEXTS, [])
    examples = [Example(text, text[::-1], line=n) for n, text in enumerate(TEXTS, 1)]
    return build_store(examples, codec, scratch() / "store", max_source=99, max_target=99, keep_text=True).folder


def parse_store(data: bytes) -> None:
    """The store.json of a store whose other files are whole."""
    folder = scratch() / "changed-store"
    if not folder.exists():
        shutil.copytree(whole_store(), folder)
    (folder / STORE_FILE).write_bytes(data)
    opened = open_store(folder)
    len(opened), opened.skip_summary


def table_parser(name: str) -> Callable[[bytes], None]:
    """A table: proposed columns, then all rows by them, by position and by name."""

    def parse(data: bytes) -> None:
        path = file_with(name, data)
        with suppress(*ALLOWED):
            deque(read_pairs(path, columns=propose_columns(str(path)).columns, on_error="skip"), 0)
        with suppress(*ALLOWED):
            deque(read_sources(path, on_error="skip"), 0)
        deque(read_pairs(path, columns={"source": "word", "target": "ipa"}, on_error="skip"), 0)

    return parse


def document_parser(name: str) -> Callable[[bytes], None]:
    """A translators' file: translated, it is written whole, and can be read again."""

    def parse(data: bytes) -> None:
        path = file_with(name, data)
        document, output = open_document(path, Languages("en", "de")), BytesIO()
        document.write([Translation(f"x {segment.text} y") for segment in document.segments], output)
        path.write_bytes(output.getvalue())
        open_document(path, Languages("en", "de"))

    return parse


def media_parser(modality: Modality) -> Callable[[bytes], None]:
    """A file of a request: the server's check of its header, then the reader."""

    def parse(data: bytes) -> None:
        file = {"data": base64.b64encode(data).decode(), **uploads.media_limits(modality.kind, "source", LIMITS)}
        x = modality.read(Example("source", content=uploads.decode_file(file)))
        assert x.ndim == 2
        assert x.shape[1] == modality.width

    return parse


def parse_request(data: bytes) -> None:
    for kind in (schema.PredictRequest, schema.ScoreRequest):
        try:
            schema.parse_body(data, kind, LIMITS)
        except APIError as error:
            json.dumps(error.body())
    for content_type in ("application/json", "application/x-www-form-urlencoded"):
        try:
            libretranslate.parse_request(content_type, data, LIMITS)
        except APIError as error:
            json.dumps(error.body())


TAGS = ("!!python/name:os.system ", "&a ", "*a", "<<: ", "preset: ", "null", ".inf", ".nan", "1e999", "[", "{", "? ")
KEYS = ("model", "width", "layers", "heads", "encoder", "decoder", "name", "training", "steps", "data", "train", "size")
HEADER = ("data_offsets", "shape", "dtype", "F32", "BF16", "I64", "__metadata__")
FIELDS = ("inputs", "source", "target", "beam", "nbest", "search", "max_new_tokens", "force_phrases", "stream", "model")

SHEET_WORDS = ("PK\x03\x04", "PK\x01\x02", '<c r="XFD1" t="s">', "<v>", "</row>", "<!DOCTYPE", "&a;", "_x0000_", "r=")

PARSERS: dict[str, Parser] = {
    "config": Parser(parse_config, TAGS + KEYS),
    "manifest": Parser(parse_manifest, ("files", "bytes", "sha256", "format", "kind", "../", "/etc/passwd", "\\u0000")),
    "archive": Parser(parse_archive, ("PK\x01\x02", "PK\x03\x04", "PK\x05\x06", "PK\x06\x06", "../", "config.yaml")),
    "card": Parser(parse_card, ("examples", "scores", "value", "license", "data", "NaN", "\\ud800", "`")),
    "model-config": Parser(lambda data: load_model(**{"config.yaml": data}), TAGS + KEYS),
    "weights": Parser(lambda data: load_model(**{"model.safetensors": data}), HEADER),
    **{f"tokenizer-{kind}": Parser(tokenizer_parser(kind), ("kind", "extra", "tokens")) for kind in tokenizers.names},
    "tsv": Parser(lines_parser("pairs.tsv"), ("\t", "\n", "\r", "\x00", "\ufeff", "\u2028", "\x85")),
    "jsonl": Parser(lines_parser("pairs.jsonl"), ("source", "target", "\\ud800", "NaN", "[", "{", "\n")),
    "tsv-gz": Parser(lines_parser("pairs.tsv.gz"), ("\t", "\n"), ".gz"),
    "jsonl-gz": Parser(lines_parser("pairs.jsonl.gz"), ("source", "target", "\n"), ".gz"),
    "token-store": Parser(
        parse_store, ("skipped", "unreadable", "dtypes", "|O", "<u2", "second_source", "sizes", "../")
    ),
    "csv": Parser(table_parser("pairs.csv"), ('"', '""', ",", ";", "\n", "sep=;", "word", "ipa")),
    "xlsx": Parser(table_parser("pairs.xlsx"), SHEET_WORDS),
    "parquet": Parser(table_parser("pairs.parquet"), ("PAR1", "word", "ipa", "ARROW:schema", "\x15", "\x2c")),
    "srt": Parser(document_parser("a.srt"), ("-->", "00:00:01,000 --> 00:00:02,000", "<i>", "</i>", "{\\an8}", "\r\n")),
    "po": Parser(document_parser("a.po"), ("msgid", "msgstr[0]", "msgid_plural", "#~", "\\", '"', "%s", "charset=")),
    "xliff": Parser(
        document_parser("a.xlf"), ("<g>", "<bpt rid='1'>", "<ept rid='1'/>", "<!ENTITY", "&a;", "<target>")
    ),
    "tmx": Parser(
        document_parser("a.tmx"), ("<bpt i='1'>", "<ept i='1'/>", "<hi>", "<tuv xml:lang='de'>", "<!DOCTYPE")
    ),
    "docx": Parser(document_parser("a.docx"), ("PK\x01\x02", "<w:t>", "<w:r>", "fldChar", "<!ENTITY", "../")),
    "image": Parser(media_parser(ImageModality(size=16)), ("IHDR", "IDAT", "Exif", "II*\x00", "acTL")),
    "audio": Parser(media_parser(AudioModality(rate=8000, bins=24)), ("RIFF", "fmt ", "data", "fLaC", "OggS")),
    "features": Parser(media_parser(FeatureModality(numbers=5)), ("descr", "shape", "|O", "<f4", ">c16", "<U9")),
    "video": Parser(media_parser(VideoModality(frames=4, size=16)), ("PK\x03\x04", "frame.png", "../", "GIF89a")),
    "request": Parser(parse_request, FIELDS),
}


MADE = {"manifest": "manifest.json", "model-config": "config.yaml", "weights": "model.safetensors"}


def corpus(name: str) -> dict[str, bytes]:
    """The kept inputs of a parser, by what they are; of files whose checksums change, a whole one is made."""
    kept = {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}
    if name == "archive":
        return kept | {"whole": whole_archive()}
    made = {"whole": whole_model()[MADE[name]]} if name in MADE else {}
    return kept | made | ({"whole": (whole_store() / STORE_FILE).read_bytes()} if name == "token-store" else {})


def every_kept_input() -> Iterator[tuple[str, str, bytes]]:
    for name in PARSERS:
        for what, data in corpus(name).items():
            yield name, what, data
