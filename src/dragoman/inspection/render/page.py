"""Views in one HTML file that opens anywhere: no server, no network, no other file.

    views.css ────────────────────────────→ <style>                       allowed by its SHA-256
    NAME.js of every view and its imports → <script type="module">       allowed by its SHA-256
    the views' data ──────────────────────→ <script type="application/json">, data that cannot run

Modules are joined by leaving out their imports and the word `export`: each follows those it imports, and no two of them
declare one name. Pictures are data, too. The page's content security policy forbids everything else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources

from dragoman.inspection.views import ViewData, find_view, views

START = """drawTabs(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));\n"""
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=function |const |class )", re.MULTILINE)


def render_page(data: Sequence[ViewData], title: str) -> str:
    """Render the data of views as one self-contained HTML page; several views become tabs."""
    style, script = _read_static("views.css"), join_modules() + START
    policy = (
        f"default-src 'none'; script-src {_csp_hash(script)}; style-src {_csp_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # In a <script> element "<" must be escaped; json.dumps escapes all that is not ASCII.
    encoded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
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
<script type="application/json" id="data">{encoded}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def view_modules() -> list[str]:
    """Return the names of the registered views that a JavaScript module draws."""
    return [name for name in views.names if find_view(name).has_module]


def page_modules() -> list[str]:
    """Return the names of all JavaScript modules of a page, each after those it imports."""
    order: list[str] = []

    def add(name: str) -> None:
        if name not in order:
            for imported in IMPORT.findall(_read_static(f"{name}.js")):
                add(imported)
            order.append(name)

    for name in (*view_modules(), "views"):
        add(name)
    return order


def join_modules() -> str:
    """Join the JavaScript modules of a page to one script, without imports and exports."""
    return "".join(EXPORT.sub("", IMPORT.sub("", _read_static(f"{name}.js"))) for name in page_modules())


def import_modules() -> str:
    """Return JavaScript that imports the module of every view, for pages that load them from a server."""
    return "".join(f'import "./{name}.js";\n' for name in view_modules())


def _read_static(name: str) -> str:
    return (resources.files("dragoman.inspection") / "static" / name).read_text("utf-8")


def _csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
