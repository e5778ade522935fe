"""Pickled weights: read where the user trusts them, by a process in which nothing else can happen."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.cli.main import main
from dragoman.core.errors import ModelError
from dragoman.interop.importers import pickles
from dragoman.interop.importers.pickle_process import WRONG
from dragoman.interop.importers.pickles import open_pickles, read_pickles


class Call:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def leftovers() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("dragoman-pickle-*")}


# -- what is read ------------------------------------------------------------------------------------------------------


def test_tensors_of_all_kinds_come_out_as_they_went_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))  # other tests have leftovers of their own
    (tmp_path / "temporary").mkdir()
    tied = torch.randn(3, 4)
    first = {
        "a": tied,
        "same": tied,
        "transposed": tied.T,
        "half": torch.randn(5).half(),
        "brain": torch.randn(2, 2).bfloat16(),
        "double": torch.randn(2).double(),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "scalar": torch.tensor(3),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "epoch": 7,
    }
    second = OrderedDict(inner={"b": torch.randn(2)})
    torch.save(first, tmp_path / "pytorch_model-1.bin")
    torch.save(second, tmp_path / "pytorch_model-2.bin", _use_new_zipfile_serialization=False)
    before = leftovers()
    found = open_pickles(sorted(tmp_path.glob("*.bin")), True)
    assert leftovers() == before
    expected = {name: x for name, x in first.items() if isinstance(x, torch.Tensor)} | {"inner/b": second["inner"]["b"]}
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert found[name].shape == tuple(x.shape)
        torch.testing.assert_close(found[name].load(), x.detach(), atol=0, rtol=0)


@pytest.mark.long
def test_settings_beside_the_tensors_are_read_as_plain_values(tmp_path: Path) -> None:
    options = argparse.Namespace(layers=2, names=["a"], rate=0.5, nothing=None, odd={1, 2})
    torch.save({"opt": options, "model": {"w": torch.ones(2)}, "optim": {"x": torch.ones(9)}}, tmp_path / "m.pt")
    tensors, values = read_pickles([tmp_path / "m.pt"], True, values=("opt",), skip=("optim",), namespaces=True)
    assert list(tensors) == ["model/w"]
    assert values == {"opt": {"layers": 2, "names": ["a"], "rate": 0.5, "nothing": None, "odd": None}}


# -- canaries ----------------------------------------------------------------------------------------------------------


def server() -> socket.socket:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    return listening


def assert_nobody_came(listening: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        listening.accept()
    listening.close()


def write_canary(kind: str, path: Path, canary: Path, port: int) -> None:
    """A file of weights that would leave a canary, or call a port, if it were loaded by pickle."""
    calls = {
        "file": Call(open, str(canary), "w"),
        "shell": Call(os.system, f"touch {canary}"),
        "socket": Call(socket.create_connection, ("127.0.0.1", port)),
        "code": Call(exec, f"open({str(canary)!r}, 'w')"),
    }
    if kind == "plain pickle":
        path.write_bytes(pickle.dumps(calls["shell"]))
    else:
        torch.save({"w": torch.ones(1), "x": calls[kind]}, path)


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize(
    "kind",
    ["shell", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("socket", "file", "code", "plain pickle"))],
)
def test_a_program_in_a_pickle_does_not_run(
    kind: str, trust: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = server()
    write_canary(kind, tmp_path / "model.pt", tmp_path / "canary", listening.getsockname()[1])
    options = ["--trust-pickle"] if trust else []
    monkeypatch.setattr(
        sys, "argv", ["dragoman", "import", f"opennmt:{tmp_path / 'model.pt'}", str(tmp_path / "out"), *options]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    errors = capfd.readouterr().err
    assert ended.value.code == 2
    assert len(errors.splitlines()) == 1
    assert ("no weights need" if trust else "--trust-pickle") in errors
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    assert_nobody_came(listening)


DEEDS = {
    "write a file": "open({canary!r}, 'w')",
    "append to a file": "open({canary!r}, 'ab')",
    "write by a descriptor": "os.open({canary!r}, os.O_CREAT | os.O_WRONLY)",
    "read another file": "open('/etc/passwd')",
    "run a shell": "os.system('touch {canary}')",
    "start a process": "subprocess.Popen(['touch', {canary!r}])",
    "fork": "os.fork()",
    "become another": "os.execv('/bin/touch', ['touch', {canary!r}])",
    "spawn": "os.posix_spawn('/bin/touch', ['touch', {canary!r}], {{}})",
    "open a socket": "socket.socket()",
    "connect": "socket.create_connection(('127.0.0.1', {port}))",
    "make a folder": "os.mkdir({canary!r})",
    "make a link": "os.symlink('/', {canary!r})",
    "remove a file": "os.remove({victim!r})",
    "rename a file": "os.rename({victim!r}, {canary!r})",
    "truncate a file": "os.truncate({victim!r}, 0)",
    "load native code": "ctypes.CDLL(None)",
    "import a module": "__import__('sqlite3')",
    "kill": "os.kill(os.getppid(), 0)",
}


def test_in_the_sealed_process_nothing_can_be_done(tmp_path: Path) -> None:
    """The second wall: even a program that did run could do none of these things."""
    victim, canary = tmp_path / "victim", tmp_path / "canary"
    victim.write_text("here", encoding="utf-8")
    listening = server()
    code = (
        "import sys, os, socket, subprocess, ctypes, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('p', {str(pickles.PROGRAM)!r})\n"
        "p = importlib.util.module_from_spec(spec); spec.loader.exec_module(p)\n"
        "deed = eval('lambda: ' + sys.argv[1])\n"
        "p.seal({sys.argv[2]})\n"
        "open(sys.argv[2], 'rb').close()\n"  # what it may read
        "deed()\n"
    )
    for name, deed in DEEDS.items():
        filled = deed.format(canary=str(canary), victim=str(victim), port=listening.getsockname()[1])
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code, filled, str(victim)], capture_output=True)
        assert done.returncode == WRONG, (name, done.stderr)
        assert b"no weights need" in done.stdout
        assert [path.name for path in tmp_path.iterdir()] == ["victim"]
        assert victim.read_text(encoding="utf-8") == "here"
    assert_nobody_came(listening)


# -- what is damaged, or claims too much -------------------------------------------------------------------------------


def test_without_trust_a_pickle_is_not_opened(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "m.bin")
    with pytest.raises(ModelError, match="give --trust-pickle"):
        open_pickles([tmp_path / "m.bin"], False)


@pytest.mark.parametrize("trust", [True, False])
def test_a_zip_bomb_is_refused_before_anything_is_read(trust: bool, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "m.bin")
    with zipfile.ZipFile(tmp_path / "m.bin", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data/9", bytes(2**24))
    with pytest.raises(ModelError, match="claims"):
        open_pickles([tmp_path / "m.bin"], trust)


@pytest.mark.long
def test_tensors_that_claim_more_than_the_file_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(10**12)}, tmp_path / "m.bin")  # 4 TB of one number
    with pytest.raises(ModelError, match="more numbers than it can hold"):
        open_pickles([tmp_path / "m.bin"], True)


@pytest.mark.long
def test_a_storage_that_claims_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(1000)}, buffer, _use_new_zipfile_serialization=False)
    (tmp_path / "m.bin").write_bytes(buffer.getvalue().replace((1000).to_bytes(2, "little"), b"\xff\xff"))
    with pytest.raises(ModelError) as error:
        open_pickles([tmp_path / "m.bin"], True)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_that_is_cut_off_is_refused_in_one_sentence(share: float, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(100)}, tmp_path / "m.bin")
    data = (tmp_path / "m.bin").read_bytes()
    (tmp_path / "m.bin").write_bytes(data[: int(len(data) * share)] or b"PK\x03\x04")
    with pytest.raises(ModelError, match="is cut off or damaged"):
        open_pickles([tmp_path / "m.bin"], True)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        open_pickles([tmp_path / "none.bin"], True)
    with pytest.raises(ModelError, match="cannot be read"):
        open_pickles([tmp_path], True)
