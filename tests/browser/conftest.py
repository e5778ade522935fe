"""A real browser for the views, and data of every view's shape to draw.

    page(views, title) ─→ an offline file ─→ Chromium             `offline`: no actions, content security by hash
    static/*.js as a server gives them out ─→ Chromium            `served`: actions, each call of which is written down

The data are made up afresh for each session, in the shapes that the functions of dragoman.inspection answer with. No
request leaves the browser: "http://dragoman.test" is answered by the test itself. A message on the console of the kind
"error", an exception or a request to anywhere else fails the test that caused it.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.core.types import Example
from dragoman.inspection.render.page import import_modules, render_page
from dragoman.inspection.views import (
    accuracy_by_position,
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

STATIC = Path(__file__).parents[2] / "src" / "dragoman" / "inspection" / "static"
HOME = "http://dragoman.test/"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'"
PAGE = (
    '<!doctype html><html lang="en"><title>views</title><link rel="stylesheet" href="views.css"><body class="dragoman">'
)
KINDS = {".js": "text/javascript", ".css": "text/css"}
# Draws into <main> and writes down every action that is called.
DRAW = """async ([data, names]) => {
    await import("/modules.js");
    const { draw } = await import("/views.js");
    const main = document.querySelector("main") ?? document.body.appendChild(document.createElement("main"));
    globalThis.calls = [];
    const actions = Object.fromEntries(names.map((name) => [name, (...values) => calls.push([name, ...values])]));
    draw(main, data, actions);
}"""

# -- the browser -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Of a module, since as long as it is there an event loop runs in this process, and no other may."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("there is no Chromium on the PATH: make browser, or install chromium")
    rights = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found[0], args=rights)
        yield running
        running.close()


@pytest.fixture
def fresh(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens an empty tab; afterwards nothing may have gone wrong in any of them."""
    contexts, wrong = [], []

    def new(width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(10_000)
        tab.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("request", lambda request: None if _ours(request.url) else wrong.append(f"a request to {request.url}"))
        return tab

    yield new
    for context in contexts:
        context.close()
    assert wrong == []


def _ours(url: str) -> bool:
    return url.startswith(("file://", HOME))


@pytest.fixture
def offline(fresh: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Opens a file of these views."""

    def opened(views: list[Any], title: str = "Views", **options: Any) -> Any:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.html"
        file.write_text(render_page(views, title), encoding="utf-8")
        tab = fresh(**options)
        tab.goto(file.as_uri())
        return tab

    return opened


@pytest.fixture
def served(fresh: Callable[..., Any]) -> Callable[..., Any]:
    """Opens a page that loads the modules one by one, as a server's page does, and draws a view with these actions."""

    def opened(data: Any, actions: tuple[str, ...] = (), **options: Any) -> Any:
        tab = fresh(**options)
        tab.route(f"{HOME}**", _answer)
        tab.goto(HOME)
        draw_again(tab, data, actions)
        return tab

    return opened


def draw_again(tab: Any, data: Any, actions: tuple[str, ...] = ()) -> None:
    tab.evaluate(DRAW, [json.loads(json.dumps(data, allow_nan=False)), list(actions)])


@pytest.fixture
def redraw() -> Callable[..., None]:
    return draw_again


def _answer(route: Any) -> None:
    name = route.request.url.removeprefix(HOME)
    headers = {"Content-Security-Policy": POLICY}
    if name:
        body = import_modules() if name == "modules.js" else (STATIC / name).read_text("utf-8")
        route.fulfill(body=body, content_type=KINDS[Path(name).suffix], headers=headers)
    else:
        route.fulfill(body=PAGE, content_type="text/html", headers=headers)


# -- data --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def samples() -> dict[str, Any]:
    """One of each view, by name."""
    return {data["view"]: data for data in every_view(random.Random(torch.initial_seed()))}


def every_view(chance: random.Random) -> list[dict[str, Any]]:
    source = ["▁the", "▁old", "▁bridge", "▁is", "▁clos", "ed", "▁for", "▁repair", "s", ".", "</s>"]
    target = ["▁die", "▁alte", "▁Brücke", "▁ist", "▁wegen", "▁Reparatur", "en", "▁gesperrt", ".", "</s>"]
    alignment = an_alignment(chance, source, target, layers=2, heads=4)
    alignment["words"] = {
        "source": ["the", "old", "bridge", "is", "closed", "for", "repairs.", "</s>"],
        "target": ["die", "alte", "Brücke", "ist", "wegen", "Reparaturen", "gesperrt.", "</s>"],
        "soft": peaks(chance, 8, 8),
    }
    return [
        alignment,
        a_beam(chance),
        some_steps(chance),
        a_report(chance),
        a_space(chance),
        some_positions(),
        some_probes(),
        some_gradients(chance, source, target),
        {
            "view": "accuracy_by_position",
            "points": [{"position": j, "count": 90 - 7 * j, "correct": 0.9 - 0.05 * j} for j in range(1, 12)],
        },
        {
            "view": "sequential",
            "lengths": [16, 32],
            "rows": [
                {"part": "encoder", "steps": [2, 2], "sentence": "encoder: 2 steps, however long the source is"},
                {
                    "part": "decoder in search",
                    "steps": [16, 32],
                    "sentence": "decoder in search: 1 step for each token",
                },
            ],
        },
        a_replay(chance, source, target),
        some_lines(chance, target),
    ]


def peaks(chance: random.Random, rows: int, columns: int, sharp: float = 3.0) -> list[list[float]]:
    """Weights that sum to 1 in each row and are largest near the diagonal."""
    found = []
    for i in range(rows):
        middle = (i + 0.5) * columns / rows - 0.5 + chance.gauss(0, 0.7)
        row = [math.exp(-abs(j - middle) * sharp / 2 + chance.gauss(0, 0.6)) for j in range(columns)]
        found.append([x / sum(row) for x in row])
    return found


def an_alignment(
    chance: random.Random, source: list[str], target: list[str], layers: int, heads: int
) -> dict[str, Any]:
    inputs = ["<s>", *target[:-1]]
    shapes = {"cross": (target, source), "encoder": (source, source), "decoder": (target, inputs)}
    maps = []
    for kind, (rows, columns) in shapes.items():
        for layer in range(1, layers + 1):
            many = []
            for head in range(1, heads + 1):
                weights = peaks(chance, len(rows), len(columns), chance.uniform(0.1, 4))
                entropy = -sum(x * math.log(x) for row in weights for x in row if x > 0) / len(rows)
                many.append({"name": f"{kind}.{layer}.{head}", "entropy": entropy, "weights": weights})
            maps.append({"kind": kind, "layer": layer, "heads": many})
    log_probs = [-chance.expovariate(3) for _ in target]
    return {
        "view": "alignment",
        "source_text": "".join(source[:-1]).replace("▁", " ").strip(),
        "target_text": "".join(target[:-1]).replace("▁", " ").strip(),
        "has_user_target": False,
        "source": source,
        "target": target,
        "inputs": inputs,
        "log_probs": log_probs,
        "log_prob": sum(log_probs),
        "soft": peaks(chance, len(target), len(source)),
        "maps": maps,
        "words": None,
        "ablated": [],
        "log_prob_ablated": None,
        "log_probs_ablated": None,
    }


def a_beam(chance: random.Random, beam: int = 4) -> dict[str, Any]:
    nodes = a_search(chance, beam, steps=8)
    finished = sorted((node for node in nodes if node["fate"] == "finished"), key=lambda node: -node["score"])
    results = []
    for node in finished[:3] or nodes[-1:]:
        path = way_to(node, nodes)
        tokens = [one["token"] for one in path]
        result = {"text": " ".join(tokens[:-1]), "tokens": tokens, "score": node["score"], "log_prob": node["total"]}
        results.append(result | {"finish_reason": "eos" if node["token"] == "</s>" else "length", "node": node["id"]})
    for one in way_to(next(node for node in nodes if node["id"] == results[0]["node"]), nodes):
        one["best"] = True
    lost = next(node for node in nodes if node["step"] == 3 and node["fate"] == "dropped")
    for one in way_to(lost, nodes):
        one["reference"] = True
    reference = {"text": "D R AE G AH M AH N", "tokens": ["D"], "log_probs": [-0.5], "log_prob": -3.25, "score": -0.361}
    sentence = "Search error: the reference scores -0.361 and the output -0.412; its beginning left the beam at step 4."
    return {
        "view": "beam",
        "source_text": "dragoman",
        "beam": beam,
        "rule": "mean",
        "nodes": nodes,
        "results": results,
        "reference": reference | {"kept_until": 3},
        "verdict": {"kind": "search error", "sentence": sentence},
    }


def a_search(chance: random.Random, beam: int, steps: int) -> list[dict[str, Any]]:
    """The nodes of a search through made-up probabilities, of which the best few live on."""
    words = ["D", "R", "AE", "G", "AH", "M", "N", "EY", "OW", "T"]
    nodes: list[dict[str, Any]] = []
    live = [{"id": 0, "total": 0.0}]
    for step in range(steps):
        found = []
        for parent in live:
            for word in chance.sample(words, 4) + ["</s>"] * (step > 5):
                log_prob = -chance.expovariate(0.8)
                total = parent["total"] + log_prob
                node = {"parent": parent["id"], "step": step, "token": word, "log_prob": log_prob, "total": total}
                found.append(node | {"score": total / (step + 1), "best": False, "reference": False})
        found.sort(key=lambda node: -node["score"])
        live = []
        for node in found[: 2 * beam]:
            fate, reason = "dropped", f"not among the best {beam}"
            if node["token"] == "</s>":
                fate, reason = "finished", ""
            elif len(live) < beam and step < steps - 1:
                fate, reason = "kept", ""
                live.append(node)
            node |= {"id": len(nodes) + 1, "fate": fate, "reason": reason}
            nodes.append(node)
    return nodes


def way_to(node: dict[str, Any], nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The nodes from the first step to this one."""
    known = {one["id"]: one for one in nodes}
    path = [node]
    while path[0]["parent"]:
        path.insert(0, known[path[0]["parent"]])
    return path


def some_steps(chance: random.Random) -> dict[str, Any]:
    words = ["D", "R", "AE", "G", "AH", "M", "N", "EY", "OW", "T", "</s>", " ", "ب", "橋"]

    def a_run(said: list[str], given: int) -> dict[str, Any]:
        steps = []
        for i, word in enumerate(said):
            logits = {other: chance.gauss(0, 1.5) + 3 * (other == word) for other in words}
            norm = math.log(sum(map(math.exp, logits.values())))
            logs = sorted(((x - norm, w) for w, x in logits.items()), reverse=True)
            rank = [w for _, w in logs].index(word) + 1
            step = {"id": words.index(word) + 4, "token": word, "log_prob": logits[word] - norm, "rank": rank}
            entropy = -sum(math.exp(x) * x for x, _ in logs)
            top = [{"id": words.index(w) + 4, "token": w, "log_prob": x} for x, w in logs[:8]]
            steps.append(step | {"entropy": entropy, "forced": i < given, "top": top})
        return {"text": " ".join(said[:-1]), "log_prob": sum(step["log_prob"] for step in steps), "steps": steps}

    free, forced = (
        ["D", "R", "EY", "G", "OW", "M", "AH", "N", "</s>"],
        ["D", "R", "AE", "G", "AH", "M", "AH", "N", "</s>"],
    )
    given = [words.index("D") + 4]
    return {
        "view": "steps",
        "source_text": "dragoman",
        "prefix": given,
        "free": a_run(free, len(given)),
        "forced": a_run(forced, len(forced)),
        "diverges": 2,
    }


def a_report(chance: random.Random) -> dict[str, Any]:
    def a_line(name: str, top: float, fall: float, ranges: list[tuple[int, int]]) -> dict[str, Any]:
        points = []
        for i, (low, high) in enumerate(ranges):
            score, half = max(2.0, top - fall * i + chance.gauss(0, 1)), 1.5 + 0.7 * i
            points.append(
                {
                    "low": low,
                    "high": high,
                    "count": 240 - 27 * i,
                    "score": score,
                    "lower": score - half,
                    "upper": score + half,
                }
            )
        return {"model": name, "points": points}

    lengths = [(1, 5), (6, 9), (10, 14), (15, 19), (20, 26), (27, 35), (36, 48), (49, 97)]
    counts = [(0, 0), (1, 1), (2, 4), (5, 12), (13, 40), (41, 900)]
    names = [("rnn without attention", 31, 3.8), ("rnn with attention", 33, 1.2), ("transformer", 36, 0.6)]
    models = [
        {
            "name": name,
            "n": 1212,
            "perplexity": 9.0 - i,
            "scores": {
                "bleu": {"value": top - 5, "low": top - 6.2, "high": top - 3.8},
                "chrf": {"value": top + 20, "low": top + 18.5, "high": top + 21},
            },
        }
        for i, (name, top, _) in enumerate(names)
    ]
    texts = [
        ("the old bridge is closed", "die alte Brücke ist gesperrt", "die Brücke die Brücke"),
        ("<script>alert(1)</script>", "<b>nothing</b>", ""),
        ("هذا الجسر قديم جدا", "這座橋很舊", "ist"),
    ]
    worst = [
        {"model": names[0][0], "index": 7 * i + 3, "source": s, "reference": r, "output": o, "score": 0.125 + 3.3 * i}
        for i, (s, r, o) in enumerate(texts)
    ]
    return {
        "view": "quality",
        "metric": "bleu",
        "metrics": ["bleu", "chrf"],
        "higher_is_better": True,
        "models": models,
        "length_unit": "tokens",
        "left_out": "",
        "by_length": [a_line(name, top, fall, lengths) for name, top, fall in names],
        "by_rarity": [a_line(name, top - 6, -1.2, counts) for name, top, _ in names],
        "rarity_of": "training",
        "worst": worst,
    }


def a_space(chance: random.Random) -> dict[str, Any]:
    places, things = ["bridge", "road", "river", "tower"], ["is closed", "was built in 1830", "is older than the town"]
    texts = [f"the {one} {place} {thing}" for place in places for thing in things for one in ("old", "new", "stone")]
    places_of = []
    for text in texts:
        kind = next(i for i, place in enumerate(places) if place in text)
        angle = kind * math.pi / 2 + 0.4
        places_of.append((2 * math.cos(angle) + chance.gauss(0, 0.45), 1.4 * math.sin(angle) + chance.gauss(0, 0.4)))
    points = []
    for i, (text, (x, y)) in enumerate(zip(texts, places_of, strict=True)):
        others = [j for j in range(len(texts)) if j != i]
        others.sort(key=lambda j: math.dist((x, y), places_of[j]))
        points.append({"text": text, "x": x, "y": y, "neighbors": others[:5]})
    return {"view": "embedding_space", "method": "pca", "explained_variance": [0.4321, 0.1987], "points": points}


def some_positions(length: int = 30, width: int = 32) -> dict[str, Any]:
    angles = [[i / 10000 ** (2 * k / width) for k in range(width // 2)] for i in range(length)]
    matrix = [
        [sum(math.cos(a - b) for a, b in zip(one, two, strict=True)) * 2 / width for two in angles] for one in angles
    ]
    signed = [[x - 0.55 for x in row] for row in matrix]
    what = "The cosine of the vectors of positions i and j, less its mean."
    return {
        "view": "positions",
        "scheme": "sinusoidal",
        "side": "encoder",
        "trained": False,
        "description": what,
        "matrix": signed,
    }


def some_probes() -> dict[str, Any]:
    example = {"source": "ag ag ag ag ag", "output": "and and and and and and", "detail": "'and' 6 times in a row"}
    unsafe = {"source": "<script>alert(1)</script>", "output": "<img src=x onerror=alert(2)>", "detail": "a & b"}
    counted = {"columns": ["item", "he", "she", "they"], "rows": [["nurse", 0, 3, 0], ["engineer", 3, 0, 1]]}
    rows = [
        ("repetition", True, 9, 40, 0.05, "9 of 40 outputs go round in a loop", [example, unsafe], None),
        ("copying", False, 1, 200, 0.1, "1 of 200 outputs nearly equals its source", [], None),
        ("empty output", False, 0, 200, 0.0, "0 of 200 outputs are empty", [], None),
        (
            "neutral sources",
            True,
            2,
            2,
            0.5,
            "2 of 2 items have one gendered pronoun in all their outputs",
            [],
            counted,
        ),
    ]
    names = ("name", "failed", "count", "of", "limit", "sentence", "examples", "table")
    return {"view": "probes", "checks": [dict(zip(names, row, strict=True)) for row in rows]}


def some_gradients(chance: random.Random, source: list[str], target: list[str]) -> dict[str, Any]:
    norms = [[x * 2.5 + 0.01 for x in row] for row in peaks(chance, len(target), len(source))]
    by_distance = [[d, 1.2 * math.exp(-d / 4) + chance.uniform(0, 0.05)] for d in range(1, len(source) + len(target))]
    return {"view": "saliency", "source": source, "target": target, "norms": norms, "by_distance": by_distance}


def some_lines(chance: random.Random, target: list[str]) -> dict[str, Any]:
    def shares(count: int) -> list[float]:
        weights = [chance.random() ** 4 for _ in range(count)]
        return [x / sum(weights) for x in weights]

    lines = [
        {
            "file": "train.tsv",
            "line": chance.randrange(1, 10**6),
            "source": source,
            "target": "die Brücke ist gesperrt.",
            "share": share,
            "token_shares": shares(len(target)),
            "pieces": target[2:],
            "piece_shares": shares(len(target) - 2),
        }
        for share, source in zip(shares(4), ("the bridge is closed.", "<b>a</b> & b", "", "a bridge"), strict=True)
    ]
    return {
        "view": "blame",
        "source_text": "the old bridge is closed.",
        "target_text": "die alte Brücke ist gesperrt.",
        "tokens": [{"token": token, "p": chance.random(), "explained": i == 4} for i, token in enumerate(target)],
        "lines": lines,
        "compared": 400,
        "indexed": 29_000,
        "total": 290_000,
    }


def a_replay(chance: random.Random, source: list[str], target: list[str]) -> dict[str, Any]:
    frames = []
    for k in range(1, 7):
        wrong = [token if chance.random() < k / 6 else "▁die" for token in target]
        probes = [
            {
                "source": "the old bridge is closed for repairs.",
                "output": "".join(wrong[:-1]).replace("▁", " ").strip(),
                "log_prob": -20.0 / k,
                "source_tokens": source,
                "tokens": wrong,
                "attention": peaks(chance, len(target), len(source), k / 2),
            },
            {
                "source": "a b",
                "output": "",
                "log_prob": -0.5 * k,
                "source_tokens": ["a", "b"],
                "tokens": ["</s>"],
                "attention": None,
            },
        ]
        frames.append({"step": 500 * k, "sources": probes})
    loss = [[s, 1.2 + 6 * math.exp(-s / 500) + chance.gauss(0, 0.06)] for s in range(50, 3001, 50)]
    rate = [[s, 7e-4 * min(s / 400, (400 / s) ** 0.5)] for s in range(50, 3001, 50)]
    valid = [[s, 1.3 + 6 * math.exp(-s / 500)] for s in range(500, 3001, 500)]
    return {
        "view": "replay",
        "run": "bridges",
        "curves": {"loss": loss, "rate": rate, "valid": valid},
        "frames": frames,
        "finished": True,
    }


# -- what real models answer -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Views of a small Transformer, by the functions that users call."""
    models = _inspected()
    part = models.Part("bpe", {"size": 48, "byte_fallback": False})
    folder, look = tmp_path_factory.mktemp("models") / "transformer", models.TRANSFORMER
    pipeline = models.save_and_load(folder, look, look, tokenizer=part, lines=models.WORDS, larger=1.5, ends=3.0)
    examples = [Example(source, target) for source, target in zip(models.WORDS, models.WORDS[::-1], strict=True)]
    return [
        alignment.compute_alignment(pipeline, "the old bridge"),
        beam.trace_beam(pipeline, "the old bridge", "a newer road", beam=3),
        steps.trace_steps(pipeline, "the old bridge", "a newer road", prefix=[5]),
        quality.measure_quality({"a": pipeline}, examples),
        embedding_space.project_embeddings(pipeline, models.WORDS),
        positions.compute_position_similarity(pipeline, side="encoder", length=20),
        probes.run_probes(pipeline),
        saliency.compute_saliency(pipeline, "the old bridge"),
        accuracy_by_position.measure_accuracy(pipeline, examples),
        sequential.count_sequential_steps(pipeline),
    ]


def _inspected() -> Any:
    """The small models of the tests of inspection."""
    spec = importlib.util.spec_from_file_location("inspected", Path(__file__).parents[1] / "inspection" / "conftest.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
