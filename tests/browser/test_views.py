"""The views in a real browser: every number as Python prints it, every control by hand and by key, nothing but text.

Numbers are read from the page and compared with f"{x:.3f}" of the data that was drawn.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dragoman.inspection.render.terminal import visible

VIEWS = (
    "alignment",
    "beam",
    "steps",
    "quality",
    "embedding_space",
    "positions",
    "probes",
    "saliency",
    "accuracy_by_position",
    "sequential",
    "replay",
    "blame",
)
UNSAFE = "<script>alert(1)</script>"
TOKENS = [
    "a",
    " ",
    "a b",
    "▁the",
    "ab\u0301",
    "\u0301",
    "\u202eab",
    "\t",
    "\u00a0",
    "\x1b[0m",
    "橋",
    "شمس",
    "א",
    "🙂",
    "❤\ufe0f",
    UNSAFE,
]

Open = Callable[..., Any]
Data = dict[str, Any]
Printed = tuple[dict[str, Any], str]


def percent(log_prob: float) -> str:
    share = 100 * math.exp(log_prob)
    return "<\u00a00.1\u00a0%" if share < 0.05 else f"{share:.1f}\u00a0%"


# -- what a page must print of each view -------------------------------------------------------------------------------


def printed(data: Data) -> Iterator[Printed]:
    """The values of a view by name, as text."""
    yield from PRINTED[data["view"]](data)


def of_alignment(data: Data) -> Iterator[Printed]:
    yield {"field": "source_text"}, data["source_text"]
    yield {"field": "target_text"}, data["target_text"]
    yield {"field": "log_prob"}, f"{data['log_prob']:.3f}"
    yield from matrix("weight", data["soft"], 2)
    for i, x in enumerate(data["log_probs"]):
        yield {"field": "token_log_prob", "index": i}, f"{x:.3f}"
        yield {"field": "token_probability", "index": i}, percent(x)
    for head in (head for one in data["maps"] for head in one["heads"]):
        yield {"field": "head_entropy", "head": head["name"]}, f"{head['entropy']:.2f}"


def of_beam(data: Data) -> Iterator[Printed]:
    for node in data["nodes"]:
        of = {"node": node["id"]}
        for name in ("log_prob", "total", "score"):
            yield {"field": name, **of}, f"{node[name]:.3f}"
        for name in ("log_prob", "total"):
            yield {"field": f"{name}_percent", **of}, percent(node[name])
        for name in ("step", "fate", "reason"):
            yield {"field": name, **of}, str(node[name])
        yield {"field": "token", **of}, visible(node["token"])
    for i, result in [*enumerate(data["results"]), ("reference", data["reference"])]:
        yield {"field": "text", "index": i}, result["text"] or "(empty)"
        for name in ("score", "log_prob"):
            yield {"field": name, "index": i}, f"{result[name]:.3f}"
        yield {"field": "probability", "index": i}, percent(result["log_prob"])
    yield {"field": "verdict", "kind": data["verdict"]["kind"]}, data["verdict"]["sentence"]


def of_steps(data: Data) -> Iterator[Printed]:
    for run in ("free", "forced"):
        yield {"field": f"{run}_log_prob"}, f"{data[run]['log_prob']:.3f}"
        for i, step in enumerate(data[run]["steps"]):
            of = {"run": run, "index": i}
            yield {"field": "log_prob", **of}, f"{step['log_prob']:.3f}"
            yield {"field": "probability", **of}, percent(step["log_prob"])
            yield {"field": "entropy", **of}, f"{step['entropy']:.2f}"
            yield {"field": "rank", **of}, str(step["rank"])
            for k, option in enumerate(step["top"], 1):
                yield {"field": "option", **of, "rank": k}, f"{visible(option['token'])} {option['log_prob']:.3f}"
    if data["diverges"] is not None:
        yield {"field": "diverges", "index": data["diverges"]}, "the first difference"


def of_quality(data: Data) -> Iterator[Printed]:
    for model in data["models"]:
        of = {"model": model["name"]}
        yield {"field": "perplexity", **of}, f"{model['perplexity']:.2f}"
        for name, score in model["scores"].items():
            yield {"field": name, **of}, f"{score['value']:.2f} [{score['low']:.2f}, {score['high']:.2f}]"
    for field in ("length", "rarity"):
        for line in data[f"by_{field}"]:
            for i, point in enumerate(line["points"]):
                of = {"model": line["model"], "index": i}
                yield {"field": f"{field}_count", **of}, str(point["count"])
                for name in ("score", "lower", "upper"):
                    yield {"field": f"{field}_{name}", **of}, f"{point[name]:.2f}"
    for i, example in enumerate(data["worst"]):
        yield {"field": "worst_score", "index": i}, f"{example['score']:.2f}"
        for name in ("source", "reference", "output"):
            yield {"field": name, "index": i}, example[name] or "(empty)"


def of_embedding_space(data: Data) -> Iterator[Printed]:
    for i, point in enumerate(data["points"]):
        yield {"field": "text", "index": i}, point["text"]
        yield {"field": "x", "index": i}, f"{point['x']:.2f}"
        yield {"field": "y", "index": i}, f"{point['y']:.2f}"
        yield {"field": "neighbors", "index": i}, ", ".join(str(other + 1) for other in point["neighbors"])


def of_positions(data: Data) -> Iterator[Printed]:
    yield {"field": "description"}, data["description"]
    yield from matrix("similarity", data["matrix"], 2)


def of_probes(data: Data) -> Iterator[Printed]:
    for check in data["checks"]:
        of = {"check": check["name"]}
        yield {"field": "failed", **of}, "✗ failed" if check["failed"] else "✓ passed"
        yield {"field": "count", **of}, f"{check['count']} of {check['of']}"
        yield {"field": "limit", **of}, f"{check['limit']:.2f}"
        yield {"field": "sentence", **of}, check["sentence"]
        for i, example in enumerate(check["examples"]):
            for name in ("source", "output", "detail"):
                yield {"field": name, **of, "index": i}, example[name] or "(empty)"


def of_saliency(data: Data) -> Iterator[Printed]:
    yield from matrix("norm", data["norms"], 3)
    for i, (_, norm) in enumerate(data["by_distance"]):
        yield {"field": "mean_norm", "index": i}, f"{norm:.3f}"


def of_accuracy_by_position(data: Data) -> Iterator[Printed]:
    for i, point in enumerate(data["points"]):
        yield {"field": "correct", "index": i}, f"{point['correct']:.2f}"
        yield {"field": "count", "index": i}, str(point["count"])


def of_sequential(data: Data) -> Iterator[Printed]:
    for i, row in enumerate(data["rows"]):
        yield {"field": "sentence", "index": i}, row["sentence"]
        for length, steps in zip(data["lengths"], row["steps"], strict=True):
            yield {"field": "steps", "index": i, "length": length}, str(steps)


def of_replay(data: Data) -> Iterator[Printed]:
    frame = data["frames"][-1]
    yield {"field": "step"}, f"step {frame['step']}"
    for i, probe in enumerate(frame["sources"]):
        yield {"field": "output", "index": i}, probe["output"] or "(empty)"
        yield {"field": "log_prob", "index": i}, f"{probe['log_prob']:.3f}"
        if probe["attention"]:
            yield from matrix("weight", probe["attention"], 2)
    for i, (_, loss) in enumerate(data["curves"]["loss"]):
        yield {"field": "loss", "index": i}, f"{loss:.3f}"


def of_blame(data: Data) -> Iterator[Printed]:
    yield {"field": "source_text"}, data["source_text"]
    yield {"field": "target_text"}, data["target_text"]
    for i, line in enumerate(data["lines"]):
        yield {"field": "share", "index": i}, f"{line['share']:.2f}"
        yield {"field": "place", "index": i}, f"{line['file']}:{line['line']}"
        for name in ("source", "target"):
            yield {"field": name, "index": i}, line[name] or "(empty)"
        spoken = [one["token"] for one, share in zip(data["tokens"], line["token_shares"], strict=True) if share >= 0.1]
        yield {"field": "speaks_for", "index": i}, " ".join(map(visible, spoken))


def matrix(field: str, values: list[list[float]], digits: int) -> Iterator[Printed]:
    for i, row in enumerate(values):
        for j, x in enumerate(row):
            yield {"field": field, "row": i, "column": j}, f"{x:.{digits}f}"


PRINTED = {name: globals()[f"of_{name}"] for name in VIEWS}


def read(tab: Any, inside: str = "main") -> list[tuple[frozenset[tuple[str, str]], str]]:
    """Every named value of the page, those in tables that are opened for it too."""
    tab.evaluate(
        "(inside) => document.querySelectorAll(`${inside} details`).forEach((one) => (one.open = true))", inside
    )
    tab.wait_for_function(
        "(inside) => [...document.querySelectorAll(`${inside} details`)].every((one) => one.children.length > 1)",
        arg=inside,
    )
    found = tab.evaluate(
        """(inside) => [...document.querySelectorAll(`${inside} [data-field]`)]
        .map((one) => [{ ...one.dataset }, one.textContent])
        .map(([{ heading, ...names }, text]) => [names, text])""",
        inside,
    )
    return [(frozenset(names.items()), text) for names, text in found]


def check(tab: Any, data: Data, inside: str = "main") -> None:
    found = set(read(tab, inside))
    wanted = {(frozenset((k, str(x)) for k, x in names.items()), text) for names, text in printed(data)}
    assert wanted
    assert wanted <= found, sorted(map(str, wanted - found))[:5]


# -- every view --------------------------------------------------------------------------------------------------------


def each(tab: Any) -> Iterator[tuple[str, str]]:
    """Opens the tab of each view in turn: its name, and where it is drawn."""
    for i, name in enumerate(VIEWS):
        tab.click(f"#tab-{i}")
        yield name, f"#panel-{i}"


@pytest.fixture
def every(samples: dict[str, Data]) -> list[Data]:
    return [samples[name] for name in VIEWS]


def test_every_number_on_the_page_is_the_datas_as_printed(offline: Open, every: list[Data]) -> None:
    tab = offline(every)
    for data, (_, panel) in zip(every, each(tab), strict=True):
        check(tab, data, panel)


def test_numbers_and_tokens_are_written_as_python_writes_them(served: Open, samples: dict[str, Data]) -> None:
    chance = random.Random(torch.initial_seed())
    numbers = [chance.gauss(0, 10 ** chance.uniform(-4, 4)) for _ in range(1000)]
    numbers += [k / 2**n for n in range(6) for k in range(-40, 40)]  # ties: Python rounds them to even
    numbers += [0.0, -0.0, -1e-9, 0.015, 1.005, 123456789.125]
    tab = served(samples["sequential"])
    pairs = [(x, digits) for x in numbers for digits in (0, 2, 3)]
    script = """async ([pairs, tokens]) => {
        const { fixed, visible } = await import("/dom.js");
        return [pairs.map(([x, digits]) => fixed(x, digits)), tokens.map(visible)];
    }"""
    texts, tokens = tab.evaluate(script, [pairs, TOKENS])
    wrong = [
        (x, d, text)
        for (x, d), text in zip(pairs, texts, strict=True)
        if text != f"{x:.{d}f}" and not same_zero(x, text, d)
    ]
    assert wrong == []
    assert tokens == [visible(token) for token in TOKENS]


def same_zero(x: float, text: str, digits: int) -> bool:
    """Minus zero has lost its sign on the way to the browser, not in it."""
    return x == 0 and math.copysign(1, x) < 0 and text == f"{0.0:.{digits}f}"


def unsafe(value: Any) -> Any:
    """The same data with every text that is not a name replaced by markup."""
    kept = {"view", "kind", "fate", "name", "metric", "metrics", "method", "rarity_of", "side", "model", "scores"}
    if isinstance(value, dict):
        return {key: one if key in kept else unsafe(one) for key, one in value.items()}
    if isinstance(value, list):
        return [unsafe(one) for one in value]
    return UNSAFE if isinstance(value, str) else value


def test_markup_in_data_is_shown_literally_and_never_runs(offline: Open, every: list[Data]) -> None:
    tab = offline(unsafe(every), title=UNSAFE)
    assert tab.text_content("h1") == UNSAFE
    for name, panel in each(tab):
        read(tab, panel)
        assert tab.evaluate(f"document.querySelectorAll('{panel} script, {panel} img').length") == 0
        assert UNSAFE in tab.text_content(panel) or name == "accuracy_by_position", name  # which has no text


@pytest.mark.long
def test_on_a_phone_the_page_itself_does_not_scroll_sideways(offline: Open, every: list[Data]) -> None:
    for views in (every, unsafe(every)):
        tab = offline(views, width=390)
        for name, panel in each(tab):
            read(tab, panel)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390, name


def test_every_picture_has_a_name_the_focus_and_a_table_behind_it(offline: Open, every: list[Data]) -> None:
    tab = offline(every)
    for name, panel in each(tab):
        tab.keyboard.press("Tab")  # from here on the focus is shown
        pictures = tab.locator(f"{panel} [role=img]")
        assert pictures.count() > 0 or name in ("steps", "probes", "sequential", "blame"), name  # which are text
        for picture in pictures.all():
            assert len(picture.get_attribute("aria-label")) > 20
            picture.focus()
            assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            assert picture.evaluate("(one) => Boolean(one.parentElement.querySelector('details > summary'))")
    controls = "[...document.querySelectorAll('button, input')]"
    assert tab.evaluate(f"{controls}.every((one) => one.tabIndex >= 0 || one.role === 'tab')")
    unnamed = f"{controls}.filter((one) => !one.ariaLabel && !one.textContent && !one.labels?.[0]?.textContent).length"
    assert tab.evaluate(unnamed) == 0


CONTRASTS = """() => {
    const channel = (x) => (x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4);
    const light = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(channel);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const paper = light(getComputedStyle(document.body).backgroundColor);
    const found = {};
    for (const one of document.querySelectorAll("main *, h1")) {
        if (![...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
        const style = getComputedStyle(one);
        const ink = light(one instanceof SVGElement ? style.fill : style.color);
        const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
        found[`${one.tagName}.${one.className.baseVal ?? one.className}`] = ratio;
    }
    return found;
}"""


@pytest.mark.long
def test_every_text_stands_out_from_its_ground_in_the_systems_theme_and_in_the_pages_own(
    offline: Open, every: list[Data]
) -> None:
    tab = offline(every, color_scheme="dark")
    for _, panel in each(tab):
        read(tab, panel)
    for theme, ground in (("", "rgb(22, 25, 29)"), ("light", "rgb(255, 255, 255)")):
        if theme:
            tab.evaluate("(theme) => (document.documentElement.dataset.theme = theme)", theme)
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == ground
        tab.wait_for_function("() => document.getAnimations().every((one) => one.playState === 'finished')")
        low = {name: ratio for name, ratio in tab.evaluate(CONTRASTS).items() if ratio < 4.5}
        assert low == {}


def test_tabs_are_chosen_by_click_and_by_arrow_keys(offline: Open, samples: dict[str, Data]) -> None:
    tab = offline([samples["probes"], samples["embedding_space"], samples["sequential"]])
    assert tab.locator("[role=tabpanel]:visible").get_attribute("id") == "panel-0"
    tab.click("#tab-2")
    assert tab.locator("[role=tabpanel]:visible").get_attribute("id") == "panel-2"
    tab.keyboard.press("ArrowRight")
    assert tab.locator("[role=tabpanel]:visible").get_attribute("id") == "panel-0"
    assert tab.locator("[role=tab][aria-selected=true]").get_attribute("id") == "tab-0"


def test_data_with_next_to_nothing_in_it_is_drawn_too(offline: Open, samples: dict[str, Data]) -> None:
    bare = {
        "alignment": {"soft": None, "maps": [], "words": None},
        "beam": {"nodes": [], "results": [], "reference": None, "verdict": None},
        "steps": {"free": {"text": "", "log_prob": 0.0, "steps": []}, "forced": None, "diverges": None, "prefix": []},
        "quality": {"models": [], "by_length": [], "by_rarity": [], "worst": []},
        "embedding_space": {"points": [{"text": "", "x": 1.0, "y": 1.0, "neighbors": []}], "explained_variance": None},
        "positions": {"matrix": [[None]]},
        "probes": {"checks": []},
        "saliency": {"norms": [[0.0]], "source": ["</s>"], "target": ["</s>"], "by_distance": [[1, 0.0]]},
        "accuracy_by_position": {"points": []},
        "sequential": {"rows": []},
        "replay": {"frames": [], "curves": {"loss": [], "rate": [[1, 0.001]], "valid": []}, "finished": False},
        "blame": {"lines": [], "tokens": [], "target_text": "", "compared": 0},
    }
    tab = offline([samples[name] | bare[name] for name in VIEWS])
    for name, panel in each(tab):
        read(tab, panel)
        assert tab.locator(panel).evaluate("(one) => one.children.length") > 0, name
    assert tab.text_content("[data-field=similarity]") == "–"


def test_a_view_that_the_page_does_not_know_is_named(offline: Open) -> None:
    assert "'sonar'" in offline([{"view": "sonar"}]).text_content("main")


def test_what_real_models_answer_is_drawn_as_it_is(offline: Open, real: list[Data]) -> None:
    views = [json.loads(json.dumps(view, allow_nan=False)) for view in real]
    tab = offline(views)
    for i, view in enumerate(views):
        tab.click(f"#tab-{i}")
        check(tab, view, f"#panel-{i}")


# -- alignment ---------------------------------------------------------------------------------------------------------


def cell_of(tab: Any, row: int, column: int, rows: int, columns: int) -> tuple[float, float]:
    """The middle of a cell of the large map, in the window."""
    box = tab.locator(".map canvas").first.bounding_box()
    return box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + (row + 0.5) * box["height"] / rows


def test_a_decoder_that_reads_one_sequence_has_the_sources_columns_too(offline: Open, samples: dict[str, Data]) -> None:
    weights = [[0.1, 0.2, 0.7, 0.0], [0.2, 0.3, 0.4, 0.1]]
    heads = [{"name": "decoder.1.1", "entropy": 0.5, "weights": weights}]
    maps: list[Data] = [{"kind": "decoder", "layer": 1, "tokens": ["a", "b", "<s>", "c"], "heads": heads}]
    bare = {"source": ["a", "b"], "target": ["c", "d"], "inputs": ["<s>", "c"], "soft": None, "words": None}
    tab = offline([samples["alignment"] | bare | {"maps": maps, "log_probs": [-1.0, -2.0]}])
    for i, j in [(0, 0), (1, 1), (0, 2), (1, 3)]:
        tab.mouse.move(*cell_of(tab, i, j, 2, 4))
        assert tab.text_content(".tip strong") == f"{maps[0]['tokens'][j]} → {bare['target'][i]}"
        assert tab.text_content(".tip dd") == f"{weights[i][j]:.2f}"


def test_hovering_over_a_cell_shows_its_tokens_and_its_weight(offline: Open, samples: dict[str, Data]) -> None:
    data = samples["alignment"]
    tab = offline([data])
    for i, j in [(0, 0), (3, 7), (9, 10)]:
        tab.mouse.move(*cell_of(tab, i, j, len(data["target"]), len(data["source"])))
        assert tab.text_content(".tip strong") == f"{visible(data['source'][j])} → {visible(data['target'][i])}"
        assert tab.text_content(".tip dd") == f"{data['soft'][i][j]:.2f}"
    tab.mouse.move(1, 1)
    assert tab.locator(".tip:visible").count() == 0


def test_arrow_keys_move_over_the_cells(offline: Open, samples: dict[str, Data]) -> None:
    data = samples["alignment"]
    tab = offline([data])
    tab.locator("[role=img]").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowUp"):  # the first: (0, 0)
        tab.keyboard.press(key)
    assert tab.text_content(".tip strong") == f"{visible(data['source'][3])} → {visible(data['target'][0])}"
    assert tab.text_content(".tip dd") == f"{data['soft'][0][3]:.2f}"
    tab.keyboard.press("Escape")
    assert tab.locator(".tip:visible").count() == 0


def shades(tab: Any) -> list[float]:
    """The lightness of each cell of the large map, row by row, from 0 to 255."""
    script = "(one) => Array.from(one.getContext('2d').getImageData(0, 0, one.width, one.height).data)"
    image = tab.locator(".map canvas").first.evaluate(script)
    return [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in zip(image[::4], image[1::4], image[2::4], strict=True)]


def test_a_larger_weight_is_a_darker_cell_on_light_pages_and_a_lighter_one_on_dark(
    offline: Open, samples: dict[str, Data]
) -> None:
    tab = offline([samples["alignment"]], color_scheme="light")
    weights = [x for row in samples["alignment"]["soft"] for x in row]
    order = sorted(range(len(weights)), key=weights.__getitem__)
    seen = shades(tab)
    assert len(seen) == len(weights)
    assert all(seen[j] <= seen[i] + 1 for i, j in itertools.pairwise(order))  # 1: colors are whole numbers
    assert seen[order[-1]] < seen[order[0]] - 50
    tab.evaluate("document.documentElement.dataset.theme = 'dark'")
    tab.wait_for_function(
        "(old) => document.querySelector('.map canvas').getContext('2d').getImageData(0, 0, 1, 1).data[0] < old",
        arg=200,
    )
    seen = shades(tab)
    assert all(seen[j] >= seen[i] - 1 for i, j in itertools.pairwise(order))
    assert seen[order[-1]] > seen[order[0]] + 50


def test_a_click_on_a_small_map_enlarges_it_and_its_numbers_are_behind_it(
    offline: Open, samples: dict[str, Data]
) -> None:
    data = samples["alignment"]
    tab = offline([data])
    for kind, index in [("cross", 0), ("encoder", 2), ("decoder", 5)]:
        tab.locator(".choice label", has_text=kind).click()
        head = data["maps"][index]["heads"][1]
        tab.click(f"[data-head='{head['name']}']")
        assert tab.get_attribute("figure.large", "data-shown") == head["name"]
        assert tab.get_attribute(".heads", "data-kind") == kind
        assert tab.text_content("figure.large [data-field=entropy]") == f"{head['entropy']:.2f}"
        found = dict(read(tab))
        for names, text in matrix("weight", head["weights"], 2):
            assert found[frozenset((k, str(x)) for k, x in names.items())] == text
    tab.click("text=← soft alignment")
    assert tab.get_attribute("figure.large", "data-shown") == "soft"


def test_subwords_and_words_can_be_switched(offline: Open, samples: dict[str, Data]) -> None:
    data = samples["alignment"]
    tab = offline([data])
    tab.locator(".choice label", has_text="words").last.click()
    found = dict(read(tab))
    for names, text in matrix("weight", data["words"]["soft"], 2):
        assert found[frozenset((k, str(x)) for k, x in names.items())] == text
    rows = tab.locator("figure.large details").first.locator("tbody th").all_text_contents()
    assert rows == data["words"]["target"]


def test_a_head_is_switched_off_by_its_box_and_the_change_is_shown(
    served: Open, redraw: Open, samples: dict[str, Data]
) -> None:
    data = samples["alignment"]
    tab = served(data, ("head",))
    tab.locator(".choice label", has_text="encoder").click()
    tab.get_by_label("off: Encoder attention, layer 2, head 3").check()
    assert tab.evaluate("calls") == [["head", "encoder.2.3", True]]
    without = [x - 0.25 for x in data["log_probs"]]
    off = data | {"ablated": ["encoder.2.3"], "log_probs_ablated": without, "log_prob_ablated": sum(without)}
    redraw(tab, off, ("head",))
    assert tab.get_attribute(".heads", "data-kind") == "encoder"  # what the reader chose is kept
    assert tab.text_content("[data-field=log_prob_ablated]") == f"{sum(without):.3f}"
    assert tab.text_content("[data-field=change]") == f"{sum(without) - data['log_prob']:+.3f}"
    tab.get_by_label("off: Encoder attention, layer 2, head 3").uncheck()
    assert tab.evaluate("calls") == [["head", "encoder.2.3", False]]


def test_without_actions_there_is_nothing_to_ask_a_model(offline: Open, samples: dict[str, Data]) -> None:
    tab = offline([samples["alignment"], samples["steps"], samples["quality"]])
    assert tab.locator("input[type=checkbox]").count() == 0
    tab.click("#tab-1")
    assert tab.locator("#panel-1 button").count() == 0
    tab.click("#tab-2")
    assert tab.locator("#panel-2 button").count() == 0


LARGE = """async (data) => {
    const { draw } = await import("/views.js");
    const tokens = Array.from({ length: 60 }, (_, i) => `token${i}`);
    const weights = () => tokens.map(() => tokens.map(() => Math.random() / 30));
    const head = (name) => ({ name, entropy: 1, weights: weights() });
    const heads = (name) => Array.from({ length: 8 }, (_, i) => head(`${name}.${i}`));
    const layers = (kind) => [1, 2, 3, 4, 5, 6].map((layer) => ({ kind, layer, heads: heads(`${kind}.${layer}`) }));
    const maps = ["cross", "encoder", "decoder"].flatMap(layers);
    const log_probs = tokens.map(() => -1);
    const sides = { source: tokens, target: tokens, inputs: tokens };
    const large = { ...data, ...sides, log_probs, soft: weights(), maps, words: null };
    const began = performance.now();
    draw(document.querySelector("main"), large, { head() {} });
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - began;
}"""


def test_sixty_by_sixty_with_six_layers_of_eight_heads_is_drawn_soon(served: Open, samples: dict[str, Data]) -> None:
    tab = served(samples["alignment"])
    assert tab.evaluate(LARGE, samples["alignment"]) < 5000  # on a quiet machine about 0.2 s
    assert tab.locator(".heads canvas").count() == 48
    assert tab.locator(".map canvas").evaluate("(one) => [one.width, one.height]") == [60, 60]
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1280


# -- beam, steps -------------------------------------------------------------------------------------------------------


def test_a_beam_node_tells_itself_when_pointed_at(offline: Open, samples: dict[str, Data]) -> None:
    data = samples["beam"]
    tab = offline([data])
    for node in random.Random(torch.initial_seed()).sample(data["nodes"], 5):
        tab.hover(f".tree [data-node='{node['id']}'] rect")
        assert tab.text_content(".tip strong") == visible(node["token"])
        told = tab.locator(".tip dd").all_text_contents()
        assert told[:3] == [f"{node[name]:.3f}" for name in ("log_prob", "total", "score")]
        assert node["fate"] in tab.locator(".tip dt").all_text_contents()
        assert node["reason"] in told[3]


def test_each_step_of_the_tree_is_sorted_by_score_and_the_best_path_is_whole(
    offline: Open, samples: dict[str, Data]
) -> None:
    data = samples["beam"]
    tab = offline([data])
    boxes = "[...document.querySelectorAll('.scroll .node')].map((one) => [one, one.getBoundingClientRect()])"
    places = tab.evaluate(f"{boxes}.map(([one, {{ x, y }}]) => [Number(one.dataset.node), x, y])")
    where = {node: (x, y) for node, x, y in places}
    assert set(where) == {node["id"] for node in data["nodes"]}
    for step in {node["step"] for node in data["nodes"]}:
        nodes = sorted((node for node in data["nodes"] if node["step"] == step), key=lambda node: where[node["id"]][1])
        assert [node["score"] for node in nodes] == sorted((node["score"] for node in nodes), reverse=True)
        assert max(where[node["id"]][0] for node in nodes) - min(where[node["id"]][0] for node in nodes) < 8
    assert tab.locator(".edge.best").count() == sum(node["best"] for node in data["nodes"])
    assert tab.locator(".edge.reference").count() == sum(node["reference"] for node in data["nodes"])


def test_dropped_nodes_can_be_hidden_and_the_references_stay(offline: Open, samples: dict[str, Data]) -> None:
    data = samples["beam"]
    tab = offline([data])
    tab.get_by_label("hide dropped").check()
    kept = {node["id"] for node in data["nodes"] if node["fate"] != "dropped" or node["reference"]}
    shown = tab.evaluate("[...document.querySelectorAll('.scroll .node')].map((one) => Number(one.dataset.node))")
    assert set(shown) == kept
    assert tab.evaluate("document.activeElement.type") == "checkbox"  # the focus is not lost by drawing again


def test_arrow_keys_walk_along_the_tree(offline: Open, samples: dict[str, Data]) -> None:
    data = samples["beam"]
    tab = offline([data])
    columns = [sorted((n for n in data["nodes"] if n["step"] == s), key=lambda n: -n["score"]) for s in (0, 1)]
    tab.locator("figure [role=img]").focus()

    def chosen() -> int:
        return int(tab.get_attribute(".node.chosen", "data-node"))

    tab.keyboard.press("ArrowRight")
    assert chosen() == columns[0][0]["id"]
    tab.keyboard.press("ArrowDown")
    assert chosen() == columns[0][1]["id"]
    tab.keyboard.press("ArrowUp")
    children = [node for node in columns[1] if node["parent"] == columns[0][0]["id"]]
    tab.keyboard.press("ArrowRight")
    assert chosen() == (children or columns[0])[0]["id"]
    tab.keyboard.press("ArrowLeft")
    assert chosen() == columns[0][0]["id"]
    assert tab.text_content(".tip strong") == visible(columns[0][0]["token"])


def test_a_click_on_another_token_forces_it_after_what_was_said_before(served: Open, samples: dict[str, Data]) -> None:
    data = samples["steps"]
    tab = served(data, ("force",))
    for run in ("free", "forced"):
        steps = data[run]["steps"]
        for i in (0, 4, len(steps) - 1):
            other = steps[i]["top"][3]
            section = tab.locator(f"[data-run={run}].step").nth(i)
            assert section.locator(f"[data-id='{other['id']}'] [data-field=p]").text_content() == percent(
                other["log_prob"]
            )
            section.locator(f"[data-id='{other['id']}']").click()
            assert tab.evaluate("calls.at(-1)") == ["force", [*(step["id"] for step in steps[:i]), other["id"]]]
    tab.click("text=start over")
    assert tab.evaluate("calls.at(-1)") == ["force", []]


def test_bars_are_as_wide_as_their_probabilities(offline: Open, samples: dict[str, Data]) -> None:
    tab = offline([samples["steps"]])
    width = "(one) => one.querySelector('.bar').getBoundingClientRect().width / one.clientWidth"
    for run in ("free", "forced"):
        found = tab.evaluate(f"[...document.querySelectorAll('[data-run={run}] .option')].map({width})")
        options = [option for step in samples["steps"][run]["steps"] for option in step["top"]]
        assert found == pytest.approx([math.exp(option["log_prob"]) for option in options], abs=0.01)


# -- quality, embedding space, saliency, replay ------------------------------------------------------------------------


def test_a_bad_example_opens_in_the_other_views(served: Open, samples: dict[str, Data]) -> None:
    data = samples["quality"]
    tab = served(data, ("open",))
    example = data["worst"][1]
    asked = {"model": example["model"], "source": example["source"]}
    for name in ("alignment", "beam", "steps"):
        tab.locator(".worst > li").nth(1).get_by_role("button", name=name).click()
    assert tab.evaluate("calls") == [
        ["open", "alignment", asked],
        ["open", "beam", asked | {"target": example["reference"]}],
        ["open", "steps", asked | {"target": example["reference"]}],
    ]


def test_arrow_keys_walk_over_the_ranges_of_a_chart(offline: Open, samples: dict[str, Data]) -> None:
    data = samples["quality"]
    tab = offline([data])
    tab.locator("[role=img]").first.focus()
    for i in range(3):
        tab.keyboard.press("ArrowRight")
        points = [line["points"][i] for line in data["by_length"]]
        assert tab.text_content(".tip strong") == f"length {points[0]['low']}–{points[0]['high']}"
        assert tab.locator(".tip dd").all_text_contents() == [
            f"{p['score']:.2f} [{p['lower']:.2f}, {p['upper']:.2f}] · n {p['count']}" for p in points
        ]


def test_higher_scores_stand_higher_on_the_chart(offline: Open, samples: dict[str, Data]) -> None:
    tab = offline([samples["quality"]])
    height = "(one) => one.transform.baseVal[0].matrix.f"
    marks = tab.locator("svg.chart").first.evaluate(f"(chart) => [...chart.querySelectorAll('.mark')].map({height})")
    scores = [point["score"] for line in samples["quality"]["by_length"] for point in line["points"]]
    top, bottom = scores.index(max(scores)), scores.index(min(scores))
    slope = (marks[bottom] - marks[top]) / (scores[bottom] - scores[top])
    assert slope < 0
    assert marks == pytest.approx([marks[top] + slope * (score - scores[top]) for score in scores], abs=0.2)


def test_a_sentence_shows_itself_and_its_neighbors(offline: Open, samples: dict[str, Data]) -> None:
    points = samples["embedding_space"]["points"]
    tab = offline([samples["embedding_space"]])
    for i in random.Random(torch.initial_seed()).sample(range(len(points)), 3):
        tab.locator(f".cloud [data-point='{i}']").dispatch_event("pointerover")
        assert tab.text_content(".tip strong") == points[i]["text"]
        assert tab.text_content("[data-field=chosen]") == points[i]["text"]
        assert tab.locator(".near li").all_text_contents() == [points[j]["text"] for j in points[i]["neighbors"]]
        lit = tab.evaluate("[...document.querySelectorAll('circle.near')].map((one) => Number(one.dataset.point))")
        assert set(lit) == set(points[i]["neighbors"])
    nearest = points[i]["neighbors"][0]
    tab.locator(".near li button").first.click()
    assert tab.text_content("[data-field=chosen]") == points[nearest]["text"]
    tab.locator("[role=img]").focus()
    tab.keyboard.press("ArrowRight")
    right = int(tab.get_attribute("circle.chosen", "data-point"))
    assert points[right]["x"] >= points[nearest]["x"]


def test_the_slider_goes_through_the_checkpoints_and_stays_where_it_was_put(
    served: Open, redraw: Open, samples: dict[str, Data]
) -> None:
    data = samples["replay"]
    tab = served(data)
    tab.get_by_label("Checkpoint").focus()
    tab.keyboard.press("Home")
    for _ in range(2):
        tab.keyboard.press("ArrowRight")
    shown = copy.deepcopy(data) | {"frames": data["frames"][:3]}
    check(tab, shown)
    more = copy.deepcopy(data)
    more["frames"].append(more["frames"][0] | {"step": 3500})
    redraw(tab, more)
    assert tab.text_content("[data-field=step]") == "step 1500"
    tab.get_by_label("Checkpoint").focus()
    tab.keyboard.press("End")
    assert tab.text_content("[data-field=step]") == "step 3500"
    redraw(tab, data)
    redraw(tab, more)
    assert tab.text_content("[data-field=step]") == "step 3500"  # the last stays the last, while a run goes on
