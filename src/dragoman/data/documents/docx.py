"""Word documents: the paragraphs of body, tables, headers, footers, footnotes and endnotes.

    <w:r>Hello </w:r> <w:r><w:rPr><w:b/></w:rPr> world</w:r>   →   text "Hello world", marks open@6 close@11

Runs in the format that most of a paragraph has are its text; runs in another format are pairs of marks, and so are
hyperlinks and insertions. What is no text (pictures, fields, footnote marks, bookmarks) is a point. A tab or line break
is a character of the text, at which it is split for the model. Parts and paragraphs that do not change keep their bytes
and nodes; a changed paragraph is built again from the elements it had.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from dragoman.core.errors import DataError
from dragoman.data.documents.languages import Languages
from dragoman.data.documents.office_zip import UNSUPPORTED, OfficeZip
from dragoman.data.documents.segments import Mark, Segment, Translation, is_translatable, place_marks
from dragoman.data.documents.xml_content import (
    XML,
    Element,
    Wrapper,
    import_etree,
    local_name,
    parse_xml,
    serialize_xml,
)

CONTENT_TYPES = "[Content_Types].xml"
_PARTS = ("document.main", "header", "footer", "footnotes", "endnotes")
_WRAPPERS = ("hyperlink", "ins", "smartTag")
_DROPPED = ("proofErr", "lastRenderedPageBreak")  # notes of the program about the old text
_CHARACTERS = {"tab": "\t", "br": "\n", "cr": "\n"}


@dataclass(frozen=True)
class Format:
    """The properties (w:rPr) of runs, which a pair of marks stands for."""

    properties: Element | None


@dataclass
class _Paragraph:
    """A paragraph that has text, and the format of most of it."""

    element: Element
    part: str
    base: Element | None


@dataclass
class WordDocument:
    """The archive of a document, the trees of its parts with text, and their paragraphs."""

    archive: OfficeZip
    trees: dict[str, Any]
    languages: Languages
    paragraphs: list[_Paragraph] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def write(self, translations: Sequence[Translation | None], stream: IO[bytes]) -> None:
        """Write the document with the translated paragraphs; it is written once."""
        changed: set[str] = set()
        for paragraph, segment, translation in zip(self.paragraphs, self.segments, translations, strict=True):
            if translation is not None and translation.text.strip() and translation.text != segment.text:
                _rebuild(paragraph, place_marks(segment, translation))
                changed.add(paragraph.part)
        parts = {name: serialize_xml(self.trees[name], self.archive.read(name)) for name in changed}
        self.archive.write(parts, stream)


def parse(data: bytes, file: str, languages: Languages) -> WordDocument:
    """Parse a Word document; DataError for a damaged or dangerous file."""
    import_etree()
    archive = OfficeZip(data, file)
    document = WordDocument(archive, {}, languages)
    for part in _text_parts(archive):
        tree = parse_xml(archive.read(part), f"{file}#{part}")
        document.trees[part] = tree
        for element in tree.getroot().iter("{*}p"):
            if not _is_word(element):
                continue
            items = _read_content(element)
            base = _main_format(items)
            segment = _to_segment(items, base, element.sourceline or 0)
            if is_translatable(segment.text):
                document.paragraphs.append(_Paragraph(element, part, base.properties))
                document.segments.append(segment)
    return document


def _text_parts(archive: OfficeZip) -> list[str]:
    """The members of the archive that have text, by their declared types."""
    if CONTENT_TYPES not in archive.names:
        raise DataError(f"this is no Word document: {CONTENT_TYPES} is missing. {UNSUPPORTED}", archive.file)
    root = parse_xml(archive.read(CONTENT_TYPES), f"{archive.file}#{CONTENT_TYPES}").getroot()
    parts: list[str] = []
    for override in root.iter("{*}Override"):
        kind, name = override.get("ContentType", ""), override.get("PartName", "").lstrip("/")
        is_text = kind.endswith("+xml") and kind.partition(".wordprocessingml.")[2].removesuffix("+xml") in _PARTS
        if is_text and name in archive.names and name not in parts:
            parts.append(name)
    if not parts:
        raise DataError(f"this is no Word document: it has no text. {UNSUPPORTED}", archive.file)
    return parts


def _is_word(element: Element) -> bool:
    """Whether an element is of the namespace of Word, transitional or strict; pictures have paragraphs of their own."""
    return str(element.tag).startswith("{") and "wordprocessingml" in element.tag


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass
class _Text:
    """Text of a run, and its format."""

    text: str
    format: Format


@dataclass
class _Point:
    """An element that stays as it is."""

    element: Element


@dataclass
class _Wrapped:
    """An element around runs, with what is in it."""

    element: Element
    items: list[_Item]


_Item = _Text | _Point | _Wrapped


def _read_content(container: Element) -> list[_Item]:
    """The texts, points and wrappers in a paragraph or a wrapper."""
    items: list[_Item] = []
    fields = 0  # that have begun and not ended: they stay as they are
    for child in container:
        name = local_name(child)
        if name.endswith("Pr") or name in _DROPPED:
            continue
        if name == "r":
            kinds = [one.get(one.tag.replace("fldChar", "fldCharType")) for one in child.iterchildren("{*}fldChar")]
            if fields or kinds:
                items.append(_Point(child))
                fields = max(fields + kinds.count("begin") - kinds.count("end"), 0)
            else:
                items += _read_run(child)
        elif name in _WRAPPERS and not fields:
            items.append(_Wrapped(child, _read_content(child)))
        else:
            items.append(_Point(child))
    return items


def _read_run(run: Element) -> list[_Item]:
    """The texts of a run, and a run of its own for everything else in it."""
    properties = next(run.iterchildren("{*}rPr"), None)
    children = [child for child in run if local_name(child) not in ("rPr", *_DROPPED)]
    items: list[_Item] = []
    for child in children:
        name = local_name(child)
        if name == "t":
            items.append(_Text(child.text or "", Format(properties)))
        elif name in _CHARACTERS and not child.attrib:
            items.append(_Text(_CHARACTERS[name], Format(properties)))
        elif len(children) == 1:
            items.append(_Point(run))
        else:
            items.append(_Point(child))  # `_rebuild` puts it into a run again
    return items


def _format_key(format: Format) -> bytes:
    """What two formats that look alike share: everything but the language and the spelling."""
    if format.properties is None:
        return b""
    shown = [one for one in format.properties if local_name(one) not in ("lang", "noProof")]
    return b"".join(import_etree().tostring(one, with_tail=False) for one in shown)


def _texts(items: Sequence[_Item]) -> list[_Text]:
    return [
        text
        for item in items
        if not isinstance(item, _Point)
        for text in ([item] if isinstance(item, _Text) else _texts(item.items))
    ]


def _main_format(items: Sequence[_Item]) -> Format:
    """The format of most characters of a paragraph."""
    counts: Counter[bytes] = Counter()
    formats: dict[bytes, Format] = {}
    for text in _texts(items):
        key = _format_key(text.format)
        counts[key] += len(text.text.strip())
        formats.setdefault(key, text.format)
    return formats[counts.most_common(1)[0][0]] if counts else Format(None)


def _to_segment(items: Sequence[_Item], base: Format, line: int) -> Segment:
    """The text of a paragraph, with marks."""
    parts: list[str] = []
    marks: list[Mark] = []
    length = 0

    def read(items: Sequence[_Item]) -> None:
        nonlocal length
        current = base_key
        for item in items:
            if isinstance(item, _Text):
                key = _format_key(item.format)
                if key != current and item.text.strip():  # the format of spaces does not show
                    if current != base_key:
                        marks.append(Mark("close", length))
                    if key != base_key:
                        marks.append(Mark("open", length, item.format))
                    current = key
                parts.append(item.text)
                length += len(item.text)
            elif isinstance(item, _Point):
                marks.append(Mark("point", length, item.element))
            else:
                if current != base_key:
                    marks.append(Mark("close", length))
                    current = base_key
                marks.append(Mark("open", length, Wrapper(item.element)))
                read(item.items)
                marks.append(Mark("close", length))
        if current != base_key:
            marks.append(Mark("close", length))

    base_key = _format_key(base)
    read(items)
    return Segment("".join(parts), marks, line)


# -- writing -----------------------------------------------------------------------------------------------------------


def _rebuild(paragraph: _Paragraph, items: Sequence[str | Mark]) -> None:
    """Fill a paragraph with texts and the elements of its marks; the properties at its beginning stay."""
    element = paragraph.element
    prefix = element.tag[: -len("p")]
    _empty(element)
    containers, formats = [element], [paragraph.base]
    is_format: list[bool] = []  # of each open pair
    for item in items:
        if isinstance(item, str):
            containers[-1].append(_run(element, prefix, formats[-1], _text_elements(element, prefix, item)))
        elif item.kind == "close":
            (formats if is_format.pop() else containers).pop()
        elif isinstance(item.content, Format):
            is_format.append(True)
            formats.append(item.content.properties)
        elif isinstance(item.content, Wrapper):
            is_format.append(False)
            _empty(item.content.element)
            item.content.element.tail = None
            containers[-1].append(item.content.element)
            containers.append(item.content.element)
        else:
            point = item.content
            parent = point.getparent()
            is_part_of_run = parent is not None and local_name(parent) == "r"
            properties = next(parent.iterchildren("{*}rPr"), None) if is_part_of_run else None
            point.tail = None
            containers[-1].append(_run(element, prefix, properties, [point]) if is_part_of_run else point)


def _empty(element: Element) -> None:
    """Remove all children but the properties."""
    for child in list(element):
        if not local_name(child).endswith("Pr"):
            element.remove(child)


def _run(element: Element, prefix: str, properties: Element | None, content: Sequence[Element]) -> Element:
    """A new run."""
    run = element.makeelement(f"{prefix}r", None, None)
    if properties is not None:
        own = copy.deepcopy(properties)
        own.tail = None
        run.append(own)
    for child in content:
        run.append(child)
    return run


def _text_elements(element: Element, prefix: str, text: str) -> list[Element]:
    """The elements of a run for a text with tabs and line breaks."""
    names = {"\t": "tab", "\n": "br"}
    elements: list[Element] = []
    start = 0
    for end in [*(i for i, character in enumerate(text) if character in names), len(text)]:
        if end > start:
            one = element.makeelement(f"{prefix}t", {f"{XML}space": "preserve"}, None)
            one.text = text[start:end]
            elements.append(one)
        if end < len(text):
            elements.append(element.makeelement(f"{prefix}{names[text[end]]}", None, None))
        start = end + 1
    return elements
