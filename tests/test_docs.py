"""What the documentation names exists: commands and their options, files, modules, tests, links.

code        indented and fenced lines, and `inline code`
command     a line of code that runs `dragoman`; in a block with `$ `, only those lines
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module, util
from pathlib import Path
from typing import Any

import pytest
import typer

import dragoman
from dragoman.cli.main import build_app

ROOT, PACKAGE = Path(__file__).parents[1], Path(dragoman.__file__).parent
RECIPES = sorted((PACKAGE / "recipes").glob("*/README.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = re.compile(r"(?:^|[\s|&;(]|--\s)(?:\.venv/bin/)?(?<!from )dragoman\s+(?=[a-z\-])(?!\w+,)")
CODE_SPAN = re.compile(r"`([^`]+)`")
CODE_BLOCK = re.compile(r"(?:^(?: {4}|\t).*\n?(?:^\s*$\n(?=(?: {4}|\t)))?)+", re.MULTILINE)
FENCED_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
FOLDERS = ("src", "tests", "bench", "docs", "deploy", ".ci")
PACKAGES = tuple(path.name for path in PACKAGE.iterdir() if path.is_dir())

every_page = pytest.mark.parametrize("page", [*PAGES, *RECIPES], ids=lambda page: str(page.relative_to(ROOT)))


def code_spans(text: str) -> list[str]:
    """The pieces of inline code outside of blocks."""
    text = CODE_BLOCK.sub("\n", FENCED_BLOCK.sub("\n", text))
    return [re.sub(r"\s*\n\s*", " ", span) for span in CODE_SPAN.findall(text)]


def code_blocks(text: str) -> list[str]:
    return [*FENCED_BLOCK.findall(text), *CODE_BLOCK.findall(FENCED_BLOCK.sub("\n", text))]


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each command of a page."""
    lines: list[str] = [span for span in code_spans(text) if "…:" not in span]
    for block in code_blocks(text):
        block = re.sub(r" *\\\n\s*", " ", block)
        block = re.sub(r"\n\s+(?=\[?--)", " ", block)  # a usage that goes on in the next line
        own = [line.strip() for line in block.split("\n")]
        sessions = [line.removeprefix("$ ") for line in own if line.startswith("$ ")]
        lines += sessions or own
    for line in lines:
        if (start := PROGRAM.search(line)) and "→" not in line[: start.end() + 3]:
            yield arguments_of(line[start.end() :])


def arguments_of(line: str) -> list[str]:
    """The words of a command up to a pipe, a redirection, a comment or a remark after two spaces."""
    line = re.split(r" {2,}", line)[0].replace("[--", " --").replace("]", " ").replace("[", " ")
    words = shlex.split(line.rstrip("`"), comments=True)
    end = next((i for i, word in enumerate(words) if word in ("|", "||", "&&", ">", ">>", "&", ";", "→")), len(words))
    return words[:end]


@cache
def command_line(is_predict: bool) -> Any:
    return typer.main.get_command(build_app(["predict"] if is_predict else []))


def problem_of(arguments: list[str]) -> str | None:
    """What the real command line says of a command before it runs; None if nothing. A bare command is a mention."""
    command, context, rest = command_line("predict" in arguments), None, arguments
    try:
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            context = context or command.make_context("dragoman", list(rest[:1]))
            name, command, rest = command.resolve_command(context, rest)
            context = command.make_context(name, list(rest), parent=context) if rest else context
    except typer.Exit:  # --version
        return None
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's, of whichever package
            raise
        message = str(error.format_message())
        is_usage = any("…" in word for word in arguments)  # its values are placeholders
        return None if is_usage and message.startswith(("Missing", "Invalid value")) else message
    return None


def test_a_wrong_command_would_be_noticed() -> None:
    for wrong in ("trian x", "train x --stpes 4", "recipe lits", "predict run --format xml", "config check a b"):
        assert problem_of(shlex.split(wrong)), wrong
    for right in (
        "train --preset p --set a=1",
        "recipe run x --check",
        "predict run --beam 5 --format tsv",
        "--version",
    ):
        assert problem_of(shlex.split(right)) is None, right
    page = "`dragoman one -a` and\n\n    echo x | dragoman two 'b c' | head  # d\n"
    page += "\nor\n\n    $ dragoman three \\\n        -e\n    dragoman → out\n"
    assert list(commands(page)) == [["one", "-a"], ["two", "b c"], ["three", "-e"]]


@every_page
def test_every_command_of_the_documentation_parses(page: Path) -> None:
    found = list(commands(page.read_text(encoding="utf-8")))
    problems = {" ".join(words): problem for words in found if (problem := problem_of(words)) is not None}
    assert not problems


def named_paths(page: Path, text: str) -> Iterator[tuple[str, list[Path]]]:
    """The files and modules that a page names, and where each may be."""
    for word in {word for code in [*code_spans(text), *code_blocks(text)] for word in re.split(r"[\s()=,;'\"]+", code)}:
        word = word.partition("::")[0].rstrip(":.")
        if word.endswith("/FILE"):
            continue
        first, _, rest = word.partition("/")
        if not rest or re.search(r"[^\w./-]", word) or word.isupper():
            continue
        if first in FOLDERS:
            yield word, [ROOT / word]
        elif page.name == "reliability.md" and rest.endswith(".py"):
            yield word, [ROOT / "tests" / word]
        elif page.name == "architecture.md" and first in PACKAGES:
            module = PACKAGE / word
            yield word, [module, module.with_name(f"{module.name}.py"), module.with_suffix(".py")]


@every_page
def test_every_file_and_module_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [word for word, places in named_paths(page, text) if not any(place.exists() for place in places)]
    links = re.findall(r"\]\((?!\w+:)([^)#\s]+)", CODE_SPAN.sub("", text))
    missing += [link for link in links if not (page.parent / link).exists()]
    assert not missing


@every_page
def test_every_name_of_our_package_that_a_page_imports_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = {(module, name) for module in re.findall(r"\bimport (dragoman[\w.]*)", text) for name in [""]}
    for module, imported in re.findall(r"\bfrom (dragoman[\w.]*) import ([\w, ]+)", text):
        names |= {(module, name.split(" as ")[0].strip()) for name in imported.split(",")}
    names |= {tuple(word.rpartition(".")[::2]) for word in re.findall(r"`(dragoman\.\w+\.[\w.]*\w)`", text)}
    missing = [f"{module}.{name}" for module, name in sorted(names) if not is_there(module, name)]
    assert not missing


def is_there(module: str, name: str) -> bool:
    try:
        found = import_module(module)
    except ModuleNotFoundError:
        return False
    return not name or hasattr(found, name) or util.find_spec(f"{module}.{name}") is not None


def test_every_test_that_the_page_of_reliability_names_exists() -> None:
    text, file, missing = (ROOT / "docs/reliability.md").read_text(encoding="utf-8"), "", []
    for span in code_spans(text):
        path, separator, name = span.partition("::")
        if not separator or path.endswith("/FILE"):
            continue
        file = path or file
        if file and f"def {name}(" not in (ROOT / "tests" / file).read_text(encoding="utf-8"):
            missing.append(f"{file}::{name}")
    assert not missing


def test_every_target_of_make_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        code = "\n".join([*code_spans(text), *code_blocks(text)])
        assert set(re.findall(r"(?:^|[\s=])make ([a-z][a-z-]*)", code)) <= targets, page
