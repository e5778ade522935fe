"""Placeholders and tags within the text of a program's messages, which stand in a translation as they are.

%s %(name)s %1$d %.2f %{name} ${name} {name} {0:>8} $name$   <b>…</b> <br/>
"""

from __future__ import annotations

import re

from dragoman.data.documents.segments import Mark, MarkKind, pair_marks

_PATTERN = re.compile(
    r"%(?:\(\w{1,100}\)|\d{1,3}\$|\d{0,3}\{\w{1,100}\}|<\w{1,100}>)?"
    r"[-+#0]{0,5}(?:\d{1,4}|\*)?(?:\.(?:\d{1,4}|\*))?(?:hh|h|ll|l|L|q|j|z|t)?[diouxXeEfFgGcsSpaA@](?![A-Za-z])"
    r"|%%|%\{\w{1,100}\}|%\d{1,3}\b"
    r"|\$?\{[A-Za-z0-9_.\[\]]{0,100}(?:![rsa])?(?::[^{}\n]{0,50})?\}"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][\w:.-]{0,50})(?P<rest>\s[^<>]{0,1000}|/?)>"
)


def read_placeholders(text: str, start: int = 0) -> tuple[str, list[tuple[Mark, object]]]:
    """Split a text into what is left without placeholders and tags, and the marks of these with the keys of pairs."""
    rest, done = "", 0
    marks: list[tuple[Mark, object]] = []
    for match in _PATTERN.finditer(text):
        rest += text[done : match.start()]
        done = match.end()
        kind: MarkKind = "point"
        if match["name"] and not match["rest"].endswith("/"):
            kind = "close" if match["close"] else "open"
        is_word = match["name"] is None
        marks.append((Mark(kind, start + len(rest), match.group(), is_word), (match["name"] or "").lower()))
    return rest + text[done:], marks


def split_placeholders(text: str) -> tuple[str, list[Mark]]:
    """Split a whole text as `read_placeholders` does, with tags in pairs."""
    rest, marks = read_placeholders(text)
    return rest, pair_marks(marks)
