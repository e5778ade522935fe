"""A beam's tree and a table of steps as characters, from the plain data of beam_tree.py and steps.py.

    ├ der                    -0.36  -0.36           a line is a run of tokens in which nothing branches, with log p and
    │ ├ Hund bellt </s> ★    -1.20  -0.40           the score of the beginning that ends there
    │ └ Fuchs ✗              -2.41  -1.20           ★ the first result, ✓ finished, ✗ dropped, ◆ on the reference's path
    └ ein ✗                  -2.53  -2.53

    0 der  ›   -0.36   1  1.04   der -0.36  ein -2.53       a step: what was said, log p, rank, entropy, and the most
    1 Hund  ◀  -0.84   1  0.90   Hund -0.84  Fuchs -2.05    probable tokens; › was forced, ◀ is where both ways part

Tokens may hold anything and pass through `visible`; a line that is wider than the terminal is cut.
"""

from __future__ import annotations

import shutil
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from dragoman.inspection.render.terminal import visible

Node = Mapping[str, Any]
DEEPEST = 60  # cells of indentation; what lies deeper stands below each other
FATES = {"kept": "", "finished": "✓", "dropped": "✗"}

# -- a beam ------------------------------------------------------------------------------------------------------------


def beam_lines(view: Mapping[str, Any], *, dropped: bool = True, width: int | None = None) -> Text:
    """The tree of a "beam" view with its results and verdict; `dropped` hypotheses may be left out."""
    width = width or shutil.get_terminal_size().columns
    shown = [node for node in view["nodes"] if dropped or node["fate"] != "dropped"]
    children: dict[int, list[Node]] = defaultdict(list)
    for node in shown:
        children[node["parent"]].append(node)
    best = view["results"][0]["node"] if view["results"] else None
    lines = _branches(children, best)
    middle = min(max((cell_len(label) for label, _ in lines), default=0), max(8, width - 18))
    text = Text(no_wrap=True, overflow="ignore")
    for label, node in lines:
        style = "bold" if node["best"] else "dim" if node["fate"] == "dropped" else ""
        text.append(f"{_filled(label, middle)}  {node['total']:7.3f}  {node['score']:7.3f}\n", style)
    for i, result in enumerate(view["results"], 1):
        said = " ".join(visible(token) for token in result["tokens"])
        line = f"{i}. {result['score']:.3f}  log p {result['log_prob']:.3f}  {said}"
        text.append(f"{_filled(line, width).rstrip(' ')}\n")
    if view["verdict"]:
        text.append(f"{textwrap.fill(view['verdict']['sentence'], width)}\n")
    return text


def _branches(children: Mapping[int, Sequence[Node]], best: int | None) -> list[tuple[str, Node]]:
    """A label and the last node of each run, from the top down."""
    lines = []
    waiting = _below(children.get(0, ()), "")
    while waiting:  # a loop, since a beam may be deeper than Python's own stack
        node, lead, sign = waiting.pop()
        run = [node]
        while len(children.get(run[-1]["id"], ())) == 1:
            run.append(children[run[-1]["id"]][0])
        lines.append((f"{lead}{sign} {' '.join(_named(one, best) for one in run)}", run[-1]))
        deeper = lead + ("│ " if sign == "├" else "  ")
        waiting += _below(children.get(run[-1]["id"], ()), deeper if len(deeper) <= DEEPEST else lead)
    return lines


def _below(nodes: Sequence[Node], lead: str) -> list[tuple[Node, str, str]]:
    """Siblings with what stands before them, the first one last: that is where they are taken from."""
    signs = ["├"] * (len(nodes) - 1) + ["└"] if nodes else []
    return [(node, lead, sign) for node, sign in zip(nodes, signs, strict=True)][::-1]


def _named(node: Node, best: int | None) -> str:
    marks = ("◆" if node["reference"] else "") + ("★" if node["id"] == best else FATES[node["fate"]])
    return f"{visible(node['token'])} {marks}" if marks else visible(node["token"])


# -- steps -------------------------------------------------------------------------------------------------------------


def step_lines(view: Mapping[str, Any], *, width: int | None = None) -> Text:
    """The steps of a "steps" view: free-running, and below it along the target, where one was given."""
    width = width or shutil.get_terminal_size().columns
    text = Text(no_wrap=True, overflow="ignore")
    for name in ("free", "forced"):
        if view[name] is None:
            continue
        if view["forced"] is not None:
            said = " ".join(visible(word) for word in view[name]["text"].split(" "))
            text.append(f"{name}: {said}  (log p {view[name]['log_prob']:.3f})\n")
        for line, style in _table(view[name]["steps"], view["diverges"], width):
            text.append(f"{line}\n", style)
    return text


def _table(steps: Sequence[Mapping[str, Any]], diverges: int | None, width: int) -> list[tuple[str, str]]:
    tokens = [visible(step["token"]) for step in steps]
    column = min(max(map(cell_len, tokens), default=0), max(8, width // 4))
    lines = []
    for t, (step, token) in enumerate(zip(steps, tokens, strict=True)):
        sign = ("›" if step["forced"] else " ") + ("◀" if t == diverges else " ")
        top = "  ".join(f"{visible(one['token'])} {one['log_prob']:.2f}" for one in step["top"])
        numbers = f"{step['log_prob']:7.3f} {step['rank']:3d} {step['entropy']:5.2f}"
        line = f"{t:3d} {_filled(token, column)} {sign} {numbers}   {top}"
        lines.append((_filled(line, width).rstrip(" "), "bold" if t == diverges else ""))
    return lines


def _filled(text: str, cells: int) -> str:
    """A text in exactly so many cells: cut with …, or filled with spaces."""
    if cell_len(text) > cells:
        text = text[: 2 * cells]  # most characters take a cell, and a long tail would be cut letter by letter
        while cell_len(text) >= cells:
            text = text[:-1]
        text += "…"
    return text + " " * (cells - cell_len(text))
