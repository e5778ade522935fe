"""A model in Chromium: is it exact, how large, how fast; and what int8 changes. The reference is our Python in float32.

    texts ─engine in a worker, one at a time→ outputs        beside        dragoman.load(model, reference=True)

Of --model, --count inputs of --sources are drawn, greedy and with --beam. With --references (the second column of a
.tsv) each precision gets its score, by --metric. The largest difference of log p is that of a token, over the outputs
that are the same. Seconds to the first answer begin with an empty tab that opens the page; --fast texts are then timed
one by one with the beam. Memory is taken once all have been answered, beyond an empty tab: what scripts hold, as
Chromium counts it (which leaves the weights out: they are in WebAssembly's memory), and what the tab's process shares
with no other, garbage and compiled code included. CPU time is shared with everything else on the machine: the load
average is part of the record.
"""

from __future__ import annotations

import argparse
import base64
import csv
import gzip
import json
import os
import random
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import dragoman
from bench import timing
from dragoman.browser.engine_script import join_engine
from dragoman.browser.model_data import PRECISIONS, Precision, model_data
from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.evaluation.metrics import metrics
from dragoman.inference.pipeline import Pipeline

HOME = "https://dragoman.bench/"
# Without these, a page may not ask for its memory; without the flag, it is told some seconds later.
ISOLATION = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
MEASURE_EARLY = "--enable-blink-features=ForceEagerMeasureMemory"
MEASURE = "async () => (await performance.measureUserAgentSpecificMemory()).bytes"
POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'"
WORKER = """
let predictor = null;
onmessage = async ({ data: { texts, options } }) => {
    try {
        if (predictor === null) {
            const header = await (await fetch("/model.json")).json();
            const weights = await (await fetch("/weights.bin")).arrayBuffer();
            predictor = buildPredictor(header, await loadModel(header, weights));
        }
        const start = performance.now();
        const found = await predictor.predict(texts, options);
        const answers = found.map(({ text, ids, log_probs }) => ({ text, ids, log_probs }));
        postMessage({ answers, milliseconds: performance.now() - start });
    } catch (error) {
        postMessage({ error: String(error) });
    }
};
"""
ASK = """([texts, options]) => new Promise((resolve) => {
    globalThis.worker ??= new Worker("/worker.js");
    worker.onmessage = ({ data }) => resolve(data);
    worker.postMessage({ texts, options });
})"""
Answer = dict[str, Any]  # text, ids, log_probs


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = command.add_argument
    add("--model", type=Path, required=True, help="a trained model")
    add("--sources", type=Path, required=True, help="its sources, a line each; a .tsv has references too")
    add("--references", type=Path, help="their references, a line each")
    add("--metric", default="bleu", help="of the score: bleu, exact, …")
    add("--beam", type=int, default=5)
    add("--count", type=int, default=1000, help="inputs that are compared")
    add("--fast", type=int, default=100, help="inputs that are timed, one by one; 0: none")
    add("--precisions", nargs="+", choices=PRECISIONS, default=["float32", "int8"])


def run(options: argparse.Namespace) -> timing.CommandResult:
    """Compare and measure every precision; the results for the record, and the lines to print."""
    torch.set_num_threads(options.threads)
    pipeline = dragoman.load(options.model, "cpu", reference=True)
    sources, references = read_pairs(options)
    timed = sources[: options.fast]
    comparisons, costs = [], []
    expected = {beam: python_answers(pipeline, sources, beam) for beam in (1, options.beam) if options.count}
    for precision in options.precisions:
        with Tab(pipeline, precision) as tab:
            if timed:
                costs.append(measure_costs(tab, precision, timed, options.beam))
            for beam, own in expected.items():
                answers = tab.predict(sources, beam)
                scores = score_both(options.metric, own, answers, references)
                comparisons.append({"precision": precision, "beam": beam, **compare(own, answers), **scores})
    tables = [timing.markdown_table(rows) for rows in (comparisons, costs) if rows]
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    lines = [f"{len(sources)} inputs of {options.sources.name}; load average {load}", "", "\n\n".join(tables)]
    return {"comparisons": comparisons, "costs": costs}, lines


def read_pairs(options: argparse.Namespace) -> tuple[list[str], list[str] | None]:
    """The sources that are drawn, and their references if there are some."""
    if options.sources.suffix == ".tsv":
        with options.sources.open(encoding="utf-8", newline="") as file:
            pairs = [(row[0], row[1]) for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    else:
        sources = options.sources.read_text("utf-8").split("\n")[:-1]
        given = options.references.read_text("utf-8").split("\n")[:-1] if options.references else sources
        if len(given) != len(sources):
            raise UserError(f"{options.references} has {len(given)} lines; {options.sources} has {len(sources)}")
        pairs = list(zip(sources, given, strict=True))
    drawn = random.Random(options.seed).sample(pairs, min(max(options.count, options.fast), len(pairs)))
    has_references = options.references is not None or options.sources.suffix == ".tsv"
    return [source for source, _ in drawn], [target for _, target in drawn] if has_references else None


def python_answers(pipeline: Pipeline, sources: Sequence[str], beam: int) -> list[Answer]:
    """What the reference path answers."""
    found = pipeline.predict(sources, beam=beam, nbest=1)
    return [{"text": one.text, "ids": one.ids, "log_probs": one.log_probs} for one in found]


def compare(expected: Sequence[Answer], found: Sequence[Answer]) -> dict[str, object]:
    """How many outputs have other tokens, and how far log p of a token is from Python's where they are the same."""
    pairs = list(zip(expected, found, strict=True))
    same = [(one, other) for one, other in pairs if one["ids"] == other["ids"]]
    differences = [abs(x - y) for one, other in same for x, y in zip(one["log_probs"], other["log_probs"], strict=True)]
    return {
        "changed": f"{len(pairs) - len(same)} of {len(pairs)}",
        "largest difference of log p": f"{max(differences, default=0.0):.1e}",
    }


def score_both(
    name: str, expected: Sequence[Answer], found: Sequence[Answer], references: Sequence[str] | None
) -> dict[str, object]:
    """The score of Python's outputs and of the engine's."""
    if references is None:
        return {}
    metric, accepted = metrics.build(Part(name)), [[reference] for reference in references]
    scores = [
        float(metric.score(metric.statistics([one["text"] for one in answers], accepted).sum(0)))
        for answers in (expected, found)
    ]
    return {f"{metric.label} in Python": f"{scores[0]:.2f}", f"{metric.label} in Chromium": f"{scores[1]:.2f}"}


# -- Chromium ----------------------------------------------------------------------------------------------------------


class Tab:
    """A tab of Chromium that has the engine in a worker; its files are answered from here, not by a server."""

    def __init__(self, pipeline: Pipeline, precision: Precision) -> None:
        header, weights = model_data(pipeline, precision)
        self.files = {
            "": ("text/html", b"<!doctype html><title>engine</title>"),
            "worker.js": ("text/javascript", (join_engine() + WORKER).encode()),
            "model.json": ("application/json", json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()),
            "weights.bin": ("application/octet-stream", weights),
        }

    def __enter__(self) -> Tab:
        try:
            from playwright.sync_api import sync_playwright
        except ImportError:
            raise UserError("bench browser needs playwright: pip install playwright") from None
        found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
        if not found:
            raise UserError("bench browser needs Chromium, and there is none on the PATH")
        self.playwright = sync_playwright().start()
        rights = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        self.browser = self.playwright.chromium.launch(executable_path=found[0], args=[*rights, MEASURE_EARLY])
        self.page = self.browser.new_page()
        self.page.set_default_timeout(0)
        self.page.route("**/*", self._answer_request)
        self.page.goto(HOME)
        return self

    def __exit__(self, *_: object) -> None:
        self.browser.close()
        self.playwright.stop()

    def _answer_request(self, route: Any) -> None:
        kind, body = self.files.get(route.request.url.removeprefix(HOME), ("text/plain", b""))
        route.fulfill(body=body, content_type=kind, headers={"Content-Security-Policy": POLICY, **ISOLATION})

    def ask(self, texts: Sequence[str], beam: int) -> dict[str, Any]:
        """The answers to texts, and the milliseconds that they took."""
        result: dict[str, Any] = self.page.evaluate(ASK, [list(texts), {"beam": beam, "nbest": 1}])
        if "error" in result:
            raise UserError(result["error"])
        return result

    def predict(self, texts: Sequence[str], beam: int) -> list[Answer]:
        """The answers to many texts."""
        return [answer for text in texts for answer in self.ask([text], beam)["answers"]]

    def private_bytes(self) -> int:
        """The memory that the tab's process does not share with others."""
        session = self.browser.new_browser_cdp_session()
        processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
        return sum(_private_bytes(one["id"]) for one in processes if one["type"] == "renderer")


def _private_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text("ascii").split("\n")
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def measure_costs(tab: Tab, precision: Precision, texts: Sequence[str], beam: int) -> dict[str, object]:
    """The sizes of a model, the seconds to its first answer, the milliseconds of each after, and the memory."""
    header, weights = tab.files["model.json"][1], tab.files["weights.bin"][1]
    packed = len(base64.b64encode(gzip.compress(header + weights, 9)))
    empty, scripts = tab.private_bytes(), tab.page.evaluate(MEASURE)
    start = time.perf_counter()
    tab.page.goto(HOME)
    tab.ask(texts[:1], beam)
    first = time.perf_counter() - start
    spent = sorted(tab.ask([text], beam)["milliseconds"] for text in texts)
    used, held = tab.private_bytes(), tab.page.evaluate(MEASURE)
    return {
        "precision": precision,
        "parameters": f"{json.loads(header)['parameters']:,}",
        "header and weights, MB": f"{(len(header) + len(weights)) / 1e6:.2f}",
        "in base64 after gzip, MB": f"{packed / 1e6:.2f}",
        "engine, kB": f"{len(tab.files['worker.js'][1]) / 1e3:.0f}",
        "seconds to the first answer": f"{first:.2f}",
        f"ms an input, beam {beam}: median": f"{statistics.median(spent):.1f}",
        "90 %": f"{spent[int(0.9 * len(spent))]:.1f}",
        "largest": f"{spent[-1]:.1f}",
        "scripts hold, MB": f"{(held - scripts) / 1e6:.1f}",
        "process, MB": f"{(used - empty) / 1e6:.1f}",
    }
