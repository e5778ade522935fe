"""XML that others wrote: parsed without trust, and the text of an element with the elements in it.

    <source>Hello <g id="1">world</g><x id="2"/></source>   ↔   text "Hello world", marks open@6 close@11 point@11

Entities are not resolved, no DTD is loaded, nothing is fetched, and depth and size have libxml2's limits. A file that
defines entities is refused: nothing but an attack needs them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.core.errors import DataError, MissingExtra
from dragoman.data.documents.placeholders import read_placeholders
from dragoman.data.documents.segments import Mark, Segment, pair_marks

Element = Any  # of lxml, which has no types
Classify = Callable[[Element], "tuple[str, object]"]  # "pair", "point", or "open" and "close" with the key of the pair

XML = "{http://www.w3.org/XML/1998/namespace}"
_DECLARATION = re.compile(rb"^(?:\xef\xbb\xbf)?<\?xml[^>]*\?>")


@dataclass(frozen=True)
class Wrapper:
    """An element around text, which a pair of marks stands for."""

    element: Element


def import_etree() -> Any:
    """Import lxml.etree, or raise MissingExtra."""
    try:
        from lxml import etree
    except ImportError:
        raise MissingExtra("lxml", "office", "reading XLIFF, TMX and DOCX files") from None
    return etree


def parse_xml(data: bytes, file: str) -> Any:
    """Parse a file to a tree; DataError with the line for what is no XML, or defines entities."""
    etree = import_etree()
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_blank_text=False
    )
    try:
        tree = etree.fromstring(data, parser).getroottree()
    except (etree.XMLSyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        problem = str(error).partition(", line ")[0].strip()[:200] or "it ends too early"
        raise DataError(f"the file is not valid XML: {problem}. Export it again", file, line) from None
    dtd = tree.docinfo.internalDTD
    if dtd is not None and next(iter(dtd.iterentities()), None) is not None:
        raise DataError("the file defines entities, which are not read. Save it without them", file)
    return tree


def serialize_xml(tree: Any, original: bytes) -> bytes:
    """The bytes of a tree, with the declaration, the encoding and the line ends of the original."""
    etree = import_etree()
    encoding = tree.docinfo.encoding or "UTF-8"
    declaration = _DECLARATION.match(original)
    is_plain = encoding.upper() in ("UTF-8", "ASCII", "US-ASCII")
    has_own = declaration is not None or is_plain
    body: bytes = etree.tostring(tree, encoding=encoding, xml_declaration=not has_own)
    if declaration is not None and has_own:
        following = original[declaration.end() :]
        space = following[: len(following) - len(following.lstrip())]
        body = declaration[0] + space.replace(b"\r\n", b"\n") + body
    if b"\r\n" in original and not re.search(rb"(?<!\r)\n", original):
        body = body.replace(b"\n", b"\r\n")
    trailing = original[len(original.rstrip(b"\r\n")) :]
    return body.rstrip(b"\r\n") + trailing if is_plain else body


def local_name(element: Element) -> str:
    """The name of an element without its namespace; "" for a comment and the like."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def read_segment(element: Element, classify: Classify, *, placeholders: bool = False) -> Segment:
    """The text in an element, with a mark for each element in it, and for placeholders in the text where wanted."""
    parts: list[str] = []
    marks: list[tuple[Mark, object]] = []
    length = 0

    def add_text(parent: Element, text: str | None) -> None:
        nonlocal length
        if text and placeholders:
            text, found = read_placeholders(text, length)
            marks.extend((mark, (parent, key)) for mark, key in found)  # a partner stands in the same element
        parts.append(text or "")
        length += len(text or "")

    def read(parent: Element) -> None:
        add_text(parent, parent.text)
        for child in parent:
            kind, key = ("point", None) if not isinstance(child.tag, str) else classify(child)
            if kind == "pair":
                marks.append((Mark("open", length, Wrapper(child)), child))
                read(child)
                marks.append((Mark("close", length), child))
            elif kind in ("open", "close"):
                marks.append((Mark("open" if kind == "open" else "close", length, child), (parent, key)))
            else:
                marks.append((Mark("point", length, child), None))
            add_text(parent, child.tail)

    read(element)
    return Segment("".join(parts), pair_marks(marks), element.sourceline or 0)


def fill_element(element: Element, items: Sequence[str | Mark]) -> None:
    """Put texts and copies of the marks' elements into an empty element."""
    stack = [element]
    for item in items:
        content = item if isinstance(item, str) else item.content
        if isinstance(content, str):
            append_text(stack[-1], content)
        elif content is None:  # the end of a pair; of one that is nested too deeply, nothing
            if not isinstance(item, str) and item.kind == "close":
                stack.pop()
        elif isinstance(content, Wrapper):
            original = content.element
            child = original.makeelement(original.tag, dict(original.attrib), original.nsmap)
            stack[-1].append(child)
            if not isinstance(item, str) and item.kind == "open":
                stack.append(child)
        else:
            child = copy.deepcopy(content)
            child.tail = None
            stack[-1].append(child)


def append_text(element: Element, text: str) -> None:
    """Add text at the end of an element."""
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def insert_after(element: Element, new: Element) -> None:
    """Insert an element after its sibling, with the same white space between them as after the sibling."""
    parent = element.getparent()
    previous = element.getprevious()
    before = parent.text if previous is None else previous.tail
    parent.insert(parent.index(element) + 1, new)
    new.tail = element.tail
    element.tail = before if before is None or not before.strip() else None
