"""A page in one file, opened from the disk in Chromium, and the folder of ES modules, in Chromium and in Node.

A message on the console of the kind "error", an exception, or a request to anything but the file itself and the worker
that it makes fails the test that caused it, unless the test expects it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser_engine.families import FAMILIES, TRANSFORMER
from tests.browser_engine.small_models import find_difference, random_texts, reference_predictions, small_pipeline

from dragoman.browser import export, page_html
from dragoman.browser.data_blocks import encode_block
from dragoman.browser.description import describe_model, read_license
from dragoman.browser.page_script import read_page_modules, to_literal
from dragoman.checkpoint import kept_examples, model_folder, packing
from dragoman.core.errors import RunError, UserError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference.pipeline import Pipeline, load
from dragoman.inspection.views import alignment, beam, find_view, steps
from dragoman.text.codec import CodecLearner, build_codec

MARKUP = "<img src=x onerror=alert(1)>"
DAMAGED = re.compile("cut short|changed")
DROP = """([selector, name, text]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([text], name));
    const options = { dataTransfer: carried, bubbles: true, cancelable: true };
    const target = document.querySelector(selector);
    for (const type of ["dragover", "drop"]) target.dispatchEvent(new DragEvent(type, options));
}"""
NAMELESS = """[...document.querySelectorAll("input, select, textarea, button, progress")].filter((one) =>
    !one.labels?.length && !one.ariaLabel && !one.ariaLabelledByElements?.length && !one.textContent.trim())
    .map((one) => one.outerHTML)"""
PRINTED = 1.5e-3  # three digits after the point, and the rounding of the engine


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("there is no Chromium on the PATH: make browser, or install chromium")
    rights = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found[0], args=rights)
        yield browser
        browser.close()


class Tab:
    """A tab with an exported page."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.wrong: list[str] = []
        tab.set_default_timeout(15_000)
        tab.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        tab.on("dialog", lambda dialog: (self.wrong.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        allowed = ("file:", "blob:", "data:image/svg+xml;")
        tab.on("request", lambda one: None if one.url.startswith(allowed) else self.wrong.append(one.url))

    def go(self, file: Path, fragment: str = "") -> Tab:
        self.tab.goto("about:blank")
        self.tab.goto(f"{file.as_uri()}#{fragment}")
        return self.settled()

    def settled(self) -> Tab:
        self.tab.wait_for_selector("#opening", state="detached")
        self.tab.wait_for_selector('#panels[aria-busy="false"]', state="attached")
        return self

    def ask(self, source: str) -> Tab:
        self.tab.locator("#source").fill(source)
        self.tab.locator("#predict").click()
        return self.settled()

    def choose(self, view: str) -> Any:
        self.tab.locator(f"#tab-{view}").click()
        return self.settled().tab.locator(f"#panel-{view}")

    def sentence(self) -> str:
        """Why the page does not work, as it says it."""
        text: str = self.tab.wait_for_selector("#trouble:not([hidden]), #incomplete", state="visible").inner_text()
        return text


@pytest.fixture
def open_tab(chromium: Any) -> Iterator[Callable[..., Tab]]:
    tabs: list[tuple[Any, Tab]] = []

    def new(width: int = 1280, **options: Any) -> Tab:
        context = chromium.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        tabs.append((context, Tab(context.new_page())))
        return tabs[-1][1]

    yield new
    for context, tab in tabs:
        context.close()
        assert tab.wrong == []


@pytest.fixture(scope="module")
def models() -> dict[str, Pipeline]:
    return {
        MARKUP: small_pipeline(TRANSFORMER, TRANSFORMER, ends=-3.0),
        "bahdanau": small_pipeline(**FAMILIES["bahdanau"], seed=1),
        "language model": small_pipeline(**FAMILIES["language model"], seed=2),
        "classifier": small_pipeline(**FAMILIES["classifier"], seed=3),
    }


@pytest.fixture(scope="module")
def file(models: dict[str, Pipeline], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "models.html"
    size = export.export_page({name: models[name] for name in (MARKUP, "bahdanau")}, out, "float32")
    assert size == out.stat().st_size
    return out


@pytest.fixture(scope="module")
def other_file(models: dict[str, Pipeline], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "others.html"
    export.export_page({name: models[name] for name in ("language model", "classifier")}, out, "float32")
    return out


@pytest.fixture(scope="module")
def small_file(models: dict[str, Pipeline], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "one.html"
    export.export_page({"small": models["bahdanau"]}, out, "int8", today="2026-01-31")
    return out


def fields(panel: Any, field: str) -> list[str]:
    texts: list[str] = panel.locator(f'[data-field="{field}"]').all_text_contents()
    return texts


def are_printed(texts: list[str], values: list[float], tolerance: float = PRINTED) -> bool:
    return len(texts) == len(values) and np.allclose([float(text) for text in texts], values, atol=tolerance)


# -- answers -----------------------------------------------------------------------------------------------------------


def test_the_page_answers_as_python_does(open_tab: Callable[..., Tab], file: Path, models: Any) -> None:
    tab = open_tab().go(file, "beam=4&nbest=3")
    panel = tab.tab.locator("#panel-result")
    for text in random_texts(3, seed=5):
        tab.ask(text)
        [best] = models[MARKUP].predict([text], beam=4, nbest=3)
        every = [best, *best.alternatives]
        assert fields(panel, "text") == [best.text or "(empty)"]
        assert fields(panel, "best_text") == [one.text or "(empty)" for one in every]
        assert are_printed(fields(panel, "best_log_prob"), [one.log_prob for one in every])
        assert are_printed(fields(panel, "token_log_prob"), best.log_probs)


def test_the_views_are_those_of_python(open_tab: Callable[..., Tab], file: Path, models: Any) -> None:
    tab, model, text = open_tab(), models[MARKUP], "abcde"
    tab.go(file, f"source={text}&beam=3&reference=edcba")
    reference = fields(tab.tab.locator("#panel-result"), "reference_log_prob")
    assert are_printed(reference, model.score([(text, "edcba")]))

    panel, expected = tab.choose("alignment"), alignment.compute_alignment(model, text, beam=3)
    assert are_printed(fields(panel, "log_prob"), [expected["log_prob"]])
    panel.locator("summary").first.click()
    panel.locator('[data-field="weight"]').first.wait_for()
    weights = [x for row in expected["soft"] for x in row]
    assert are_printed(fields(panel, "weight"), weights, 1e-2)
    heads = [head for layer in expected["maps"] if layer["kind"] == "cross" for head in layer["heads"]]
    assert panel.locator("[data-head]").count() == len(heads) > 1
    assert panel.locator(".headbox input").count() == 0  # the engine cannot switch a head off

    panel, traced = tab.choose("beam"), beam.trace_beam(model, text, beam=3)
    assert fields(panel, "text") == [one["text"] or "(empty)" for one in traced["results"]]
    assert are_printed(fields(panel, "score"), [one["score"] for one in traced["results"]])
    panel.locator("summary").last.click()
    panel.locator('[data-field="fate"]').first.wait_for()
    assert sorted(fields(panel, "fate")) == sorted(node["fate"] for node in traced["nodes"])

    panel = tab.choose("steps")
    walked = steps.trace_steps(model, text, "edcba")
    for run in ("free", "forced"):
        shown = panel.locator(f'p [data-field="log_prob"][data-run="{run}"]').all_text_contents()
        assert are_printed(shown, [step["log_prob"] for step in walked[run]["steps"]])
    other = next(one["id"] for one in steps.trace_steps(model, text)["free"]["steps"][0]["top"][1:] if one["id"] > 3)
    panel.locator(f'button.option[data-id="{other}"]:not([disabled])').first.click()
    tab.settled()
    forced = steps.trace_steps(model, text, prefix=[other])
    assert fields(panel, "free_text") == [forced["free"]["text"] or "(empty)"]


def test_models_of_one_file_stand_side_by_side(open_tab: Callable[..., Tab], file: Path, models: Any) -> None:
    tab = open_tab().go(file, "source=abc")
    tab.tab.locator("#beside").select_option("bahdanau")
    tab.settled()
    names = [MARKUP, "bahdanau"]
    expected = [models[name].predict(["abc"], beam=5, nbest=3)[0].text or "(empty)" for name in names]
    assert fields(tab.tab.locator("#panel-result"), "text") == expected
    assert tab.tab.locator(".column h2").all_text_contents()[:2] == names


@pytest.mark.parametrize("name", ["language model", "classifier"])
def test_a_model_without_a_view_has_no_tab_for_it(
    open_tab: Callable[..., Tab], other_file: Path, models: Any, name: str
) -> None:
    tab = open_tab().go(other_file, f"model={name}&source=abc")
    options = {} if name == "classifier" else {"beam": 5}
    assert fields(tab.tab.locator("#panel-result"), "text") == [models[name].predict(["abc"], **options)[0].text]
    shown = tab.tab.get_by_role("tab").all_text_contents()
    hidden = {"Alignment", "Beam tree", "Steps"} - set(shown)
    assert hidden == ({"Alignment"} if name == "language model" else {"Alignment", "Beam tree", "Steps"})


def test_a_model_of_several_languages_offers_them(open_tab: Callable[..., Tab], tmp_path: Path) -> None:
    part = Part("characters")
    learner = CodecLearner(
        build_codec(part, part, True, "nfc", source_template="<to:{to}> {text} </s>", target_template="{text} </s>")
    )
    learner.add_source("a b c d e f g h")
    codec = learner.finish(["<to:de>", "<to:fr>"])
    pipeline = small_pipeline(TRANSFORMER, TRANSFORMER, codec=codec, joint=True, ends=-3.0)
    export.export_page({"tagged": pipeline}, tmp_path / "tagged.html", "float32")
    tab, shown = open_tab(), []
    for language in ("de", "fr"):
        tab.go(tmp_path / "tagged.html", f"source=abcd&language={language}&reference=abc")
        example = Example("abcd", target_lang=language)
        [best] = pipeline.predict([example], beam=5)
        assert fields(tab.tab.locator("#panel-result"), "text") == [best.text]
        panel, expected = tab.choose("alignment"), alignment.compute_alignment(pipeline, example, beam=5)
        assert are_printed(fields(panel, "log_prob"), [expected["log_prob"]])
        shown.append(best.log_prob)
    assert shown[0] != shown[1]
    assert tab.tab.locator("#language option").all_text_contents() == ["de", "fr"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_is_described_as_the_server_does_it(name: str) -> None:
    pipeline = small_pipeline(**FAMILIES[name])
    described = describe_model(name, pipeline)
    views = [view for view in ("alignment", "beam", "steps") if find_view(view).blocker(pipeline) is None]
    assert described["views"] == views
    responses = pytest.importorskip("dragoman.serve.responses")
    served = responses.describe_model(name, pipeline)
    for key in ("name", "source", "second_source", "languages", "source_languages", "kind"):
        assert described[key] == served[key]
    assert described["shape"].items() <= served["shape"].items()


def test_a_file_of_sources_comes_back_with_predictions(
    open_tab: Callable[..., Tab], file: Path, models: Any, tmp_path: Path
) -> None:
    tab, texts = open_tab().go(file, "view=batch&beam=2"), random_texts(5, seed=7)
    tab.tab.evaluate(DROP, [".drop:has(#batch-table)", "words.tsv", "".join(f"{x}\tnote\n" for x in texts)])
    tab.tab.get_by_role("button", name="Predict all").click()
    with tab.tab.expect_download() as download:
        tab.tab.get_by_role("link", name="Save words-predictions.tsv").click()
    download.value.save_as(tmp_path / "saved.tsv")
    rows = [line.split("\t") for line in (tmp_path / "saved.tsv").read_text("utf-8").splitlines()]
    assert [row[:3] for row in rows] == [
        [text, "note", one.text] for text, one in zip(texts, models[MARKUP].predict(texts, beam=2), strict=True)
    ]


def test_the_page_of_one_box_answers_and_leads_to_the_playground(
    open_tab: Callable[..., Tab], file: Path, models: Any
) -> None:
    tab = open_tab()
    tab.tab.goto(f"{file.as_uri()}#simple")
    tab.tab.wait_for_selector("#ask", state="visible")
    tab.tab.locator("#source").fill("abc\nde")
    tab.tab.locator("#predict").click()
    tab.tab.locator("#answer:not(:empty)").wait_for()
    answers = [one.text for one in models[MARKUP].predict(["abc", "de"])]
    assert tab.tab.locator("#answer").text_content() == "\n".join(answers)
    tab.tab.get_by_role("link", name="Show how the model").click()
    tab.tab.wait_for_selector("#tabs", state="visible")
    tab.settled()


# -- how it behaves ----------------------------------------------------------------------------------------------------


def test_texts_and_names_are_shown_literally(open_tab: Callable[..., Tab], file: Path) -> None:
    source = "<script>alert(2)</script><b>ab</b>"
    tab = open_tab().go(file)
    for view in ("result", "alignment", "beam", "steps"):
        tab.choose(view)
        tab.ask(source)
    assert source in tab.tab.locator("#panel-alignment").text_content()
    assert tab.tab.locator("#incomplete").count() == 0
    tab.tab.locator(".card summary").click()
    assert MARKUP in tab.tab.locator(".card").inner_text()
    assert tab.tab.title().startswith(MARKUP)
    assert (
        tab.tab.evaluate("document.querySelectorAll('img, main script, main b').length") == 1
    )  # the page's own picture


def test_the_policy_allows_no_connection_and_no_other_script(open_tab: Callable[..., Tab], file: Path) -> None:
    tab = open_tab().go(file)
    assert tab.tab.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    tab.tab.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))")
    assert tab.tab.evaluate("window.ran === undefined")
    assert len([text for text in tab.wrong if "Content Security Policy" in text]) == len(tab.wrong) >= 2
    tab.wrong.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_whole_page(open_tab: Callable[..., Tab], file: Path, scheme: str) -> None:
    tab = open_tab(width=390, color_scheme=scheme).go(file, "source=abcdefgh")
    tab.tab.locator(".card summary").click()
    for view in ("result", "batch", "alignment", "beam", "steps"):
        tab.choose(view)
        assert tab.tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.tab.evaluate(NAMELESS) == []


def test_a_source_of_a_million_characters_is_refused_and_one_of_no_known_script_is_answered(
    open_tab: Callable[..., Tab], file: Path, models: Any
) -> None:
    tab = open_tab().go(file)
    tab.tab.evaluate("document.querySelector('#source').value = 'ab'.repeat(500_000)")  # typing them takes longer
    tab.tab.locator("#predict").click()
    tab.settled()
    refused = tab.tab.locator("#panel-result .refusal").text_content()
    assert refused == "the source has 1,000,000 characters; give at most 50,000"
    for text in ("a" * 50_000, "𒀀𒁀 ሰላም 👩‍👩‍👧 \u202e", "\n"):
        tab.ask(text)
        expected = models[MARKUP].predict([text], beam=5)[0].text
        assert fields(tab.tab.locator("#panel-result"), "text") == [expected or "(empty)"]


def test_what_is_asked_meanwhile_replaces_what_was_asked(open_tab: Callable[..., Tab], file: Path, models: Any) -> None:
    tab = open_tab().go(file)
    for text in ("a" * 12, "b" * 12, "abc"):
        tab.tab.locator("#source").fill(text)
        tab.tab.locator("#predict").click()
    tab.settled()
    assert fields(tab.tab.locator("#panel-result"), "text") == [models[MARKUP].predict(["abc"], beam=5)[0].text]


def test_what_is_replaced_stops_computing(open_tab: Callable[..., Tab], tmp_path: Path) -> None:
    endless = {"search": "greedy", "max_new_tokens": 10_000_000}
    pipeline = small_pipeline(**FAMILIES["bahdanau"], ends=-1e4, generation=endless)
    export.export_page({"endless": pipeline}, tmp_path / "endless.html", "float32")
    tab = open_tab()
    tab.tab.goto(f"{(tmp_path / 'endless.html').as_uri()}#source=abc&beam=1&nbest=1")
    tab.tab.locator("#waiting").wait_for()
    tab.ask(" ")  # a model answers this without a search, and does so only when the other one has ended
    assert fields(tab.tab.locator("#panel-result"), "text") == ["(empty)"]
    tab.choose("batch")
    tab.tab.evaluate(DROP, [".drop:has(#batch-table)", "words.txt", "abc\nde\n"])
    tab.tab.get_by_role("button", name="Predict all").click()
    tab.tab.get_by_role("button", name="Cancel").click()
    tab.tab.get_by_text("Cancelled. 0 of 2 rows done.").wait_for()


# -- damaged files -----------------------------------------------------------------------------------------------------


def damaged_pages(page: str) -> dict[str, tuple[str, int]]:
    """Pages that were cut or edited, and how many errors the browser notes on its console."""
    [weights] = re.findall(r'id="weights-0">([^<]+)<', page)
    [header] = re.findall(r'id="header-0">([^<]+)<', page)
    middle = len(weights) // 2
    swapped = weights[:middle] + ("A" if weights[middle] != "A" else "B") + weights[middle + 1 :]
    content = gzip.decompress(base64.b64decode(header)) if "small" in page else b"{}"
    other = encode_block(content.replace(b'"small"', b'"large"'))["text"]
    return {
        "in the script": (page[: page.index("const bundled") + 5000], 0),
        "before the weights": (page[: page.index(weights)], 0),
        "in the weights": (page[: page.index(weights) + middle], 0),
        "a letter of the weights": (page.replace(weights, swapped), 0),
        "no base64": (page.replace(weights, f"<>&{weights[3:]}"), 0),
        "another description": (page.replace(header, other), 0),
        "the script": (page.replace("const bundled", "alert(1); const bundled"), 1),
    }


@pytest.mark.parametrize("damage", list(damaged_pages('id="weights-0">AAAA<id="header-0">AA<const bundled')))
def test_a_page_that_was_cut_or_edited_says_so(
    open_tab: Callable[..., Tab], small_file: Path, tmp_path: Path, damage: str
) -> None:
    text, errors = damaged_pages(small_file.read_text("utf-8"))[damage]
    (tmp_path / "damaged.html").write_text(text, encoding="utf-8")
    tab = open_tab()
    tab.tab.goto((tmp_path / "damaged.html").as_uri())
    sentence = tab.sentence()
    assert DAMAGED.search(sentence)
    assert "\n" not in sentence
    assert len(tab.wrong) == errors
    tab.wrong.clear()


def test_a_weight_that_is_no_number_is_named(
    open_tab: Callable[..., Tab], models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_nan(pipeline: Pipeline, precision: Any) -> tuple[dict[str, Any], bytes]:
        header, data = export_data(pipeline, precision)
        values = np.frombuffer(data, "<f4").copy()
        values[3] = np.nan
        return header | {"sha256": hashlib.sha256(values.tobytes()).hexdigest()}, values.tobytes()

    export_data = export.model_data
    monkeypatch.setattr(export, "model_data", with_nan)
    export.export_page({"small": models["bahdanau"]}, tmp_path / "nan.html", "float32")
    tab = open_tab()
    tab.tab.goto((tmp_path / "nan.html").as_uri())
    assert re.fullmatch(r"small: the weight [\w.]+ has a value that is no finite number; .*", tab.sentence())


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_same_model_makes_the_same_file(models: Any, small_file: Path, tmp_path: Path) -> None:
    export.export_page({"small": models["bahdanau"]}, tmp_path / "again.html", "int8", today="2026-01-31")
    assert (tmp_path / "again.html").read_bytes() == small_file.read_bytes()
    assert "2026-01-31" not in small_file.read_text("utf-8")  # it is in the description, whose hash the script has


def test_the_page_without_its_model_takes_less_than_300_kilobytes(small_file: Path) -> None:
    page = small_file.read_text("utf-8")
    data = sum(map(len, re.findall(r'<script type="application/octet-stream" id="[^"]+">([^<]+)<', page)))
    assert len(page) - data < 300_000


def test_a_block_is_compressed_only_where_that_makes_it_smaller() -> None:
    noise = np.random.default_rng(0).bytes(3000)
    assert encode_block(noise)["encoding"] == "none"
    assert encode_block(b"a" * 3000)["encoding"] == "gzip"
    assert len(encode_block(b"a" * 3000)["text"]) < 100


def test_a_page_must_not_replace_the_model_and_needs_a_file(models: Any, tmp_path: Path) -> None:
    (tmp_path / "model.html").write_text("mine")
    with pytest.raises(RunError, match="is also an input"):
        export.export_page({"m": models["bahdanau"]}, tmp_path / "model.html", inputs=[tmp_path / "model.html"])
    assert (tmp_path / "model.html").read_text() == "mine"
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(RunError, match="it is a folder"):
        export.export_page({"m": models["bahdanau"]}, tmp_path / "folder.html")


def test_what_the_engine_lacks_is_named_with_its_model(tmp_path: Path) -> None:
    hard = small_pipeline(TRANSFORMER, TRANSFORMER, generation={"search": "exhaustive"})
    with pytest.raises(UserError, match=r"^first: this model cannot run in a browser: generation\.search"):
        export.export_page({"first": hard}, tmp_path / "page.html")
    with pytest.raises(UserError, match="cannot run in a browser"):
        export.export_modules(hard, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_no_part_of_the_page_can_end_its_element() -> None:
    assert "<" not in to_literal({"name": "</script><!--"})
    with pytest.raises(AssertionError, match="would end its element"):
        page_html.render_page("title", 'alert("</script>")', {})


def test_every_word_that_the_page_replaces_is_the_playgrounds() -> None:
    for page, words in (("index", page_html.PLAYGROUND_WORDS), ("simple", page_html.SIMPLE_WORDS)):
        body = page_html.read_body(page, {})
        assert {old: body.count(old) for old in words} == dict.fromkeys(words, 1)
    assert page_html.read_body("simple", {}).count(page_html.TITLE) == 1


def test_the_local_server_has_the_exports_of_the_playgrounds() -> None:
    exported = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
    modules = read_page_modules()
    assert set(exported.findall(modules["server"])) <= set(exported.findall(modules["local_server"]))


# -- modules -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(models: dict[str, Pipeline], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("modules") / "a model"
    size = export.export_modules(models["bahdanau"], out, "float32", name="A model")
    assert size == sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return out


TEXTS, OPTIONS = ["abc", "hgfed", ""], {"beam": 3, "nbest": 2, "attention": True}
PREDICT = "async ([url, texts, options]) => JSON.stringify(await (await load(url)).predict(texts, options))"


def expected_answers(models: Any) -> list[dict[str, Any]]:
    return reference_predictions(models["bahdanau"], TEXTS, OPTIONS)


def test_the_modules_answer_in_node_as_python_does(folder: Path, models: Any, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node on the PATH")
    program = f"""
        import {{ load }} from {json.dumps((folder / "index.js").as_uri())};
        const predict = {PREDICT};
        console.log(await predict({json.dumps([None, TEXTS, OPTIONS])}.map((x) => x ?? undefined)));
        console.log((await (await load({json.dumps(os.path.relpath(folder, tmp_path))})).predict("abc")).text);
    """
    (tmp_path / "program.mjs").write_text(program, encoding="utf-8")
    done = subprocess.run([node, "program.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answers, single = done.stdout.splitlines()
    assert find_difference(expected_answers(models), json.loads(answers)) is None
    assert single == models["bahdanau"].predict(["abc"])[0].text


def test_the_modules_answer_in_a_page_and_notice_changes(chromium: Any, folder: Path, models: Any) -> None:
    home, damaged = "http://dragoman.test/", {"weights.bin": b"\0\0\0\0", "manifest.json": b"!"}
    damaged["model.json"] = (folder / "model.json").read_bytes().replace(b'"beam":5', b'"beam":6')
    damage: dict[str, bytes] = {}

    def answer(route: Any) -> None:
        name = route.request.url.removeprefix(home)
        kind = {".js": "text/javascript", ".json": "application/json"}.get(Path(name).suffix, "text/html")
        body = (folder / name).read_bytes() if name else b"<!doctype html><title>a page</title>"
        route.fulfill(body=damage.get(name, b"") + body[len(damage.get(name, b"")) :], content_type=kind)

    page = chromium.new_page()
    page.route("**/*", answer)
    page.goto(home)
    page.evaluate("async () => { globalThis.load = (await import('/index.js')).load; }")
    answers = json.loads(page.evaluate(f"async (given) => ({PREDICT})(given)", [home, TEXTS, OPTIONS]))
    assert find_difference(expected_answers(models), answers) is None
    for name, data in damaged.items():
        damage = {name: data}
        sentence = page.evaluate("(url) => load(url).then(() => '', (error) => error.message)", home)
        assert re.search("get the folder again|get it again", sentence), name
    page.close()


def test_the_types_name_every_option_and_every_field() -> None:
    package = Path(export.__file__).parent / "package"
    types = (package / "index.d.ts").read_text("utf-8")
    engine = Path(export.__file__).parent / "engine"
    [checks] = re.findall(
        r"const OPTION_CHECKS = \{(.*?)\n\};", (engine / "generation.js").read_text("utf-8"), re.DOTALL
    )
    declared = re.findall(r"^  (\w+)\??:", types, re.MULTILINE)
    assert set(re.findall(r"^  (\w+):", checks, re.MULTILINE)) <= set(declared)
    pipeline = small_pipeline(TRANSFORMER, TRANSFORMER)
    assert set(reference_predictions(pipeline, ["a"], {})[0]) | {"finish_reason"} <= set(declared)


def test_the_card_of_a_packed_model_has_its_license_and_the_page_an_example(tmp_path: Path) -> None:
    pipeline = small_pipeline(TRANSFORMER, TRANSFORMER)
    assert read_license(pipeline) is None
    config, codec = pipeline.config, pipeline.codec
    kept = kept_examples.to_files([Example("abc", target="cba")])
    model_folder.save(tmp_path / "model", config, model_folder.unique_weights(pipeline.model), codec, kept)
    packing.pack(tmp_path / "model", tmp_path / "m.zip", {"card.json": b'{"license": "CC BY 4.0"}'} | kept)
    packed = load(tmp_path / "m.zip", "cpu")
    assert read_license(packed) == "CC BY 4.0"
    described = describe_model("m", packed)
    assert described["example"] == {"source": "abc", "source_lang": None, "target_lang": None}
    assert described["views"][-1] == "examples"


def test_the_page_that_the_readme_links_to_pronounces_a_word(open_tab: Callable[..., Tab]) -> None:
    """`dragoman demo` wrote it; it is written anew where the engine or the format of its data changes."""
    page = open_tab().go(Path(__file__).parents[2] / "docs" / "demo.html").ask("dragoman")
    assert "D R AE G" in page.tab.locator("#panel-result").inner_text()
    assert not page.wrong
