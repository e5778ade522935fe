"""The engine's ES modules as one script, as a worker needs it: without imports, and without the word `export`."""

from __future__ import annotations

import re
from importlib import resources

IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=function |const |class )", re.MULTILINE)


def join_engine() -> str:
    """Join all modules of the engine to one script, each after those it imports."""
    order: dict[str, str] = {}

    def add(name: str) -> None:
        source = read_module(name)
        for imported in IMPORT.findall(source):
            if imported not in order:
                add(imported)
        order[name] = EXPORT.sub("", IMPORT.sub("", source))

    for name in module_names():
        if name not in order:
            add(name)
    return "\n".join(order.values())


def module_names() -> list[str]:
    """Return the names of the engine's modules."""
    files = (resources.files("dragoman.browser") / "engine").iterdir()
    return sorted(file.name.removesuffix(".js") for file in files if file.name.endswith(".js"))


def read_module(name: str) -> str:
    """Return the text of a module of the engine."""
    return (resources.files("dragoman.browser") / "engine" / f"{name}.js").read_text("utf-8")
