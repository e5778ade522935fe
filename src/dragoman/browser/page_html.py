"""The HTML of a page in one file: the playground's two pages as templates, its script, and the models as data blocks.

The content security policy allows the page's own script and styles by their hashes, a worker made of that script,
WebAssembly, and pictures in the page itself. It allows no connection to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import PurePosixPath

BODY = re.compile(r"<body[^>]*>\n(.*)</body>", re.DOTALL)
ABOUT = "Give a model a text and see how it arrives at its answer. All of it is computed on this page: nothing is sent."
INCOMPLETE = (
    "This page has not opened. If it does not in a moment, the file was cut short or changed, or the browser is too "
    "old or does not run the page's script; get the file again, or open it in another browser."
)
# What a page in one file says in place of the playground's words: each of them occurs once.
PLAYGROUND_WORDS = {
    '<a href="simple">Simple page</a>': '<a href="#simple">Simple page</a>',
    "<p>Give a model a text, an image or a sound and see how it arrives at its answer.</p>": f"<p>{ABOUT}</p>",
    "<noscript><p>This page is drawn by a script of the same server; please allow it to run.</p></noscript>": "",
}
TITLE = '<h1 id="title">Dragoman</h1>'  # of the page of one box
SIMPLE_WORDS = {
    "<noscript><p>This page needs a script of the same server; please allow it to run.</p></noscript>": "",
    "</main>": '  <p class="note"><a href="#">Show how the model arrives at its answer</a></p>\n</main>',
}


def render_page(title: str, script: str, blocks: Mapping[str, str]) -> str:
    """Render a page; `blocks` are the texts of its data blocks by their ids."""
    icon = f"data:image/svg+xml;base64,{_base64(_read('dragoman.serve', 'static/icon.svg').encode())}"
    theme = _read("dragoman.serve", "static/theme.js")
    style = "".join(
        _read(package, path)
        for package, path in (
            ("dragoman.inspection", "static/views.css"),
            ("dragoman.serve", "static/page.css"),
            ("dragoman.browser", "page/page.css"),
        )
    )
    for part in (style, theme, script):
        _check_embeddable(part)
    policy = (
        f"default-src 'none'; script-src {csp_hash(theme)} {csp_hash(script)} 'wasm-unsafe-eval'; worker-src blob:; "
        f"style-src {csp_hash(style)}; img-src data:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    name = html.escape(title.encode("utf-8", "replace").decode())
    titled = SIMPLE_WORDS | {TITLE: f'<h1 id="title">{name}</h1>'}
    templates = "".join(
        f'<template id="{id}-template">\n{read_body(file, words | {"static/page/icon.svg": icon})}</template>\n'
        for id, file, words in (("page", "index", PLAYGROUND_WORDS), ("simple", "simple", titled))
    )
    data = "".join(
        f'<script type="application/octet-stream" id="{id}">{text}</script>\n' for id, text in blocks.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{name}</title>
<link rel="icon" href="{icon}" type="image/svg+xml">
<style>{style}</style>
<script>{theme}</script>
</head>
<body class="dragoman playground">
<p id="incomplete" class="refusal">{INCOMPLETE}</p>
{templates}<script type="module">{script}</script>
{data}</body>
</html>
"""


def read_body(page: str, words: Mapping[str, str]) -> str:
    """Return the body of a page of the playground, with other words."""
    text = _read("dragoman.serve", f"static/{page}.html")
    match = BODY.search(text)
    assert match is not None, f"{page}.html has no body"
    body = match.group(1)
    for old, new in words.items():
        body = body.replace(old, new)
    return body


def csp_hash(text: str) -> str:
    """Return the source expression that allows an inline script or style in a content security policy."""
    return f"'sha256-{_base64(hashlib.sha256(text.encode()).digest())}'"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _check_embeddable(text: str) -> None:
    for sign in ("</script", "<script", "<!--", "</style"):
        assert sign not in text.lower(), f"a part of the page has {sign} in it, and would end its element"


def _read(package: str, path: str) -> str:
    return (resources.files(package) / PurePosixPath(path)).read_text("utf-8")
