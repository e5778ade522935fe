"""Pictures, looked at pixel by pixel: the weight is where it belongs, labels are all there, no file is half written."""

from __future__ import annotations

import html
import importlib.util
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from dragoman.core.errors import MissingExtra, UserError
from dragoman.evaluation.by_length import LengthBucket
from dragoman.inspection.render.image import AttentionPanel, draw_attention, draw_quality_curves

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


def pixels(path):
    from PIL import Image

    return np.asarray(Image.open(path).convert("RGB"))


def dark(path):
    """Where the darkest blue of the scale is: true for pixels of a cell of weight 1."""
    return like(pixels(path), (8, 48, 107))


def like(image, color):
    """Where an image has a color, or nearly."""
    return np.logical_and.reduce([abs(image[..., i].astype(np.int16) - color[i]) < 8 for i in range(3)])


def boxes(mask):
    """(top, bottom, left, right) of the one connected block of true pixels."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return rows[0], rows[-1], columns[0], columns[-1]


def texts(path):
    """What a picture says: matplotlib writes each text of an SVG as a comment beside its outlines."""
    return [html.unescape(text) for text in re.findall(r"<!-- (.*?) -->", path.read_text(), re.S)]


def only(row, column, shape):
    weights = np.zeros(shape)
    weights[row, column] = 1.0
    return weights


# -- attention maps ----------------------------------------------------------------------------------------------------


@needs_matplotlib
def test_the_weight_of_the_first_target_and_last_source_token_is_at_the_top_right(tmp_path):
    draw_attention(tmp_path / "a.png", [AttentionPanel(only(0, 4, (3, 5)), list("abcde"), list("xyz"))])
    draw_attention(tmp_path / "b.png", [AttentionPanel(only(2, 0, (3, 5)), list("abcde"), list("xyz"))])
    top, bottom, left, right = boxes(dark(tmp_path / "a.png"))
    under, _, first, _ = boxes(dark(tmp_path / "b.png"))
    side = (under - top) / 2  # two rows lie between
    assert right - left == pytest.approx(bottom - top, abs=2)
    assert left - first == pytest.approx(4 * side, abs=2)
    assert bottom - top == pytest.approx(side, abs=5)


@needs_matplotlib
@pytest.mark.parametrize("shape", [(1, 1), (2, 30), (30, 2), (60, 60)])
def test_nothing_is_cut_off_at_the_edge_and_cells_keep_their_size(tmp_path, shape):
    rows, columns = shape
    source, target = [f"source{i}" for i in range(columns)], [f"a long target {i}" for i in range(rows)]
    draw_attention(
        tmp_path / "a.png", [AttentionPanel(only(0, 0, shape), source, target, "A title that is rather long")]
    )
    image = pixels(tmp_path / "a.png")
    assert all((edge == 255).all() for edge in (image[:4], image[-4:], image[:, :4], image[:, -4:]))
    top, bottom, left, right = boxes(dark(tmp_path / "a.png"))
    assert right - left >= 36  # a fifth of an inch at 200 dots
    assert bottom - top == pytest.approx(right - left, abs=2)


@needs_matplotlib
def test_every_token_and_title_stands_in_the_picture_as_it_is_spelled(tmp_path):
    source, target = ["$x^2$", "переводчик", "<s>", "</s>", "a&b", "_", "$"], ["AE", "ß", "#1", "x -> y"]
    draw_attention(tmp_path / "a.svg", [AttentionPanel(np.full((4, 7), 0.6), source, target, "cost: $5, not $6")])
    found = texts(tmp_path / "a.svg")
    for label in ["$x^2$", "переводчик", "<s>", "</s>", "a&b", "_", "$", "AE", "ß", "#1", "x␣->␣y", "cost: $5, not $6"]:
        assert label in found, label


@needs_matplotlib
def test_dollar_signs_are_never_read_as_mathematics(tmp_path):
    broken = "$\\frac$"  # as mathematics it would be an error
    draw_attention(tmp_path / "a.png", [AttentionPanel([[0.6]], [broken], [broken], broken)])
    series = {broken: points(80), f"{broken} two": points(60)}
    draw_quality_curves(tmp_path / "b.png", series, xlabel=broken, ylabel=broken, title=broken)
    assert {file.name for file in tmp_path.iterdir()} == {"a.png", "b.png"}


@needs_matplotlib
def test_a_control_character_or_one_that_no_font_has_is_shown_by_its_number(tmp_path, recwarn):
    draw_attention(
        tmp_path / "a.svg", [AttentionPanel([[0.6, 0.6]], ["\x1b[0m", "\U0001fae8\ue123"], ["\u202ex"], "tab\there")]
    )
    found = " ".join(texts(tmp_path / "a.svg"))
    assert "<001B>[0m" in found
    assert "<E123>" in found
    assert "<202E>x" in found
    assert "tab<0009>here" in found
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


@needs_matplotlib
def test_small_weights_get_a_scale_of_their_own_and_large_ones_none(tmp_path):
    draw_attention(
        tmp_path / "small.svg",
        [AttentionPanel([[0.2, 0.1]], ["a", "b"], ["x"]), AttentionPanel([[0.3, 0.0]], ["a", "b"], ["x"])],
    )
    draw_attention(tmp_path / "large.svg", [AttentionPanel([[0.9, 0.1]], ["a", "b"], ["x"])])
    assert sorted(texts(tmp_path / "small.svg")) == sorted(["a", "b", "x"] * 2 + ["0", "0.15", "0.3"])
    assert sorted(texts(tmp_path / "large.svg")) == ["a", "b", "x"]


def runs(line):
    """Lengths of the stretches of true values, with borders of a few pixels between cells left aside."""
    places = np.flatnonzero(line)
    return [stretch[-1] - stretch[0] for stretch in np.split(places, np.flatnonzero(np.diff(places) > 15) + 1)]


@needs_matplotlib
def test_six_panels_stand_three_by_two_without_touching(tmp_path):
    panels = [AttentionPanel(np.ones((4, 4)), ["token"] * 4, ["label"] * 4, f"head {i}") for i in range(6)]
    draw_attention(tmp_path / "a.png", panels)
    draw_attention(tmp_path / "a.svg", panels)
    mask = dark(tmp_path / "a.png")
    across, down = runs(mask.any(0)), runs(mask.any(1))
    assert len(across) == 3
    assert len(down) == 2
    assert max(across + down) - min(across + down) <= 2
    assert [text for text in texts(tmp_path / "a.svg") if text.startswith("head")] == [f"head {i}" for i in range(6)]


@needs_matplotlib
def test_panels_of_different_sizes_share_one_size_of_cell(tmp_path):
    panels = [AttentionPanel(np.ones((rows, rows)), ["a"] * rows, ["b"] * rows) for rows in (2, 8)]
    draw_attention(tmp_path / "a.png", panels)
    small, large = runs(dark(tmp_path / "a.png").any(0))
    assert large / small == pytest.approx(4, abs=0.2)


@needs_matplotlib
def test_a_huge_matrix_gives_a_picture_of_bounded_size(tmp_path):
    draw_attention(tmp_path / "a.png", [AttentionPanel(np.ones((1, 250)), ["a"] * 250, ["b"])])
    assert pixels(tmp_path / "a.png").shape[1] <= 6001


@needs_matplotlib
def test_weights_that_are_not_numbers_are_drawn_and_do_not_set_the_scale(tmp_path):
    draw_attention(
        tmp_path / "a.svg",
        [AttentionPanel([[0.3, float("nan")]], ["a", "b"], ["x"]), AttentionPanel([[float("nan")]], ["a"], ["x"])],
    )
    assert "0.3" in texts(tmp_path / "a.svg")


def test_weights_that_do_not_fit_the_tokens_are_refused(tmp_path):
    with pytest.raises(ValueError, match="number of labels"):
        draw_attention(tmp_path / "a.png", [AttentionPanel([[0.5, 0.5]], ["a"], ["x", "y"], "one")])


# -- quality by length -------------------------------------------------------------------------------------------------


def points(height):
    middles = (5, 10, 15, 20)
    return [LengthBucket(x - 1, x + 1, 100 - x, height - x, (height - x - 5, height - x + 5)) for x in middles]


@needs_matplotlib
def test_a_curve_falls_where_its_numbers_fall_and_lies_inside_its_band(tmp_path):
    draw_quality_curves(tmp_path / "a.png", {"one": points(80)}, xlabel="length", ylabel="BLEU", title="by length")
    image = pixels(tmp_path / "a.png")
    line, band = like(image, (0, 114, 178)), like(image, (217, 234, 243))
    columns = np.flatnonzero(line.any(0))
    assert line[:, columns[5]].argmax() < line[:, columns[-5]].argmax()  # lower in the picture at the right
    middle = columns[len(columns) // 2]
    inside = np.flatnonzero(line[:, middle]).mean()
    assert np.flatnonzero(band[:, middle]).min() < inside < np.flatnonzero(band[:, middle]).max()
    assert np.mean([np.flatnonzero(band[:, middle]).min(), np.flatnonzero(band[:, middle]).max()]) == pytest.approx(
        inside, abs=4
    )


@needs_matplotlib
def test_models_are_named_as_they_are_called(tmp_path):
    series = {"_base": points(80), "$big$": points(60), "<x>": points(40)}
    draw_quality_curves(tmp_path / "a.svg", series, xlabel="tokens ($n$)", ylabel="BLEU", title="$5")
    assert {"_base", "$big$", "<x>", "tokens ($n$)", "BLEU", "$5", "pairs"} <= set(texts(tmp_path / "a.svg"))


@needs_matplotlib
@pytest.mark.parametrize(
    "place", [LengthBucket(6, 8, 3, 50, (40, 60)), LengthBucket(6, 8, 0, 50, (math.nan, math.nan))]
)
def test_one_point_is_enough_for_a_picture(tmp_path, place):
    draw_quality_curves(tmp_path / "a.svg", {"one": [place], "none": []}, xlabel="x", ylabel="y", title="")
    assert "7" in texts(tmp_path / "a.svg")


# -- files -------------------------------------------------------------------------------------------------------------

ONE = [AttentionPanel([[1.0]], ["a"], ["b"])]


@needs_matplotlib
@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.PNG", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")]
)
def test_the_ending_of_the_name_says_the_format_and_nothing_else_is_left(tmp_path, name, start):
    file = tmp_path / "new" / name
    draw_attention(file, ONE)
    assert file.read_bytes().startswith(start)
    assert list(file.parent.iterdir()) == [file]


def test_another_ending_is_refused_with_those_allowed(tmp_path):
    with pytest.raises(UserError, match=r"a\.gif: an image cannot be written as '\.gif'; .*\.png, \.svg, \.pdf"):
        draw_attention(tmp_path / "a.gif", ONE)
    assert list(tmp_path.iterdir()) == []


@needs_matplotlib
def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be written"):
        draw_attention(tmp_path / "file" / "a.png", ONE)


@needs_matplotlib
def test_a_folder_in_the_place_of_the_picture_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        draw_attention(tmp_path / "a.png", ONE)
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_without_matplotlib_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"Drawing images needs .*'matplotlib'.*pip install 'dragoman\[plots\]'"):
        draw_attention(tmp_path / "a.png", ONE)
    with pytest.raises(MissingExtra, match="matplotlib"):
        draw_quality_curves(tmp_path / "a.png", {"one": points(80)}, xlabel="x", ylabel="y", title="")


@needs_matplotlib
def test_matplotlib_is_imported_late_and_its_global_state_is_left_alone(tmp_path):
    program = f"""if True:
        import sys
        from dragoman.evaluation.by_length import LengthBucket
        from dragoman.inspection.render.image import AttentionPanel, draw_attention, draw_quality_curves
        assert "matplotlib" not in sys.modules
        import matplotlib
        before = matplotlib.rcParams.copy()
        draw_attention({str(tmp_path / "a.png")!r}, [AttentionPanel([[1.0]], ["a"], ["b"])])
        points = [LengthBucket(1, 1, 4, 2, (1, 3))]
        draw_quality_curves({str(tmp_path / "b.png")!r}, {{"a": points}}, xlabel="x", ylabel="y", title="t")
        assert "matplotlib.pyplot" not in sys.modules and "torch" not in sys.modules
        assert matplotlib.rcParams.copy() == before
    """
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
