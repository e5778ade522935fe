"""Images, sounds, arrays and clips over HTTP: as Python reads them from files, and no file of the server's ever."""

from __future__ import annotations

import asyncio
import base64
import io
import select
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("kaldi_native_fbank")
pytest.importorskip("fastapi")

import soundfile
from PIL import Image

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.inference import pipeline
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inspection.views import alignment, beam, saliency, steps
from dragoman.serve import middleware, uploads
from dragoman.serve.settings import ServerSettings

BYTES, TEXTS = 600_000, 100_000  # what a request may bring of media, and besides
NAMES = ("captions", "questions", "speech", "features", "clips")
# Says on standard error when a process opens a file with "hidden-away" in its name; opens one, to show that it does.
WATCH = """
import sys

def hook(event, args):
    if event == "open" and "hidden-away" in str(args[0]):
        print("OPENED", args[0], file=sys.stderr, flush=True)

sys.addaudithook(hook)
open("hidden-away-of-the-test.txt", "w").close()
"""


def b64(data: bytes) -> dict[str, str]:
    return {"data": base64.b64encode(data).decode()}


def picture(seed: int = 0, form: str = "png", size: tuple[int, int] = (40, 50)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def tones(seconds: float = 0.6, rate: int = 11_025, form: str = "flac") -> bytes:
    t = np.arange(int(seconds * rate)) / rate
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(2 * np.pi * (300 + 900 * t) * t), rate, format=form)
    return file.getvalue()


def array(x: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


def frames() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for i in range(6):
            archive.writestr(f"{i}.png", picture(i, size=(16, 16)))
    return file.getvalue()


FILES: dict[str, dict[str, bytes]] = {
    "captions": {
        "a.png": picture(1),
        "b.jpg": picture(2, "jpeg"),
        "c.gif": picture(3, "gif"),
        "d.webp": picture(4, "webp"),
    },
    "speech": {"a.flac": tones(), "b.wav": tones(0.3, 8000, "wav"), "c.ogg": tones(1.0, 16_000, "ogg")},
    "features": {"a.npy": array(np.random.default_rng(5).normal(size=(30, 5)).astype(np.float32))},
    "clips": {"a.npy": array(np.random.default_rng(6).integers(0, 256, (7, 16, 20, 3), np.uint8)), "b.zip": frames()},
}


@pytest.fixture(scope="module")
def served(start: Callable[..., Any], media_models: Path) -> Iterator[Any]:
    """All kinds of models, small limits, and an eye on what is opened; in the end, the worker of the beginning."""
    (media_models / "watch.py").write_text(WATCH, encoding="utf-8")
    (media_models / "hidden-away.png").write_bytes(picture())
    with zipfile.ZipFile(media_models / "hidden-away.zip", "w") as archive:
        archive.writestr("photo.png", picture())
    settings = [f"media_bytes={BYTES}", f"max_body={TEXTS}", "media_pixels=1000000", "batch_wait_ms=40"]
    given = [text for setting in settings for text in ("--set", setting)]
    server = start("small", *NAMES, "--workers", "1", "--plugin", "watch", *given)
    before = server.workers()
    yield server
    assert server.workers() == before
    assert server.metric("dragoman_worker_restarts_total") == 0
    assert server.stop() == 0
    assert "Traceback" not in server.stderr()


@pytest.fixture(scope="module")
def here(media_models: Path) -> dict[str, Pipeline]:
    """The same models in this process."""
    return {name: pipeline.load(media_models / name, "cpu") for name in NAMES}


def on_disk(folder: Path, name: str, data: bytes) -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


def same(found: dict[str, Any], truth: Prediction) -> None:
    assert found["text"] == truth.text
    assert found["source_tokens"] == truth.source_tokens
    assert found["log_probs"] == pytest.approx(truth.log_probs, abs=3e-5)  # a job of other images rounds otherwise
    assert [one["text"] for one in found["alternatives"]] == [one.text for one in truth.alternatives]


# -- what is read ------------------------------------------------------------------------------------------------------


def test_every_model_says_what_it_reads(served: Any) -> None:
    models = {model["name"]: model for model in served.client.get("/v1/models").json()["models"]}
    assert {name: (model["source"], model["second_source"]) for name, model in models.items()} == {
        "small": ("text", None),
        "captions": ("image", None),
        "questions": ("text", "image"),
        "speech": ("audio", None),
        "features": ("features", None),
        "clips": ("video", None),
    }
    assert "image/jpeg" in models["captions"]["accepts"]
    assert "audio/flac" in models["speech"]["accepts"]
    for name, model in models.items():  # whose example can be sent
        assert served.predict(model["example"], model=name).status_code == 200


@pytest.mark.parametrize("name", FILES)
def test_bytes_give_what_the_file_gives_in_python(served: Any, here: Any, tmp_path: Path, name: str) -> None:
    paths = [on_disk(tmp_path, file, data) for file, data in FILES[name].items()]
    truth = here[name].predict(paths, beam=3, nbest=2, attention=True)
    answer = served.predict(*map(b64, FILES[name].values()), model=name, beam=3, nbest=2, attention=True)
    assert answer.status_code == 200, answer.text
    for found, one in zip(answer.json()["results"], truth, strict=True):
        same(found, one)
        assert np.allclose(found["attention"], one.attention, atol=1e-5)


def test_a_question_and_an_image_go_together(served: Any, here: Any, tmp_path: Path) -> None:
    path = on_disk(tmp_path, "a.png", picture(1))
    (truth,) = here["questions"].predict([f"is it red\t{path}"], beam=2)
    item = {"source": "is it red", "second_source": b64(picture(1))}
    same(served.predict(item, model="questions", beam=2).json()["results"][0], truth)
    score = served.client.post("/v1/score", json={"model": "questions", "inputs": [item | {"target": "a red"}]})
    (number,) = here["questions"].score([Example("is it red", "a red", second_source=path)])
    assert score.json()["results"][0]["log_prob"] == pytest.approx(number, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "file", "kind"), [("captions", "b.jpg", "image/jpeg"), ("speech", "a.flac", "audio/x-flac")]
)
def test_a_file_may_be_the_whole_body(served: Any, name: str, file: str, kind: str) -> None:
    data = FILES[name][file]
    in_json = served.predict(b64(data), model=name, beam=3, nbest=2, forbid_phrases=["red", "blue"])
    query = {"beam": 3, "nbest": 2, "forbid_phrases": ["red", "blue"]}
    for sent in (kind, "application/octet-stream"):
        path, headers = f"/v1/models/{name}/predict", {"Content-Type": sent}
        bare = served.client.post(path, params=query, content=data, headers=headers)
        assert bare.status_code == 200, bare.text
        assert bare.json() == in_json.json()


def test_the_text_beside_a_file_that_is_the_body_stands_in_the_query(served: Any) -> None:
    in_json = served.predict({"source": "is it", "second_source": b64(picture())}, model="questions", beam=1)
    path, headers = "/v1/models/questions/predict", {"Content-Type": "image/png"}
    bare = served.client.post(path, params={"text": "is it", "beam": 1}, content=picture(), headers=headers)
    assert bare.json() == in_json.json()


def test_tokens_are_streamed_for_files_too(served: Any, here: Any, events: Any, tmp_path: Path) -> None:
    (truth,) = here["captions"].predict([on_disk(tmp_path, "a.png", picture(1))], beam=1)
    path, headers = "/v1/models/captions/predict?beam=1&stream=true", {"Content-Type": "image/png"}
    in_json = served.predict(b64(picture(1)), model="captions", beam=1, stream=True)
    for answer in (in_json, served.client.post(path, content=picture(1), headers=headers)):
        found = events(answer.text)
        assert [data["token"] for kind, data in found if kind == "token"][: len(truth.tokens)] == truth.tokens
        assert [kind for kind, _ in found][-2:] == ["result", "done"]


def test_views_are_those_of_python(served: Any, here: Any, tmp_path: Path) -> None:
    model, path = here["captions"], on_disk(tmp_path, "a.png", picture(1))
    views = {
        "alignment": alignment.compute_alignment(model, path, beam=2),
        "beam": beam.trace_beam(model, path, "a red square", beam=2),
        "steps": steps.trace_steps(model, path, "a red square"),
        "saliency": saliency.compute_saliency(model, path, "a red square"),
    }
    asked = {
        "alignment": {"beam": 2},
        "beam": {"target": "a red square", "beam": 2},
        "steps": {"target": "a red square"},
        "saliency": {"target": "a red square"},
    }
    for view, truth in views.items():
        body = {"model": "captions", "source": b64(picture(1))} | asked[view]
        found = served.client.post(f"/v1/inspect/{view}", json=body).json()
        assert numbers(found) == pytest.approx(numbers(truth), abs=2e-4), view
        assert found.keys() == truth.keys()


def numbers(value: Any) -> list[float]:
    """Every number in a view, in order."""
    if isinstance(value, dict):
        return [x for one in value.values() for x in numbers(one)]
    if isinstance(value, list):
        return [x for one in value for x in numbers(one)]
    return [float(value)] if isinstance(value, int | float) else []


# -- what is refused ---------------------------------------------------------------------------------------------------


def refusal(answer: httpx.Response, status: int = 422) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert "Traceback" not in error["message"]
    assert "0x" not in error["message"]
    return str(error["message"])


def test_no_request_opens_a_file_by_name(served: Any, media_models: Path) -> None:
    path = str(media_models / "hidden-away.png")
    names = [path, "hidden-away.png", f"file://{path}", "hidden-away.zip/photo.png", f"x\t{path}"]
    assert served.stderr().count("OPENED") == 2  # the hook is there, in the server and in its worker
    for name in names:
        encoded = b64(name.encode())  # a name where the bytes should be
        bodies = [name, {"source": name, "second_source": name}, {"source": {"data": name}}, {"source": encoded}]
        bodies += [{"source": "is it", "second_source": encoded}, {"source": b64(picture()), "second_source": name}]
        for model in NAMES:
            for body in bodies:
                refusal(served.predict(body, model=model))
            refusal(served.client.post("/v1/score", json={"model": model, "inputs": [{"source": name, "target": "a"}]}))
            for view in ("alignment", "beam", "steps", "saliency", "head_effects"):
                refusal(served.client.post(f"/v1/inspect/{view}", json={"model": model, "source": name}))
            refusal(served.client.post("/v1/inspect/embedding_space", json={"model": model, "sources": [name, name]}))
            refusal(served.client.post("/v1/inspect/probes", json={"model": model, "minimal_pairs": [[name, name]]}))
            quality = {"models": [model], "inputs": [{"source": name, "target": "a"}]}
            refusal(served.client.post("/v1/inspect/quality", json=quality))
            headers, query = {"Content-Type": uploads.OCTET_STREAM}, {"text": name} if model == "questions" else {}
            where = f"/v1/models/{model}/predict"
            refusal(served.client.post(where, params=query, content=name, headers=headers))
    assert served.stderr().count("OPENED") == 2


@pytest.mark.parametrize(
    ("model", "item", "says"),
    [
        ("captions", "photo.png", 'send {"data"'),
        ("captions", {"source": b64(b"x"), "second_source": "why"}, "leave it out"),
        ("small", b64(b"x"), "send a string"),
        ("small", {"source": "abc", "second_source": "abc"}, "leave it out"),
        ("questions", "is it", "second_source is missing"),
        ("questions", {"source": "is it", "second_source": ""}, "second_source is missing"),
        ("questions", {"source": b64(b"x"), "second_source": "is it"}, "send a string"),
        ("captions", {"data": "not base64!"}, "is not base64"),
        ("captions", {"data": ""}, "at least 1"),
        ("captions", {"source": {}}, "data is missing"),
        ("captions", b64(b"nothing that anyone reads"), "is not an image that can be read"),
        ("captions", b64(picture()[:-200]), "is not an image that can be read"),
        ("speech", b64(b"RIFF nothing"), "is not audio that can be read"),
        ("speech", b64(picture()), "is not audio that can be read"),
        ("features", b64(b"nothing"), "is not an array that can be read"),
        ("features", b64(array(np.zeros((4, 9)))), "9 numbers in a frame"),
        ("clips", b64(b"PK\x03\x04 nothing"), "is not a video that can be read"),
    ],
)
def test_what_a_model_cannot_read_is_refused_with_a_sentence_that_names_it(
    served: Any, model: str, item: Any, says: str
) -> None:
    good = served.client.get("/v1/models").json()["models"]
    example = next(one["example"] for one in good if one["name"] == model)
    message = refusal(served.predict(example, item, model=model))
    assert says in message
    assert "inputs[1]" in message


@pytest.mark.parametrize(
    ("path", "kind", "data", "status"),
    [
        ("captions/predict", "application/x-www-form-urlencoded", picture(), 415),  # as curl does unless it is told
        ("captions/predict", "", picture(), 415),
        ("captions/predict", "audio/wav", tones(), 415),
        ("captions/predict", "image/svg+xml", b"<svg/>", 422),
        ("captions/predict", "image/png", b"", 422),
        ("captions/predict?beam=many", "image/png", picture(), 422),
        ("captions/predict?beams=2", "image/png", picture(), 422),
        ("captions/predict?text=why", "image/png", picture(), 422),
        ("captions/predict?beam=99", "image/png", picture(), 422),
        ("questions/predict", "image/png", picture(), 422),
        ("small/predict", "image/png", picture(), 415),
        ("nowhere/predict", "image/png", picture(), 404),
    ],
)
def test_a_body_that_is_no_such_file_is_refused(served: Any, path: str, kind: str, data: bytes, status: int) -> None:
    headers = {"Content-Type": kind} if kind else {}
    refusal(served.client.post(f"/v1/models/{path}", content=data, headers=headers), status)


def test_a_damaged_file_harms_no_other_request_of_its_job(served: Any) -> None:
    pictures = [picture(i) for i in range(5)]
    alone = [served.predict(b64(data), model="captions", beam=2).json()["results"] for data in pictures]
    failed, sent = 'dragoman_jobs_total{outcome="failed"}', [*pictures[:3], picture()[:-100], *pictures[3:]]
    before = served.metric(failed)

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=served.url, timeout=60.0) as client:
            bodies = [{"model": "captions", "beam": 2, "inputs": [b64(data)]} for data in sent]
            return await asyncio.gather(*(client.post("/v1/predict", json=body) for body in bodies))

    answers = asyncio.run(together())
    assert served.metric(failed) - before == 2  # the job in which they met, and the damaged file's own
    assert "is not an image" in refusal(answers.pop(3))
    for found, (truth,) in zip(answers, alone, strict=True):
        assert found.json()["results"][0]["tokens"] == truth["tokens"]
        assert found.json()["results"][0]["log_probs"] == pytest.approx(truth["log_probs"], abs=1e-5)


def test_routes_for_texts_leave_other_models_out(served: Any) -> None:
    assert [one["code"] for one in served.client.get("/languages").json()] == ["small"]
    answer = served.client.post("/translate", json={"q": "hidden-away.png", "target": "captions"})
    assert answer.status_code == 400
    for view, reason in (("probes", "texts"), ("examples", "no validation pairs")):
        assert reason in refusal(served.client.post(f"/v1/inspect/{view}", json={"model": "captions"}))


# -- how much ----------------------------------------------------------------------------------------------------------


def head(port: int, path: str, size: int, kind: str = "image/png") -> socket.socket:
    """A connection on which a body was announced and nothing of it sent."""
    client = socket.create_connection(("127.0.0.1", port), 10)
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {kind}", f"Content-Length: {size}", "", ""]
    client.sendall("\r\n".join(lines).encode())
    return client


def test_more_bytes_than_a_server_takes_are_refused_before_they_are_sent(served: Any) -> None:
    in_json = TEXTS + 4 * BYTES // 3
    for path, most in {"/v1/models/captions/predict": BYTES, "/v1/predict": in_json, "/translate": TEXTS}.items():
        with head(served.port, path, most + 4) as client:
            assert client.recv(100).startswith(b"HTTP/1.1 413 ")
    large = picture(0, size=(400, 400))
    assert TEXTS < len(large) < BYTES
    headers = {"Content-Type": "image/png"}
    assert served.client.post("/v1/models/captions/predict", content=large, headers=headers).status_code == 200
    assert served.predict(b64(large), model="captions").status_code == 200
    assert "bytes" in refusal(served.predict(b64(large), b64(large), model="captions"), 413)
    assert "bytes" in refusal(
        served.predict({"source": "abc", "second_source": b64(bytes(BYTES + 9))}, model="small"), 413
    )


def test_the_number_of_large_bodies_is_limited_and_small_ones_still_pass(served: Any, until: Any) -> None:
    large = picture(0, size=(400, 400))

    def sent() -> int:
        answer = served.client.post("/v1/models/captions/predict", content=large, headers={"Content-Type": "image/png"})
        return int(answer.status_code)

    waiting = [head(served.port, "/v1/models/captions/predict", BYTES) for _ in range(middleware.MAX_LARGE_BODIES + 1)]
    (refused,), _, _ = select.select(waiting, [], [], 10)  # one of them, whichever came last
    assert refused.recv(100).startswith(b"HTTP/1.1 429 ")
    assert sent() == 429
    assert served.predict(b64(picture()), model="captions").status_code == 200
    for client in waiting:
        client.close()
    until(lambda: sent() == 200)


def png(width: int, height: int) -> bytes:
    """A PNG of nothing but zeros, of which there is one bit for each pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packed = zlib.compressobj(9)
    rows = b"".join([packed.compress(bytes(1 + (width + 7) // 8)) for _ in range(height)]) + packed.flush()
    described = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", described) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def silence(seconds: int, rate: int, channels: int) -> bytes:
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", rate, channels, format="FLAC", subtype="PCM_16") as sound:
        for _ in range(seconds):
            sound.write(np.zeros((rate, channels), np.int16))
    return file.getvalue()


def npy(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    """The head of an array, without the numbers."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0.png", data)
        archive.writestr("1.png", data)
    return file.getvalue()


@pytest.mark.parametrize(
    ("model", "made"),
    [
        pytest.param("captions", lambda: png(9000, 9000), id="81 million pixels"),
        pytest.param("captions", lambda: png(60_000, 1)[:16] + struct.pack(">II", 60_000, 60_000), id="claimed pixels"),
        pytest.param("speech", lambda: silence(1200, 8000, 1), id="twenty minutes of silence"),
        pytest.param("speech", lambda: silence(60, 96_000, 8), id="eight channels"),
        pytest.param("features", lambda: npy((10**9, 5)), id="20 GB of numbers"),
        pytest.param("features", lambda: npy((10**30, 5)), id="more than can be counted"),
        pytest.param("clips", lambda: npy((10**5, 999, 999, 3), "|u1"), id="a long clip"),
        pytest.param("clips", lambda: zipped(png(9000, 9000)), id="large frames"),
    ],
)
def test_a_small_file_that_claims_to_be_huge_is_refused_and_costs_no_worker(
    served: Any, model: str, made: Callable[[], bytes]
) -> None:
    data = made()
    assert len(data) < 400_000
    assert "inputs[0].source" in refusal(served.predict(b64(data), model=model))
    assert served.predict("abc").status_code == 200


@pytest.mark.parametrize("side", [5000, 15_000])  # of 13,378 or more Pillow opens none
def test_an_image_of_too_many_pixels_is_refused_however_many(side: int) -> None:
    with pytest.raises(DataError, match=r"'the image' has .* pixels.*24,000,000.*; send a smaller one"):
        uploads.decode_file(b64(png(side, side)) | uploads.media_limits("image", "the image", ServerSettings()))


def test_audio_that_is_longer_than_the_model_reads_is_truncated_and_flagged(served: Any) -> None:
    short, long = (served.predict(b64(tones(s, 8000, "wav")), model="speech").json()["results"][0] for s in (1, 9))
    assert not short["source_truncated"]
    assert long["source_truncated"]  # after 4 × max_source frames of 10 ms
    assert len(long["source_tokens"]) == 100  # 4 frames each


def test_files_are_counted_by_their_bytes_but_never_more_than_the_model_reads(here: Any) -> None:
    count = uploads.position_counter(here["speech"].codec, 400)
    of = {kind: uploads.media_limits(kind, "x", ServerSettings()) for kind in ("audio", "image")}
    assert count({"source": {"data": "A" * 16_000} | of["audio"]}) == 16_000 * 3 // 4 // uploads.BYTES_PER_FRAME
    assert count({"source": {"data": "A" * 1_600_000} | of["audio"]}) == 400
    assert count({"source": {"data": "A"} | of["audio"]}) == 1
    both = uploads.position_counter(here["questions"].codec, 400)
    image = {"data": "A" * 1_000_000} | of["image"]
    assert both({"source": "is it", "second_source": image}) == len("is it") + 32  # rows of pixels
    assert both({"source": image}) == 32
