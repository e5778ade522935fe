"""Sources that are no texts, as requests bring them: a file's bytes in base64, and never its name.

    {"data": "iVBORw0K…"} ─fit→ told its kind, its place, its bound ─worker→ bytes ─claims looked at→ Example.content

No request can name a file: what stands where a name would is a medium's place in its request, as `inputs[3].source`, or
"the image" in a view of one; errors call it that. A small file may claim to be a huge one, so what its head claims is
looked at before anyone decodes it: a PNG of 340 kB and 88 million pixels took 1.4 GB of memory, an hour of silence in a
FLAC of 180 kB kept a worker from answering pings for 3 s, for which it would have been replaced.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import DataError, MissingExtra
from dragoman.core.types import Example
from dragoman.serve.schema import Refused
from dragoman.serve.settings import Serving

if TYPE_CHECKING:
    from dragoman.text.codec import Codec

Message = dict[str, Any]

SIDES = ("source", "second_source")
NAMES = {"text": "a text", "image": "an image", "sound": "a sound", "frames": "an array", "clip": "a clip"}
ACCEPTS = {
    "text": ["application/json"],
    "image": ["image/jpeg", "image/png", "image/gif", "image/bmp", "image/webp", "image/tiff"],
    "sound": ["audio/wav", "audio/flac", "audio/ogg", "audio/mpeg"],
    "frames": ["application/x-npy"],
    "clip": ["application/zip", "application/x-npy", "image/gif", "image/webp"],
}
ANY = "application/octet-stream"  # bytes of which the sender knows no more
REMEDIES = {
    None: "leave it out",
    "text": "send a string",
    "file": 'send {"data": "…"} with the bytes of the file in base64',
}
MEMBERS = 1000  # frames of a clip in an archive
HEAD = 1 << 18  # bytes of such a frame in which its size must stand
HEARD = 160  # bytes for a frame of sound, a guess: 320 in a plain wav of speech, 80 in an mp3


def kinds(codec: Codec) -> dict[str, str | None]:
    """What a model reads: `source`, and `second_source` where there are two."""
    second = (
        codec.second_source
        if codec.second_source is None or isinstance(codec.second_source, str)
        else codec.second_source.kind
    )
    return {"source": "text" if codec.modality is None else codec.modality.kind, "second_source": second}


def named(kind: str) -> str:
    return NAMES.get(kind, f"a file ({kind})")


def accepted(kind: str) -> list[str]:
    return ACCEPTS.get(kind, [ANY])


def reads_media(model: Mapping[str, Any]) -> bool:
    """Whether one of a model's sources is no text; `model` is what GET /v1/models says of it."""
    return any(model[side] not in (None, "text") for side in SIDES)


# -- in the process that listens ---------------------------------------------------------------------------------------


def fit(item: Message, model: Mapping[str, Any], where: str, serving: Serving) -> None:
    """Refuse an input that is not what the model reads; a medium in it is told what the worker must know."""
    for side in SIDES:
        kind, found, place = model[side], item.get(side), f"{where}{side}"
        if found == "" and side == "second_source":  # which would be looked for in the first, behind a tab
            found = None
        problem = misfit(kind, found)
        if problem is not None:
            code, text = ("missing", "is missing") if found is None else ("invalid", problem)
            reads = " and ".join(named(model[one]) for one in SIDES if model[one])
            remedy = REMEDIES[kind if kind in REMEDIES else "file"]
            message = f"{place} {text}, and the model '{model['name']}' reads {reads}; {remedy}"
            raise Refused(422, code, message, place)
        if isinstance(found, dict):
            found |= told(kind, place if where else f"the {kind}", serving)


def misfit(kind: str | None, found: Any) -> str | None:
    """What is wrong with what was sent for a source, if anything is."""
    if kind is None:
        return None if found is None else "was sent"
    if kind == "text":
        return None if isinstance(found, str) else "is no text"
    return None if isinstance(found, dict) else "is a text, which names nothing here"


def told(kind: str | None, place: str, serving: Serving) -> Message:
    most = serving.media_seconds if kind == "sound" else serving.media_pixels
    return {"kind": kind, "place": place, "most": most}


def fit_all(asked: Message, model: Mapping[str, Any], serving: Serving) -> None:
    """The same for all inputs of a view."""
    if isinstance(asked.get("source"), dict):
        fit(asked["source"], model, "", serving)
    for name in ("inputs", "texts", "sources"):
        for i, item in enumerate(asked.get(name) or ()):
            fit(item, model, f"{name}[{i}].", serving)


def check_size(values: Sequence[Any], serving: Serving) -> None:
    """Refuse more bytes of media than one request may bring."""
    total = sum(len(value["data"]) * 3 // 4 - 2 for value in values if isinstance(value, dict))
    if total > serving.media_bytes:
        text = f"the media have {total:,} bytes; send at most {serving.media_bytes:,} in one request"
        raise Refused(413, "too_large", text)


def sent_as(content_type: str, kind: str) -> bool:
    """Whether a body of this type may be of this kind; what it is is found out by reading it."""
    sent = content_type.partition(";")[0].strip().lower()
    family = accepted(kind)[0].partition("/")[0]
    return sent == ANY or sent in accepted(kind) or (family in ("image", "audio") and sent.startswith(f"{family}/"))


def upload(model: Mapping[str, Any], content_type: str, data: bytes, text: str | None) -> Message:
    """The input that a bare file stands for, with the text of the other source where the model reads two."""
    media = [side for side in SIDES if model[side] not in (None, "text")]
    if len(media) != 1:
        count = "no file" if not media else "two files"
        raise Refused(415, "wrong_type", f"the model '{model['name']}' reads {count}; send JSON to /v1/predict")
    (side,) = media
    kind = model[side]
    if not sent_as(content_type, kind):
        types = ", ".join([*accepted(kind), ANY])
        found = f"the body must be {named(kind)}, sent as one of the types {types}"
        raise Refused(415, "wrong_type", f"{found}; say which with the header Content-Type")
    if not data:
        raise Refused(422, "missing", f"the body is empty; send the bytes of {named(kind)}")
    (other,) = (one for one in SIDES if one != side)
    if (model[other] is None) != (text is None):
        wrong = "is missing in the query" if text is None else "was sent"
        reads = " and ".join(named(model[one]) for one in SIDES if model[one])
        remedy = "send the other source by it" if text is None else "leave it out"
        raise Refused(422, "invalid", f"text {wrong}, and the model '{model['name']}' reads {reads}; {remedy}", "text")
    return {side: {"data": base64.b64encode(data).decode("ascii")}, other: text}


def counter(codec: Codec, longest: int) -> Callable[[Message], int]:
    """How many positions the sources of an input have, guessed from their bytes: only who decodes them knows."""
    readers: list[Any] = [reader for reader in (codec.modality, codec.second_source) if reader not in (None, "text")]
    image = max((len(reader.blank()) for reader in readers), default=1)  # all images of a model have one size

    def positions(value: Any) -> int:
        if not isinstance(value, dict):
            return len(value or "")  # a character is a token at most, nearly always
        return image if value["kind"] == "image" else max(len(value["data"]) * 3 // 4 // HEARD, 1)

    def count(item: Message) -> int:
        return sum(min(positions(item.get(side)), longest) for side in SIDES)  # more are not read

    return count


# -- in a worker -------------------------------------------------------------------------------------------------------


def example(item: Mapping[str, Any]) -> Example:
    """What an item says, with the bytes of its media."""
    texts: dict[str, str] = {}
    contents: dict[str, bytes | None] = {}
    for side in SIDES:
        value: Any = item.get(side) or ""
        texts[side], contents[side] = (value, None) if isinstance(value, str) else (value["place"], content(value))
    return Example(
        texts["source"],
        item.get("target"),
        item.get("source_lang"),
        item.get("target_lang"),
        second_source=texts["second_source"],
        content=contents["source"],
        second_source_content=contents["second_source"],
    )


def content(medium: Mapping[str, Any]) -> bytes:
    """The bytes of a medium that claims no more than may be decoded."""
    place = medium["place"]
    try:
        data = base64.b64decode(medium["data"], validate=True)
    except (binascii.Error, ValueError):
        raise DataError(f"'{place}' is not base64; send the bytes of the file in base64, without line breaks") from None
    kind = medium["kind"]
    try:
        if kind in CLAIMS:
            CLAIMS[kind](data, medium["most"])
    except Claim as claim:
        raise DataError(f"'{place}' {claim}; send a smaller one") from None
    except MissingExtra:
        raise
    except Exception:  # a damaged head makes readers raise whatever they stumble over
        types = ", ".join(accepted(kind))
        raise DataError(f"'{place}' is not {named(kind)} that can be read; send one of {types}") from None
    return data


class Claim(Exception):
    """What a file claims of itself is too much."""


def image_claims(data: bytes, most: int) -> None:
    from dragoman.modalities.image import FORMATS, pillow

    pil = pillow()
    try:
        with pil.Image.open(io.BytesIO(data), formats=FORMATS) as file:
            width, height = file.size
    except pil.Image.DecompressionBombError:  # so many that Pillow does not even open it
        raise Claim(f"has far more pixels than the {most:,} at most that are decoded here") from None
    if width * height > most:
        raise Claim(f"has {width:,} × {height:,} pixels, and {most:,} at most are decoded here")


def clip_claims(data: bytes, most: int) -> None:
    """An array, or images: one that moves, or the members of an archive, each of which is decoded by itself."""
    from dragoman.modalities.video import IMAGES

    if data.startswith(b"\x93NUMPY"):
        array_claims(data, most)
    elif not data.startswith(b"PK"):
        image_claims(data, most)
    else:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.infolist()) > MEMBERS:
                raise Claim(f"has {len(archive.infolist()):,} members, and {MEMBERS:,} at most are looked at here")
            for name in archive.namelist():
                if name.lower().endswith(IMAGES):
                    with archive.open(name) as member:
                        image_claims(member.read(HEAD), most)


def sound_claims(data: bytes, most: float) -> None:
    """Seconds, and the samples of all channels as if they were of stereo at 48 kHz: both take memory."""
    from dragoman.modalities.audio import soundfile

    with soundfile().SoundFile(io.BytesIO(data)) as file:
        seconds = max(file.frames / file.samplerate, file.frames * file.channels / (2 * 48_000))
    if seconds > most:
        raise Claim(f"lasts {seconds:,.0f} seconds, or has as many samples, and {most:,.0f} at most are decoded here")


def array_claims(data: bytes, most: int) -> None:
    """An .npy whose numbers are all there."""
    from numpy.lib import format as npy

    file = io.BytesIO(data)
    heads = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, _, dtype = heads[npy.read_magic(file)](file)
    claimed, there = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if claimed > there:
        raise Claim(f"claims to have {claimed:,} bytes of numbers, and has {there:,}")


CLAIMS: dict[str, Callable[[bytes, Any], None]] = {
    "image": image_claims,
    "sound": sound_claims,
    "frames": array_claims,
    "clip": clip_claims,
}


# -- a medium to begin with --------------------------------------------------------------------------------------------


def sample(kind: str, medium: Any) -> Message | None:
    """One that can be sent: colors, a tone, a few frames."""
    import numpy as np

    if kind not in ACCEPTS:
        return None
    file = io.BytesIO()
    if kind == "image":
        from dragoman.modalities.image import pillow

        y, x = np.mgrid[:32, :32].astype(np.uint8) * 8
        pillow().Image.fromarray(np.stack([y, x, 255 - y], -1)).save(file, "png")
    elif kind == "sound":
        tone(file, getattr(medium, "rate", 16_000))
    elif kind == "clip":
        np.save(file, np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3))
    else:
        numbers = getattr(medium, "numbers", medium.width)
        np.save(file, np.sin(np.arange(8 * numbers, dtype=np.float32)).reshape(8, numbers))
    return {"data": base64.b64encode(file.getvalue()).decode("ascii")}


def ready(item: Message, reads: Mapping[str, str | None]) -> Message:
    """A sample as a worker takes it."""
    media = {side: item[side] for side in SIDES if isinstance(item.get(side), dict)}
    return item | {side: medium | told(reads[side], side, Serving()) for side, medium in media.items()}


def tone(file: io.BytesIO, rate: int) -> None:
    """A tenth of a second of 440 Hz as a wav."""
    import wave

    import numpy as np

    samples = (8000 * np.sin(2 * np.pi * 440 / rate * np.arange(rate // 10))).astype("<i2")
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(samples.tobytes())
