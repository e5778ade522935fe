"""Views in one HTML file that opens anywhere: no server, no network, no other file.

    views.css ──────────────────────────→ <style>                       allowed by its SHA-256
    dom.js, heat.js, …, views.js, joined → <script type="module">       allowed by its SHA-256
    the views' dicts ───────────────────→ <script type="application/json">, data that cannot run

Modules are joined by leaving out their imports and the word `export`: they follow one another in the order of their
imports, and no two of them use a name twice. Pictures are data, too. Everything else is forbidden by the page's content
security policy.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

# A module stands after those it imports from.
MODULES = (
    *("dom", "heat", "medium", "chart"),
    *("alignment", "beam", "steps", "quality", "space", "positions", "probes", "why", "replay"),
    "views",
)
START = """drawTabs(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));\n"""
IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=function |const |class )", re.MULTILINE)


def page(views: Sequence[Mapping[str, Any]], title: str) -> str:
    """The text of the file; several views become tabs."""
    style, script = _static("views.css"), joined() + START
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    name = html.escape(title.encode("utf-8", "replace").decode())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{name}</title>
<style>{style}</style>
</head>
<body class="dragoman page">
<header><h1>{name}</h1></header>
<main><noscript>A script that is part of this page draws its pictures; please allow it to run.</noscript></main>
<script type="application/json" id="data">{embedded(views)}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def embedded(value: Any) -> str:
    """JSON that cannot end the element it stands in: "<" is written as its escape, and so is all that is not ASCII."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def joined() -> str:
    """All modules as one."""
    return "".join(EXPORT.sub("", IMPORT.sub("", _static(f"{name}.js"))) for name in MODULES)


def _static(name: str) -> str:
    return (resources.files("dragoman.inspection") / "static" / name).read_text("utf-8")


def _hash(text: str) -> str:
    """How a content security policy names an element's content."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
