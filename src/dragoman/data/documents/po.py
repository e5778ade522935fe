r"""Gettext catalogs: messages of a program, and their translations.

    #: window.c:17         an empty msgstr is filled, and the message marked "fuzzy", as gettext's own tools mark what a
    msgid "Open %s"        person has yet to look at. Of a plural, the first form is translated from msgid, the others
    msgstr ""              from msgid_plural. Everything else keeps its bytes

Parsed by hand: packages that write catalogs wrap and order all messages anew, and a translator's changes are lost in
the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from dragoman.core.errors import DataError
from dragoman.data.documents.languages import Languages
from dragoman.data.documents.placeholders import split_placeholders
from dragoman.data.documents.plain_text import split_lines
from dragoman.data.documents.segments import Segment, Translation, is_translatable, place_marks

MAX_FORMS = 10  # plural forms of a language
WIDTH = 77  # of a line of a message, as gettext's tools wrap it

_CHARSET = re.compile(rb"charset=([\w.:-]{1,40})")
_KEYWORD = re.compile(r'\s*(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d{1,3})\])?)\s*(".*")\s*\Z')
_STRING = re.compile(r'\s*(".*")\s*\Z')
_ESCAPE = re.compile(r'\\(?:([abfnrtv"\\])|([0-7]{1,3})|x([0-9A-Fa-f]{1,2}))')
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", '"': '"', "\\": "\\"}
_NEEDS_ESCAPE = {character: f"\\{name}" for name, character in _ESCAPED.items()}
_LANGUAGE = re.compile(r"^Language: *([A-Za-z][\w@-]{1,20})", re.MULTILINE)
_FORMS = re.compile(r"nplurals\s*=\s*(\d{1,2})")


@dataclass
class Entry:
    """One message: its texts by keyword, where they stand, and the line on which its flags are or belong."""

    texts: dict[str, str] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)  # (first, end) of the lines
    flags_line: int = 0
    has_flags: bool = False
    is_fuzzy: bool = False

    @property
    def forms(self) -> list[str]:
        """The keywords of the translations: msgstr, or msgstr[0], msgstr[1] …"""
        return [keyword for keyword in self.texts if keyword.startswith("msgstr")]


@dataclass
class Catalog:
    """The lines of a catalog, and its messages without a translation with the numbers of their segments."""

    encoding: str
    file: str
    lines: list[str]
    missing: list[tuple[Entry, list[int]]]
    form_count: int  # plural forms that the header declares; 0 if it does not say
    segments: list[Segment]
    languages: Languages

    def write(self, translations: Sequence[Translation | None], stream: IO[bytes]) -> None:
        """Write the catalog with the messages that have a translation filled."""
        lines: list[str] = list(self.lines)
        for entry, numbers in self.missing:
            texts = [_rendered(self.segments[number], translations[number]) for number in numbers]
            filled = [text for text in texts if text is not None]
            if len(filled) == len(texts):
                self._fill(lines, entry, filled)
        text = "".join(lines)
        if not text.isascii() and not self._declares_charset():
            text = text.replace("charset=CHARSET", "charset=UTF-8", 1)
        try:
            stream.write(text.encode(self.encoding))
        except UnicodeEncodeError as error:
            problem = f"the file is in {self.encoding}, which has no {error.object[error.start]!r}"
            raise DataError(f"{problem}. Convert it first: msgconv --to-code=UTF-8", self.file) from None

    def _declares_charset(self) -> bool:
        return not any("charset=CHARSET" in line for line in self.lines[:100])

    def _fill(self, lines: list[str], entry: Entry, texts: Sequence[str]) -> None:
        """Put the translations of a message in place of its empty ones."""
        new_line = "\r\n" if self.lines[0].endswith("\r\n") else "\n"
        last = entry.spans[entry.forms[-1]][1] - 1
        for index, keyword in enumerate(entry.forms):
            if entry.texts[keyword]:
                continue
            text = texts[min(index, len(texts) - 1)] if len(entry.forms) > 1 else texts[-1]
            first, end = entry.spans[keyword]
            lines[first:end] = [_format(keyword, text, new_line), *[""] * (end - first - 1)]
        if "msgid_plural" in entry.texts:
            further = range(len(entry.forms), min(self.form_count, MAX_FORMS))
            lines[last] += "".join(_format(f"msgstr[{index}]", texts[-1], new_line) for index in further)
        if entry.has_flags and not entry.is_fuzzy:
            lines[entry.flags_line] = lines[entry.flags_line].replace("#,", "#, fuzzy,", 1)
        elif not entry.has_flags:
            lines[entry.flags_line] = f"#, fuzzy{new_line}{lines[entry.flags_line]}"


def parse(data: bytes, file: str, languages: Languages) -> Catalog:
    """Parse a catalog; DataError with the line that is wrong."""
    text, encoding = _decode(data, file)
    lines = split_lines(text)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    entries = list(_entries(lines, file))
    header = next((entry for entry in entries if entry.texts["msgid"] == "" and "msgctxt" not in entry.texts), None)
    fields = header.texts.get("msgstr", "") if header is not None else ""
    counted, named = _FORMS.search(fields), _LANGUAGE.search(fields)
    segments: list[Segment] = []
    missing: list[tuple[Entry, list[int]]] = []
    for entry in entries:
        if entry is header or all(entry.texts[form] for form in entry.forms):
            continue
        keywords = [keyword for keyword in ("msgid", "msgid_plural") if keyword in entry.texts]
        own: list[Segment] = []
        for keyword in keywords:
            rest, marks = split_placeholders(entry.texts[keyword])
            own.append(Segment(rest, marks, entry.spans[keyword][0] + 1))
        if all(is_translatable(segment.text) for segment in own):
            missing.append((entry, list(range(len(segments), len(segments) + len(own)))))
            segments += own
    known = Languages(languages.source, languages.target or (named[1] if named else None))
    return Catalog(encoding, file, lines, missing, int(counted[1]) if counted else 0, segments, known)


def _decode(data: bytes, file: str) -> tuple[str, str]:
    """Decode a catalog in the character set of its header, UTF-8 if it names none."""
    found = _CHARSET.search(data[:65536])
    encoding = found[1].decode() if found and found[1] != b"CHARSET" else "utf-8"
    try:
        return data.decode(encoding), encoding
    except (LookupError, UnicodeDecodeError) as error:
        line = data.count(b"\n", 0, error.start) + 1 if isinstance(error, UnicodeDecodeError) else None
        raise DataError(f"the text is not {encoding}, as the header says. Mend the header", file, line) from None


def _entries(lines: Sequence[str], file: str) -> Iterator[Entry]:
    """Yield the messages of a catalog; obsolete ones (#~) are comments."""
    entry, keyword = Entry(), ""
    comment: int | None = None  # the first line before the message on which flags may stand
    flags: int | None = None
    for number, line in enumerate(lines):
        stripped = line.strip().removeprefix("\ufeff")
        if stripped.startswith('"') and keyword and (string := _STRING.match(line)):
            entry.texts[keyword] += _unescape(string[1], file, number)
            entry.spans[keyword] = entry.spans[keyword][0], number + 1
            continue
        if not stripped or stripped.startswith("#"):
            if entry.forms:
                yield entry
                entry, comment, flags = Entry(), None, None
            keyword = ""
            if stripped.startswith("#,"):
                flags = number
            elif stripped.startswith("#|") and comment is None:
                comment = number
            continue
        match = _KEYWORD.match(line.removeprefix("\ufeff"))
        if match is None:
            raise DataError(
                'found no keyword with a text in quotes, such as msgid "…". Mend the line', file, number + 1
            )
        if match[1] in ("msgid", "msgctxt") and entry.forms:
            yield entry
            entry, comment, flags = Entry(), None, None
        keyword = match[1]
        _check_order(keyword, entry, file, number)
        if not entry.texts:
            entry.has_flags, entry.flags_line = flags is not None, number if comment is None else comment
            if flags is not None:
                entry.flags_line, entry.is_fuzzy = flags, "fuzzy" in lines[flags]
        entry.texts[keyword] = _unescape(match[3], file, number)
        entry.spans[keyword] = number, number + 1
    if entry.forms:
        yield entry
    elif entry.texts:
        raise DataError("the last message has no msgstr. Add one", file, len(lines))


def _check_order(keyword: str, entry: Entry, file: str, number: int) -> None:
    """Raise DataError for a keyword that cannot come here."""
    name = keyword.partition("[")[0]
    forms = len(entry.forms)
    is_first = name == "msgctxt" and not entry.texts
    is_id = name == "msgid" and set(entry.texts) <= {"msgctxt"}
    is_plural = name == "msgid_plural" and "msgid" in entry.texts and not forms and name not in entry.texts
    is_form = keyword == f"msgstr[{forms}]" and "msgid_plural" in entry.texts
    is_only = keyword == "msgstr" and "msgid" in entry.texts and "msgid_plural" not in entry.texts and not forms
    if not (is_first or is_id or is_plural or is_form or is_only):
        raise DataError(f"{keyword} cannot come here. Put msgid, msgid_plural and msgstr in order", file, number + 1)


def _unescape(string: str, file: str, number: int) -> str:
    """The text of a quoted string."""
    inner = string[1:-1]
    if re.search(r'(?<!\\)(?:\\\\)*"', inner) or re.search(r"(?<!\\)(?:\\\\)*\\\Z", inner):
        raise DataError('a quote within the text is not escaped. Write \\" for it', file, number + 1)

    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return _ESCAPED[match[1]]
        return chr(int(match[2], 8) if match[2] else int(match[3], 16))

    return _ESCAPE.sub(replace, inner)


def _rendered(segment: Segment, translation: Translation | None) -> str | None:
    """The translated text with its placeholders; None if there is none."""
    if translation is None or not translation.text.strip():
        return None
    return "".join(item if isinstance(item, str) else item.content for item in place_marks(segment, translation))


def _format(keyword: str, text: str, new_line: str) -> str:
    """The lines of a keyword and its text, broken at line breaks and wrapped as gettext's tools do it."""
    parts = [part for line in text.splitlines(keepends=True) for part in _wrap(_escape(line))]
    one_line = f'{keyword} "{"".join(parts)}"'
    if len(parts) <= 1 and len(one_line) <= WIDTH + 2:
        return one_line + new_line
    return new_line.join([f'{keyword} ""', *(f'"{part}"' for part in parts)]) + new_line


def _escape(text: str) -> str:
    return "".join(_NEEDS_ESCAPE.get(character, character) for character in text)


def _wrap(text: str) -> list[str]:
    """Break an escaped line after spaces so that its parts are short."""
    parts = [""]
    for word in re.findall(r"\S*\s*", text):
        if parts[-1] and len(parts[-1]) + len(word.rstrip()) > WIDTH:
            parts.append("")
        parts[-1] += word
    return parts
