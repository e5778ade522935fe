"""A document comes back with its text translated, and with everything else as it was."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.documents.samples import DOCX_TEXT, PO, SRT, TMX, WORD, XLIFF_1, XLIFF_2, make_docx, read_docx

from dragoman.core.errors import DataError
from dragoman.data.documents import SERVER_FORMATS, Document, open_document, parse_document
from dragoman.data.documents.languages import Languages, is_same_language, matching_language
from dragoman.data.documents.segments import Translation

pytest.importorskip("lxml")
from lxml import etree

LANGUAGES = Languages("en", "de")
SAMPLES = {"a.srt": SRT, "a.po": PO, "a.xlf": XLIFF_1, "b.xlf": XLIFF_2, "a.tmx": TMX, "a.docx": make_docx()}
WORDS = st.text('ab z.,"\\<&%é漢🙂', max_size=20)


def parse(name: str, data: bytes, languages: Languages = LANGUAGES) -> Document:
    return parse_document(data, name, languages, SERVER_FORMATS)


def translate(name: str, data: bytes, function: Callable[[str], str]) -> bytes:
    document, output = parse(name, data), io.BytesIO()
    document.write([Translation(function(segment.text)) for segment in document.segments], output)
    return output.getvalue()


def canonical(data: bytes) -> bytes:
    return bytes(etree.tostring(etree.fromstring(data), method="c14n"))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_document_without_translations_is_as_it_was(name: str) -> None:
    document, output = parse(name, SAMPLES[name]), io.BytesIO()
    assert document.segments
    document.write([None] * len(document.segments), output)
    if name in ("a.srt", "a.po"):
        assert output.getvalue() == SAMPLES[name]
    elif name != "a.docx":
        assert canonical(output.getvalue()) == canonical(SAMPLES[name])
        assert output.getvalue().splitlines()[0] == SAMPLES[name].splitlines()[0]  # the declaration


@pytest.mark.parametrize("name", ["a.srt", "a.docx"])
def test_unchanged_texts_leave_the_same_document(name: str) -> None:
    output = translate(name, SAMPLES[name], lambda text: text)
    if name == "a.srt":
        assert output == SRT
    else:
        before, after = (zipfile.ZipFile(io.BytesIO(data)) for data in (SAMPLES[name], output))
        assert before.namelist() == after.namelist()
        assert all(before.read(member) == after.read(member) for member in before.namelist())


def test_subtitles_keep_numbers_times_tags_and_line_ends() -> None:
    assert translate("a.srt", SRT, str.upper) == SRT.replace(
        b"<i>The first line of it\r\nand the second line</i>", b"<i>THE FIRST LINE OF IT\r\nAND THE SECOND LINE</i>"
    ).replace(b"- A <b>bold</b> word?\r\n- Yes.", b"- A <b>BOLD</b> WORD?\r\n- YES.")


def test_two_lines_of_a_cue_are_one_sentence_and_broken_again_in_balance() -> None:
    first = parse("a.srt", SRT).segments[0]
    assert (first.text, first.line) == ("The first line of it and the second line", 3)
    output = translate("a.srt", SRT, lambda text: "aaa " * 12).decode("utf-8-sig")
    assert "<i>" + " ".join(["aaa"] * 6) + "\r\n" in output
    assert translate("a.srt", SRT, lambda text: "short").decode("utf-8-sig").count("<i>short</i>\r\n\r\n") == 1


def test_a_cue_of_many_lines_is_broken_again_in_linear_time() -> None:
    lines = b"<i>ab</i> cd\n" * 20_000
    start = time.process_time()
    output = translate("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\n" + lines, str.upper)
    assert output.count(b"\n") == 20_002
    assert time.process_time() - start < 5  # seconds; comparing each line with each break took minutes


def test_a_catalog_is_filled_and_marked_and_valid_to_gettext(tmp_path: Path) -> None:
    output = translate("a.po", PO, str.upper)
    assert b'#, fuzzy, c-format\nmsgid "Open %s now"\nmsgstr "OPEN %s NOW"\n' in output
    assert b'msgstr[0] "%d FILE\\n"\nmsgstr[1] "%d FILES\\n"\n' in output
    assert output.count(b"fuzzy") == 2
    assert b'msgstr "fertig"' in output
    if shutil.which("msgfmt"):
        (tmp_path / "a.po").write_bytes(output)
        done = subprocess.run(["msgfmt", "--check-format", "-f", "-o", "/dev/null", "a.po"], cwd=tmp_path, check=False)
        assert done.returncode == 0


@given(st.lists(WORDS, min_size=3, max_size=3))
def test_a_catalog_says_what_the_model_said(texts: list[str]) -> None:
    polib = pytest.importorskip("polib")
    document, output = parse("a.po", PO), io.BytesIO()
    document.write([Translation(text) for text in texts], output)
    entry = next(one for one in polib.pofile(output.getvalue().decode()) if one.msgid == "Open %s now")
    expected = texts[0] if texts[0].strip() else ""
    assert "".join(entry.msgstr.replace("%s", "", 1).split()) == "".join(expected.replace("%s", "", 1).split())
    assert (entry.msgstr == "") == (expected == "")


@given(st.lists(WORDS, min_size=2, max_size=2))
def test_inline_elements_are_in_the_target_as_in_the_source(texts: list[str]) -> None:
    for name, sample in (("a.xlf", XLIFF_1), ("b.xlf", XLIFF_2), ("a.tmx", TMX)):
        document, output = parse(name, sample), io.BytesIO()
        document.write([Translation(f"x{text}") for text in texts[: len(document.segments)]], output)
        root = etree.fromstring(output.getvalue())
        source, target = (
            next(root.iter(f"{{*}}{tag}"), None) if name != "a.tmx" else list(root.iter("seg"))[i]
            for i, tag in enumerate(("source", "target"))
        )
        assert [one.tag for one in source][0:1] == [one.tag for one in target][0:1]
        assert sorted((one.tag, one.getparent().tag != source.tag) for one in source.iterdescendants()) == sorted(
            (one.tag, one.getparent().tag != target.tag) for one in target.iterdescendants()
        )


def test_units_without_a_target_get_one_with_its_state_and_others_stay() -> None:
    root = etree.fromstring(translate("a.xlf", XLIFF_1, str.upper))
    targets = list(root.iter("{*}target"))
    assert [target.get("state") for target in targets] == ["needs-review-translation", None]
    assert "".join(targets[0].itertext()) == "PRESS THE KEY ON {name}"
    assert [len(list(root.iter(tag))) for tag in ("{*}note", etree.Comment, "{*}source")] == [1, 1, 3]
    second = etree.fromstring(translate("b.xlf", XLIFF_2, str.upper))
    assert next(second.iter("{*}segment")).get("state") == "translated"
    assert etree.tostring(next(second.iter("{*}target"))).count(b'startRef="3"') == 1


def test_a_memory_gets_a_variant_in_the_target_language_where_it_has_none() -> None:
    output = translate("a.tmx", TMX, str.upper)
    assert b'<!DOCTYPE tmx SYSTEM "tmx14.dtd">' in output
    variants = [one.get("{http://www.w3.org/XML/1998/namespace}lang") for one in etree.fromstring(output).iter("tuv")]
    assert variants == ["en-US", "de", "en", "de-AT"]
    with pytest.raises(DataError, match="--target-lang"):
        parse("a.tmx", TMX, Languages())


def test_a_word_document_is_translated_in_body_tables_and_headers() -> None:
    output = translate("a.docx", SAMPLES["a.docx"], str.upper)
    assert read_docx(output) == DOCX_TEXT.upper()
    with zipfile.ZipFile(io.BytesIO(output)) as archive:
        xml = archive.read("word/document.xml").decode()
        assert "A HEADER" in archive.read("word/header1.xml").decode()
        assert archive.read("word/media/a.png") == b"\x89PNG\r\n"
    assert '<w:rPr><w:b/></w:rPr><w:t xml:space="preserve">BOLD TEXT</w:t>' in xml
    assert '<w:hyperlink w:anchor="x"><w:r><w:t xml:space="preserve"> AND A LINK</w:t></w:r></w:hyperlink>' in xml
    assert '<w:pPr><w:jc w:val="left"/></w:pPr>' in xml
    for once in ("bookmarkStart", "bookmarkEnd", "footnoteReference", "<w:b/>", "<w:hyperlink"):
        assert xml.count(once) == 1, once


@given(st.lists(WORDS, min_size=3, max_size=3))
def test_no_element_of_a_word_document_is_lost(texts: list[str]) -> None:
    document, output = parse("a.docx", SAMPLES["a.docx"]), io.BytesIO()
    document.write([Translation(f"x{text}") for text in texts], output)
    with zipfile.ZipFile(io.BytesIO(output.getvalue())) as archive:
        root = etree.fromstring(archive.read("word/document.xml"))
    tags = [etree.QName(one).localname for one in root.iter("*")]
    for tag in ("bookmarkStart", "bookmarkEnd", "footnoteReference", "hyperlink", "tbl"):
        assert tags.count(tag) == 1
    assert read_docx(output.getvalue()).replace("\t", "").startswith("x")
    assert all(etree.QName(one.getparent()).localname == "r" for one in root.iter(f"{{{WORD}}}t"))


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
SECRET = b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize("attack", [BOMB, SECRET])
def test_a_file_that_defines_entities_is_refused(attack: bytes) -> None:
    for name, sample in (("a.xlf", XLIFF_1), ("a.tmx", TMX.replace(b'<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n', b""))):
        start = sample.index(b"?>") + 2
        text = sample[:start] + attack + sample[start:].replace(b"one", b"&a;", 1)
        with pytest.raises(DataError, match=r"entities|not valid XML"):
            parse(name, text)
    body = attack + make_xml("&a;").encode()
    with pytest.raises(DataError, match=r"entities|not valid XML"):
        parse("a.docx", make_docx(**{"word/document.xml": body}))


def make_xml(text: str) -> str:
    return f'<w:document xmlns:w="{WORD}"><w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body></w:document>'


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"../../etc/x": b"x"}, "leads out"),
        ({"/etc/x": b"x"}, "leads out"),
        ({"word/media/b.bin": b"\0" * (8 << 20)}, "zip bomb"),
        ({"[Content_Types].xml": b"<Types/>"}, "no text"),
        ({"word/document.xml": b"<w:document"}, "not valid XML"),
    ],
)
def test_a_dangerous_archive_is_refused(members: dict[str, bytes], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        parse("a.docx", make_docx(**members))


def test_an_encrypted_archive_is_refused() -> None:
    data = bytearray(make_docx())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(DataError, match="encrypted"):
        parse("a.docx", bytes(data))


@pytest.mark.parametrize(
    ("name", "data", "where"),
    [
        ("a.srt", b"no times", "a.srt:1: "),
        ("a.srt", SRT + b"\xff", "a.srt:14: "),
        ("a.po", PO.replace(b'msgid "done"', b"msgid done"), r"a.po:15: "),
        ("a.po", PO.replace(b'"Open %s now"', b'"Open "%s" now"'), "a.po:11: "),
        ("a.po", b'msgid "a"\n', "a.po:1: "),
        ("a.po", b'msgstr "a"\n', "a.po:1: "),
        ("a.xlf", XLIFF_1.replace(b"</note>", b""), r"a.xlf:\d+: "),
        ("a.xlf", XLIFF_1.replace(b'version="1.2"', b'version="3.0"'), "a.xlf:2: "),
        ("a.xlf", XLIFF_1.replace(b'language="de"', b'language="fr"'), "a.xlf:3: "),
        ("a.tmx", XLIFF_1, "a.tmx:2: "),
        ("a.docx", b"PK", "a.docx: "),
    ],
)
def test_what_is_wrong_is_said_with_its_line(name: str, data: bytes, where: str) -> None:
    with pytest.raises(DataError, match=re.compile(f"^{where}.*[.:] ", re.DOTALL)):
        parse(name, data)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.srt: cannot be read"):
        open_document(tmp_path / "missing.srt")


def test_language_codes_match_their_varieties() -> None:
    assert is_same_language("en-US", "en")
    assert not is_same_language("en-US", "en-GB")
    assert matching_language("de_AT", ["fr", "de"]) == "de"
    assert matching_language("nl", ["fr", "de"]) is None
