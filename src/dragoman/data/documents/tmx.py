"""TMX translation memories: units with a variant for each language.

    <tu><tuv xml:lang="en"><seg>…</seg></tuv></tu>   →   <tuv xml:lang="de"><seg>…</seg></tuv> is added

The source is the variant in the language that the unit or the header names (srclang), else the first. A unit that has a
variant in the target language is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from dragoman.core.errors import DataError
from dragoman.data.documents.languages import Languages, is_same_language
from dragoman.data.documents.segments import Segment, Translation, is_translatable, place_marks
from dragoman.data.documents.xml_content import (
    XML,
    Element,
    fill_element,
    insert_after,
    local_name,
    parse_xml,
    read_segment,
    serialize_xml,
)


@dataclass
class TranslationMemory:
    """The tree of a TMX file, and the variants (source, empty target or None) of the units without a target."""

    tree: Any
    data: bytes
    units: list[tuple[Element, Element | None]]
    segments: list[Segment]
    languages: Languages

    def write(self, translations: Sequence[Translation | None], stream: IO[bytes]) -> None:
        """Write the file with the variants that have a translation; a document is written once."""
        for (source, target), segment, translation in zip(self.units, self.segments, translations, strict=True):
            if translation is not None and translation.text.strip():
                self._fill(source, target, segment, translation)
        stream.write(serialize_xml(self.tree, self.data))

    def _fill(self, source: Element, target: Element | None, segment: Segment, translation: Translation) -> None:
        if target is None:
            attribute = f"{XML}lang" if source.get(f"{XML}lang") is not None else "lang"
            target = source.makeelement(source.tag, {attribute: self.languages.target or ""}, source.nsmap)
            own = _seg(source)
            seg = own.makeelement(own.tag, None, own.nsmap)
            target.text, seg.tail = source.text, own.tail
            target.append(seg)
            insert_after(_variants(source.getparent())[-1], target)
        seg = _seg(target)
        seg.text = None
        fill_element(seg, place_marks(segment, translation))


def parse(data: bytes, file: str, languages: Languages) -> TranslationMemory:
    """Parse a TMX file; DataError for another root element, or if the languages are not known."""
    tree = parse_xml(data, file)
    root = tree.getroot()
    if local_name(root) != "tmx":
        raise DataError(f"the file begins with <{local_name(root)}>. Give a TMX file", file, root.sourceline)
    if languages.target is None:
        raise DataError("a TMX file needs the language to translate to. Name it with --target-lang", file)
    header = next(root.iter("{*}header"), None)
    named = None if header is None else header.get("srclang")
    source_lang = languages.source or (None if named in (None, "*all*") else named)
    units: list[tuple[Element, Element | None]] = []
    segments: list[Segment] = []
    for tu in root.iter("{*}tu"):
        variants = [variant for variant in _variants(tu) if _seg(variant) is not None]
        own = languages.source or tu.get("srclang") or source_lang
        source = next((one for one in variants if own in (None, "*all*") or _is_in(one, own)), None)
        target = next((one for one in variants if _is_in(one, languages.target) and one is not source), None)
        is_empty = target is None or not ("".join(_seg(target).itertext()).strip() or len(_seg(target)))
        if source is None or not is_empty or _is_in(source, languages.target):
            continue
        segment = read_segment(_seg(source), _classify)
        if is_translatable(segment.text):
            units.append((source, target))
            segments.append(segment)
    return TranslationMemory(tree, data, units, segments, Languages(source_lang, languages.target))


def _variants(tu: Element) -> list[Element]:
    return [child for child in tu if local_name(child) == "tuv"]


def _seg(variant: Element) -> Element:
    return next((child for child in variant if local_name(child) == "seg"), None)


def _is_in(variant: Element, language: str | None) -> bool:
    code = variant.get(f"{XML}lang") or variant.get("lang") or ""
    return bool(language) and is_same_language(code, language or "")


def _classify(element: Element) -> tuple[str, object]:
    name = local_name(element)
    if name == "hi":
        return "pair", None
    if name == "bpt":
        return "open", element.get("i")
    return ("close", element.get("i")) if name == "ept" else ("point", None)
