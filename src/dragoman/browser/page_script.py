"""The playground's own modules as one script, with an engine in place of its server.

    serve/static/*.js       the playground           server.js ← page/local_server.js
    inspection/static/*.js  its views                views/modules.js ← those that the engine computes
    page/*.js               what a page in one file adds; contents.js is its models

Each module becomes a function, called once when the first module imports it: two of them may use one name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from dragoman.browser.data_blocks import encode_block
from dragoman.browser.engine_script import module_names, read_module

FOLDERS = (("dragoman.serve", "static"), ("dragoman.inspection", "static"), ("dragoman.browser", "page"))
VIEW_MODULES = ("alignment", "beam", "steps")
WORKER_MODULES = ("data_blocks", "answers", "model_worker")
REPLACED = {"server": "local_server"}
ENTRY = "const { entry } = bundled.opening();\nbundled[entry]();\n"
IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"([^"]+)";[^\n]*\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?function |const |class )", re.MULTILINE)
EXPORTED = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
START = """const once = (build) => {
  let built;
  return () => (built ??= build());
};
"""


def build_page_script(models: Sequence[Mapping[str, Any]]) -> str:
    """Join the modules of a page to one script; `models` are what it knows of the models in the page's data blocks."""
    sources = read_page_modules()
    contents = {"MODELS": list(models), "WORKER": encode_block(build_worker_script(sources).encode())}
    sources["contents"] = "".join(f"export const {name} = {to_literal(x)};\n" for name, x in contents.items())
    sources["modules"] = "".join(f'import "./{name}.js";\n' for name in VIEW_MODULES)
    sources["pauses"] = read_module("pauses")
    return bundle_modules(sources, ("opening", "page", "simple")) + ENTRY


def build_worker_script(page_modules: Mapping[str, str]) -> str:
    """Join the engine and the modules of a model's worker to one script."""
    sources = {name: read_module(name) for name in module_names()}
    sources |= {name: page_modules[name] for name in WORKER_MODULES}
    return f'"use strict";\n{bundle_modules(sources, ("model_worker",))}bundled.model_worker();\n'


def bundle_modules(sources: Mapping[str, str], entries: Sequence[str]) -> str:
    """Return a script with an object `bundled` of functions, one for each module that the entries import, and them."""
    functions: dict[str, str] = {}

    def add(name: str) -> None:
        if name in functions:
            return
        for _, path in IMPORT.findall(sources[name]):
            add(_module_name(path))
        functions[name] = as_function(sources[name])

    for entry in entries:
        add(entry)
    bundled = "".join(f"{name}: once(() => {{\n{function}}}),\n" for name, function in functions.items())
    return f"{START}const bundled = {{\n{bundled}}};\n"


def as_function(source: str) -> str:
    """Return the body of a function that returns what a module exports."""

    def imported(match: re.Match[str]) -> str:
        names, module = match.group(1), _module_name(match.group(2))
        return f"const {{{names}}} = bundled.{module}();\n" if names else f"bundled.{module}();\n"

    exports = ", ".join(EXPORTED.findall(source))
    return EXPORT.sub("", IMPORT.sub(imported, source)) + f"return {{ {exports} }};\n"


def read_page_modules() -> dict[str, str]:
    """Return the texts of the modules of the playground, of its views and of a page in one file, by name."""
    return {
        file.name.removesuffix(".js"): file.read_text("utf-8")
        for package, folder in FOLDERS
        for file in (resources.files(package) / folder).iterdir()
        if file.name.endswith(".js")
    }


def to_literal(value: object) -> str:
    """Return a value as JavaScript that may stand in a <script> element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").encode("utf-8", "replace").decode()


def _module_name(path: str) -> str:
    name = PurePosixPath(path).stem
    return REPLACED.get(name, name)
