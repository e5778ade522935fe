"""Images as rows of pixels: known colors at known places in every form of file, and files that mean harm."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.modalities import image as images
from dragoman.modalities.image import ImageModality

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
CORNERS = [[RED, GREEN], [BLUE, WHITE]]
GRAYS = [[(v, v, v) for v in row] for row in ([0, 80], [160, 255])]


def quarters(width: int = 32, height: int = 32, colors: Any = CORNERS) -> Image.Image:
    """A picture of four colors, one in each quarter."""
    small = np.array(colors, np.uint8)
    return Image.fromarray(small.repeat(height // 2, 0).repeat(width // 2, 1))


def read(file: Path, **options: Any) -> NDArray[Any]:
    """(H, W, 3)"""
    modality = ImageModality(**options)
    rows = modality.read(Example(str(file)))
    assert rows.shape == (modality.size, modality.width)
    assert rows.dtype == np.dtype(modality.dtype)
    return rows.reshape(modality.size, modality.size, 3)


def saved(folder: Path, picture: Image.Image, form: str = "png", **options: Any) -> Path:
    picture.save(folder / f"picture.{form}", **options)
    return folder / f"picture.{form}"


def assert_corners(pixels: NDArray[Any], colors: Any = CORNERS, near: int = 0) -> None:
    """The middle of each quarter has its color."""
    n = len(pixels)
    for (i, j), _ in np.ndenumerate(np.zeros((2, 2))):
        found = pixels[n // 4 + i * n // 2, n // 4 + j * n // 2].astype(int)
        assert abs(found - np.array(colors[i][j])).max() <= near, (i, j, found)


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "near"), [("png", 0), ("bmp", 0), ("tiff", 0), ("ppm", 0), ("webp", 8), ("jpeg", 8), ("gif", 0)]
)
def test_every_form_has_the_same_picture(tmp_path: Path, form: str, near: int) -> None:
    assert_corners(read(saved(tmp_path, quarters(), form), size=32), near=near)


def test_rows_hold_red_green_and_blue_of_each_pixel_in_turn(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8, 3), np.uint8)
    found = ImageModality(size=8).read(Example(str(saved(tmp_path, Image.fromarray(pixels)))))
    for y, x, c in np.ndindex(8, 8, 3):
        assert found[y, 3 * x + c] == pixels[y, x, c]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_stands_upright_however_the_camera_was_held(tmp_path: Path, orientation: int) -> None:
    """EXIF 274: what was done to the upright picture to get the pixels of the file."""
    held: dict[int, list[Image.Transpose]] = {
        1: [],
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }
    picture, exif = quarters(), Image.Exif()
    for turn in held[orientation]:
        picture = picture.transpose(turn)
    exif[274] = orientation
    assert_corners(read(saved(tmp_path, picture, "jpeg", exif=exif), size=32), near=8)


def test_palettes_grays_and_cmyk_become_red_green_and_blue(tmp_path: Path) -> None:
    assert_corners(read(saved(tmp_path, quarters().convert("P", palette=Image.Palette.ADAPTIVE)), size=32))
    assert_corners(read(saved(tmp_path, quarters().convert("CMYK"), "tiff"), size=32))
    assert_corners(read(saved(tmp_path, quarters().convert("CMYK"), "jpeg"), size=32), near=8)
    assert_corners(read(saved(tmp_path, quarters(colors=GRAYS).convert("L")), size=32), GRAYS)
    bits = [[(0, 0, 0), WHITE], [WHITE, (0, 0, 0)]]
    assert_corners(read(saved(tmp_path, quarters(colors=bits).convert("1")), size=32), bits)


def test_grays_of_16_bits_keep_their_upper_half(tmp_path: Path) -> None:
    values = np.array([[0, 80 << 8], [160 << 8, 65535]], np.uint16).repeat(16, 0).repeat(16, 1)
    assert_corners(read(saved(tmp_path, Image.fromarray(values)), size=32), GRAYS)


@pytest.mark.parametrize(
    ("white", "kind"), [(255, np.int32), (65535, np.int32), (1, np.float32)], ids=["bytes", "16 bits", "floats"]
)
def test_grays_of_32_bits_are_scaled_from_their_white(tmp_path: Path, white: int, kind: Any) -> None:
    values = (np.array([[0, 80], [160, 255]]) / 255 * white).astype(kind).repeat(16, 0).repeat(16, 1)
    assert_corners(read(saved(tmp_path, Image.fromarray(values), "tiff"), size=32), GRAYS, near=1)


@pytest.mark.parametrize("most", [300, 1023, 65535])
def test_a_portable_graymap_has_its_own_white(tmp_path: Path, most: int) -> None:
    values = (np.array([[0, 80], [160, 255]]) / 255 * most).repeat(16, 0).repeat(16, 1)
    dark = values * 0.003  # a night has the same white
    for numbers, grays in ((values, GRAYS), (dark, [[(0, 0, 0)] * 2] * 2)):
        file = tmp_path / "picture.pgm"
        file.write_bytes(b"P5\n32 32\n%d\n" % most + numbers.astype(">u2").tobytes())
        assert_corners(read(file, size=32), grays, near=1)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.array([[0, 70_000]], np.int32), "from 0 to 70000, not from 0 to 65535; save it with 8 or 16 bits"),
        (np.array([[-1, 9]], np.int32), "from -1 to 9, not from 0 to 65535"),
        (np.array([[0, 255]], np.float32), "from 0 to 255, not from 0 to 1; save it"),
        (np.array([[0, np.nan]], np.float32), "from nan to nan, not from 0 to 1"),
    ],
    ids=["large", "negative", "floats", "no number"],
)
def test_numbers_without_a_known_white_are_refused(tmp_path: Path, values: NDArray[Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        read(saved(tmp_path, Image.fromarray(values), "tiff"), size=8)


def test_what_is_transparent_shows_white_paper(tmp_path: Path) -> None:
    alphas = np.array([[255, 0], [0, 0]], np.uint8).repeat(16, 0).repeat(16, 1)
    picture = quarters().convert("RGBA")
    picture.putalpha(Image.fromarray(alphas))
    wanted = [[RED, WHITE], [WHITE, WHITE]]
    assert_corners(read(saved(tmp_path, picture), size=32), wanted)
    assert_corners(read(saved(tmp_path, picture, "gif"), size=32), wanted)
    half = Image.new("RGBA", (8, 8), (0, 0, 0, 128))  # half of black over white
    assert abs(read(saved(tmp_path, half), size=8).astype(int) - 127).max() <= 1


def test_the_center_of_a_long_picture_is_cropped_or_all_of_it_squashed(tmp_path: Path) -> None:
    """Red, green, blue and white columns of 16: the middle of it are the green and the blue one."""
    columns = np.array([RED, GREEN, BLUE, WHITE], np.uint8).repeat(16, 0)[None].repeat(32, 0)
    file = saved(tmp_path, Image.fromarray(columns))
    assert_corners(read(file, size=32), [[GREEN, BLUE], [GREEN, BLUE]])
    squashed = read(file, size=32, crop=False)
    assert [tuple(squashed[16, x].tolist()) for x in (4, 12, 20, 28)] == [RED, GREEN, BLUE, WHITE]
    upright = read(saved(tmp_path, Image.fromarray(columns.transpose(1, 0, 2))), size=32)
    assert_corners(upright, [[GREEN, GREEN], [BLUE, BLUE]])


# -- another one ------------------------------------------------------------------------------------------------------


class Draws:
    """A generator of which one knows what it draws."""

    def __init__(self, share: float, top: int, left: int, flip: float, contrast: float, brightness: float) -> None:
        self.reals, self.places, self.flip = [share, contrast, brightness], (top, left), flip

    def uniform(self, low: float, high: float) -> float:
        drawn = self.reals.pop(0)
        assert low <= drawn <= high
        return drawn

    def integers(self, low: int, high: int, count: int) -> NDArray[Any]:
        assert low <= min(self.places) <= max(self.places) < high
        return np.array(self.places)

    def random(self) -> float:
        return self.flip


def looked(x: NDArray[Any], *draws: Any, **options: Any) -> list[list[int]]:
    """The red of each pixel after one one with known draws."""
    modality, rng = ImageModality(size=len(x), **options), Draws(*draws)
    found = modality.augment(x.reshape(len(x), -1), rng)  # type: ignore[arg-type]
    return found.reshape(x.shape)[..., 0].tolist()  # type: ignore[no-any-return]


def test_one_augmentation_worked_by_hand() -> None:
    """Of 8 × 8 pixels whose red is 10 · row + column, the crop of 7 × 7 from row 1 and column 0 on, scaled back."""
    x = np.zeros((8, 8, 3), np.uint8)
    x[..., 0] = 10 * np.arange(8)[:, None] + np.arange(8)
    places = [0, 0, 1, 2, 3, 4, 5, 6]  # ⌊8-pixel place · 7 / 8⌋
    cropped = [[10 * (1 + y) + z for z in places] for y in places]
    assert looked(x, 7 / 8, 1, 0, 0.9, 1.0, 0.0) == cropped
    assert looked(x, 7 / 8, 1, 0, 0.1, 1.0, 0.0, flip=True) == [row[::-1] for row in cropped]
    assert looked(x, 7 / 8, 1, 0, 0.9, 1.0, 0.0, flip=True) == cropped
    assert looked(x, 7 / 8, 1, 0, 0.1, 1.0, 0.0) == cropped  # left stays left unless one asks otherwise
    assert looked(x, 1.0, 0, 0, 0.9, 1.0, 0.0) == x[..., 0].tolist()


def test_light_is_scaled_around_the_middle_moved_and_kept_within_a_byte() -> None:
    x = np.zeros((3, 3, 3), np.uint8)
    x[..., 0] = [[0, 100, 255], [127, 128, 200], [50, 60, 70]]
    bright = looked(x, 1.0, 0, 0, 0.9, 1.2, 25.0)
    expected = [[min(max(int((v - 127.5) * 1.2 + 127.5 + 25), 0), 255) for v in row] for row in x[..., 0].tolist()]
    assert bright == expected
    assert bright[0] == [0, 119, 255]


def test_augmentations_differ_and_the_same_seed_gives_the_same_one() -> None:
    x = np.random.default_rng(0).integers(0, 256, (16, 48), np.uint8)
    modality = ImageModality(size=16)
    first, again, other = (modality.augment(x, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert first.shape == x.shape
    assert first.dtype == np.uint8


def test_what_only_training_sees_does_not_change_what_a_store_depends_on() -> None:
    plain = ImageModality(size=16)
    assert repr(plain) == repr(ImageModality(size=16, flip=True, has_augmentation=False, search_paths=("a.zip",)))
    assert len({repr(plain), repr(ImageModality(size=8)), repr(ImageModality(size=16, crop=False))}) == 3


# -- what cannot be read -----------------------------------------------------------------------------------------------


def refused(folder: Path, data: bytes, says: str = "is not an image that can be read") -> None:
    (folder / "bad.png").write_bytes(data)
    with pytest.raises(DataError, match=r"pairs\.tsv:3: 'bad\.png' " + says):
        ImageModality(size=8).read(Example("bad.png", file=str(folder / "pairs.tsv"), line=3))


def claimed(width: int, height: int) -> bytes:
    """A PNG of some 60 bytes that claims a size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_file_that_is_no_image_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    refused(tmp_path, b"")
    refused(tmp_path, b"just a text")
    refused(tmp_path, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")  # runs programs
    refused(
        tmp_path, saved(tmp_path, quarters(), "pcx").read_bytes()
    )  # a form that Pillow reads, and nobody's photos have


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("size", "says"),
    [
        ((9_500, 9_500), "too many"),
        ((12_000, 12_000), "too many"),
        ((60_000, 60_000), "decompression bomb"),
        ((2**31 - 1, 1), "decompression bomb"),
    ],
)
def test_a_few_bytes_that_claim_to_be_huge_are_not_decoded(tmp_path: Path, size: tuple[int, int], says: str) -> None:
    refused(tmp_path, claimed(*size), f"is not an image that can be read .*{says}")


def test_a_picture_as_large_as_may_be_is_not_refused_for_its_size(tmp_path: Path) -> None:
    refused(tmp_path, claimed(8_000, 8_000), "is not an image that can be read .*(truncated|incomplete|broken)")
    assert images.MAX_PIXELS > 8_000 * 8_000


@pytest.mark.parametrize("form", ["png", "jpeg", "gif", "tiff", "webp", "bmp"])
def test_a_truncated_picture_is_refused(tmp_path: Path, form: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = saved(tmp_path, Image.fromarray(noise), form).read_bytes()
    refused(tmp_path, data[: len(data) // 2])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["png", "jpeg", "gif", "tiff", "webp", "bmp", "ppm"])
@given(data=st.data())
def test_a_damaged_picture_gives_pixels_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    exif = Image.Exif()
    exif[274] = 6
    whole = bytearray(saved(folder, quarters(8, 8), form, **({"exif": exif} if form == "jpeg" else {})).read_bytes())
    places = st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255))
    for at, value in data.draw(st.lists(places, min_size=1, max_size=4)):
        whole[at] = value
    (folder / "bad").write_bytes(whole)
    try:
        assert read(folder / "bad", size=8).shape == (8, 8, 3)
    except DataError as error:
        assert "is not an image that can be read" in str(error)  # noqa: PT017 - often there is none


def test_a_blank_has_the_shape_of_what_is_read() -> None:
    modality = ImageModality(size=24)
    assert modality.blank().shape == (24, modality.width)
    assert not modality.blank().any()


def test_a_thumbnail_of_a_palette_with_one_transparent_color_is_read(tmp_path: Path) -> None:
    picture = quarters().convert("P", palette=Image.Palette.ADAPTIVE)
    place = picture.getpixel((0, 0))
    data = io.BytesIO()
    picture.save(data, "png", transparency=place)
    (tmp_path / "p.png").write_bytes(data.getvalue())
    assert_corners(read(tmp_path / "p.png", size=32), [[WHITE, GREEN], [BLUE, WHITE]])
