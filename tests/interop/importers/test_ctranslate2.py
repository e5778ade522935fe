"""CTranslate2's folders: outputs and probabilities equal to those of CTranslate2 itself, for every type of weights."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from tests.interop.exporters.random_models import save_model, transformers

import dragoman
from dragoman import GenerationOptions, Part
from dragoman.checkpoint import model_folder
from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.errors import UserError
from dragoman.core.types import BOS, PAD, UNK
from dragoman.engines.cpu.ctranslate2 import build_spec
from dragoman.interop.exporters import export_model
from dragoman.interop.importers import import_model
from dragoman.interop.importers.ctranslate2 import BinaryFile

AREN = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "foreign-models" / "ct2-aren"
TOKENIZER = {"source": {"name": "words"}, "joint": True}


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


# -- a genuine folder --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not AREN.exists(), reason="the models of other programs are not here")
@pytest.mark.parametrize(
    ("answers", "options"),
    [
        ("greedy.txt", GenerationOptions(search=Part("greedy"), max_new_tokens=64)),
        ("beam4.txt", GenerationOptions(beam=4, max_new_tokens=64)),
    ],
)
def test_a_folder_of_format_2_answers_as_ctranslate2_does(
    answers: str, options: GenerationOptions, tmp_path: Path
) -> None:
    import_model(f"ct2:{AREN}", tmp_path / "model")
    model = dragoman.load(tmp_path / "model", "cpu")
    outputs = [output.text for output in model.predict(lines(AREN / "input.txt"), options)]
    assert outputs == lines(AREN / answers)


# -- folders of random models ------------------------------------------------------------------------------------------

MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {**transformers(), "tie": "output"},
    "post-norm, gelu, tied": {**transformers(norm_order="post", activation="gelu"), "tie": "all", "scale": False,
                              "frontend": {"name": "tokens", "scale": False}},
    "gated, rms": {**transformers(activation="swiglu", norm="rms"), "tie": "none", "output_bias": False},
    "gelu by tanh, learned positions": {
        **transformers(activation="gelu_tanh", position={"name": "learned", "length": 40}, embedding_norm=True),
        "tie": "embeddings"},
    "positions of tensor2tensor": transformers(
        position={"name": "sinusoidal", "layout": "halves", "endpoint": True, "first": 2},
        norm={"name": "layer", "eps": 1e-6}),
}  # fmt: skip


def save_theirs(folder: Path, model: dict[str, Any], quantization: str | None, end: float = 2.0) -> LoadedModel:
    """A random model of ours in CTranslate2's own file, as it saves it."""
    data = {"train": "nowhere.tsv", "max_source": 40, "max_target": 40}
    loaded = model_folder.load(save_model(folder / "ours", model, TOKENIZER, end=end, data=data))
    if (bias := loaded.model.output.bias) is not None:
        bias.data[[PAD, BOS, UNK]] -= 1e3  # our searches never choose the first two, and its do
    names = loaded.codec.source.vocabulary.names
    spec = build_spec(loaded.model, (names, names))
    spec.config.decoder_start_token, spec.config.add_source_eos = "<s>", True
    spec.validate()
    spec.optimize(quantization=quantization)
    (folder / "theirs").mkdir()
    spec.save(str(folder / "theirs"))
    return loaded


def assert_equal_probabilities(folder: Path, model: Path, tolerance: float = 2e-4) -> None:
    """log p of each token of some targets is equal in CTranslate2 and in ours."""
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    ours = model_folder.load(model)
    names = ours.codec.source.vocabulary.names
    torch.manual_seed(1)
    for length in (1, 4, 9):
        source, target = (torch.randint(4, len(names), (length,)).tolist() for _ in range(2))
        theirs = translator.score_batch([[names[i] for i in source]], [[names[i] for i in target]])[0].log_probs
        source += [2] * ours.codec.source_template.ends_with_eos
        with torch.inference_mode():
            memory = ours.model.encode(torch.tensor([source]), torch.tensor([len(source)]))
            o = ours.model.decode(torch.tensor([[BOS, *target]]), memory).o
            log_p = torch.log_softmax(ours.model.logits(o), -1)[0]
        expected = log_p.gather(-1, torch.tensor([*target, 2])[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(theirs), expected, atol=tolerance, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_probabilities_are_those_of_ctranslate2(name: str, tmp_path: Path) -> None:
    save_theirs(tmp_path, MODELS[name], None)
    import_model(f"ct2:{tmp_path / 'theirs'}", tmp_path / "model")
    assert_equal_probabilities(tmp_path / "theirs", tmp_path / "model")


def test_beams_are_those_of_ctranslate2(tmp_path: Path) -> None:
    """Except at the limit, where it lets cut outputs compete with finished ones, and for what it renormalizes."""
    names = save_theirs(tmp_path, MODELS["pre-norm"], None, end=5.0).codec.source.vocabulary.names
    folder, limit = tmp_path / "theirs", 30
    import_model(f"ct2:{folder}", tmp_path / "model")
    sources = [random.choices(names[4:], k=random.randrange(1, 8)) for _ in range(150)]
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    found = translator.translate_batch(sources, max_decoding_length=limit, min_decoding_length=0)
    theirs = [result.hypotheses[0] for result in found]
    model = dragoman.load(tmp_path / "model", "cpu")
    options = GenerationOptions(max_new_tokens=limit, min_new_tokens=0)
    ours = [output.text.split() for output in model.predict([" ".join(tokens) for tokens in sources], options)]
    differing = [pair for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1] and len(pair[0]) < limit]
    assert len(differing) <= 1, differing  # a near tie


@pytest.mark.parametrize("quantization", ["float16", "bfloat16", "int16", "int8", "int8_float16"])
def test_weights_of_every_type_are_read_as_ctranslate2_reads_them(quantization: str, tmp_path: Path) -> None:
    save_theirs(tmp_path, MODELS["pre-norm"], quantization)
    import_model(f"ct2:{tmp_path / 'theirs'}", tmp_path / "model")
    # A table of positions in half precision is recognized, and computed precisely.
    tolerance = {"bfloat16": 0.1, "int8_float16": 2e-3, "float16": 2e-3}.get(quantization, 2e-4)
    assert_equal_probabilities(tmp_path / "theirs", tmp_path / "model", tolerance)


@pytest.mark.parametrize("name", ["pre-norm", "gated, rms"])
def test_what_we_export_comes_back_with_equal_weights(name: str, tmp_path: Path) -> None:
    ours = model_folder.load(save_model(tmp_path / "ours", MODELS[name]))
    export_model(tmp_path / "ours", tmp_path / "theirs", "ct2", check=2)
    import_model(f"ct2:{tmp_path / 'theirs'}", tmp_path / "back")
    back = model_folder.load(tmp_path / "back")
    source = torch.randint(4, len(ours.codec.source), (3, 7))
    target = torch.randint(4, len(ours.codec.target), (3, 5))
    logits = []
    for loaded in (ours, back):
        memory = loaded.model.encode(source, torch.full((3,), 7))
        logits.append(loaded.model.logits(loaded.model.decode(target, memory).o)[..., 2:])
    torch.testing.assert_close(logits[1], logits[0], atol=1e-5, rtol=1e-5)
    texts = ["ab ba", "dada cab bcd", "x"]
    encoded = [[loaded.codec.source.encode(text) for text in texts] for loaded in (ours, back)]
    assert encoded[0] == encoded[1]
    assert ours.codec.source_template.suffix == back.codec.source_template.suffix


# -- formats -----------------------------------------------------------------------------------------------------------


def string(text: str) -> bytes:
    return struct.pack("<H", len(text.encode()) + 1) + text.encode() + b"\0"


def write_old(path: Path, file: BinaryFile, drop: tuple[str, ...] = ()) -> None:
    """The variables of a file in format version 2, which has sizes of items, and neither types nor aliases."""
    parts = [struct.pack("<I", 2), string(file.spec), struct.pack("<I", file.revision)]
    variables = {name: x for name, x in file.variables.items() if not name.endswith(drop)}
    parts.append(struct.pack("<I", len(variables)))
    for name, x in variables.items():
        count = x.size // x.dtype.itemsize
        parts += [string(name), struct.pack("<B", len(x.shape)), *(struct.pack("<I", n) for n in x.shape)]
        parts += [struct.pack("<BI", x.dtype.itemsize, count), file.load(x).reshape(-1).contiguous().numpy().tobytes()]
    path.write_bytes(b"".join(parts))


@pytest.mark.parametrize("quantization", [None, "int8", "int16"])
def test_older_formats_are_read(quantization: str | None, tmp_path: Path) -> None:
    save_theirs(tmp_path, MODELS["pre-norm"], quantization)
    folder = tmp_path / "theirs"
    write_old(folder / "model.bin", BinaryFile(folder / "model.bin"))
    import_model(f"ct2:{folder}", tmp_path / "model")
    assert_equal_probabilities(folder, tmp_path / "model")


def test_without_a_table_of_positions_they_are_those_of_ctranslate2(tmp_path: Path) -> None:
    save_theirs(tmp_path, MODELS["pre-norm"], None)
    folder = tmp_path / "theirs"
    write_old(folder / "model.bin", BinaryFile(folder / "model.bin"), drop=("encodings",))
    import_model(f"ct2:{folder}", tmp_path / "model")
    assert_equal_probabilities(folder, tmp_path / "model")


def test_vocabularies_may_be_lines_of_text_and_config_json_may_be_absent(tmp_path: Path) -> None:
    save_theirs(tmp_path, MODELS["pre-norm"], None)
    folder = tmp_path / "theirs"
    names = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    (folder / "shared_vocabulary.json").unlink()
    (folder / "config.json").unlink()
    for side in ("source", "target"):
        (folder / f"{side}_vocabulary.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    import_model(f"ct2:{folder}", tmp_path / "model")
    codec = model_folder.load(tmp_path / "model").codec
    assert codec.source.vocabulary.names == names
    assert codec.source_template.suffix == ()


# -- refusals ----------------------------------------------------------------------------------------------------------

Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ct2")
    save_theirs(folder, MODELS["pre-norm"], None)
    return folder / "theirs"


def write(name: str, data: bytes | None) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        if data is not None:
            (folder / name).write_bytes(data)

    return damage


def change(offset: int, data: bytes) -> Damage:
    def damage(folder: Path) -> None:
        old = (folder / "model.bin").read_bytes()
        (folder / "model.bin").write_bytes(old[:offset] + data + old[offset + len(data) :])

    return damage


def rename(old: bytes, new: bytes) -> Damage:
    def damage(folder: Path) -> None:
        data = (folder / "model.bin").read_bytes()
        assert old in data
        assert len(old) == len(new)
        (folder / "model.bin").write_bytes(data.replace(old, new))

    return damage


def cut(share: float) -> Damage:
    def damage(folder: Path) -> None:
        data = (folder / "model.bin").read_bytes()
        (folder / "model.bin").write_bytes(data[: int(len(data) * share)])

    return damage


SPEC = struct.calcsize("<I") + len(string("TransformerSpec"))  # where the revision is
HUGE = struct.pack("<II", 7, 1) + string("a/weight") + struct.pack("<BIIBI", 2, 2**31, 12, 0, 2**32 - 4)
BAD: dict[str, tuple[Damage, str]] = {
    "no model.bin": (write("model.bin", None), "is missing"),
    "an empty file": (write("model.bin", b""), "is cut off"),
    "a text": (write("model.bin", b"hello world, I am no model"), "format version"),
    "cut off in the middle": (cut(0.5), "is cut off"),
    "cut off in a header": (cut(0.001), "is cut off"),
    "cut off at the end": (cut(0.9999), "is cut off"),
    "many variables": (change(SPEC + 4, b"\xff\xff\xff\x7f"), "claims 2,147,483,647 variables"),
    "100 GB": (change(SPEC, HUGE), "is cut off or damaged"),
    "a language model": (rename(b"TransformerSpec", b"TransformerLM__"), "is a 'TransformerLM__'"),
    "variables of version 1": (change(SPEC, struct.pack("<I", 1)), "variable names of CTranslate2 1.0"),
    "an unknown variable": (rename(b"decoder/alignment_heads", b"decoder/alignment_heavy"), "has the variable"),
    "a missing bias": (rename(b"encoder/layer_1/ffn/linear_1/bias", b"encoder/layer_1/ffn/linear_1/bibs"), "variable"),
    "a missing weight": (rename(b"layer_1/ffn/linear_1/weight", b"layer_1/ffn/linear_1/weigh_"), "has no variable"),
    "no vocabulary": (write("shared_vocabulary.json", None), "has no source_vocabulary.json"),
    "a vocabulary that is no JSON": (write("shared_vocabulary.json", b"[1, "), "is not valid JSON"),
    "a vocabulary of numbers": (write("shared_vocabulary.json", b"[1, 2]"), "is no list of tokens"),
    "too many tokens": (
        write("shared_vocabulary.json", json.dumps(["</s>", *"abcdefghij" * 9]).encode()), "and its table"),
    "no end symbol": (write("shared_vocabulary.json", b'["<s>", "a", "b"]'), "has no '</s>'"),
    "no start symbol": (write("shared_vocabulary.json", b'["</s>", "a", "b"]'), "has no '<s>'"),
    "a config that is no JSON": (write("config.json", b"{"), "is not valid JSON"),
    "an eps that is no number": (write("config.json", b'{"layer_norm_epsilon": "tiny"}'), "eps"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_in_one_sentence(name: str, good: Path, tmp_path: Path) -> None:
    damage, reason = BAD[name]
    shutil.copytree(good, tmp_path / "copy")
    damage(tmp_path / "copy")
    with pytest.raises(UserError) as error:
        import_model(f"ct2:{tmp_path / 'copy'}", tmp_path / "out")
    assert reason in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_any_damaged_byte_of_the_headers_is_refused_or_harmless(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "copy")
    path = tmp_path / "copy" / "model.bin"
    data = path.read_bytes()
    refused = 0
    for offset in range(0, 100, 2):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1 :])
        try:
            BinaryFile(path)
        except UserError:
            refused += 1
    assert refused > 5


def test_a_file_instead_of_a_folder_is_refused(good: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a file"):
        import_model(f"ct2:{good / 'model.bin'}", tmp_path / "out")
