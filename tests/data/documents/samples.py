"""Small documents of each kind."""

from __future__ import annotations

import io
import re
import zipfile

SRT = (
    b"\xef\xbb\xbf1\r\n00:00:01,000 --> 00:00:02,500 X1:1\r\n<i>The first line of it\r\nand the second line</i>\r\n\r\n"
    b"2\r\n00:00:03,000 --> 00:00:04,000\r\n- A <b>bold</b> word?\r\n- Yes.\r\n\r\n3\r\n"
    b"00:00:05,000 --> 00:00:06,000\r\n42\r\n"
)
PO = b"""# A comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Language: de\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

#. for translators
#: window.c:17
#, c-format
msgid "Open %s now"
msgstr ""

msgctxt "menu"
msgid "done"
msgstr "fertig"

#, c-format
msgid "%d file\\n"
msgid_plural "%d files\\n"
msgstr[0] ""
msgstr[1] ""

#~ msgid "old"
#~ msgstr ""
"""
XLIFF_1 = b"""<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file source-language="en" target-language="de" original="a" datatype="plaintext">
    <body>
      <!-- kept -->
      <trans-unit id="1">
        <source>Press <g id="1">the <x id="2"/>key</g> on {name}</source>
        <note>kept</note>
      </trans-unit>
      <trans-unit id="2"><source>one</source><target>eins</target></trans-unit>
      <trans-unit id="3" translate="no"><source>never</source></trans-unit>
    </body>
  </file>
</xliff>
"""
XLIFF_2 = b"""<?xml version="1.0"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de">
 <file id="f"><unit id="u"><segment id="s"><source>Press <pc id="1">the <ph id="2"/>key</pc> <sc id="3"/>now<ec
 startRef="3"/></source></segment><ignorable><source> </source></ignorable></unit></file>
</xliff>
"""
TMX = b"""<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US" datatype="plaintext"/>
<body>
  <tu tuid="1">
    <tuv xml:lang="en-US"><seg>A <bpt i="1">&lt;b></bpt>bold<ept i="1">&lt;/b></ept> word</seg></tuv>
  </tu>
  <tu tuid="2"><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de-AT"><seg>eins</seg></tuv></tu>
</body></tmx>
"""

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
PARAGRAPHS = (
    '<w:p><w:pPr><w:jc w:val="left"/></w:pPr><w:r><w:t xml:space="preserve">Some </w:t></w:r><w:r><w:rPr><w:b/></w:rPr>'
    '<w:t>bold text</w:t></w:r><w:bookmarkStart w:id="0" w:name="x"/><w:hyperlink w:anchor="x"><w:r>'
    '<w:t xml:space="preserve"> and a link</w:t></w:r></w:hyperlink><w:r><w:tab/><w:t>after a tab</w:t>'
    '<w:footnoteReference w:id="2"/></w:r><w:bookmarkEnd w:id="0"/></w:p>'
    "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>in a cell</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    "<w:p><w:r><w:t>42</w:t></w:r></w:p>"
)
DOCX_TEXT = "Some bold text and a link\tafter a tab|in a cell|42"


def make_docx(body: str = PARAGRAPHS, **members: bytes) -> bytes:
    """A Word document with these paragraphs, a header and a picture."""
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    overrides = "".join(
        f'<Override PartName="/word/{name}.xml" ContentType="{kind}.{part}+xml"/>'
        for name, part in {"document": "document.main", "header1": "header", "styles": "styles"}.items()
    )
    files = {
        "[Content_Types].xml": f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        f'<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Default Extension="xml" ContentType="application/xml"/>{overrides}</Types>',
        "_rels/.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        '<Relationship Id="r1" Target="word/document.xml" '
        'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"/></Relationships>',
        "word/document.xml": f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\r\n<w:document xmlns:w="{WORD}">'
        f"<w:body>{body}</w:body></w:document>",
        "word/header1.xml": f'<w:hdr xmlns:w="{WORD}"><w:p><w:r><w:t>A header</w:t></w:r></w:p></w:hdr>',
        "word/styles.xml": f'<w:styles xmlns:w="{WORD}"/>',
        "word/media/a.png": b"\x89PNG\r\n",
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, **members}.items():
            archive.writestr(name, content)
    return stream.getvalue()


def read_docx(data: bytes) -> str:
    """The text of a document's body, by an expression and not by our parser."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        xml = archive.read("word/document.xml").decode()
    paragraphs = re.findall(r"<w:p>(.*?)</w:p>", xml, re.DOTALL)
    return "|".join(
        "".join(text or "\t" for text in re.findall(r"<w:t(?: [^>]*)?>([^<]*)</w:t>|<w:tab/>", one))
        for one in paragraphs
    )
