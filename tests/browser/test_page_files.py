"""Files in the playground, the page of one box, and pages of other origins: a real server, a real browser.

Two models that have learned nothing: `letters` reads words, `tagged` longer texts, in two languages.
"""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("fastapi")

from tests.codec_learning import learn_codec

import dragoman
from dragoman import config as configs
from dragoman.checkpoint import kept_examples, model_folder
from dragoman.core.types import BOS, EOS, PAD, UNK, Example
from dragoman.inference.output_checks import output_probability
from dragoman.inference.pipeline import Pipeline

KEY = "a key for tests"
PATIENT = ("--set", "silence_s=20", "--set", "hang_s=30")  # a worker that is slow on a busy machine is no fault here
LONGEST = 300  # characters of a source
READER = {"name": "rnn", "cell": "gru"}
SAYS = ["Abc de. Cab! De.", "bead, cab and face", "a bad cab faded", "dad fed a bee"]
SUBWORDS = {"name": "bpe", "size": 32, "byte_fallback": False}
KEPT = [Example("abc", "cba"), Example("bead", "daeb"), Example("cab", "bac")]
DROP = """([selector, name, text]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([text], name));
    const options = { dataTransfer: carried, bubbles: true, cancelable: true };
    const target = document.querySelector(selector);
    for (const type of ["dragover", "drop"]) target.dispatchEvent(new DragEvent(type, options));
}"""
# What a page of another origin gets from the API: the status and the answer, or the browser's refusal.
FETCH = """([url, key]) => fetch(`${url}/v1/predict`, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) },
    body: JSON.stringify({ inputs: ["abc"] }),
}).then(async (answer) => [answer.status, await answer.json()], (error) => [0, error.name])"""


def save(folder: Path, tokenizer: Any, languages: tuple[str, ...], examples: list[Example]) -> None:
    """A model with random weights, so large that it says something definite."""
    value = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": {"source": tokenizer},
        "model": {"width": 16, "tie": "none", "encoder": READER, "decoder": READER},
        "generation": {"max_length_ratio": 1.0, "max_length_extra": 2},
    }
    config, tags = configs.validate(value, "a test"), [f"<to:{language}>" for language in languages]
    source = config.tokenizer.source
    codec = learn_codec(source, source, config.tokenizer.joint, "nfc", SAYS, SAYS, tags)
    model = configs.build_model(config, codec.source_size, len(codec.target))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)
        model.output.bias[[PAD, BOS, UNK]] = -1e4
        model.output.bias[EOS] = -2.0  # else many answers are empty
    files = kept_examples.to_files(examples)
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, files)


class Site(NamedTuple):
    """The server, another site beside it, and the models here."""

    url: str
    other_port: int
    models: dict[str, Pipeline]


class EmptyPage(BaseHTTPRequestHandler):
    """A page of another site."""

    def do_GET(self) -> None:  # http.server's name
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another site</title>")

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def other_site() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def site(browser: Any, other_site: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    torch.manual_seed(5)
    save(folder / "letters", "characters", (), KEPT)
    save(folder / "tagged", SUBWORDS, ("de", "fr"), [])
    listed = ("--allow-origin", f"http://127.0.0.1:{other_site}")
    options = (
        "--port",
        "0",
        "--device",
        "cpu",
        "--workers",
        "1",
        "--set",
        f"max_text={LONGEST}",
        "--set",
        "spare=false",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "dragoman", "serve", "letters", "tagged", *options, *listed, *PATIENT],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "DRAGOMAN_API_KEYS": KEY},
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())  # comes when it is ready, or ends with the process
    assert found
    yield Site(found.group(), other_site, {name: dragoman.load(folder / name, "cpu") for name in ("letters", "tagged")})
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0


@pytest.fixture
def open_tab(browser: Any, site: Site) -> Iterator[Callable[..., Any]]:
    """Opens a path of the server; afterwards nothing but refusals may stand on the console."""
    contexts, wrong = [], []

    def new(path: str, width: int = 1000, key: str | None = KEY, **options: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        if key is not None:
            contexts[-1].add_init_script(f"sessionStorage.setItem('dragoman-key', '{key}')")
        tab = contexts[-1].new_page()
        tab.set_default_timeout(15_000)
        tab.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.goto(site.url + path)
        return tab

    yield new
    for context in contexts:
        context.close()
    assert [text for text in wrong if "Failed to load resource" not in text] == []


# -- files in the playground -------------------------------------------------------------------------------------------


@pytest.fixture
def files_tab(open_tab: Callable[..., Any]) -> Any:
    tab = open_tab("/#view=batch&beam=2")
    tab.wait_for_selector('#panels[aria-busy="false"]')
    return tab


def choose(tab: Any, name: str, data: bytes, key: str = "batch") -> None:
    tab.locator(f"#{key}-table").set_input_files({"name": name, "mimeType": "text/plain", "buffer": data})


def predict_all(tab: Any) -> None:
    tab.get_by_role("button", name="Predict all").click()


def saved(tab: Any) -> tuple[str, str]:
    """The name and the text of the file that the page offers."""
    with tab.expect_download() as download:
        tab.get_by_role("link", name="Save").click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes().decode()


def columns_of(model: Pipeline, sources: list[str]) -> list[list[str]]:
    """prediction and probability, as Python has them."""
    found = model.predict(sources, beam=2)
    return [[one.text, f"{output_probability(one):.4g}"] for one in found]


def rounded(rows: list[list[str]]) -> list[list[str]]:
    """The probability in the last column with four digits: the last bits depend on who is decoded together."""
    return [[*row[:-1], f"{float(row[-1]):.4g}"] for row in rows]


def test_the_rows_of_a_csv_file_come_back_with_predictions(files_tab, site):
    rows = [
        ["id", "word", "note"],
        ["1", "abc", 'a "b", c'],
        ["2", "", "two\nlines"],
        ["3", "d e", ""],
        ["4", "bad", ";"],
    ]
    text = io.StringIO()
    csv.writer(text, delimiter=";", lineterminator="\r\n").writerows(rows)
    choose(files_tab, "list.csv", "\ufeff".encode() + text.getvalue().encode())
    assert files_tab.locator("#batch-source").evaluate("(one) => one.selectedOptions[0].textContent") == "word"
    predict_all(files_tab)
    name, answer = saved(files_tab)
    assert name == "list-predictions.csv"
    assert answer.startswith("\ufeff")  # which spreadsheet programs need
    head, *body = csv.reader(io.StringIO(answer[1:], newline=""), delimiter=";")
    assert head == [*rows[0], "prediction", "probability"]
    truth = columns_of(site.models["letters"], [row[1] for row in rows[1:]])
    assert rounded(body) == [[*row, *more] for row, more in zip(rows[1:], truth, strict=True)]


def test_lines_come_back_as_a_table_and_a_column_of_a_tsv_can_be_chosen(files_tab, site):
    choose(files_tab, "words.txt", b"abc\n\nbad")
    predict_all(files_tab)
    name, answer = saved(files_tab)
    assert name == "words-predictions.tsv"
    truth = columns_of(site.models["letters"], ["abc", "", "bad"])
    found = [line.split("\t") for line in answer.split("\n")[:-1]]
    assert rounded(found) == [[source, *more] for source, more in zip(["abc", "", "bad"], truth, strict=True)]
    choose(files_tab, "words.tsv", b"1\tabc\n2\tbad\textra\n")
    files_tab.get_by_label("Sources in").select_option("column 2")
    predict_all(files_tab)
    files_tab.get_by_text("2 of 2 rows done.").wait_for()
    found = [line.split("\t") for line in saved(files_tab)[1].split("\n")[:-1]]
    truth = columns_of(site.models["letters"], ["abc", "bad"])
    assert rounded(found) == [["1", "abc", "", *truth[0]], ["2", "bad", "extra", *truth[1]]]


def test_a_busy_server_is_asked_again_when_it_says_so(files_tab, site):
    asked: list[float] = []

    def busy_at_first(route: Any) -> None:
        asked.append(files_tab.evaluate("performance.now()"))
        if len(asked) > 1:
            route.continue_()
            return
        body = {"error": {"code": "busy", "message": "the queue is full", "field": None}}
        route.fulfill(status=429, headers={"Retry-After": "1"}, json=body)

    files_tab.route("**/v1/predict", busy_at_first)
    choose(files_tab, "words.txt", b"abc\nbad\n")
    predict_all(files_tab)
    files_tab.get_by_text("the server is busy; going on in 1 second").wait_for()
    files_tab.get_by_text("2 of 2 rows done.").wait_for()
    assert len(asked) == 2
    assert asked[1] - asked[0] >= 1000


def test_a_row_that_is_refused_has_no_prediction_and_the_others_have_theirs(files_tab, site):
    sources = ["abc"] * 5 + ["a" * (LONGEST + 1)] + ["bad"] * 5
    choose(files_tab, "words.txt", "\n".join(sources).encode())
    predict_all(files_tab)
    status = files_tab.locator('#panel-batch [role="status"]')
    status.get_by_text("11 of 11 rows done. 1 row without a prediction").wait_for()
    assert f"send at most {LONGEST}" in status.text_content()
    found = [line.split("\t")[1] for line in saved(files_tab)[1].split("\n")[:-1]]
    model = site.models["letters"]
    abc, bad = (one.text for one in model.predict(["abc", "bad"], beam=2))
    assert found == [abc] * 5 + [""] + [bad] * 5


def test_a_cancelled_file_keeps_the_rows_that_are_done(files_tab):
    asked: list[Any] = []
    files_tab.route("**/v1/predict", lambda route: (asked.append(route), len(asked) == 1 and route.continue_()))
    choose(files_tab, "words.txt", b"abc\n" * 150)
    predict_all(files_tab)
    files_tab.get_by_text("64 of 150 rows").wait_for()
    files_tab.get_by_role("button", name="Cancel").click()
    files_tab.get_by_text("Cancelled. 64 of 150 rows done.").wait_for()
    assert saved(files_tab)[1].count("\n") == 64
    assert files_tab.get_by_role("button", name="Predict all").is_visible()


def test_a_file_that_cannot_be_read_is_said_to_be_so(files_tab):
    for name, data, sentence in (
        ("a.csv", b"a\xff", "a.csv is not UTF-8; save it as text or CSV in UTF-8"),
        ("a.xlsx", b"PK", "a.xlsx is a spreadsheet; save it as CSV"),
        ("a.txt", b"", "a.txt is empty"),
        ("a.csv", b'a,"b\n', "the quote in row 1 is never closed"),
    ):
        choose(files_tab, name, data)
        files_tab.locator('#panel-batch [role="alert"]').get_by_text(sentence).wait_for()
        assert not files_tab.get_by_role("button", name="Predict all").is_visible()


def test_quality_begins_with_kept_pairs_and_takes_a_dropped_file(open_tab):
    tab = open_tab("/#view=quality")
    tab.wait_for_selector('#panels[aria-busy="false"]')
    pairs = tab.get_by_role("textbox", name="Pairs")
    assert pairs.input_value() == "\n".join(f"{one.source} ||| {one.target}" for one in KEPT)
    assert tab.locator('#panel-quality td[data-field="n"]').text_content() == f"{len(KEPT)}"
    rows = [f"{'abc'[i % 3]}{'de'[i % 2]}\t{i}" for i in range(400)]
    tab.evaluate(DROP, ["#panel-quality .drop", "pairs.tsv", "target\tsource\n" + "\n".join(rows)])
    tab.get_by_text("200 of the 400 pairs of pairs.tsv, evenly spread").wait_for()
    tab.locator('#panel-quality td[data-field="n"]', has_text="200").wait_for()
    lines = pairs.input_value().split("\n")
    assert lines == [f"{i} ||| {rows[i].split(chr(9))[0]}" for i in range(0, 400, 2)]


# -- the page of one box -----------------------------------------------------------------------------------------------


@pytest.fixture
def simple(open_tab: Callable[..., Any]) -> Callable[..., Any]:
    def new(model: str = "letters", **options: Any) -> Any:
        tab = open_tab(f"/simple?model={model}", **options)
        tab.get_by_role("button", name="Answer").wait_for()
        return tab

    return new


def answer(tab: Any) -> str:
    tab.locator("#answer:not([aria-busy]):not(:empty)").wait_for()
    text: str = tab.locator("#answer").text_content()
    return text


def test_the_box_is_ready_for_typing_and_enter_gives_the_answer_line_by_line(simple, site):
    tab = simple()
    tab.keyboard.type("abc")
    tab.keyboard.press("Shift+Enter")
    tab.keyboard.press("Shift+Enter")
    tab.keyboard.type("bad")
    tab.keyboard.press("Enter")
    abc, bad = (one.text for one in site.models["letters"].predict(["abc", "bad"]))
    assert answer(tab) == f"{abc}\n\n{bad}"


def test_a_longer_text_goes_sentence_by_sentence_into_the_language_that_is_chosen(simple, site):
    tab = simple("tagged")
    tab.get_by_label("Into").select_option("fr")
    tab.get_by_label("Your text").fill("Abc de.  Cab!\nDe.")
    tab.get_by_label("Your text").press("Enter")  # a line break
    assert tab.locator("#answer").text_content() == ""
    tab.get_by_label("Your text").press("Control+Enter")
    examples = [Example(source, target_lang="fr") for source in ("Abc de.", "Cab!", "De.")]
    first, second, third = (one.text for one in site.models["tagged"].predict(examples))
    assert answer(tab).rstrip("\n") == f"{first}  {second}\n{third}"


def test_the_keyboard_and_a_screen_reader_suffice_and_nothing_scrolls_at_320_pixels(simple):
    tab = simple(width=320)
    assert tab.evaluate("document.documentElement.scrollWidth") == 320
    order = []
    for _ in range(3):
        order.append(
            tab.evaluate("document.activeElement.labels?.[0]?.textContent ?? document.activeElement.textContent")
        )
        tab.keyboard.press("Tab")
    assert order == ["Your text", "Model", "Answer"]
    sizes = "performance.getEntriesByType('resource').map((one) => one.encodedBodySize)"
    assert sum(tab.evaluate(sizes)) < 64_000  # of which the playground has most, too
    live = tab.locator('[aria-live="polite"]:has(#answer)')
    assert live.count() == 1
    tab.get_by_label("Your text").fill("bad")
    tab.get_by_role("button", name="Answer").focus()
    tab.keyboard.press("Enter")
    answer(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") == 320


def test_a_key_is_asked_for_and_a_refusal_is_said(open_tab, site):
    tab = open_tab("/simple", key=None)
    tab.get_by_label("Key", exact=True).fill(KEY)
    tab.keyboard.press("Enter")
    tab.get_by_label("Your text").fill("a" * (LONGEST + 1))
    tab.keyboard.press("Enter")
    tab.get_by_role("alert").get_by_text(f"send at most {LONGEST}").wait_for()
    tab.get_by_label("Your text").fill("bad")
    tab.keyboard.press("Enter")
    assert answer(tab) == (site.models["letters"].predict(["bad"])[0].text or "(empty)")
    assert not tab.locator("#trouble").is_visible()


# -- pages of other origins --------------------------------------------------------------------------------------------


def test_a_page_of_a_listed_origin_uses_the_api_and_another_cannot(browser, site):
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(f"http://127.0.0.1:{site.other_port}/")
    status, body = tab.evaluate(FETCH, [site.url, KEY])
    assert (status, body["results"][0]["text"]) == (200, site.models["letters"].predict(["abc"])[0].text)
    status, body = tab.evaluate(FETCH, [site.url, ""])
    assert (status, body["error"]["code"]) == (401, "unauthorized")  # it may read refusals
    tab.goto(f"http://localhost:{site.other_port}/")
    assert tab.evaluate(FETCH, [site.url, KEY]) == [0, "TypeError"]
    context.close()
