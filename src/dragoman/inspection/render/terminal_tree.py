"""The beam tree and the table of steps as text, from the data of views/beam.py and views/steps.py.

    ├ der                    -0.36  -0.36           a line is a run of tokens in which nothing branches, with log p and
    │ ├ Hund bellt </s> ★    -1.20  -0.40           the score of the prefix that ends there
    │ └ Fuchs ✗              -2.41  -1.20           ★ the first result, ✓ finished, ✗ dropped, ◆ on the reference's path
    └ ein ✗                  -2.53  -2.53

    0 der  ›   -0.36   1  1.04   der -0.36  ein -2.53       a step: its token, log p, rank, entropy, and the most
    1 Hund  ◀  -0.84   1  0.90   Hund -0.84  Fuchs -2.05    probable tokens; › was forced, ◀ is the first difference

Tokens may hold anything and pass through `visible`; a line that is wider than the terminal is cut.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text

from dragoman.inspection.render.terminal import fit, visible
from dragoman.inspection.views import ViewData

MAX_INDENT = 60  # cells; deeper nodes are not indented further
FATE_MARKS = {"kept": "", "finished": "✓", "dropped": "✗"}

# -- a beam ------------------------------------------------------------------------------------------------------------


def render_beam(view: ViewData, *, width: int) -> Text:
    """Render the tree of a "beam" view with its results and verdict."""
    children: dict[int, list[ViewData]] = defaultdict(list)
    for node in view["nodes"]:
        children[node["parent"]].append(node)
    best = view["results"][0]["node"] if view["results"] else None
    lines = _render_branches(children, best)
    middle = min(max((cell_len(label) for label, _ in lines), default=0), max(8, width - 18))
    text = Text(no_wrap=True, overflow="ignore")
    for label, node in lines:
        style = "bold" if node["best"] else "dim" if node["fate"] == "dropped" else ""
        text.append(f"{fit(label, middle)}  {node['total']:7.3f}  {node['score']:7.3f}\n", style)
    for i, result in enumerate(view["results"], 1):
        tokens = " ".join(visible(token) for token in result["tokens"])
        line = f"{i}. {result['score']:.3f}  log p {result['log_prob']:.3f}  {tokens}"
        text.append(f"{fit(line, width).rstrip(' ')}\n")
    if view["verdict"]:
        text.append(f"{textwrap.fill(view['verdict']['sentence'], width)}\n")
    return text


def _render_branches(children: Mapping[int, Sequence[ViewData]], best: int | None) -> list[tuple[str, ViewData]]:
    """Return a tree's lines from the top down: the label of each unbranched run, and its last node."""
    lines = []
    stack = _siblings(children.get(0, ()), "")
    while stack:  # no recursion: a beam may be deeper than Python's own stack
        node, lead, sign = stack.pop()
        run = [node]
        while len(children.get(run[-1]["id"], ())) == 1:
            run.append(children[run[-1]["id"]][0])
        lines.append((f"{lead}{sign} {' '.join(_node_label(one, best) for one in run)}", run[-1]))
        deeper = lead + ("│ " if sign == "├" else "  ")
        stack += _siblings(children.get(run[-1]["id"], ()), deeper if len(deeper) <= MAX_INDENT else lead)
    return lines


def _siblings(nodes: Sequence[ViewData], lead: str) -> list[tuple[ViewData, str, str]]:
    """Return (node, indentation, branch sign) of siblings in reverse order, to be popped from a stack."""
    signs = ["├"] * (len(nodes) - 1) + ["└"] if nodes else []
    return [(node, lead, sign) for node, sign in zip(nodes, signs, strict=True)][::-1]


def _node_label(node: ViewData, best: int | None) -> str:
    marks = ("◆" if node["reference"] else "") + ("★" if node["id"] == best else FATE_MARKS[node["fate"]])
    return f"{visible(node['token'])} {marks}" if marks else visible(node["token"])


# -- steps -------------------------------------------------------------------------------------------------------------


def render_steps(view: ViewData, *, width: int) -> Text:
    """Render tables of the steps of a "steps" view: free-running, then along the target if there is one."""
    text = Text(no_wrap=True, overflow="ignore")
    for name in ("free", "forced"):
        if view[name] is None:
            continue
        if view["forced"] is not None:
            words = " ".join(visible(word) for word in view[name]["text"].split(" "))
            text.append(f"{name}: {words}  (log p {view[name]['log_prob']:.3f})\n")
        for line, style in _render_table(view[name]["steps"], view["diverges"], width):
            text.append(f"{line}\n", style)
    return text


def _render_table(steps: Sequence[ViewData], diverges: int | None, width: int) -> list[tuple[str, str]]:
    """Return (line, style) of each step: token, log p, rank, entropy and top tokens; bold where they diverge."""
    tokens = [visible(step["token"]) for step in steps]
    column = min(max(map(cell_len, tokens), default=0), max(8, width // 4))
    lines = []
    for t, (step, token) in enumerate(zip(steps, tokens, strict=True)):
        sign = ("›" if step["forced"] else " ") + ("◀" if t == diverges else " ")
        top = "  ".join(f"{visible(one['token'])} {one['log_prob']:.2f}" for one in step["top"])
        numbers = f"{step['log_prob']:7.3f} {step['rank']:3d} {step['entropy']:5.2f}"
        line = f"{t:3d} {fit(token, column)} {sign} {numbers}   {top}"
        lines.append((fit(line, width).rstrip(" "), "bold" if t == diverges else ""))
    return lines
