"""The playground for models of images, sounds and questions about images, over a real server, in a real browser."""

from __future__ import annotations

import base64
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi")
pytest.importorskip("kaldi_native_fbank")

import soundfile
from PIL import Image
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.core.types import BOS, EOS, PAD, UNK, Example
from dragoman.inference import pipeline
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views import alignment

PATIENT = ("--set", "silence_s=20", "--set", "hang_s=30")  # a worker that is slow on a busy machine is no fault here
GRID = {"name": "image", "pixels": 32, "channels": 8, "stages": [1, 1]}
READER = {"name": "rnn", "cell": "gru"}
MODELS: dict[str, dict[str, Any]] = {
    "soft": {"frontend": GRID, "encoder": "identity"},
    "hard": {"frontend": GRID, "encoder": "identity", "decoder": READER | {"order": "before", "normalizer": "hard"}},
    "questions": {"encoder": READER, "second_source": {"frontend": GRID, "encoder": "identity"}},
    "speech": {"frontend": {"name": "audio", "rate": 8000, "bins": 24, "channels": 8}, "encoder": READER},
    "words": {"encoder": READER},
}
SAYS = ["a red square at the left", "is it blue ?"]
# What a browser does with a file that is let go over an element, or pasted into it.
DROP = """([selector, name, kind, data]) => {
    const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
    const carried = new DataTransfer();
    carried.items.add(new File([bytes], name, { type: kind }));
    const target = document.querySelector(selector);
    const options = { dataTransfer: carried, clipboardData: carried, bubbles: true, cancelable: true };
    if (globalThis.pasting) return target.dispatchEvent(new ClipboardEvent("paste", options));
    return ["dragover", "drop"].map((type) => target.dispatchEvent(new DragEvent(type, options)));
}"""


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 48, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def sound() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(np.arange(4000) * 0.2), 8000, format="wav")
    return file.getvalue()


def save(folder: Path, model: dict[str, Any]) -> None:
    """A model that has learned nothing but says something."""
    columns = ["source", "second_source", "target"] if "second_source" in model else ["source", "target"]
    value = {
        "data": {"train": "nowhere.tsv", "columns": columns},
        "tokenizer": {"source": "words"},
        "model": {"width": 16, "tie": "none", "decoder": READER | {"order": "before"}, **model},
        "generation": {"max_length_ratio": 0.0, "max_length_extra": 5},
    }
    config = configs.validate(value, "a test")
    words, (medium, second) = config.tokenizer.source, configs.source_readers(config)
    codec = learn_codec(words, words, config.tokenizer.joint, "nfc", SAYS, SAYS, [], medium, second)
    built = configs.build_model(config, codec.source_size, len(codec.target), codec.second_source_size)
    with torch.no_grad():
        for p in built.parameters():
            p.mul_(1.5)
        built.output.bias[[PAD, BOS, EOS, UNK]] = -1e4
    model_folder.save(folder, config, model_folder.unique_weights(built), codec, {})


class Playground(NamedTuple):
    """Where it is, and the same models here."""

    url: str
    models: dict[str, Pipeline]


@pytest.fixture(scope="module")
def playground(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    folder = tmp_path_factory.mktemp("playground")
    for name, model in MODELS.items():
        save(folder / name, model)
    words = [sys.executable, "-m", "dragoman", "serve", *MODELS, "--port", "0", "--device", "cpu", "--workers", "1"]
    process = subprocess.Popen(
        [*words, *PATIENT], cwd=folder, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())  # comes when it is ready, or ends with the process
    assert found
    yield Playground(found.group(), {name: pipeline.load(folder / name, "cpu") for name in MODELS})
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0


class Opened:
    """A tab on the playground; `wrong` is what it should not have said or asked for."""

    def __init__(self, tab: Any, url: str) -> None:
        self.tab, self.url = tab, url
        self.wrong: list[str] = []
        tab.set_default_timeout(15_000)
        tab.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        tab.on("request", lambda request: None if self.is_ours(request.url) else self.wrong.append(request.url[:80]))

    def is_ours(self, url: str) -> bool:
        return url.startswith((self.url, "data:"))

    def go(self, **state: str) -> Opened:
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.url}/#{'&'.join(f'{name}={value}' for name, value in state.items())}")
        return self.settled()

    def settled(self) -> Opened:
        self.tab.wait_for_selector('#panels[aria-busy="false"]')
        return self

    def drop(self, data: bytes, on: str = "#source-drop", name: str = "a.png", kind: str = "image/png") -> None:
        with self.tab.expect_response(re.compile("/v1/")):
            self.tab.evaluate(DROP, [on, name, kind, base64.b64encode(data).decode()])
        self.settled()

    def text(self, panel: str = "result") -> str:
        return str(self.tab.locator(f'#panel-{panel} [data-field="text"]').first.text_content())


@pytest.fixture
def page(browser: Any, playground: Playground) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = Opened(context.new_page(), playground.url)
    yield opened
    context.close()
    assert opened.wrong == []


def said(model: Pipeline, data: bytes, **more: Any) -> str:
    return model.predict([Example("the image", content=data, **more)], beam=5)[0].text


def test_where_no_key_is_needed_the_link_to_the_api_leads_there(page: Opened) -> None:
    page.go()
    with page.tab.expect_response("**/docs") as answer:
        page.tab.get_by_role("link", name="API").click()
    assert answer.value.status == 200
    assert page.tab.get_by_text("/v1/predict").first.is_visible()


def test_a_picture_that_is_dropped_is_shown_and_described(page: Opened, playground: Playground) -> None:
    page.go()
    assert "Drop an image" in page.tab.locator("#panel-result").inner_text()
    page.drop(picture(1))
    assert page.text() == said(playground.models["soft"], picture(1))
    shown = page.tab.locator("#source-preview img")
    assert shown.evaluate("(image) => image.decode().then(() => [image.naturalWidth, image.naturalHeight])") == [48, 30]
    assert page.tab.locator('[data-field="best_text"]').count() == 3
    page.drop(picture(2), on="body")  # beside its place
    assert page.text() == said(playground.models["soft"], picture(2))


def test_a_picture_can_be_chosen_by_keyboard_and_pasted(page: Opened, playground: Playground, tmp_path: Path) -> None:
    page.go()
    with page.tab.expect_file_chooser() as opening:
        page.tab.get_by_label("Image").press("Enter")
    (tmp_path / "b.png").write_bytes(picture(3))
    with page.tab.expect_response("**/v1/predict"):
        opening.value.set_files(tmp_path / "b.png")
    assert page.settled().text() == said(playground.models["soft"], picture(3))
    page.tab.evaluate("globalThis.pasting = true")
    page.drop(picture(4), on="body")
    assert page.text() == said(playground.models["soft"], picture(4))


def test_two_models_show_where_they_looked_side_by_side(page: Opened, playground: Playground) -> None:
    page.go(model="soft", model2="hard", view="alignment")
    page.drop(picture(1))
    columns = page.tab.locator("#panel-alignment .column")
    for column, name in zip(columns.all(), ("soft", "hard"), strict=True):
        look = alignment.compute_alignment(playground.models[name], Example("the image", content=picture(1)), beam=5)
        assert column.locator('[data-field="target_text"]').text_content() == look["target_text"]
        # The picture itself and one for each token.
        assert column.locator("img, image, canvas").count() >= len(look["target"])


def test_the_other_views_open(page: Opened) -> None:
    page.go(model="soft")
    page.drop(picture(1))
    for view in ("beam", "steps", "saliency"):
        page.tab.locator(f"#tab-{view}").click()
        panel = page.settled().tab.locator(f"#panel-{view}")
        panel.locator("svg, table, button.option").first.wait_for()
        assert panel.locator(".refusal").count() == 0
    for view in ("embedding_space", "quality", "probes"):  # of texts
        assert not page.tab.locator(f"#tab-{view}").is_visible()


def test_a_question_is_typed_beside_its_picture(page: Opened, playground: Playground) -> None:
    page.go(model="questions", source="is+it+red")
    assert page.tab.get_by_label("Source", exact=True).is_visible()
    page.drop(picture(1), on="#second_source-drop")
    (truth,) = playground.models["questions"].predict(
        [Example("is it red", second_source="the image", second_source_content=picture(1))], beam=5
    )
    assert page.text() == truth.text
    page.tab.get_by_label("Source", exact=True).fill("is it blue")
    with page.tab.expect_response("**/v1/predict") as answer:
        page.tab.get_by_role("button", name="Predict").click()
    assert answer.value.request.post_data_json["inputs"][0]["source"] == "is it blue"
    assert answer.value.ok


def test_a_sound_is_heard(page: Opened, playground: Playground) -> None:
    page.go(model="speech")
    page.drop(sound(), name="a.wav", kind="audio/wav")
    assert page.text() == said(playground.models["speech"], sound())
    player = page.tab.locator("#source-preview audio")
    # Its head was read. (wait_for_function would call eval, which the page's content security policy refuses.)
    player.evaluate("(one) => one.readyState > 0 || new Promise((done) => (one.onloadedmetadata = () => done(true)))")
    assert player.evaluate("(one) => one.duration") == pytest.approx(0.5)


def test_a_file_that_is_no_picture_is_refused_with_a_sentence(page: Opened) -> None:
    page.go(model="soft")
    page.drop(b"nothing", kind="text/plain")
    assert "is not an image that can be read" in page.tab.locator("#panel-result .refusal").inner_text()
    assert all("422" in text for text in page.wrong)
    page.wrong.clear()


def test_texts_and_pictures_keep_their_places_when_the_model_changes(page: Opened, playground: Playground) -> None:
    page.go(model="soft")
    page.drop(picture(1))
    assert page.tab.locator("#beside option").all_text_contents() == ["none", "hard"]  # what reads the same
    page.tab.locator("#model").select_option("words")
    assert page.settled().tab.get_by_label("Source", exact=True).is_visible()
    assert not page.tab.locator("#source-drop").is_visible()
    page.tab.locator("#model").select_option("hard")
    assert page.settled().text() == said(playground.models["hard"], picture(1))  # which has it already


@pytest.mark.long
def test_on_a_phone_nothing_scrolls_sideways_and_every_control_has_a_name(browser: Any, playground: Playground) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    opened = Opened(context.new_page(), playground.url)
    opened.go(model="questions").drop(picture(1), on="#second_source-drop")
    assert opened.tab.evaluate("document.documentElement.scrollWidth") == 390
    nameless = """[...document.querySelectorAll("input, select, textarea, button")].filter((one) =>
        one.checkVisibility() && !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
        .map((one) => one.outerHTML)"""
    assert opened.tab.evaluate(nameless) == []
    context.close()
    assert opened.wrong == []
