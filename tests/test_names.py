"""Names of the package: one class, one name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import dragoman

PACKAGE = Path(dragoman.__file__).parent


def test_no_class_name_is_defined_twice() -> None:
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
