"""The body of a multipart form, as a browser or curl -F sends a file.

--boundary\\r\\nContent-Disposition: form-data; name="file"; filename="a.srt"\\r\\n\\r\\n…\\r\\n--boundary--
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.message import EmailMessage

from dragoman.serve.schema import APIError

MAX_PARTS = 20
MAX_PART_HEAD = 4096  # bytes


@dataclass(frozen=True)
class FormPart:
    """A field of a form: its bytes, and the name of its file if it is one."""

    data: bytes
    filename: str | None = None

    @property
    def text(self) -> str:
        """The value of a field that is no file."""
        return self.data.decode(errors="replace").strip()


def parse_multipart(content_type: str, body: bytes) -> dict[str, FormPart]:
    """Parse a form by field; of a repeated field the last counts. Raise APIError if it is none."""
    header = EmailMessage()
    header["Content-Type"] = re.sub(r"[^\x20-\x7e]", "?", content_type[:500])
    boundary = header.get_boundary("")
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "multipart/form-data" or not boundary:
        text = f"the body is '{kind[:100]}'; send multipart/form-data with the fields file, source and target"
        raise APIError(415, "wrong_type", text)
    chunks = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(errors="replace"), MAX_PARTS + 2)
    fields: dict[str, FormPart] = {}
    if len(chunks) < 3 or not chunks[-1].startswith(b"--"):
        raise _invalid("the form does not end with its boundary")
    for chunk in chunks[1:-1]:
        head, separator, data = chunk.partition(b"\r\n\r\n")
        if not separator or len(head) > MAX_PART_HEAD:
            raise _invalid("a part of the form has no head, or a long one")
        name, filename = _disposition(head)
        if name is not None:
            fields[name] = FormPart(data, filename)
    return fields


def _disposition(head: bytes) -> tuple[str | None, str | None]:
    """The name of a part's field and of its file."""
    for line in head.decode(errors="replace").split("\r\n"):
        key, _, value = line.partition(":")
        if key.strip().lower() == "content-disposition":
            quoted = {name.lower(): text for name, text in re.findall(r';\s*(name|filename)="([^"]*)"', value)}
            plain = {name.lower(): text for name, text in re.findall(r';\s*(name|filename)=([^";\s]+)', value)}
            named = plain | quoted
            return named.get("name"), named.get("filename")
    return None, None


def _invalid(problem: str) -> APIError:
    return APIError(422, "invalid_body", f"{problem}; send file, source and target as curl -F does")
