"""The report of a sweep, from its sweep.json: two pictures, and a page that has them in it.

coordinates.png   a line for each trial through its values, colored by how good it is
importance.png    what share of the difference between good and middling trials each option explains
report.html       both, the best values and the table of trials
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core import files
from dragoman.core.errors import RunError
from dragoman.inspection.render.image import COLORS, FAINT, INK, FontSet, new_figure, save_figure
from dragoman.reports.charts import share_bar
from dragoman.reports.page import escape, render_document, render_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BYTES = 2**28
AXIS_WIDTH, MIN_WIDTH, HEIGHT = 1.35, 9.0, 3.9  # inches
MAX_LINES = 300  # of trials that were not trained to their end
FIRST_ROWS = 20  # of the table; the rest is folded
GOLDEN, SPREAD = 0.618034, 0.045  # multiples of the first, modulo 1, lie far apart
MAX_TICK = 12  # characters

Json = dict[str, Any]


def write_sweep_report(folder: Path) -> Path:
    """Draw the pictures of a sweep's folder and write report.html; returns its path."""
    path = folder / "sweep.json"
    try:
        sweep: Json = json.loads(files.read_plain(path, MAX_BYTES))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({type(error).__name__}); run the sweep's command again") from None
    pictures = dict[str, Path]()
    if any(trial["state"] == "complete" for trial in sweep["trials"]):
        pictures["coordinates"] = folder / "coordinates.png"
        draw_parallel_coordinates(pictures["coordinates"], sweep)
    if sweep["importance"]:
        pictures["importance"] = folder / "importance.png"
        draw_importance(pictures["importance"], sweep)
    page = folder / "report.html"
    files.write_file(
        page, render_sweep(sweep, {name: picture.read_bytes() for name, picture in pictures.items()}).encode()
    )
    return page


def _format(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else "null" if value is None else str(value)
    return text if len(text) <= 60 else text[:59] + "…"


# -- pictures ----------------------------------------------------------------------------------------------------------


class Scale:
    """Where the values of an option lie on its axis, from 0 to 1, and the ticks."""

    def __init__(self, domain: Mapping[str, Any]) -> None:
        self.choices: list[Any] | None = None
        if "choices" in domain:
            self.choices, self.is_discrete = [_label(value) for value in domain["choices"]], True
            last = max(len(self.choices) - 1, 1)
            self.ticks = [(i / last, _format(value)) for i, value in enumerate(self.choices)]
            return
        self.is_log, self.is_discrete = bool(domain.get("log")), isinstance(domain["low"], int)
        self.low, self.high = self._transform(domain["low"]), self._transform(domain["high"])
        middle = (self.low + self.high) / 2
        if self.is_log:
            self.ticks = [(self._share(x), f"{math.exp(x):.2g}") for x in (self.low, middle, self.high)]
        elif isinstance(domain["low"], int) and domain["high"] - domain["low"] <= 8:
            values = range(domain["low"], domain["high"] + 1)
            self.ticks = [(self._share(x), str(x)) for x in values]
        else:
            self.ticks = [(self._share(x), f"{x:.3g}") for x in (self.low, middle, self.high)]

    def _transform(self, value: float) -> float:
        return math.log(value) if self.is_log else float(value)

    def _share(self, x: float) -> float:
        return (x - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def place(self, trial: Json, key: str) -> float:
        """Where the value of a trial lies, from 0 to 1; equal values of a few are spread a little, to be told apart."""
        value, spread = trial["params"][key], (int(trial["number"]) * GOLDEN % 1 - 0.5) * SPREAD
        if self.choices is not None:
            return self.choices.index(value) / max(len(self.choices) - 1, 1) + spread
        return self._share(self._transform(value)) + (spread if self.is_discrete else 0.0)


def _label(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def draw_parallel_coordinates(path: Path, sweep: Json) -> None:
    """Draw a line for each trial through its values; the better, the darker, and the best in orange."""
    figure = new_figure()
    figure.set_layout_engine("constrained")
    keys, trials = list(sweep["space"]), sweep["trials"]
    figure.set_size_inches(max(AXIS_WIDTH * (len(keys) + 1), MIN_WIDTH), HEIGHT)
    scales = {key: Scale(domain) for key, domain in sweep["space"].items()}
    complete = [trial for trial in trials if trial["state"] == "complete" and trial["value"] is not None]
    values = [trial["value"] for trial in complete]
    low, high = min(values), max(values)
    axes = figure.subplots()

    def goodness(value: float) -> float:
        """1 for the best value, 0 for the worst."""
        share = (value - low) / (high - low) if high > low else 0.5
        return share if sweep["higher_is_better"] else 1 - share

    for trial in [trial for trial in trials if trial["state"] == "pruned"][:MAX_LINES]:
        ys = [scales[key].place(trial, key) for key in keys]
        axes.plot(range(len(keys)), ys, color=FAINT, linewidth=0.8, zorder=1)
    for trial in reversed(complete):
        good, is_best = goodness(trial["value"]), trial is complete[0]
        ys = [*(scales[key].place(trial, key) for key in keys), good]
        color, width, alpha = (COLORS[1], 2.4, 1.0) if is_best else (COLORS[0], 1.2, 0.15 + 0.75 * good)
        axes.plot(range(len(ys)), ys, color=color, linewidth=width, alpha=alpha, zorder=2 + good)
    ends = (low, high) if sweep["higher_is_better"] else (high, low)
    ticks = [[*scales[key].ticks] for key in keys] + [[(0.0, f"{ends[0]:.4g}"), (1.0, f"{ends[1]:.4g}")]]
    _draw_axes(axes, [*(sweep["labels"][key] for key in keys), sweep["metric"]], ticks)
    save_figure(figure, path)


def _draw_axes(axes: Axes, names: Sequence[str], ticks: Sequence[Sequence[tuple[float, str]]]) -> None:
    fonts = FontSet([*names, *(text for column in ticks for _, text in column)])
    for x, column in enumerate(ticks):
        axes.axvline(x, color=INK, linewidth=0.8, zorder=4)
        for y, text in column:
            axes.plot([x - 0.02, x + 0.02], [y, y], color=INK, linewidth=0.8, zorder=4)
            shown = fonts.drawable(text if len(text) <= MAX_TICK else text[: MAX_TICK - 1] + "…")
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
            axes.text(x + 0.05, y, shown, va="center", zorder=5, bbox=box, **fonts.style(7.5))
    axes.set_xticks(range(len(names)), [fonts.drawable(name) for name in names], **fonts.style(8.5))
    axes.tick_params(length=0, pad=8)
    axes.set_yticks([])
    axes.set_xlim(-0.15, len(names) - 1 + 0.45)
    axes.set_ylim(-0.06, 1.06)
    axes.spines[:].set_visible(False)


def draw_importance(path: Path, sweep: Json) -> None:
    """Draw a bar for each option, the most important first."""
    importance: dict[str, float] = sweep["importance"]
    figure = new_figure()
    figure.set_layout_engine("constrained")
    figure.set_size_inches(5.6, 0.7 + 0.32 * len(importance))
    names = [sweep["labels"][key] for key in importance]
    fonts, axes = FontSet(names), figure.subplots()
    shares = [100 * share for share in importance.values()]
    axes.barh(range(len(names)), shares, color=COLORS[0], height=0.62)
    for y, share in enumerate(shares):
        axes.text(share + max(shares) / 60, y, f"{share:.0f} %", va="center", **fonts.style(8.5))
    axes.set_yticks(range(len(names)), [fonts.drawable(name) for name in names], **fonts.style(9))
    axes.invert_yaxis()
    axes.set_xlim(0, max(shares) * 1.15 or 1)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    save_figure(figure, path)


# -- the page ----------------------------------------------------------------------------------------------------------


def render_sweep(sweep: Json, pictures: Mapping[str, bytes]) -> str:
    """Render a sweep as a self-contained HTML page."""
    trials: list[Json] = sweep["trials"]
    best = next((trial for trial in trials if trial["number"] == sweep["best"]), None)
    metric = sweep["metric"]
    headline = f"{metric} {best['value']:.4g} in trial {best['number']}" if best else "No trial is complete"
    sections = [
        ("best", "Best", "The best values", _render_best(sweep, best) if best else ""),
        ("coordinates", "Trials", "Where the good trials are", _render_coordinates(pictures)),
        ("importance", "Importance", "What mattered", _render_importance(sweep["importance"])),
        ("trials", "Table", "All trials", _render_trials(sweep)),
    ]
    findings = "".join(f"<li>{escape(text)}</li>" for text in [sweep["note"], *sweep["findings"]])
    cards = "".join(_render_count(trials, state) for state in STATE_TEXTS)
    return render_document(
        f"Sweep: {sweep['name']}",
        f'<h1>{escape(headline)}</h1><p class="soft">a sweep of {escape(sweep["name"])}</p>',
        f'<ul class="findings">{findings}</ul><div class="cards">{cards}</div>',
        sections,
        "<p>Every trial is a run folder in trials/. Optuna's journal is journal.log.</p>",
    )


STATE_TEXTS = {
    "complete": "trained to their end",
    "pruned": "stopped early: not promising, or diverged",
    "failed": "ended by an error, and replaced",
}


def _render_count(trials: Sequence[Json], state: str) -> str:
    found = [trial for trial in trials if trial["state"] == state]
    minutes = sum(trial["seconds"] for trial in found) / 60
    return (
        f'<div class="card"><h3>{state}</h3><div class="value">{len(found):,}</div>'
        f'<div class="interval">{minutes:.1f} minutes</div><p>{STATE_TEXTS[state]}</p></div>'
    )


def _render_best(sweep: Json, best: Json) -> str:
    own = next((trial for trial in sweep["trials"] if trial["number"] == sweep["own"]), None)
    head = ["option", "best"] + (["the config's own"] if own else []) + ["searched"]
    rows = []
    for key, value in best["params"].items():
        others = [_keep(_format(own["params"].get(key)))] if own else []
        rows.append(
            [escape(key), f"<b>{_keep(_format(value))}</b>", *others, escape(_describe_domain(sweep["space"][key]))]
        )
    return render_table(head, rows, wide={len(head) - 1}) + "<p>best.yaml has them in a whole config.</p>"


def _describe_domain(domain: Json) -> str:
    if "choices" in domain:
        return ", ".join(_format(_label(value)) for value in domain["choices"])
    how = ", on a log scale" if domain.get("log") else f", in steps of {domain['step']}" if domain.get("step") else ""
    return f"{domain['low']} to {domain['high']}{how}"


def _render_coordinates(pictures: Mapping[str, bytes]) -> str:
    if "coordinates" not in pictures:
        return ""
    return (
        _render_picture(pictures["coordinates"], "a line for each trial through its values")
        + '<p class="soft">A line for each trial: orange the best, blue those trained to their end, the darker the '
        "better, gray those that were stopped early.</p>"
    )


def _render_picture(data: bytes, text: str) -> str:
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<div class="scroll"><img alt="{escape(text)}" src="{source}"></div>'


def _render_importance(importance: Mapping[str, float]) -> str:
    if not importance:
        return ""
    most = max(importance.values()) or 1.0
    rows = [
        [escape(key), share_bar(share / most, f"{share:.2f}"), f'<span class="number">{100 * share:.0f} %</span>']
        for key, share in importance.items()
    ]
    note = (
        '<p class="soft">The share of the difference between good and middling trials that each option explains '
        "(PED-ANOVA); of a pruned trial its last validation counts. Few trials, or a narrow range, say little.</p>"
    )
    return render_table(["option", "", ""], rows, bars={1}) + note


def _keep(text: str) -> str:
    """A text that is not broken into lines."""
    return f'<span class="keep">{escape(text)}</span>'


def _render_trials(sweep: Json) -> str:
    keys = list(sweep["space"])
    head = ["trial", "", escape(sweep["metric"]), "step", *(escape(sweep["labels"][key]) for key in keys)]
    rows = []
    for trial in sweep["trials"]:
        value = "" if trial["value"] is None else f'<span class="number">{trial["value"]:.4g}</span>'
        params = [_keep(_format(trial["params"].get(key))) for key in keys]
        rows.append([str(trial["number"]), _keep(trial["state"]), value, str(trial["step"] or ""), *params])
    wide = set(range(4, len(head)))
    tables = [render_table(head, part, wide=wide) for part in (rows[:FIRST_ROWS], rows[FIRST_ROWS:]) if part]
    return tables[0] + (f"<details><summary>the others</summary>{tables[1]}</details>" if len(tables) > 1 else "")
