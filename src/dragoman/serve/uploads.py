"""Files in requests (images, sounds, videos, arrays of features): their bytes in base64, never their names.

    {"data": "iVBORw0K…"} ─prepare_input→ + kind, field, limit ─worker→ bytes ─header check→ Example.content

In error messages a file is called by its field, such as `inputs[3].source`, or "the image" in a view of one. A small
file may decode to a huge one, so its header is checked before it is decoded: a PNG of 340 kB and 88 million pixels took
1.4 GB of memory, and an hour of silence in a FLAC of 180 kB kept a worker from answering pings for 3 s.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import zipfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from dragoman.core.errors import DataError, MissingExtra
from dragoman.core.types import Example
from dragoman.serve.schema import APIError, JSONObject, ModelInfo, iter_sources
from dragoman.serve.settings import ServerSettings

if TYPE_CHECKING:
    from dragoman.core.types import Modality
    from dragoman.text.codec import Codec

SIDES: tuple[Literal["source"], Literal["second_source"]] = ("source", "second_source")
KIND_NAMES = {"text": "a text", "image": "an image", "audio": "audio", "features": "an array", "video": "a video"}
CONTENT_TYPES = {
    "text": ["application/json"],
    "image": ["image/jpeg", "image/png", "image/gif", "image/bmp", "image/webp", "image/tiff"],
    "audio": ["audio/wav", "audio/flac", "audio/ogg", "audio/mpeg"],
    "features": ["application/x-npy"],
    "video": ["application/zip", "application/x-npy", "image/gif", "image/webp"],
}
OCTET_STREAM = "application/octet-stream"  # accepted for every kind of file
REMEDIES = {
    None: "leave it out",
    "text": "send a string",
    "file": 'send {"data": "…"} with the bytes of the file in base64',
}
MAX_ARCHIVE_MEMBERS = 1000  # frames of a video in an archive
IMAGE_HEADER_BYTES = 1 << 18  # of such a frame; its size must be within them
BYTES_PER_FRAME = 160  # an estimate for sounds: 320 in a plain wav of speech, 80 in an mp3


def source_kinds(codec: Codec) -> dict[str, str | None]:
    """Return what a model's sources are (text, image …), by side; None for a second source that it does not read."""
    second = codec.second_source
    return {
        "source": "text" if codec.modality is None else codec.modality.kind,
        "second_source": second if second is None or isinstance(second, str) else second.kind,
    }


def describe_kind(kind: str) -> str:
    """Name a kind of source in a sentence: "an image"."""
    return KIND_NAMES.get(kind, f"a file ({kind})")


def describe_sources(model: ModelInfo) -> str:
    """Name what a model reads in a sentence: "a text and an image"."""
    return " and ".join(describe_kind(kind) for side in SIDES if (kind := model[side]))


def accepted_types(kind: str) -> list[str]:
    """Return the media types of the files that are read as this kind."""
    return CONTENT_TYPES.get(kind, [OCTET_STREAM])


def reads_media(model: ModelInfo) -> bool:
    """Return whether a model reads anything but text."""
    return any(model[side] not in (None, "text") for side in SIDES)


# -- in the server's process -------------------------------------------------------------------------------------------


def prepare_input(item: JSONObject, model: ModelInfo, path: str, settings: ServerSettings) -> None:
    """Raise APIError if an input is not what the model reads; add kind, field and size limit to its files."""
    for side in SIDES:
        kind, value, field = model[side], item.get(side), f"{path}{side}"
        if value == "" and side == "second_source":  # the pipeline would look for it behind a tab in the first
            value = None
        problem = input_problem(kind, value)
        if problem is not None:
            code, text = ("missing", "is missing") if value is None else ("invalid", problem)
            remedy = REMEDIES[kind if kind in REMEDIES else "file"]
            message = f"{field} {text}, and the model '{model['name']}' reads {describe_sources(model)}; {remedy}"
            raise APIError(422, code, message, field)
        if isinstance(value, dict):
            value |= media_limits(kind, field if path else f"the {kind}", settings)


def input_problem(kind: str | None, value: object) -> str | None:
    """Return what is wrong with a value for a source of this kind, None being no source; None if it is right."""
    if kind is None:
        return None if value is None else "was sent"
    if kind == "text":
        return None if isinstance(value, str) else "is not a text"
    return None if isinstance(value, dict) else "is a text, and files are not read by name"


def media_limits(kind: str | None, field: str, settings: ServerSettings) -> JSONObject:
    """Return what the worker must know of a file: its kind, its field, the limit in seconds or pixels."""
    limit = settings.media_seconds if kind == "audio" else settings.media_pixels
    return {"kind": kind, "field": field, "limit": limit}


def prepare_inputs(body: JSONObject, model: ModelInfo, settings: ServerSettings) -> None:
    """Prepare `source`, `inputs` and `sources` of a request in place, see `prepare_input`; 413 for too large files."""
    files = [file for _, file in iter_sources(body) if isinstance(file, dict)]
    total = sum(len(file["data"]) * 3 // 4 - 2 for file in files)
    if total > settings.media_bytes:
        text = f"the files have {total:,} bytes; send at most {settings.media_bytes:,} in one request"
        raise APIError(413, "too_large", text)
    if isinstance(body.get("source"), dict):
        prepare_input(body["source"], model, "", settings)
    for name in ("inputs", "sources"):
        for i, item in enumerate(body.get(name) or ()):
            prepare_input(item, model, f"{name}[{i}].", settings)


def accepts_content_type(content_type: str, kind: str) -> bool:
    """Return whether a Content-Type fits a kind: octet-stream, one of its types, or any image/ or audio/."""
    sent = content_type.partition(";")[0].strip().lower()
    family = accepted_types(kind)[0].partition("/")[0]
    is_of_family = family in ("image", "audio") and sent.startswith(f"{family}/")
    return is_of_family or sent in (OCTET_STREAM, *accepted_types(kind))


def input_from_upload(model: ModelInfo, content_type: str, data: bytes, text: str | None) -> JSONObject:
    """Build the input from an uploaded file, and `text` as the other source; raise APIError if they do not fit."""
    file_sides = [side for side in SIDES if model[side] not in (None, "text")]
    if len(file_sides) != 1:
        count = "no file" if not file_sides else "two files"
        raise APIError(415, "wrong_type", f"the model '{model['name']}' reads {count}; send JSON to /v1/predict")
    (side,) = file_sides
    kind = model[side] or ""
    if not accepts_content_type(content_type, kind):
        types = ", ".join([*accepted_types(kind), OCTET_STREAM])
        problem = f"the body must be {describe_kind(kind)}, sent as one of the types {types}"
        raise APIError(415, "wrong_type", f"{problem}; set the header Content-Type")
    if not data:
        raise APIError(422, "missing", f"the body is empty; send the bytes of {describe_kind(kind)}")
    other: Literal["source", "second_source"] = "source" if side == "second_source" else "second_source"
    if (model[other] is None) != (text is None):
        problem = "is missing in the query" if text is None else "was sent"
        remedy = "send the other source in it" if text is None else "leave it out"
        message = f"text {problem}, and the model '{model['name']}' reads {describe_sources(model)}; {remedy}"
        raise APIError(422, "invalid", message, "text")
    return {side: {"data": base64.b64encode(data).decode("ascii")}, other: text}


def position_counter(codec: Codec, max_positions: int) -> Callable[[JSONObject], int]:
    """Return a function that estimates an input's source positions from its bytes and characters."""
    modalities = [m for m in (codec.modality, codec.second_source) if m is not None and not isinstance(m, str)]
    image_positions = max((len(modality.blank()) for modality in modalities), default=1)  # all images have one size

    def positions(value: object) -> int:
        if not isinstance(value, dict):
            return len(str(value or ""))  # almost never more tokens than characters
        return image_positions if value["kind"] == "image" else max(len(value["data"]) * 3 // 4 // BYTES_PER_FRAME, 1)

    def count(item: JSONObject) -> int:
        return sum(min(positions(item.get(side)), max_positions) for side in SIDES)  # the model reads no more

    return count


# -- in a worker -------------------------------------------------------------------------------------------------------


def to_example(item: JSONObject) -> Example:
    """Build the Example of a worker's item, with the decoded bytes of its files."""
    texts: dict[str, str] = {}
    contents: dict[str, bytes | None] = {}
    for side in SIDES:
        value: str | JSONObject = item.get(side) or ""
        texts[side], contents[side] = (value, None) if isinstance(value, str) else (value["field"], decode_file(value))
    ids = item.get("source_ids")
    return Example(
        texts["source"],
        item.get("target"),
        item.get("source_lang"),
        item.get("target_lang"),
        second_source=texts["second_source"],
        content=contents["source"],
        second_source_content=contents["second_source"],
        source_ids=None if ids is None else tuple(ids),
    )


def decode_file(file: JSONObject) -> bytes:
    """Decode a base64 file; raise DataError if its header is damaged or says that it is too large."""
    field = file["field"]
    try:
        data = base64.b64decode(file["data"], validate=True)
    except (binascii.Error, ValueError):
        raise DataError(f"'{field}' is not base64; send the bytes of the file in base64, without line breaks") from None
    kind = file["kind"]
    try:
        if kind in HEADER_CHECKS:
            HEADER_CHECKS[kind](data, file["limit"])
    except FileTooLarge as error:
        raise DataError(f"'{field}' {error}; send a smaller one") from None
    except MissingExtra:
        raise
    except Exception:  # readers raise all kinds of errors on a damaged header
        types = ", ".join(accepted_types(kind))
        raise DataError(f"'{field}' is not {describe_kind(kind)} that can be read; send one of {types}") from None
    return data


class FileTooLarge(Exception):
    """A file would be too large once decoded."""


def check_image_header(data: bytes, limit: float) -> None:
    """Raise FileTooLarge if an image's header declares more than `limit` pixels."""
    from dragoman.modalities.image import IMAGE_FORMATS, import_pillow

    pil = import_pillow()
    try:
        with pil.Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as file:
            width, height = file.size
    except pil.Image.DecompressionBombError:  # Pillow does not even open it
        raise FileTooLarge(f"has far more pixels than the limit of this server, {limit:,}") from None
    if width * height > limit:
        raise FileTooLarge(f"has {width:,} × {height:,} pixels, and the limit of this server is {limit:,}")


def check_video_header(data: bytes, limit: float) -> None:
    """Raise FileTooLarge if an image in it has more than `limit` pixels, an array lies, or an archive has too many."""
    from dragoman.modalities.video import IMAGE_SUFFIXES

    if data.startswith(b"\x93NUMPY"):
        check_array_header(data, limit)
    elif not data.startswith(b"PK"):
        check_image_header(data, limit)
    else:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.infolist()) > MAX_ARCHIVE_MEMBERS:
                raise FileTooLarge(
                    f"has {len(archive.infolist()):,} members, and the limit of this server is {MAX_ARCHIVE_MEMBERS:,}"
                )
            for name in archive.namelist():
                if name.lower().endswith(IMAGE_SUFFIXES):
                    with archive.open(name) as member:
                        check_image_header(member.read(IMAGE_HEADER_BYTES), limit)


def check_audio_header(data: bytes, limit: float) -> None:
    """Raise FileTooLarge if a sound lasts more than `limit` seconds, or has as many samples (stereo at 48 kHz)."""
    from dragoman.modalities.audio import import_soundfile

    with import_soundfile().SoundFile(io.BytesIO(data)) as file:
        seconds = max(file.frames / file.samplerate, file.frames * file.channels / (2 * 48_000))
    if seconds > limit:
        raise FileTooLarge(
            f"lasts {seconds:,.0f} seconds, or has as many samples, and the limit of this server is {limit:,.0f}"
        )


def check_array_header(data: bytes, limit: float) -> None:
    """Raise FileTooLarge if an .npy header declares more bytes than the file has; `limit` is ignored."""
    from numpy.lib import format as npy

    file = io.BytesIO(data)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, _, dtype = readers[npy.read_magic(file)](file)
    declared, actual = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if declared > actual:
        raise FileTooLarge(f"declares {declared:,} bytes of numbers, and has {actual:,}")


HEADER_CHECKS: dict[str, Callable[[bytes, float], None]] = {
    "image": check_image_header,
    "audio": check_audio_header,
    "features": check_array_header,
    "video": check_video_header,
}


def sample_file(kind: str, modality: Modality) -> JSONObject | None:
    """Generate a small file of this kind in base64: colors, a tone, frames, numbers; None for an unknown kind."""
    import numpy as np

    if kind not in CONTENT_TYPES:
        return None
    file = io.BytesIO()
    if kind == "image":
        from dragoman.modalities.image import import_pillow

        y, x = np.mgrid[:32, :32].astype(np.uint8) * 8
        import_pillow().Image.fromarray(np.stack([y, x, 255 - y], -1)).save(file, "png")
    elif kind == "audio":
        from dragoman.modalities.audio import import_soundfile

        rate = getattr(modality, "rate", 16_000)
        tone = (8000 * np.sin(2 * np.pi * 440 / rate * np.arange(rate // 10))).astype(np.int16)  # a tenth of a second
        import_soundfile().write(file, tone, rate, format="wav")
    elif kind == "video":
        np.save(file, np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3))
    else:
        numbers = getattr(modality, "numbers", modality.width)
        np.save(file, np.sin(np.arange(8 * numbers, dtype=np.float32)).reshape(8, numbers))
    return {"data": base64.b64encode(file.getvalue()).decode("ascii")}


def prepare_sample(item: JSONObject, kinds: Mapping[str, str | None]) -> JSONObject:
    """Return a sample input whose files have kind, field and default size limit added; `kinds` by side."""
    files: dict[str, JSONObject] = {side: item[side] for side in SIDES if isinstance(item.get(side), dict)}
    return item | {side: file | media_limits(kinds[side], side, ServerSettings()) for side, file in files.items()}
