"""A packed model is the same model; a stranger's zip is refused in one sentence, soon and with flat memory.

The hostile zips are written by hand or by zipfile, with manifests that their makers signed.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.checkpoint import archive, model_folder, packing
from dragoman.checkpoint.model_paths import check_exists, model_name
from dragoman.core import yaml
from dragoman.core.errors import ModelError, RunError, UserError

from .test_model_folder import contents, outputs, save, sign, sign_manifest, tiny
from .test_strangers_folder import HUGE, refused, sparse

DOCUMENTS = {"MODEL.md": b"# A model\n", "card.json": b"{}\n"}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save(folder, tiny())
    model_folder.load(folder)
    return folder


@pytest.fixture(scope="module")
def whole(original: Path) -> bytes:
    path = original.parent / "whole.zip"
    packing.pack(original, path, DOCUMENTS)
    model_folder.load(path)
    return path.read_bytes()


@pytest.fixture
def packed(whole: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.zip"
    path.write_bytes(whole)
    return path


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def rewrite(path: Path, change: Callable[[zipfile.ZipFile, dict[str, bytes]], None]) -> Path:
    """Write a zip anew as a stranger would: by a function of the open zip and the files that it should hold."""
    files = entries(path)
    with zipfile.ZipFile(path, "w") as file:
        change(file, files)
        for name, data in files.items():
            file.writestr(name, data)
    return path


def patch_directory(path: Path, name: str, offset: int, value: bytes, *, local: int | None = None) -> None:
    """Overwrite bytes of a file's entry in the directory, and of its own header at `local`."""
    data = bytearray(path.read_bytes())
    at = data.rfind(name.encode()) - 46
    assert data[at : at + 4] == b"PK\x01\x02"
    data[at + offset : at + offset + len(value)] = value
    if local is not None:
        start = struct.unpack_from("<I", data, at + 42)[0]
        data[start + local : start + local + len(value)] = value
    path.write_bytes(data)


# -- packed and loaded -------------------------------------------------------------------------------------------------


def test_a_packed_model_has_equal_outputs_and_leaves_nothing_on_the_disk(
    original: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("os.mkdir", "tempfile.mkdtemp", "tempfile.mkstemp") or (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            written.append(f"{event} {arguments}")

    sys_audit(audit)
    opened = model_folder.load(packed)
    sys_audit(None)
    assert written == []
    assert torch.equal(outputs(opened), outputs(model_folder.load(original)))
    assert opened.path == packed
    assert not opened.model.training


_hooks: list[Callable[[str, tuple[object, ...]], None] | None] = []


def sys_audit(hook: Callable[[str, tuple[object, ...]], None] | None) -> None:
    """Watch this process; an audit hook can never be removed, so one stays and asks for the present one."""
    import sys

    if not _hooks:
        _hooks.append(None)
        sys.addaudithook(lambda event, arguments: _hooks[0](event, arguments) if _hooks[0] is not None else None)
    _hooks[0] = hook


def test_an_unpacked_zip_is_a_model_folder(packed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed) as file:
        file.extractall(tmp_path / "unpacked")
    assert torch.equal(outputs(model_folder.load(tmp_path / "unpacked")), outputs(model_folder.load(packed)))
    assert {*entries(packed)} == {path.name for path in (tmp_path / "unpacked").iterdir()}


def test_only_what_is_needed_is_in_the_zip_and_the_weights_are_stored(original: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(original, tmp_path / "step-1"))
    (folder / "training.json").write_text("{}")
    (folder / "training.safetensors").write_bytes(b"\0" * 1000)
    sign(folder)
    (folder / "notes.txt").write_text("of mine")
    packing.pack(folder, tmp_path / "m.zip", DOCUMENTS)
    needed = {"config.yaml", "model.safetensors", "joint.tokenizer.json", "manifest.json", *DOCUMENTS}
    assert {*entries(tmp_path / "m.zip")} == needed
    with zipfile.ZipFile(tmp_path / "m.zip") as file:
        assert {info.compress_type for info in file.infolist()} == {zipfile.ZIP_STORED}
        assert file.read("model.safetensors") == (folder / "model.safetensors").read_bytes()
        assert file.read("MODEL.md") == DOCUMENTS["MODEL.md"]


def test_the_bytes_depend_on_the_model_alone(original: Path, whole: bytes, tmp_path: Path) -> None:
    later = Path(shutil.copytree(original, tmp_path / "elsewhere" / "copy"))
    for path in later.iterdir():
        os.utime(path, (1, 1))
    packing.pack(later, tmp_path / "other.zip", dict(reversed(DOCUMENTS.items())))
    assert (tmp_path / "other.zip").read_bytes() == whole


def test_a_zip_can_be_packed_again_but_not_onto_itself(packed: Path, whole: bytes, tmp_path: Path) -> None:
    packing.pack(packed, tmp_path / "again.zip", DOCUMENTS)
    assert (tmp_path / "again.zip").read_bytes() == whole
    (tmp_path / "link.zip").symlink_to(packed)
    for output in (packed, tmp_path / "link.zip"):
        with pytest.raises(RunError, match="is also an input"):
            packing.pack(packed, output, {})
    assert packed.read_bytes() == whole


def test_a_zip_that_another_program_compressed_is_read(packed: Path, original: Path) -> None:
    files = entries(packed)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(name, data)
        file.comment = b"made by hand"
    assert torch.equal(outputs(model_folder.load(packed)), outputs(model_folder.load(original)))


def test_a_link_that_a_user_names_is_followed(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "link.zip").symlink_to(packed)
    assert model_folder.load(tmp_path / "link.zip").path == tmp_path / "link.zip"


def test_the_paths_of_a_config_become_their_last_names(tmp_path: Path) -> None:
    value = tiny().model_dump()
    value["data"] |= {
        "train": [{"path": "/home/zaphod/a/x.en,/home/zaphod/a/x.de", "weight": 2.0}, "b/c.tsv"],
        "valid": "../v.tsv",
        "files": ["/home/zaphod/pictures/", "sounds.zip"],
        "cache": "/home/zaphod/.cache",
    }
    value["tokenizer"]["load"] = "/home/zaphod/runs/first"
    value["training"]["start_from"] = "runs/second/"
    value["training"]["backbone"] = {"file": "/home/zaphod/resnet.safetensors", "map": {"": "frontend"}}
    from dragoman import config as configs

    config = packing.without_folders(configs.validate(value, "a test"))
    assert [(corpus.path, corpus.weight) for corpus in config.data.train] == [("x.en,x.de", 2.0), ("c.tsv", 1.0)]
    assert (config.data.valid, config.data.files, config.data.cache) == ("v.tsv", ["pictures", "sounds.zip"], None)
    assert (config.tokenizer.load, config.training.start_from) == ("first", "second")
    assert config.training.backbone is not None
    assert config.training.backbone.file == "resnet.safetensors"
    assert "zaphod" not in config.to_yaml()


def test_a_file_with_a_comma_in_its_name_gives_no_folder_away(tmp_path: Path) -> None:
    folder = tmp_path / "zaphod, beeblebrox"
    folder.mkdir()
    (folder / "pairs.tsv").write_text("a\tb\n")
    assert packing.base_names(str(folder / "pairs.tsv")) == "pairs.tsv"


def test_other_paths_of_this_machine_are_cut_and_what_only_looks_like_one_is_kept(tmp_path: Path) -> None:
    config = tiny()
    generation = config.generation.model_copy(update={"pattern": "/[a-z]+/x", "prefix": str(tmp_path)})
    shown = packing.without_folders(config.model_copy(update={"generation": generation})).generation
    assert (shown.pattern, shown.prefix) == ("/[a-z]+/x", tmp_path.name)


# -- whatever is wrong is one sentence ---------------------------------------------------------------------------------


def test_every_damaged_byte_is_noticed_or_changes_nothing(packed: Path, whole: bytes, original: Path) -> None:
    expected, rng = outputs(model_folder.load(original)), random.Random(torch.initial_seed())
    headers = [i for i in range(len(whole)) if whole[i : i + 4] in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06")]
    places = [rng.randrange(len(whole)) for _ in range(20)] + [
        rng.choice(headers) + rng.randrange(46) for _ in range(60)
    ]
    for place in places:
        data = bytearray(whole)
        data[min(place, len(data) - 1)] ^= 1 << rng.randrange(8)
        packed.write_bytes(data)
        with suppress(UserError):  # anything else is a bug
            assert torch.equal(outputs(model_folder.load(packed)), expected), place


@given(cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=15)
def test_a_zip_that_was_cut_is_refused(cut: float, whole: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cut") / "cut.zip"
    path.write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(ModelError, match=r"cut\.zip"):
        model_folder.load(path)


@pytest.mark.parametrize(
    "data", [b"", b"PK\x05\x06" + b"\0" * 18, b"hello", b"PK\x03\x04", b"PK\x03\x04" + b"x" * 5000], ids=repr
)
def test_a_file_that_is_no_zip_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.zip").write_bytes(data)
    assert "m.zip" in refused(tmp_path / "m.zip")


def test_a_model_that_is_not_there_is_refused_with_a_hint(packed: Path) -> None:
    with pytest.raises(ModelError, match=r"no such model or run folder; did you mean 'tiny\.zip'"):
        check_exists(packed.with_name("tin.zip"))


def test_a_model_is_called_like_its_folder_or_zip(packed: Path) -> None:
    (packed.parent / "v1.5").mkdir()
    (packed.parent / "v2.zip").mkdir()
    assert [model_name(packed.parent / name) for name in ("tiny.zip", "v1.5", "v2.zip")] == ["tiny", "v1.5", "v2.zip"]


@pytest.mark.parametrize("name", ["../config.yaml", "/etc/passwd", "a/b", "..", "C:\\x", "", "x\0y", "dir/", "ü", "-o"])
def test_a_name_that_is_no_plain_file_name_is_refused_and_nothing_is_written(
    packed: Path, name: str, tmp_path: Path
) -> None:
    path = rewrite(packed, lambda file, _: file.writestr(zipfile.ZipInfo("x" * max(len(name.encode()), 1)), b"secret"))
    data = path.read_bytes()
    new = name.encode() or b"\0"
    path.write_bytes(data.replace(b"x" * len(new), new))
    before = sorted(tmp_path.rglob("*"))
    assert "not a plain file name" in refused(path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_is_there_twice_is_refused(packed: Path) -> None:
    rewrite(packed, lambda file, files: file.writestr("config.yaml", b"name: other"))
    assert "'config.yaml' twice" in refused(packed)


@pytest.mark.parametrize("mode", [0o120777, 0o040755, 0o010644, 0o020644])
def test_a_link_folder_pipe_or_device_is_refused(packed: Path, mode: int) -> None:
    def add(file: zipfile.ZipFile, files: dict[str, bytes]) -> None:
        info = zipfile.ZipInfo("link")
        info.external_attr = mode << 16
        file.writestr(info, b"/etc/passwd")

    assert "as a link, a folder or a device" in refused(rewrite(packed, add))


@pytest.mark.parametrize("flag", [0x01, 0x41, 0x2000])
def test_an_encrypted_file_is_refused(packed: Path, flag: int) -> None:
    patch_directory(packed, "config.yaml", 8, struct.pack("<H", flag), local=6)
    assert "encrypted" in refused(packed)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(packed: Path, method: int) -> None:
    files = entries(packed)
    with zipfile.ZipFile(packed, "w", method) as file:
        for name, data in files.items():
            file.writestr(name, data)
    assert "is compressed by method" in refused(packed)


def test_a_patched_or_strongly_encrypted_member_is_refused(packed: Path) -> None:
    patch_directory(packed, "config.yaml", 8, struct.pack("<H", 0x20), local=6)
    refused(packed)


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors", "manifest.json", "unlisted.txt"])
def test_a_zip_bomb_is_refused_before_it_is_unpacked(packed: Path, name: str) -> None:
    def add(file: zipfile.ZipFile, files: dict[str, bytes]) -> None:
        files.pop(name, None)
        with file.open(zipfile.ZipInfo(name), "w") as member:
            member._compressor = zlib.compressobj(1, zlib.DEFLATED, -15)  # type: ignore[attr-defined]
            member._zinfo.compress_type = zipfile.ZIP_DEFLATED  # type: ignore[attr-defined]
            for _ in range(100):
                member.write(b"\0" * 2**20)

    path = rewrite(packed, add)
    assert path.stat().st_size < 2**20
    text = refused(path)
    assert "bytes together" in text


@pytest.mark.parametrize("size", [0, 1, 2**31, 2**32 - 2])
@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors"])
def test_a_size_that_is_not_the_real_one_is_refused(packed: Path, name: str, size: int) -> None:
    patch_directory(packed, name, 24, struct.pack("<I", size))
    refused(packed)


def test_members_that_share_their_bytes_count_in_full(packed: Path) -> None:
    """An overlapping bomb: many entries of the directory point at the same data."""
    data = packed.read_bytes()
    at = data.rfind(b"model.safetensors") - 46
    size = struct.unpack_from("<I", data, at + 24)[0]
    end = data.rfind(b"PK\x05\x06")
    entry = data[at : at + 46 + len("model.safetensors")]
    copies = b"".join(entry[:46] + f"model.safetensor{i}".encode()[:17].ljust(17, b"x") for i in range(9))
    assert 9 * size < archive.MIN_UNPACKED_BYTES  # harmless in this size
    count, length, offset = struct.unpack_from("<H", data, end + 10)[0], *struct.unpack_from("<II", data, end + 12)
    new = struct.pack("<HHII", count + 9, count + 9, length + len(copies), offset)
    packed.write_bytes(data[:end] + copies + data[end : end + 8] + new + data[end + 20 :])
    model_folder.load(packed)
    total = struct.pack("<I", 2**29)
    changed = bytearray(packed.read_bytes())
    for i in range(9):
        at = changed.rfind(f"model.safetensor{i}".encode()) - 46
        changed[at + 24 : at + 28] = total
    packed.write_bytes(changed)
    assert "bytes together" in refused(packed)


def test_a_huge_directory_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "m.zip"
    sparse(path, HUGE)
    with path.open("r+b") as file:
        file.write(b"PK\x03\x04")
        file.seek(HUGE - 22 - 20 - 56)  # zip64: the record, its locator, and the end of the directory
        file.write(
            struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2**20, 2**20, HUGE - 98, 0)
            + struct.pack("<4sLQL", b"PK\x06\x07", 0, HUGE - 98, 1)
            + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        )
    assert "its directory has more than" in refused(path)


def test_a_directory_of_very_many_files_is_refused(packed: Path) -> None:
    def add(file: zipfile.ZipFile, files: dict[str, bytes]) -> None:
        for i in range(3000):
            file.writestr(f"a{i}", b"")

    assert "its directory has more than" in refused(rewrite(packed, add))


def test_a_sparse_zip_with_absurd_weights_is_refused_unread(packed: Path, tmp_path: Path) -> None:
    """Weights of 8 GB that the manifest declares, for a config that needs kilobytes."""
    files = entries(packed)
    value = json.loads(files.pop("manifest.json"))
    del value["sha256"], files["model.safetensors"]
    value["files"]["model.safetensors"] = {"bytes": HUGE, "sha256": "0" * 64}
    folder = tmp_path / "signed"
    folder.mkdir()
    sign_manifest(folder, value)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in files.items():
            file.writestr(name, data)
        file.writestr("manifest.json", (folder / "manifest.json").read_bytes())
        with file.open(zipfile.ZipInfo("model.safetensors"), "w", force_zip64=True) as member:
            member.write(b"")
    data = bytearray(buffer.getvalue())
    start = data.rfind(b"PK\x01\x02")  # of the weights, the last entry
    directory = data.find(b"PK\x01\x02")
    head, tail = bytes(data[:directory]), data[directory:]
    entry = start - directory
    name = b"model.safetensors"
    extra = struct.pack("<HHQQ", 1, 16, HUGE, HUGE)
    fields = bytearray(tail[entry : entry + 46])
    fields[20:28] = b"\xff" * 8
    fields[30:32] = struct.pack("<H", len(extra))
    end = tail[tail.rfind(b"PK\x05\x06") :]
    new = bytes(tail[:entry]) + bytes(fields) + name + extra
    offset = len(head) + HUGE
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 7, 7, len(new), offset)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, offset + len(new), 1)
    end[12:20] = b"\xff" * 8
    with packed.open("wb") as sink:
        sink.write(head)
        sink.seek(offset)
        sink.write(new + record + locator + bytes(end))
    assert f"{HUGE:,}" in refused(packed)


def test_a_config_with_absurd_sizes_is_refused_before_anything_is_allocated(packed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, data in entries(packed).items():
        (folder / name).write_bytes(data)
    value = yaml.read(folder / "config.yaml")
    value["model"] |= {"width": 40_000}
    (folder / "config.yaml").write_text(yaml.dump(value))
    sign(folder)

    def change(file: zipfile.ZipFile, files: dict[str, bytes]) -> None:
        files |= contents(folder) | {"manifest.json": (folder / "manifest.json").read_bytes()}

    assert "tiny.zip/config.yaml" in refused(rewrite(packed, change))


def test_a_changed_file_is_named_inside_its_zip(packed: Path) -> None:
    def change(file: zipfile.ZipFile, files: dict[str, bytes]) -> None:
        files["model.safetensors"] = files["model.safetensors"][:-1] + b"\x7f"

    assert "tiny.zip/model.safetensors: checksum mismatch" in refused(rewrite(packed, change))


def test_a_missing_file_is_named(packed: Path) -> None:
    rewrite(packed, lambda file, files: files.__delitem__("joint.tokenizer.json"))
    assert "tiny.zip/joint.tokenizer.json: is missing" in refused(packed)
    rewrite(packed, lambda file, files: files.__delitem__("manifest.json"))
    assert "tiny.zip/manifest.json" in refused(packed)


def test_a_checkpoint_of_a_run_is_never_a_zip(packed: Path, original: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(original, run / "checkpoints" / "step-1")
    shutil.copy(packed, run / "checkpoints" / "step-2")
    (run / "run.json").write_text('{"format": 1}')
    (run / "best").write_text("step-2\n")
    (run / "last").write_text("step-1\n")
    assert model_folder.resolve(run).name == "step-1"
