"""Pictures over images and sounds, looked at pixel by pixel: a panel for each word, clear where the word looked."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dragoman.inspection.media_preview import data_url, draw_spectrogram
from dragoman.inspection.render.media_image import MediaAttention, draw_media_attention

pytestmark = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")

RED = np.zeros((32, 32, 3), np.uint8)
RED[..., 0] = 200
FACE = {"kind": "image", "src": data_url(RED), "rows": 4, "columns": 4, "first": 0}
CLIP = {"kind": "video", "frames": [data_url(RED)] * 3, "per_frame": 1, "first": 0}
HEARD: dict[str, Any] = {
    "kind": "audio",
    "src": data_url(draw_spectrogram(np.random.default_rng(0).normal(size=(40, 6)))),
    "seconds": 0.4,
    "first": 0,
    "count": 10,
    "spans": [[j / 10, (j + 1) / 10] for j in range(10)],
}


def only(*places: int, count: int = 16) -> list[list[float]]:
    return [[float(j == place) for j in range(count)] for place in places]


def texts(path: Path) -> list[str]:
    """matplotlib writes each text of an SVG as a comment beside its outlines."""
    return [html.unescape(text) for text in re.findall(r"<!-- (.*?) -->", path.read_text(), re.S)]


def panels(path: Path) -> set[str]:
    return set(re.findall(r'id="(panel-\d+)"', path.read_text()))


def red(path: Path) -> np.ndarray:
    """Where the picture shows through whole."""
    image = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return np.asarray((abs(image - [200, 0, 0]) < 25).all(-1))


@pytest.mark.parametrize("count", [1, 5, 13])
def test_an_image_has_a_panel_for_itself_and_one_for_each_word(tmp_path: Path, count: int) -> None:
    words = [f"▁word{i}" for i in range(count)]
    look = MediaAttention(FACE, only(*range(count)), words, "photo.jpg", "words")
    draw_media_attention(tmp_path / "a.svg", [look])
    assert len(panels(tmp_path / "a.svg")) == count + 1
    assert [text for text in texts(tmp_path / "a.svg") if text] == [
        "photo.jpg → words",
        *(f"word{i}" for i in range(count)),
    ]
    draw_media_attention(tmp_path / "b.svg", [look, look])
    assert len(texts(tmp_path / "b.svg")) == 2 * len(texts(tmp_path / "a.svg"))


def test_the_cell_of_a_large_weight_is_clear_and_the_others_fade(tmp_path: Path) -> None:
    draw_media_attention(tmp_path / "a.png", [MediaAttention(FACE, only(7), ["word"])])  # the second row, at the right
    clear = red(tmp_path / "a.png")
    columns = np.flatnonzero(clear.any(0))
    split = columns[np.flatnonzero(np.diff(columns) > 15)[0]]  # the picture itself is clear as a whole
    whole, word = clear[:, : split + 1], clear[:, split + 1 :]
    side = np.flatnonzero(whole.any(0)).size
    assert whole.sum() == pytest.approx(side**2, rel=0.05)
    top = np.flatnonzero(whole.any(1))[0]
    rows, places = np.flatnonzero(word.any(1)), np.flatnonzero(clear.any(0)[split + 1 :])
    assert (rows.mean() - top) / side == pytest.approx(1.5 / 4, abs=0.05)
    left = np.flatnonzero(whole.any(0))[0] + side  # of the gap between the two panels
    assert (places.mean() + split + 1 - left) / side > 3 / 4


@pytest.mark.parametrize(
    "ground", [(255, 255, 255), (240, 240, 236), (0, 0, 0), (12, 12, 24), (30, 200, 30), (250, 220, 0)]
)
def test_large_weights_stand_out_on_light_dark_and_colorful_pictures(tmp_path: Path, ground: Any) -> None:
    picture = np.full((32, 32, 3), ground, np.uint8)
    draw_media_attention(tmp_path / "a.png", [MediaAttention(FACE | {"src": data_url(picture)}, only(5), ["word"])])
    image = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).astype(int)
    bright = (abs(image - [0xFF, 0x2D, 0x95]) < 12).all(-1)
    rows, columns = np.flatnonzero(bright.any(1)), np.flatnonzero(bright.any(0))  # the edge of the strongest cell
    side = columns[-1] - columns[0]
    assert rows[-1] - rows[0] == pytest.approx(side, abs=2)
    middle, across = (rows[0] + rows[-1]) // 2, (columns[0] + columns[-1]) // 2
    np.testing.assert_allclose(image[middle, across], ground, atol=12)  # as it is
    other = image[middle, across + 2 * side]
    assert abs(other - ground).max() > 60
    assert np.ptp(other) < 0.3 * max(np.ptp(ground), 100)  # next to no color


def test_equal_weights_have_no_edge_and_the_strongest_cell_of_a_video_has_one(tmp_path: Path) -> None:
    def edges(name: str, medium: dict[str, Any], weights: list[list[float]]) -> int:
        draw_media_attention(tmp_path / name, [MediaAttention(medium, weights, ["word"] * len(weights))])
        return (tmp_path / name).read_text().count('id="strongest"') // 2  # of two lines each

    assert edges("a.svg", FACE, [[1 / 16] * 16]) == 0
    assert edges("b.svg", FACE, only(3, 9)) == 2
    assert edges("c.svg", CLIP, [[0.2, 0.5, 0.3]]) == 1


def test_a_long_name_loses_its_middle_and_a_long_result_nothing(tmp_path: Path) -> None:
    said = "a blue square top left and a red one below it " * 8
    for name in ("a" * 120 + ".png", "橋" * 90 + ".png"):
        draw_media_attention(tmp_path / "a.svg", [MediaAttention(FACE, only(1), ["word"], name, said)])
        title = " ".join(text for text in texts(tmp_path / "a.svg") if text not in ("", "word"))
        shown, _, result = title.partition(" → ")
        assert result.split() == said.split()
        assert shown.count("…") == 1
        assert len(shown) < 60 or "<6A4B>" in shown  # where no font has it
    for letter in "Wi":
        draw_media_attention(
            tmp_path / "a.png", [MediaAttention(FACE, only(1), ["word"], "photo.png", letter * 400, "runs/soft")]
        )
        right = np.asarray(Image.open(tmp_path / "a.png").convert("L"))[:, -10:]
        assert (right > 250).all()  # nothing runs out of the page


def test_a_clip_shows_all_frames_for_each_word_and_a_sound_a_row(tmp_path: Path) -> None:
    draw_media_attention(tmp_path / "clip.png", [MediaAttention(CLIP, only(1, count=3), ["word"])])
    clear = red(tmp_path / "clip.png")
    assert clear.any(0).sum() / clear.any(1).sum() == pytest.approx(4, abs=0.3)  # three frames, and one of the word's
    draw_media_attention(
        tmp_path / "sound.svg", [MediaAttention(HEARD, only(3, 4, count=10), ["a", "b"], "tone.wav", "ab")]
    )
    assert {"tone.wav → ab", "a", "b", "0", "0.1", "0.4", "seconds"} <= set(texts(tmp_path / "sound.svg"))


def test_rows_of_a_sound_stand_below_its_frames_aligned_in_time(tmp_path: Path) -> None:
    draw_media_attention(tmp_path / "a.png", [MediaAttention(HEARD, only(0, 9, count=10), ["a", "b"])])
    image = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).astype(int)
    dark = (abs(image - [8, 48, 107]) < 8).all(-1)  # the strongest shade
    rows = np.flatnonzero(dark.any(1))
    upper, lower = (np.flatnonzero(row) for row in (dark[rows[3]], dark[rows[-4]]))
    grays = (image.max(-1) - image.min(-1) == 0) & (image.max(-1) < 250)
    frames = np.flatnonzero(grays[: rows[0] - 4].sum(0) > 20)
    assert upper[0] == pytest.approx(frames[0], abs=4)
    assert lower[-1] == pytest.approx(frames[-1], abs=4)
    assert upper[-1] - upper[0] == pytest.approx((frames[-1] - frames[0]) / 10, abs=4)


def test_any_word_is_written_as_it_is_and_nothing_is_no_picture(tmp_path: Path) -> None:
    words = ["$x$", "▁", "橋", "a b", "\x1b", "x" * 60]
    draw_media_attention(
        tmp_path / "a.svg", [MediaAttention(FACE, only(*range(6)), words, "what ?\tphoto.jpg", "y" * 200)]
    )
    found = texts(tmp_path / "a.svg")
    assert {"$x$", "a␣b", "<001B>"} <= set(found)
    assert "what ? · photo.jpg →" in found
    assert sum(text.count("y") for text in found if set(text) == {"y"}) == 200
