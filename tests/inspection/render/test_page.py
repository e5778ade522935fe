"""One file with everything in it: what it allows to run, what it cannot run, and how the modules become one."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dragoman.inspection.render import page as pages
from dragoman.inspection.render.page import page_modules, render_page

STATIC = Path(pages.__file__).parents[1] / "static"
MODULES = page_modules()
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "]]>",
    "\u2028\u2029\u202e",
    "\ud800",
    "quotes \" and ' and \\",
    "&lt;&amp;",
]


class Elements(HTMLParser):
    """The elements of a page as a browser sees them: [tag, attributes, text]."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, Any], list[str]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("", {}, []))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.found[-1][2].append(data)

    def texts(self, name: str) -> list[str]:
        return ["".join(text) for tag, _, text in self.found if tag == name]


def view(**values: Any) -> dict[str, Any]:
    return {"view": "probes", "checks": [], **values}


def test_the_policy_allows_the_style_and_the_script_of_the_page_by_their_hashes_and_nothing_else() -> None:
    parsed = Elements(render_page([view()], "A title"))
    (policy,) = [attrs["content"] for _, attrs, _ in parsed.found if "http-equiv" in attrs]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def named(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    (style,) = parsed.texts("style")
    (script,) = ["".join(text) for tag, attrs, text in parsed.found if tag == "script" and attrs["type"] == "module"]
    assert rules["default-src"] == "'none'"
    assert rules["style-src"] == named(style)
    assert rules["script-src"] == named(script)
    assert "unsafe" not in policy


@pytest.mark.parametrize("text", HOSTILE)
def test_text_from_data_stays_data(text: str) -> None:
    views = [view(text=text, deep=[{text: [text, 0.125, None]}])]
    parsed = Elements(render_page(views, "A title"))
    blocks = [(attrs["type"], "".join(text)) for tag, attrs, text in parsed.found if tag == "script"]
    assert [kind for kind, _ in blocks] == ["application/json", "module"]
    assert json.loads(blocks[0][1]) == views


@pytest.mark.parametrize("title", HOSTILE)
def test_a_title_is_only_text(title: str) -> None:
    text = render_page([], title)
    parsed = Elements(text)
    shown = title.replace("\ud800", "?")
    assert parsed.texts("h1") == parsed.texts("title") == [shown]
    assert [tag for tag, _, _ in parsed.found if tag == "script"] == ["script", "script"]
    text.encode("utf-8")  # a file can hold it


def test_numbers_that_json_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        render_page([view(x=float("nan"))], "A title")


def test_the_page_names_no_other_host_and_no_other_file() -> None:
    text = render_page([view()], "A title")
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"\b(?:src|href)=|@import|url\(", text)


def test_every_module_is_part_of_the_page_after_those_it_imports() -> None:
    assert len(MODULES) == len(set(MODULES))
    assert set(MODULES) == {file.stem for file in STATIC.glob("*.js")}
    for i, name in enumerate(MODULES):
        needed = re.findall(r'from "\./(\w+)\.js"', (STATIC / f"{name}.js").read_text("utf-8"))
        assert set(needed) <= set(MODULES[:i]), name


def test_joining_leaves_no_import_and_no_export_and_no_name_twice() -> None:
    text = pages.join_modules()
    assert not re.search(r"^\s*(?:import|export)\b", text, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:function|const|let|var|class) (\w+)", text, re.MULTILINE)
    assert len(names) > 50
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


def test_what_a_module_imports_the_other_exports() -> None:
    exported = {
        name: set(
            re.findall(r"^export (?:function|const|class) (\w+)", (STATIC / f"{name}.js").read_text("utf-8"), re.M)
        )
        for name in MODULES
    }
    for name in MODULES:
        text = (STATIC / f"{name}.js").read_text("utf-8")
        for names, other in re.findall(r'^import \{ ([^}]*) \} from "\./(\w+)\.js";$', text, re.MULTILINE):
            assert set(names.split(", ")) <= exported[other], f"{name} from {other}"


def test_no_module_makes_markup_or_code_from_text() -> None:
    for file in STATIC.iterdir():
        text = file.read_text("utf-8")
        found = re.findall(
            r"innerHTML =|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|</script", text
        )
        assert not found, file.name


def test_the_views_are_small() -> None:
    assert sum(len(file.read_bytes()) for file in STATIC.iterdir()) < 110_000
