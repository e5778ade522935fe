"""Marian's models: outputs equal to those of Marian itself, and what cannot be imported is refused in a sentence.

fixtures/make_marian.py made the models of these tests, and Marian's answers.
"""

from __future__ import annotations

import io
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import dragoman
from dragoman import GenerationOptions, Part
from dragoman.checkpoint import model_folder
from dragoman.cli.main import main
from dragoman.core.errors import ModelError, UserError
from dragoman.interop.importers import import_model, marian
from dragoman.interop.importers.npz import open_npz

FIXTURES = Path(__file__).parent / "fixtures" / "marian"
GREEDY = GenerationOptions(search=Part("greedy"))
TOY = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "foreign-models" / "marian-toy"


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def changed_copy(folder: Path, name: str, old: str = "", new: str = "") -> Path:
    """A copy of a fixture, with a text of the options in its model.npz replaced."""
    shutil.copytree(FIXTURES / name, folder)
    path = folder / "model.npz"
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    options = bytes(arrays["special:model.yml"]).decode()
    assert old in options
    arrays["special:model.yml"] = np.frombuffer(options.replace(old, new).encode(), np.int8)
    np.savez(path, **arrays)
    return path


# -- outputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ssru", "average", "words"])
def test_greedy_and_beam_outputs_are_those_of_marian(name: str, tmp_path: Path) -> None:
    source = FIXTURES / name
    import_model(f"marian:{source / 'model.npz'}", tmp_path / "model")
    model = dragoman.load(tmp_path / "model", "cpu")
    sources = lines(source / "input.txt")
    greedy = [output.text for output in model.predict(sources, GREEDY)]
    beam = [output.text for output in model.predict(sources)]  # beam size, normalize and the rest are imported
    assert greedy == lines(source / "greedy.txt")
    assert beam == lines(source / "beam.txt")
    assert beam != greedy


@pytest.mark.skipif(not TOY.exists(), reason="the models of other programs are not here")
def test_the_toy_model_of_marian_answers_as_marian_does(tmp_path: Path) -> None:
    import_model(f"marian:{TOY / 'model.npz'}", tmp_path / "model")
    model = dragoman.load(tmp_path / "model", "cpu")
    outputs = [output.text for output in model.predict(lines(TOY / "input.txt"), GREEDY)]
    expected = lines(TOY / "greedy.txt")
    assert sum(map(str.__eq__, outputs, expected)) >= len(expected) - 1


def test_gelu_of_old_versions_is_a_scaled_swish(tmp_path: Path) -> None:
    path = changed_copy(tmp_path / "old", "average", "version: v1.12.42", "version: v1.11.9")
    import_model(f"marian:{path}", tmp_path / "model")
    feedforward = model_folder.load(tmp_path / "model").model.encoder.stack.blocks[0].feedforward
    W1, b1, W2, b2 = (open_npz(path)[f"encoder_l1_ffn_{name}"].load() for name in ("W1", "b1", "W2", "b2"))
    x = torch.randn(5, len(W1))
    h = x @ W1 + b1
    expected = (h * torch.sigmoid(1.702 * h)) @ W2 + b2
    torch.testing.assert_close(feedforward(x), expected, atol=1e-5, rtol=1e-5)


def test_the_start_symbol_is_a_row_of_zeros_that_has_no_probability(tmp_path: Path) -> None:
    import_model(f"marian:{FIXTURES / 'ssru' / 'model.npz'}", tmp_path / "model")
    model = model_folder.load(tmp_path / "model").model
    assert not model.embedding.table.weight[:2].any()
    assert model.output.bias[:2].max() < -1e8


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """`dragoman ARGS` in this process: exit code, output, errors."""

    def command(*args: object, input: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dragoman", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input.encode())))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return command


def test_an_imported_folder_works_in_every_command(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    model, source = tmp_path / "model", FIXTURES / "ssru"
    code, _, errors = run("import", f"marian:{source / 'model.npz'}", model)
    assert code == 0, errors
    assert "read a Marian transformer model" in errors
    code, output, errors = run("predict", model, source / "input.txt")
    assert code == 0, errors
    assert output.splitlines() == lines(source / "beam.txt")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("red bird dog\tdog bird red\nred bird dog\tred bird dog\n", encoding="utf-8")
    code, output, errors = run("score", model, pairs)
    assert code == 0, errors
    right, wrong = (float(line.split("\t")[0]) for line in output.splitlines())
    assert right > wrong
    code, output, errors = run("inspect", model, "red bird dog")
    assert code == 0, errors
    assert "bird" in output


def test_a_bad_file_is_one_sentence_and_exit_code_2(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "model.npz").write_bytes(b"PK\x03\x04 no zip")
    code, output, errors = run("import", f"marian:{tmp_path / 'model.npz'}", tmp_path / "out")
    assert (code, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("type: transformer", "type: s2s", "type is 's2s'"),
        ('transformer-preprocess: ""', "transformer-preprocess: n", "pre-norm"),
        ("transformer-postprocess: dan", "transformer-postprocess: dhn", "transformer-postprocess 'hn'"),
        ('transformer-postprocess-top: ""', "transformer-postprocess-top: n", "transformer-postprocess-top is 'n'"),
        ("dec-cell: ssru", "dec-cell: gru", "dec-cell is 'gru'"),
        ("ulr: false", "ulr: true", "ulr is True"),
        (
            "transformer-ffn-activation: relu",
            "transformer-ffn-activation: prelu",
            "transformer-ffn-activation is 'prelu'",
        ),
        ("transformer-no-projection: false", "transformer-no-projection: true", "transformer-no-projection"),
        ("transformer-attention-mask: default", "transformer-attention-mask: alibi", "alibi"),
        ("transformer-ffn-depth: 2", "transformer-ffn-depth: 3", "transformer-ffn-depth is 3"),
        ("transformer-heads: 4", "transformer-heads: 5", "heads"),
        ("transformer-heads: 4", "transformer-heads: many", "must be a positive number"),
        ("dim-emb: 24", "dim-emb: 32", "contradict each other"),
        ("enc-depth: 1", "enc-depth: 2", "has no weight 'encoder_l2"),
        ("dec-depth: 2", "dec-depth: 1", "which no option explains"),
        ("type: transformer", "type: [", "not valid YAML"),
        ("type: transformer", "", "does not say its architecture"),
    ],
)
def test_what_cannot_be_stated_is_refused_by_name(old: str, new: str, reason: str, tmp_path: Path) -> None:
    path = changed_copy(tmp_path / "copy", "ssru", old, new)
    with pytest.raises(UserError) as error:
        import_model(f"marian:{path}", tmp_path / "out")
    message = str(error.value)
    assert reason in message
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "transformer-aan-activation: relu",
            "transformer-aan-activation: swish",
            "transformer-aan-activation is 'swish'",
        ),
        ("transformer-dim-aan: 32", "transformer-dim-aan: 64", "transformer-dim-aan is 64"),
        ("transformer-aan-depth: 2", "transformer-aan-depth: 3", "transformer-aan-depth is 3"),
        ("transformer-postprocess-emb: nd", "transformer-postprocess-emb: a", "transformer-postprocess-emb 'a'"),
    ],
)
def test_average_attention_that_is_not_ours_is_refused(old: str, new: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=reason):
        import_model(f"marian:{changed_copy(tmp_path / 'copy', 'average', old, new)}", tmp_path / "out")


# -- bad files ---------------------------------------------------------------------------------------------------------


def cut_off(folder: Path) -> None:
    data = (folder / "model.npz").read_bytes()
    (folder / "model.npz").write_bytes(data[: len(data) // 2])


def change_bytes(folder: Path) -> None:
    """Change a weight's values, and leave its checksum."""
    data = bytearray((folder / "model.npz").read_bytes())
    data[5000:5040] = bytes(40)
    (folder / "model.npz").write_bytes(data)


def claim_shape(folder: Path) -> None:
    """100 GB in a header of 128 bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (25_000_000_000,)})
    with zipfile.ZipFile(folder / "model.npz", "a") as archive:
        archive.writestr("huge.npy", header.getvalue() + b"\0" * 16)


def bomb(folder: Path) -> None:
    with zipfile.ZipFile(folder / "model.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("huge.npy", bytes(2**24))


def hold_objects(folder: Path) -> None:
    np.savez(folder / "model.npz", **{"special:model.yml": np.array([{}], dtype=object)})


def replace(name: str, data: bytes | None) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        (folder / name).unlink()
        if data is not None:
            (folder / name).write_bytes(data)

    return act


BAD = {
    "cut off": (cut_off, "is no whole .npz file"),
    "changed": (change_bytes, "is no whole .npz file"),
    "empty": (replace("model.npz", b""), "is no whole .npz file"),
    "a shape beyond the file": (claim_shape, "which are not"),
    "a zip bomb": (bomb, "claims"),
    "objects": (hold_objects, "not of numbers"),
    "no model": (replace("model.npz", None), "does not exist"),
    "no settings": (replace("model.npz.decoder.yml", None), "must name two vocabularies"),
    "settings that are no mapping": (replace("model.npz.decoder.yml", b"- 1\n"), "has no options"),
    "one vocabulary": (replace("model.npz.decoder.yml", b"vocabs: [source.yml]\n"), "must name two vocabularies"),
    "factors": (replace("model.npz.decoder.yml", b"vocabs: [a.fsv, a.fsv]\n"), "has factors"),
    "no vocabulary": (replace("source.yml", None), "source.yml: is missing"),
    "a vocabulary of bytes": (replace("source.yml", b"\xff\xfe\x00"), "is not UTF-8"),
    "a vocabulary without numbers": (replace("source.yml", b"dog\ncat\n"), "is no vocabulary"),
    "a vocabulary with holes": (replace("source.yml", b"</s>: 0\n<unk>: 1\ndog: 7\n"), "does not number its tokens"),
    "no beam": (replace("model.npz.decoder.yml", b"vocabs: [source.yml, target.yml]\nbeam-size: many\n"), "beam"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    damage, reason = BAD[name]
    shutil.copytree(FIXTURES / "words", tmp_path / "copy")
    damage(tmp_path / "copy")
    with pytest.raises(UserError) as error:
        import_model(f"marian:{tmp_path / 'copy' / 'model.npz'}", tmp_path / "out")
    assert reason in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_a_member_that_names_another_folder_is_never_extracted(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "words", tmp_path / "copy")
    data = io.BytesIO()
    np.save(data, np.zeros(3, np.float32))
    with zipfile.ZipFile(tmp_path / "copy" / "model.npz", "a") as archive:
        archive.writestr("../../escaped.npy", data.getvalue())
    with pytest.raises(ModelError, match="which no option explains"):
        import_model(f"marian:{tmp_path / 'copy' / 'model.npz'}", tmp_path / "out")
    assert not list(tmp_path.parent.rglob("escaped*"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v.yml", "</s>: 0\n<unk>: 1\n\"say \\\"no\\\"\": 2\n'it''s': 3\nno: 4\na:b: 5\n"),
        ("v.json", '{"</s>": 0, "<unk>": 1, "say \\"no\\"": 2, "it\'s": 3, "no": 4, "a:b": 5}'),
        ("v.txt", '</s>\n<unk>\nsay "no"\nit\'s\nno\na:b\n'),
    ],
)
def test_vocabularies_are_read_in_every_form(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert marian.read_vocabulary(tmp_path / name).names == ["</s>", "<unk>", 'say "no"', "it's", "no", "a:b"]


def test_arrays_by_columns_are_read_like_others(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "a.npz", rows=rows, columns=np.asfortranarray(rows))
    found = open_npz(tmp_path / "a.npz")
    for name in ("rows", "columns"):
        assert found[name].load().tolist() == rows.tolist()
