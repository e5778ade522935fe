"""XLIFF 1.2 and 2.x: translation units with source and target.

    1.2   <trans-unit><source>…</source>          a target with state="needs-review-translation" is added
    2.x   <segment><source>…</source></segment>   a target is added, and the segment gets state="translated", which is
                                                  what comes before "reviewed"

Only missing or empty targets are filled; units with translate="no" are left alone. Inline elements are kept with their
ids: those around text are pairs, and so are those with a partner (bpt … ept, sc … ec); all others are points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

_PAIRS = ("g", "pc", "mrk")
_OPENING = {"bpt": ("rid", "id"), "bx": ("rid", "id"), "sc": ("id",), "sm": ("id",)}
_CLOSING = {"ept": ("rid", "id"), "ex": ("rid", "id"), "ec": ("startRef",), "em": ("startRef",)}
_PARTNERS = {"ept": "bpt", "ex": "bx", "ec": "sc", "em": "sm"}


@dataclass
class Unit:
    """A source without a target: its elements, and the element whose attributes say in which state it is."""

    source: Element
    target: Element | None
    holder: Element


@dataclass
class TranslationUnits:
    """The tree of an XLIFF file, and its units without a target."""

    tree: Any
    data: bytes
    is_version_1: bool
    units: list[Unit]
    segments: list[Segment]
    languages: Languages

    def write(self, translations: Sequence[Translation | None], stream: IO[bytes]) -> None:
        """Write the file with the targets that have a translation; a document is written once."""
        for unit, segment, translation in zip(self.units, self.segments, translations, strict=True):
            if translation is not None and translation.text.strip():
                self._fill(unit, segment, translation)
        stream.write(serialize_xml(self.tree, self.data))

    def _fill(self, unit: Unit, segment: Segment, translation: Translation) -> None:
        target = unit.target
        if target is None:
            source = unit.source
            target = source.makeelement(source.tag[: -len("source")] + "target", None, source.nsmap)
            last = next((one for one in source.itersiblings() if local_name(one) == "seg-source"), source)
            insert_after(last, target)
        for child in list(target):
            target.remove(child)
        target.text = None
        space = unit.source.get(f"{XML}space")
        if space is not None:
            target.set(f"{XML}space", space)
        fill_element(target, place_marks(segment, translation))
        if self.is_version_1:
            target.set("state", "needs-review-translation")
        else:
            unit.holder.set("state", "translated")
        self._set_language(unit)

    def _set_language(self, unit: Unit) -> None:
        """Say the target's language where the file has none."""
        name, attribute = ("file", "target-language") if self.is_version_1 else ("xliff", "trgLang")
        element = next(one for one in (unit.holder, *unit.holder.iterancestors()) if local_name(one) == name)
        if element.get(attribute) is None and self.languages.target is not None:
            element.set(attribute, self.languages.target)


def parse(data: bytes, file: str, languages: Languages) -> TranslationUnits:
    """Parse an XLIFF file; DataError for another root element or version."""
    tree = parse_xml(data, file)
    root = tree.getroot()
    version = root.get("version", "")
    if local_name(root) != "xliff" or not version.startswith(("1.", "2.")):
        found = f"<{local_name(root)}> of version '{version[:20]}'"
        raise DataError(f"the file begins with {found}. Give XLIFF 1.2 or 2.x", file, root.sourceline)
    is_version_1 = version.startswith("1.")
    holders = list(root.iterchildren("{*}file")) if is_version_1 else [root]
    own = [holder.get("target-language" if is_version_1 else "trgLang") for holder in holders]
    for holder, code in zip(holders, own, strict=True):
        if code and languages.target and not is_same_language(code, languages.target):
            problem = f"the file's target language is {code}, and {languages.target} was asked for"
            raise DataError(f"{problem}. Leave out the language, or change it in the file", file, holder.sourceline)
    units = [unit for unit in _units(root, is_version_1) if _is_open(unit)]
    read = [read_segment(unit.source, _classify, placeholders=True) for unit in units]
    kept = [(unit, segment) for unit, segment in zip(units, read, strict=True) if is_translatable(segment.text)]
    if kept and not is_version_1 and own[0] is None and languages.target is None:
        problem = "the file does not say its target language (trgLang), which XLIFF 2 needs for a target"
        raise DataError(f"{problem}. Name it with --target-lang", file, root.sourceline)
    source = next((holder.get("source-language" if is_version_1 else "srcLang") for holder in holders), None)
    known = Languages(languages.source or source, languages.target or next(filter(None, own), None))
    return TranslationUnits(
        tree, data, is_version_1, [unit for unit, _ in kept], [segment for _, segment in kept], known
    )


def _units(root: Element, is_version_1: bool) -> Iterator[Unit]:
    """Yield the units of a file that are to be translated."""
    name = "trans-unit" if is_version_1 else "segment"
    for holder in root.iter("{*}" + name):
        flags = (one.get("translate") for one in (holder, *holder.iterancestors()))
        if next(filter(None, flags), "yes") == "no":  # the innermost counts
            continue
        children = {local_name(child): child for child in reversed(list(holder))}
        if "source" in children:
            yield Unit(children["source"], children.get("target"), holder)


def _is_open(unit: Unit) -> bool:
    """Whether a unit has no translation yet."""
    target = unit.target
    return target is None or (not "".join(target.itertext()).strip() and len(target) == 0)


def _classify(element: Element) -> tuple[str, object]:
    name = local_name(element)
    if name in _PAIRS:
        is_protected = element.get("translate") == "no" or element.get("mtype") == "protected"
        return ("point" if is_protected else "pair"), None
    if name in _OPENING:
        return "open", (name, next((element.get(key) for key in _OPENING[name] if element.get(key)), None))
    if name in _CLOSING:
        key = next((element.get(key) for key in _CLOSING[name] if element.get(key)), None)
        return "close", (_PARTNERS[name], key)
    return "point", None
