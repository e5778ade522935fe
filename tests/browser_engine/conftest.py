"""A page in Chromium that has the engine's modules, under a strict content security policy, and small models in it.

No request leaves the browser: "http://dragoman.test" is answered by the test itself. A message on the console of the
kind "error" or an exception fails the test that caused it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.browser.model_data import Precision, model_data
from dragoman.inference.pipeline import Pipeline

ENGINE = Path(__file__).parents[2] / "src" / "dragoman" / "browser" / "engine"
HOME = "http://dragoman.test/"
STRICT_POLICY = "default-src 'none'; script-src 'self'"
POLICY = STRICT_POLICY + " 'wasm-unsafe-eval'"  # which WebAssembly needs, and nothing else
POLICIES = {"strict": STRICT_POLICY, "worker": POLICY + "; worker-src blob:"}

LOAD = """async ([header, tensors]) => {
    const { loadModel } = await import("/model_loading.js");
    const { buildPredictor } = await import("/predictor.js");
    const bytes = Uint8Array.from(atob(tensors), (character) => character.charCodeAt(0));
    globalThis.predictor = buildPredictor(header, await loadModel(header, bytes.buffer));
}"""
# Numbers that JSON lacks cross as texts.
CALL = """async ([module, name, args]) => {
    const call = module === null ? predictor[name] : (await import(`/${module}.js`))[name];
    const own = args.map((one) => (one === "predictor" ? predictor : one));
    const result = await call(...own);
    return JSON.stringify(result, (key, value) => (typeof value === "number" && !isFinite(value) ? `${value}` : value));
}"""


@pytest.fixture(scope="module")
def engine_page() -> Iterator[Any]:
    """Of a module, since as long as it is there an event loop runs in this process, and no other may."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("there is no Chromium on the PATH: make browser, or install chromium")
    rights = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    wrong: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found[0], args=rights)
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.route("**/*", answer_request)
        page.goto(HOME)
        yield page
        browser.close()
    assert wrong == []


def answer_request(route: Any) -> None:
    """Answer a request of the page with a module of the engine, or with an empty page."""
    name = route.request.url.removeprefix(HOME)
    headers = {"Content-Security-Policy": POLICIES.get(name, POLICY)}
    if name.endswith(".js"):
        route.fulfill(body=(ENGINE / name).read_text("utf-8"), content_type="text/javascript", headers=headers)
    else:
        route.fulfill(
            body="<!doctype html><html lang=en><title>engine</title>", content_type="text/html", headers=headers
        )


class EngineModel:
    """A model that is loaded in the page."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def call(self, name: str, *args: Any, module: str | None = None) -> Any:
        """The answer of a function of the predictor, or of a module, for which "predictor" stands for the predictor."""
        result = json.loads(self.page.evaluate(CALL, [module, name, list(args)]))
        return _restore_infinities(result)

    def predict(self, texts: list[str], options: dict[str, Any]) -> list[dict[str, Any]]:
        predictions: list[dict[str, Any]] = self.call("predict", texts, options)
        return predictions


def _restore_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restore_infinities(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore_infinities(item) for item in value]
    return float(value.replace("Infinity", "inf")) if value in ("Infinity", "-Infinity", "NaN") else value


@pytest.fixture
def load_engine(engine_page: Any) -> Callable[..., EngineModel]:
    """Loads a pipeline's model, or a header and bytes, in the page."""

    def load(pipeline: Pipeline, precision: Precision = "float32") -> EngineModel:
        return load_data(*model_data(pipeline, precision))

    def load_data(header: dict[str, Any], data: bytes) -> EngineModel:
        engine_page.evaluate(LOAD, [json.loads(json.dumps(header)), base64.b64encode(data).decode()])
        return EngineModel(engine_page)

    load.data = load_data  # type: ignore[attr-defined]
    return load
