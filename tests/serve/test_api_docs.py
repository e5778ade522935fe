"""docs/serving.md says what the server does: its options, defaults, metrics and routes are all there, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from dragoman.cli import serve
from dragoman.core.errors import UserError
from dragoman.inspection.views import views
from dragoman.serve.settings import ServerSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_docs_have_every_option_with_its_default() -> None:
    section = PAGE.split("### Options")[1].split("\n## ")[0]
    found = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", section, re.MULTILINE))
    defaults = ServerSettings().model_dump()
    assert found == {name: value if isinstance(value, str) else json.dumps(value) for name, value in defaults.items()}


def test_the_docs_have_every_metric(server: Any) -> None:
    server.predict("abc")
    kinds = re.findall(r"^# TYPE (\w+) (?:counter|gauge|histogram)$", server.client.get("/metrics").text, re.MULTILINE)
    section = PAGE.split("## Health and metrics")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(dragoman_\w+)", section, re.MULTILINE)) == {
        kind for kind in kinds if not kind.endswith("_created")
    }


def test_the_docs_have_every_route_and_view(server: Any) -> None:
    routes = server.client.get("/openapi.json").json()["paths"]
    for path in [path for path in routes if not path.startswith("/v1/inspect/")]:
        assert f" {path}`" in PAGE, path
    (line,) = [line for line in PAGE.split("\n") if "POST /v1/inspect/VIEW" in line]
    assert re.findall(r"`(\w+)`", line) == views.names


def test_keys_come_from_the_environment_and_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("# the shop\nkey-of-the-shop\n\n key-of-the-app \n", encoding="utf-8")
    monkeypatch.setenv(serve.KEYS_VARIABLE, "one, two,,")
    assert serve.read_keys(None) == ["one", "two"]
    assert serve.read_keys(file) == ["one", "two", "key-of-the-shop", "key-of-the-app"]
    monkeypatch.delenv(serve.KEYS_VARIABLE)
    assert serve.read_keys(None) == []


@pytest.mark.parametrize("value", ["", ",", " , ,"])
def test_keys_that_did_not_arrive_do_not_open_the_server(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(serve.KEYS_VARIABLE, value)
    with pytest.raises(UserError, match="has no key"):
        serve.read_keys(None)


def test_the_examples_of_a_service_give_the_server_time_to_drain() -> None:
    unit, image = ((ROOT / "deploy" / name).read_text(encoding="utf-8") for name in ("dragoman.service", "Dockerfile"))
    for found in (re.search(r"TimeoutStopSec=(\d+)", unit), re.search(r"--stop-timeout (\d+)", image)):
        assert found is not None
        assert int(found.group(1)) >= ServerSettings().drain_s + 5
    assert "NoNewPrivileges=yes" in unit
    assert re.search(r"^USER (?!root)", image, re.MULTILINE)
