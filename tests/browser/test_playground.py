"""The playground over a real server, in a real browser: two models that have learned to turn letters round.

Every number on the page is compared with what the same request gives in Python, as Python prints it.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bench import letters
from tests.codec_learning import learn_codec

import dragoman
from dragoman import config as configs
from dragoman import inspection, serve, training
from dragoman.checkpoint import model_folder
from dragoman.core.errors import UserError
from dragoman.core.types import BOS, EOS, PAD, Example
from dragoman.data.samples import synthetic
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection import assessment
from dragoman.inspection.views import (
    alignment,
    beam,
    embedding_space,
    positions,
    probes,
    quality,
    saliency,
    sequential,
    steps,
)
from dragoman.serve import view_routes

TASK = {"symbols": 5, "max_length": 5}
PARTS = {
    "transformer": {"name": "transformer", "layers": 1, "heads": 2, "feedforward": 64, "dropout": 0.0},
    "rnn": {"name": "rnn", "cell": "gru", "dropout": 0.0},
}
STEPS = {"transformer": 240, "rnn": 120}  # two seconds each
VIEWS = (
    "result",
    "batch",
    "alignment",
    "beam",
    "steps",
    "saliency",
    "positions",
    "embedding_space",
    "quality",
    "probes",
    "replay",
)
KEY = "a key for tests"
PATIENT = ("--set", "silence_s=20", "--set", "hang_s=30")  # a worker that is slow on a busy machine is no fault here
NAMELESS = """[...document.querySelectorAll("input, select, textarea, button")].filter((one) =>
    !one.labels?.length && !one.ariaLabel && !one.textContent.trim()).map((one) => one.outerHTML)"""

# Tables that are wider than their place, unless someone opens them; trees and maps scroll in a box of their own.
CUT_OFF = """[...document.querySelectorAll(".stacked")].filter((one) => one.scrollWidth > one.clientWidth)
    .map((one) => one.ariaLabel)"""
FITTING = ["exact", "wer"]  # metrics: a source and its target are sequences of symbols

# -- models, servers, tabs ---------------------------------------------------------------------------------------------


def train(folder: Path, name: str) -> None:
    value = {
        "data": {"train": str(folder / "train.tsv"), "valid": str(folder / "valid.tsv")},
        "tokenizer": {"source": "symbols"},
        "model": {"width": 48, "tie": "none", "encoder": PARTS[name], "decoder": PARTS[name]},
        "training": {
            "steps": STEPS[name],
            "batch_tokens": 512,
            "optimizer": {"name": "adam", "rate": 6e-3},
            "schedule": {"name": "linear", "warmup": 20},
            "label_smoothing": 0.0,
            "save_every": STEPS[name] // 2,
            "validate_every": STEPS[name] // 2,
            "validate_metrics": [],
            "replay": 2,
        },
        "runtime": {"device": "cpu", "threads": 1},
    }
    for _ in training.run(configs.validate(value, "a test"), folder / name):
        pass


def save_language_model(folder: Path) -> None:
    """One that has learned nothing: it is here for what it cannot show."""
    decoder = {"name": "rnn", "cell": "gru", "source": "prefix", "readout": "none"}
    value = {
        "data": {"train": "nowhere.txt"},
        "tokenizer": {"source": "characters", "joint": True},
        "model": {"width": 16, "tie": "embeddings", "scale": False, "encoder": "none", "decoder": decoder},
        "training": {"objective": "lm"},
    }
    config = configs.validate(value, "a test")
    codec = learn_codec(config.tokenizer.source, config.tokenizer.source, True, "nfc", ["abc"], ["abc"], [])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, {})


def start(folder: Path, *args: str) -> tuple[subprocess.Popen[str], str]:
    """A server on a free port, and its address."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dragoman",
            "serve",
            *args,
            "--port",
            "0",
            "--device",
            "cpu",
            "--workers",
            "1",
            *PATIENT,
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "DRAGOMAN_API_KEYS": KEY},
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())  # comes when it is ready, or ends with the process
    assert found
    return process, found.group()


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0


class Playground(NamedTuple):
    """Where it is, and the same models here."""

    url: str
    folder: Path
    models: dict[str, Pipeline]


@pytest.fixture(scope="module")
def playground(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    folder = tmp_path_factory.mktemp("playground")
    rows = [pair for seed in range(3) for pair in letters.generate_pairs("reverse", 1000, seed, **TASK)]  # type: ignore[arg-type]
    synthetic.write_tsv(folder / "train.tsv", rows)
    synthetic.write_tsv(folder / "valid.tsv", letters.generate_pairs("reverse", 45, 0, split="valid", **TASK))  # type: ignore[arg-type]
    for name in PARTS:
        train(folder, name)
    save_language_model(folder / "lm")
    process, url = start(folder, *PARTS, "lm")
    yield Playground(url, folder, {name: dragoman.load(folder / name, "cpu") for name in (*PARTS, "lm")})
    stop(process)


class Opened:
    """A tab on the playground. `expected` are refusals that the browser notes on its console, too."""

    def __init__(self, tab: Any, url: str) -> None:
        self.tab, self.url = tab, url
        self.wrong: list[str] = []
        self.expected = 0
        tab.set_default_timeout(15_000)
        tab.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        tab.on("dialog", lambda dialog: (self.wrong.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        tab.on("request", lambda request: None if request.url.startswith(url) else self.wrong.append(request.url))

    def go(self, **state: Any) -> Opened:
        """The address of a state, as someone would open it who was sent it."""
        self.tab.goto(f"{self.url}/#{'&'.join(f'{name}={value}' for name, value in state.items())}")
        return self.settled()

    def settled(self) -> Opened:
        self.tab.wait_for_selector('#panels[aria-busy="false"]')
        return self

    def choose(self, view: str) -> Any:
        """Open a tab; its panel."""
        self.tab.locator(f"#tab-{view}").click()
        return self.settled().tab.locator(f"#panel-{view}")

    def predict(self, source: str) -> None:
        self.tab.get_by_label("Source", exact=True).fill(source)
        self.tab.get_by_role("button", name="Predict").click()
        self.settled()


@pytest.fixture
def open_tab(browser: Any, playground: Playground) -> Iterator[Callable[..., Opened]]:
    contexts: list[Any] = []
    tabs: list[Opened] = []

    def new(width: int = 1280, key: str | None = KEY, **options: Any) -> Opened:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        if key is not None:  # as the page keeps it once it was asked for
            contexts[-1].add_init_script(f"sessionStorage.setItem('dragoman-key', '{key}')")
        tabs.append(Opened(contexts[-1].new_page(), playground.url))
        return tabs[-1]

    yield new
    for context in contexts:
        context.close()
    for tab in tabs:
        refused = [text for text in tab.wrong if "Failed to load resource" in text]
        assert len(refused) == tab.expected
        assert [text for text in tab.wrong if text not in refused] == []


@pytest.fixture
def page(open_tab: Callable[..., Opened]) -> Opened:
    """The playground as a visitor finds it."""
    opened = open_tab()
    opened.tab.goto(opened.url)
    return opened.settled()


# -- numbers -----------------------------------------------------------------------------------------------------------


def prints(text: str, x: float | None, digits: int) -> bool:
    """Whether a text is the number; the last bit of a float may fall to either side of a digit."""
    if x is None:
        return text == "–"
    return text in {f"{x + noise:.{digits}f}" for noise in (0, 1e-6, -1e-6)}


def percent(log_prob: float) -> str:
    share = 100 * math.exp(log_prob)
    return "<\u00a00.1\u00a0%" if share < 0.05 else f"{share:.1f}\u00a0%"


def reads(root: Any, values: Mapping[str, Mapping[Any, float | None]], digits: int, which: str = "index") -> None:
    """Every value of each field, by which one it is, stands on the page, and no other of that field."""
    for field, expected in values.items():
        found = root.locator(f'[data-field="{field}"]').evaluate_all(
            "(all, which) => all.map((one) => [one.getAttribute(which), one.textContent])", f"data-{which}"
        )
        assert [place for place, _ in found] == [str(place) for place in expected]
        wrong = [
            (place, text, x)
            for (place, text), x in zip(found, expected.values(), strict=True)
            if not prints(text, x, digits)
        ]
        assert wrong == []


def unfold(root: Any) -> None:
    """Open every table behind a picture; each is built then."""
    root.locator("details").evaluate_all("(all) => all.forEach((one) => one.setAttribute('open', ''))")
    root.locator("details:not(:has(> :nth-child(2)))").first.wait_for(state="detached")


def matrix(root: Any, field: str) -> list[list[str]]:
    """The cells of the table that holds this field, row by row."""
    rows: dict[int, list[str]] = {}
    cells = root.locator(f'td[data-field="{field}"]').evaluate_all(
        "(all) => all.map((one) => [Number(one.dataset.row), one.textContent])"
    )
    for row, text in cells:
        rows.setdefault(row, []).append(text)
    return [rows[row] for row in sorted(rows)]


def same(found: list[list[str]], expected: list[list[float]], digits: int) -> bool:
    return [len(row) for row in found] == [len(row) for row in expected] and all(
        prints(text, x, digits)
        for row, numbers in zip(found, expected, strict=True)
        for text, x in zip(row, numbers, strict=True)
    )


def numbered(values: Any) -> dict[Any, Any]:
    return dict(enumerate(values))


def shows_result(panel: Any, model: Pipeline, source: str, beam: int = 5, nbest: int = 3) -> None:
    best = model.predict([source], beam=beam, nbest=nbest)[0]
    every = [best, *best.alternatives]
    assert panel.locator('[data-field="text"]').text_content() == best.text
    texts = panel.locator('[data-field="best_text"]').all_text_contents()
    assert texts == [one.text for one in every]
    reads(panel, {"log_prob": {0: best.log_prob}, "token_log_prob": numbered(best.log_probs)}, 3)
    scores = {
        "best_score": numbered(one.score for one in every),
        "best_log_prob": numbered(one.log_prob for one in every),
    }
    reads(panel, scores, 3)
    shares = panel.locator('[data-field="token_probability"]').all_text_contents()
    assert shares == [percent(x) for x in best.log_probs]


def shows_steps(panel: Any, walked: dict[str, Any]) -> None:
    """The steps on the page, those of the table behind them included."""
    assert panel.locator('[data-field="free_text"]').text_content() == walked["free"]["text"]
    unfold(panel)
    runs = [(run, i, step) for run in ("free", "forced") if walked[run] for i, step in enumerate(walked[run]["steps"])]
    rows = panel.locator("details tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))"
    )
    assert len(rows) == len(runs)
    for (token, log_prob, p, rank, entropy, *options), (_, _, step) in zip(rows, runs, strict=True):
        assert (token, p, rank) == (step["token"], percent(step["log_prob"]), str(step["rank"]))
        assert prints(log_prob, step["log_prob"], 3)
        assert prints(entropy, step["entropy"], 2)
        for text, option in zip(options, step["top"], strict=True):
            piece, number = text.split(" ")
            assert piece == option["token"]
            assert prints(number, option["log_prob"], 3)


def another(step: dict[str, Any]) -> int:
    """The likeliest token that was not said and that something can follow."""
    return next(one["id"] for one in step["top"] if one["id"] not in (step["id"], PAD, BOS, EOS))


# -- the first look ----------------------------------------------------------------------------------------------------


def kept(playground: Playground, name: str = "transformer") -> list[tuple[str, str]]:
    """The validation pairs that a checkpoint keeps."""
    path = playground.models[name].path
    assert path
    return [(one["source"], one["target"]) for one in json.loads((path / "examples.json").read_text())]


def test_a_visitor_finds_a_validation_source_that_is_already_predicted(page, playground):
    pairs = kept(playground)
    assert len(set(pairs)) == 20
    lines = (playground.folder / "valid.tsv").read_text().split("\n")
    assert {f"{source}\t{target}" for source, target in pairs} < set(lines)
    example = pairs[0][0]
    assert page.tab.get_by_label("Source", exact=True).input_value() == example
    shows_result(page.tab.locator("#panel-result"), playground.models["transformer"], example)
    assert page.tab.get_by_role("tab", selected=True).text_content() == "Result"


def test_the_models_of_these_tests_have_learned_their_task(playground):
    pairs = letters.generate_pairs("reverse", 60, 1, split="test", **TASK)
    for name in PARTS:
        found = playground.models[name].predict([source for source, _ in pairs])
        assert sum(one.text == target for one, (_, target) in zip(found, pairs, strict=True)) > 30


def test_what_is_typed_is_predicted_by_button_and_by_keyboard(page, playground):
    model, panel = playground.models["transformer"], page.tab.locator("#panel-result")
    page.predict("a b c d")
    shows_result(panel, model, "a b c d")
    page.tab.get_by_role("spinbutton", name="Beam").fill("2")
    page.tab.get_by_role("spinbutton", name="Results").fill("2")
    page.tab.get_by_role("textbox", name="Reference").fill("a a")
    page.tab.get_by_label("Source", exact=True).fill("e d a")
    page.tab.keyboard.press("Shift+Enter")  # a line break
    page.tab.keyboard.press("Backspace")
    page.tab.keyboard.press("Enter")  # a source of symbols is one line
    page.settled()
    shows_result(panel, model, "e d a", beam=2, nbest=2)
    reference = panel.locator('[data-field="reference_log_prob"]').text_content()
    assert prints(reference, model.score([("e d a", "a a")])[0], 3)


# -- the views ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS)
def test_the_alignment_is_that_of_python_and_a_cell_says_its_weight(page, playground, name):
    page.go(view="alignment", model=name, source="a+b+c")
    panel, found = (
        page.tab.locator("#panel-alignment"),
        alignment.compute_alignment(playground.models[name], "a b c", beam=5),
    )
    assert prints(panel.locator('[data-field="log_prob"]').text_content(), found["log_prob"], 3)
    unfold(panel)
    assert same(matrix(panel, "weight"), found["soft"], 2)
    reads(panel, {"token_log_prob": numbered(found["log_probs"])}, 3)
    heads = {head["name"]: head["entropy"] for one in found["maps"] for head in one["heads"]}
    reads(panel, {"head_entropy": heads}, 2, "head")
    picture = panel.locator(".large [role=img]")
    picture.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):  # the first press comes to the first cell
        page.tab.keyboard.press(key)
    tip = page.tab.locator(".tip dd")
    assert prints(tip.text_content(), found["soft"][1][1], 2)
    cursor = picture.locator(".cursor").bounding_box()  # over the cell, which is as large
    page.tab.mouse.move(cursor["x"] + cursor["width"] * 1.5, cursor["y"] + cursor["height"] / 2)
    assert prints(tip.text_content(), found["soft"][1][2], 2)


def test_a_head_that_is_switched_off_changes_log_p_as_in_python(page, playground):
    model, panel = playground.models["transformer"], page.choose("alignment")
    source = page.tab.get_by_label("Source", exact=True).input_value()
    off: list[str] = []
    for head in ("cross.1.1", "cross.1.2"):
        off.append(head)
        panel.locator(f'.headbox:has([data-head="{head}"]) input').check()
        page.settled()
        found = alignment.compute_alignment(model, source, beam=5, ablate=off)
        assert prints(panel.locator('[data-field="log_prob_ablated"]').text_content(), found["log_prob_ablated"], 3)
    page.tab.go_back()
    page.settled()
    before = alignment.compute_alignment(model, source, beam=5, ablate=off[:1])["log_prob_ablated"]
    assert prints(panel.locator('[data-field="log_prob_ablated"]').text_content(), before, 3)


def test_the_beam_tree_is_that_of_python_and_a_node_says_its_numbers(page, playground):
    page.go(view="beam", model="rnn", source="c+a+b", reference="b+b+b", beam=3)
    panel = page.tab.locator("#panel-beam")
    tree = beam.trace_beam(playground.models["rnn"], "c a b", "b b b", beam=3)
    unfold(panel)
    for field in ("log_prob", "total", "score"):
        cells = panel.locator(f'td[data-field="{field}"][data-node]').all_text_contents()
        assert len(cells) == len(tree["nodes"])
        assert all(prints(text, node[field], 3) for text, node in zip(cells, tree["nodes"], strict=True))
    results = [*tree["results"], tree["reference"]]
    scores = panel.locator('td[data-field="score"][data-index]').all_text_contents()
    assert all(prints(text, one["score"], 3) for text, one in zip(scores, results, strict=True))
    assert panel.locator('[data-field="verdict"]').text_content() == tree["verdict"]["sentence"]
    node = tree["nodes"][2]
    panel.locator(f'[data-node="{node["id"]}"] rect').click()
    assert page.tab.locator(".tip strong").text_content() == node["token"]
    said = page.tab.locator(".tip dd").all_text_contents()
    assert all(prints(text, node[field], 3) for text, field in zip(said, ("log_prob", "total", "score"), strict=False))


def test_forcing_a_token_walks_on_from_it_and_undo_walks_back(page, playground):
    model = playground.models["transformer"]
    page.predict("a b c")
    panel = page.choose("steps")
    walked = steps.trace_steps(model, "a b c")
    shows_steps(panel, walked)
    assert "</s>" not in panel.locator("button.option:enabled .token").all_text_contents()  # nothing follows it
    prefix = [walked["free"]["steps"][0]["id"], another(walked["free"]["steps"][1])]
    panel.locator(f'section[data-run="free"]:nth-child(1) [data-key="1/{prefix[1]}"]').click()
    page.settled()
    forced = steps.trace_steps(model, "a b c", prefix=prefix)
    shows_steps(panel, forced)
    further = [step["id"] for step in forced["free"]["steps"][:2]] + [another(forced["free"]["steps"][2])]
    panel.locator(f'[data-key="2/{further[2]}"]').click()
    shows_steps(page.settled().tab.locator("#panel-steps"), steps.trace_steps(model, "a b c", prefix=further))
    panel.get_by_role("button", name="Undo the last choice").click()
    page.settled()
    shows_steps(panel, forced)
    page.tab.go_back()
    page.tab.go_back()
    page.settled()
    shows_steps(panel, forced)
    panel.get_by_role("button", name="start over").click()
    page.settled()
    shows_steps(panel, walked)


def test_steps_along_a_reference_stand_beside_free_ones(page, playground):
    page.go(view="steps", model="rnn", source="a+b+c", reference="c+c+c")
    shows_steps(page.tab.locator("#panel-steps"), steps.trace_steps(playground.models["rnn"], "a b c", "c c c"))


def test_gradients_and_positions_are_those_of_python(page, playground):
    model = playground.models["transformer"]
    panel = page.go(view="saliency", source="a+b").tab.locator("#panel-saliency")
    found = saliency.compute_saliency(model, "a b")
    unfold(panel)
    assert same(matrix(panel, "norm"), found["norms"], 3)
    reads(panel, {"mean_norm": numbered(norm for _, norm in found["by_distance"])}, 3)
    counted = [str(count) for row in sequential.count_sequential_steps(model)["rows"] for count in row["steps"]]
    assert panel.locator('[data-field="steps"]').all_text_contents() == counted
    panel = page.choose("positions")
    panel.get_by_label("decoder").check(force=True)  # the circle lies under its label
    page.settled()
    unfold(panel)
    matrix_there = positions.compute_position_similarity(model, side="decoder")["matrix"]
    assert same(matrix(panel, "similarity"), matrix_there, 2)


def test_a_map_of_sentences_is_that_of_python(page, playground):
    panel, model = page.choose("embedding_space"), playground.models["transformer"]
    texts = [source for source, _ in kept(playground)]
    for sources in (texts, ["a b", "b a", "c d e"]):
        if sources != texts:
            panel.get_by_role("textbox", name="Sources").fill("\n".join([*sources, "", " "]))
            panel.get_by_role("button", name="Draw the map").click()
            page.settled()
        unfold(panel)
        points = embedding_space.project_embeddings(model, sources)["points"]
        reads(panel, {axis: numbered(point[axis] for point in points) for axis in ("x", "y")}, 2)


def test_examples_come_with_the_model_and_never_from_its_vocabulary(playground):
    found = view_routes.compute_view({"one": playground.models["rnn"]}, "one", "examples", {"count": 7})["pairs"]
    assert [(pair["source"], pair["target"]) for pair in found] == kept(playground, "rnn")[:7]
    with pytest.raises(UserError, match="no validation pairs"):
        view_routes.compute_view({"one": playground.models["lm"]}, "one", "examples", {"count": 7})


def test_quality_of_two_models_is_that_of_python_and_its_worst_open_the_other_views(page, playground):
    page.go(view="quality", model2="rnn")
    panel = page.tab.locator("#panel-quality")
    pairs = [("a b", "b a"), ("c d", "a a a a"), ("e a b", "b a e")]
    panel.get_by_role("textbox", name="Pairs").fill("\n".join(f"{source} ||| {target}" for source, target in pairs))
    panel.get_by_role("button", name="Measure").click()
    page.settled()
    examples = [Example(*pair) for pair in pairs]
    every = {name: assessment.assess(playground.models[name], examples, FITTING, beam=5) for name in PARTS}
    panel.get_by_label("WER").check(force=True)  # the circle lies under its label
    page.settled()
    found = quality.quality_report(every, "wer", worst=5)
    for metric in FITTING:
        values = [one["scores"][metric]["value"] for one in found["models"]]
        cells = panel.locator(f'[data-field="{metric}"] b').all_text_contents()
        assert all(prints(text, x, 2) for text, x in zip(cells, values, strict=True))
    reads(panel, {"perplexity": {one["name"]: one["perplexity"] for one in found["models"]}}, 2, "model")
    worst = found["worst"][0]
    assert panel.locator('[data-field="source"]').first.text_content() == worst["source"] == "c d"
    panel.get_by_role("button", name="steps").first.click()
    page.settled()
    shows_steps(page.tab.locator("#panel-steps"), steps.trace_steps(playground.models["transformer"], "c d", "a a a a"))


def test_probes_count_what_they_count_in_python(page, playground):
    panel = page.choose("probes")
    panel.get_by_role("textbox", name="Sources").fill("a b c\nd e\nc c c c")
    panel.get_by_role("button", name="Probe").click()
    page.settled()
    checks = probes.run_probes(playground.models["transformer"], sources=["a b c", "d e", "c c c c"])["checks"]
    assert panel.locator('td[data-field="count"]').all_text_contents() == [f"{c['count']} of {c['of']}" for c in checks]
    assert panel.locator('td[data-field="sentence"]').all_text_contents() == [c["sentence"] for c in checks]


def test_the_training_is_replayed_and_followed_while_it_goes_on(page, playground):
    run = playground.folder / "transformer"
    (run / "finished").rename(run / "held back")
    panel = page.choose("replay")
    assert "still training" in panel.locator(".note").text_content()
    frames = [json.loads(line) for line in (run / "replay.jsonl").read_text().split("\n") if line]
    slider, step = panel.get_by_label("Checkpoint"), panel.locator('[data-field="step"]')
    for k in (len(frames) - 1, 0):
        slider.fill(str(k))
        assert step.text_content() == f"step {frames[k]['step']}"
        reads(panel, {"log_prob": numbered(one["log_prob"] for one in frames[k]["sources"])}, 3)
    (run / "held back").rename(run / "finished")
    panel.locator(".note", has_text="finished").wait_for()  # the page looks again by itself
    assert step.text_content() == f"step {frames[0]['step']}"


def test_what_a_model_cannot_show_has_no_tab_and_beside_one_that_can_nothing_is_asked(page, playground):
    with pytest.raises(UserError):
        positions.compute_position_similarity(playground.models["rnn"])
    page.go(view="positions", model="rnn")
    assert page.tab.get_by_role("tab", selected=True).text_content() == "Result"
    assert "Positions" not in page.tab.get_by_role("tab").all_text_contents()
    page.go(view="positions", model="rnn", model2="transformer")  # no refusal: nothing is on the console
    assert "nothing that rnn can show" in page.tab.locator("#panel-positions .column").nth(0).text_content()
    assert page.tab.locator("#panel-positions .column").nth(1).locator("canvas").count() > 0


def test_views_that_a_kind_of_model_has_nothing_for_are_left_out_and_the_page_says_why(page, playground):
    page.tab.get_by_label("Model", exact=True).select_option("lm")
    page.settled()
    shown = [tab.text_content() for tab in page.tab.get_by_role("tab").all()]
    assert shown == ["Result", "File", "Beam tree", "Steps"]
    assert "goes on with a text" in page.tab.locator("#unfit").text_content()
    beginning = page.tab.get_by_label("Beginning of a text")
    assert beginning.input_value() == ""  # no pair is kept with it
    assert "Write a source" in page.tab.locator("#panel-result .lacking").text_content()
    source = "abc"
    beginning.fill(source)
    page.tab.get_by_role("button", name="Predict").click()
    page.settled()
    best = playground.models["lm"].predict([source], beam=5, nbest=3)[0]
    assert page.tab.locator('#panel-result [data-field="text"]').text_content() == best.text
    shows_steps(page.choose("steps"), steps.trace_steps(playground.models["lm"], source))


# -- models, themes, addresses -----------------------------------------------------------------------------------------


def test_models_are_switched_and_stand_side_by_side(page, playground):
    first, second = (page.tab.locator("#panel-result .column").nth(i) for i in (0, 1))
    page.predict("b a c")
    page.tab.get_by_label("Model", exact=True).select_option("rnn")
    page.settled()
    shows_result(first, playground.models["rnn"], "b a c")
    assert not second.is_visible()
    page.tab.get_by_label("Compare with").select_option("transformer")
    page.settled()
    shows_result(first, playground.models["rnn"], "b a c")
    shows_result(second, playground.models["transformer"], "b a c")
    assert first.bounding_box()["y"] == second.bounding_box()["y"]
    page.tab.set_viewport_size({"width": 390, "height": 800})
    assert first.bounding_box()["y"] + first.bounding_box()["height"] <= second.bounding_box()["y"]


def test_a_column_forces_its_own_tokens(page, playground):
    page.go(view="steps", model="rnn", model2="transformer", source="a+b")
    second = page.tab.locator("#panel-steps .column").nth(1)
    other = another(steps.trace_steps(playground.models["transformer"], "a b")["free"]["steps"][0])
    second.locator(f'[data-key="0/{other}"]').click()
    page.settled()
    shows_steps(second, steps.trace_steps(playground.models["transformer"], "a b", prefix=[other]))
    shows_steps(page.tab.locator("#panel-steps .column").nth(0), steps.trace_steps(playground.models["rnn"], "a b"))


def test_the_theme_is_the_systems_until_one_is_chosen_and_kept(open_tab):
    page = open_tab(color_scheme="dark")
    page.tab.goto(page.url)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.settled().tab.evaluate(ground)
    page.tab.get_by_label("light").check(force=True)
    light = page.tab.evaluate(ground)
    page.tab.reload()
    assert page.settled().tab.evaluate(ground) == light != dark
    page.tab.get_by_label("system").check(force=True)
    assert page.tab.evaluate(ground) == dark


def test_the_back_button_and_a_shared_address_bring_back_what_was_seen(page, open_tab, playground):
    page.predict("c b a")
    page.predict("a d")
    page.choose("beam")
    page.tab.go_back()
    page.settled()
    assert page.tab.get_by_role("tab", selected=True).text_content() == "Result"
    page.tab.go_back()
    page.settled()
    shows_result(page.tab.locator("#panel-result"), playground.models["transformer"], "c b a")
    other = open_tab()
    other.tab.goto(page.tab.url)
    shows_result(other.settled().tab.locator("#panel-result"), playground.models["transformer"], "c b a")


def test_an_answer_that_comes_too_late_is_not_shown(page, playground):
    held: list[Any] = []
    page.tab.route("**/v1/predict", lambda route: held.append(route) if not held else route.continue_())
    page.tab.get_by_label("Source", exact=True).fill("e e e e")
    page.tab.keyboard.press("Control+Enter")
    page.tab.locator('#panels[aria-busy="true"]').wait_for(state="attached")
    page.predict("a b")
    held[0].fulfill(json={"model": "transformer", "results": [{"text": "late", "alternatives": [], "log_probs": []}]})
    assert page.tab.evaluate("fetch('health/live').then((answer) => answer.status)") == 200  # which comes after it
    shows_result(page.tab.locator("#panel-result"), playground.models["transformer"], "a b")


def test_markup_is_text(page):
    text = "<script>alert(1)</script>"
    page.predict(text)
    for view in ("alignment", "beam", "steps"):
        panel = page.choose(view)
        assert panel.locator('[data-field="source_text"]').text_content() == text


def test_a_key_is_asked_for_where_the_server_wants_one_and_kept(open_tab, playground):
    page = open_tab(key=None)
    page.tab.goto(page.url)
    page.expected += 2
    for key in ("another", KEY):
        page.tab.get_by_label("Key", exact=True).fill(key)
        assert page.tab.get_by_role("tab").count() == 0
        with page.tab.expect_response("**/v1/models"):
            page.tab.get_by_role("button", name="Open").click()
    example = kept(playground)[0][0]
    shows_result(page.settled().tab.locator("#panel-result"), playground.models["transformer"], example)
    page.tab.reload()
    assert not page.settled().tab.get_by_label("Key", exact=True).is_visible()


def test_where_a_key_is_needed_no_link_leads_to_a_refusal(open_tab):
    """A link sends no key."""
    page = open_tab(key=None)
    page.tab.goto(page.url)
    page.expected += 1
    page.tab.get_by_label("Key", exact=True).fill(KEY)
    links = "[...document.links].filter((link) => !link.hidden).map((link) => link.pathname)"
    assert page.tab.evaluate(links) == ["/simple"]  # which asks for the key itself
    page.tab.get_by_role("button", name="Open").click()
    assert page.settled().tab.evaluate(links) == ["/simple"]


# -- for everyone ------------------------------------------------------------------------------------------------------


def test_on_a_phone_no_view_scrolls_sideways_and_every_control_has_a_name(open_tab):
    page = open_tab(width=390)
    page.go(model="rnn", model2="transformer", source="a+b+c+d+e", reference="e+d+c+b+a")
    for view in VIEWS:
        page.choose(view)
        assert page.tab.evaluate("document.documentElement.scrollWidth") == 390, view
        assert page.tab.evaluate(CUT_OFF) == [], view
        assert page.tab.evaluate(NAMELESS) == [], view


def test_tabs_follow_the_arrow_keys(page):
    page.tab.get_by_role("tab", name="Result").focus()
    for key, name in (
        ("ArrowRight", "File"),
        ("End", "Training"),
        ("ArrowRight", "Result"),
        ("ArrowLeft", "Training"),
    ):
        page.tab.keyboard.press(key)
        page.settled()
        assert page.tab.get_by_role("tab", selected=True).text_content() == name
        assert page.tab.evaluate("document.activeElement.textContent") == name


def test_all_the_pages_files_are_small():
    folders = [Path(module.__file__ or "").parent / "static" for module in (inspection, serve)]
    sizes = {path.name: path.stat().st_size for folder in folders for path in folder.iterdir()}
    assert {"index.html", "page.js", "views.js"} <= sizes.keys()
    assert sum(sizes.values()) < 190_000  # of 40 files, none of which is compressed
