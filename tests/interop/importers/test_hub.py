"""`dragoman import hub:OWNER/NAME`, fetched by huggingface_hub from a server with the Hub's routes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.interop.importers.conftest import ImportedCase

from dragoman.core.errors import UserError
from dragoman.interop.importers import import_model
from dragoman.interop.importers.hub import choose_weights

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Repositories by name: folders, whose files have one commit."""

    def __init__(self, repositories: dict[str, Path]) -> None:
        self.repositories = repositories
        self.fetched: set[str] = set()
        super().__init__(("127.0.0.1", 0), Routes)


class Routes(BaseHTTPRequestHandler):
    """/api/models/NAME[/revision/REV] and /NAME/resolve/REV/FILE."""

    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        for name, folder in self.server.repositories.items():
            if path.startswith(f"api/models/{name}"):
                siblings = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
                return self.answer(json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())
            if path.startswith(f"{name}/resolve/"):
                file = folder / path.rpartition("/")[2]
                if self.command == "GET":
                    self.server.fetched.add(file.name)
                return self.answer(file.read_bytes())
        return self.answer(b"{}", 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})

    def answer(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        etag = f'"{hashlib.sha1(body).hexdigest()}"'
        given = {"Content-Length": str(len(body)), "ETag": etag, "X-Repo-Commit": COMMIT, **(headers or {})}
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(imported: Callable[[str], ImportedCase], tmp_path: Path) -> Iterator[Hub]:
    folder = imported("marian").theirs.folder
    server = Hub({"toy/marian": folder, "toy/pickled": tmp_path / "pickled"})
    (tmp_path / "pickled").mkdir()
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / "pickled" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "pickled/pytorch_model.bin").write_bytes(b"\x80")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(hub: Hub, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}",
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-m", "dragoman", "import", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_a_repository_is_fetched_and_equals_the_folder_on_disk(
    hub: Hub, imported: Callable[[str], ImportedCase], tmp_path: Path
) -> None:
    done = run(hub, tmp_path, "hub:toy/marian", "ours")
    assert done.returncode == 0, done.stderr
    weights = "model.safetensors"
    assert (tmp_path / "ours" / weights).read_bytes() == (imported("marian").path / weights).read_bytes()
    assert weights in hub.fetched


def test_what_cannot_be_fetched_is_one_sentence_and_nothing_is_written(hub: Hub, tmp_path: Path) -> None:
    for source, remedy in (("hub:toy/absent", "cannot be fetched"), ("hub:toy/pickled", "--trust-pickle")):
        done = run(hub, tmp_path, source, "ours")
        assert done.returncode == 2, done.stderr
        assert remedy in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "ours").exists()
    assert "pytorch_model.bin" not in hub.fetched


@pytest.mark.parametrize("name", ["toy", "a/b/c", "../up", "a/b@", "https://somewhere/a"])
def test_other_names_are_refused_before_anything_is_fetched(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hub:OWNER/NAME"):
        import_model(f"hub:{name}", tmp_path / "ours")


def test_pickles_are_chosen_last_and_only_where_they_are_trusted() -> None:
    names = ["config.json", "pytorch_model.bin", "tf_model.h5", "model.bin", "model.safetensors"]
    assert choose_weights(names, trust_pickle=True) == ["model.safetensors"]
    assert choose_weights(names[:4], trust_pickle=True) == ["model.bin"]
    assert choose_weights(names[:3], trust_pickle=True) == ["pytorch_model.bin"]
    assert choose_weights(names[:3], trust_pickle=False) == []
