"""The heat map in the terminal: the right shade in the right place, columns that stay columns, nothing raw."""

from __future__ import annotations

import io
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import Color, ColorSystem
from rich.console import Console

from dragoman.inspection.render.terminal import (
    GLYPHS,
    SHADES,
    print_heat_map,
    render_grid_maps,
    render_heat_map,
    visible,
)

# Characters that have broken terminals before: controls, direction marks, wide and combining ones, joiners, surrogates.
NASTY = "\x1b\x00\x07\r\n\t\x7f\x9b\u202e\u200d\u200b\u2028\ufeff\ufe0f\ud800\u0301\u093e\u1161日ｶ한e  🇩👍🏽\U000e0001"
tokens = st.text(st.sampled_from(NASTY) | st.characters(), max_size=6)


def lines(text):
    return text.plain.split("\n")


def test_a_small_map_is_what_a_hand_would_draw():
    weights = [[1.0, 0.0, 0.0], [0.2, 0.8, 0.0], [0.0, 0.4, 0.6]]
    assert lines(render_heat_map(weights, list("cat"), ["K", "AE", "T"], color=False, width=80)) == [
        "   c a t",
        " K ██    ",
        "AE ··▓▓  ",
        " T   ░░▒▒",
        "",
        "0   ··░░▒▒▓▓██ 1",
    ]


def test_long_tokens_are_written_downwards_onto_their_column():
    drawn = lines(render_heat_map([[1.0, 0.0]], ["the", "a"], ["x"], color=False, width=80))
    assert drawn[:4] == ["  t", "  h", "  e a", "x ██  "]


def test_a_wide_map_goes_on_below_in_blocks_that_fit():
    source, target = [chr(ord("a") + i) for i in range(25)], ["X", "YY"]
    weights = np.zeros((2, 25))
    weights[0, 0] = weights[1, 24] = 1.0
    drawn = lines(render_heat_map(weights, source, target, color=False, width=23))
    assert all(cell_len(line) <= 23 for line in drawn)
    assert [line.split() for line in drawn[::4]] == [
        source[:10],
        source[10:20],
        source[20:],
        ["0", "··░░▒▒▓▓██", "1"],
    ]
    assert drawn[1].startswith(" X ██")
    assert drawn[10].endswith("██")
    assert sum(line.count("█") for line in drawn[:-1]) == 4


def test_the_terminal_says_how_wide_it_is(monkeypatch):
    monkeypatch.setenv("COLUMNS", "12")
    screen = io.StringIO()
    print_heat_map(Console(file=screen, color_system=None), np.zeros((1, 30)), ["a"] * 30, ["b"])
    drawn = screen.getvalue().split("\n")
    assert [len(line.split()) for line in drawn if line.startswith("  a")] == [5] * 6


@settings(deadline=None, max_examples=60)
@given(source=st.lists(tokens, min_size=1, max_size=8), target=st.lists(tokens, max_size=5), color=st.booleans())
def test_columns_stay_columns_whatever_the_tokens_hold(source, target, color):
    drawn = lines(render_heat_map(np.ones((len(target), len(source))), source, target, color=color, width=10_000))
    rows = drawn[len(drawn) - len(target) - 2 : -2]
    assert len({cell_len(row) for row in rows}) <= 1
    if rows:
        assert all(cell_len(heading) <= cell_len(rows[0]) for heading in drawn[: -len(target) - 2])
        assert color or all(row.endswith("█" * 2 * len(source)) for row in rows)


def test_wide_characters_and_marks_keep_their_column():
    weights = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    assert lines(render_heat_map(weights, ["日", "e\u0301", "ｶ", "\u0301"], ["x", "語"], color=False, width=80))[
        :3
    ] == [
        "   日 e\u0301  ｶ  ◌\u0301",  # three cells for each column, since 日 takes two
        " x ███         ",
        "語       ███   ",
    ]


@settings(deadline=None, max_examples=100)
@given(tokens)
def test_what_is_shown_is_printable_takes_room_and_begins_on_a_base(token):
    shown = visible(token)
    assert all(unicodedata.category(c)[0] not in "CZ" for c in shown)
    assert all(cell_len(c) > 0 for c in shown[:1])
    shown.encode("utf-8")
    if token.isascii() and token.isprintable():
        assert shown == token.replace(" ", "␣")


def test_no_escape_sequence_of_a_token_reaches_the_terminal():
    screen = io.StringIO()
    text = render_heat_map([[0.5]], ["\x1b]0;title\x07"], ["\x1b[31mred\r\n"], color=False, width=80)
    Console(file=screen, force_terminal=True, color_system=None, width=80).print(text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", screen.getvalue())
    assert "<001B>[31mred<000D><000A>" in screen.getvalue()


def test_markup_in_tokens_is_text():
    assert "[bold]" in render_heat_map([[0.5]], ["a"], ["[bold]"], color=False, width=80).plain


def shades(text):
    """The background of every colored character, line by line."""
    console = Console(width=200, color_system="truecolor", force_terminal=True, file=io.StringIO())
    return [
        [
            segment.style.bgcolor.name
            for segment in line
            if segment.style and segment.style.bgcolor
            for _ in segment.text
        ]
        for line in console.render_lines(text, pad=False)
    ]


def test_with_color_a_weight_is_the_background_of_its_cell():
    drawn = render_heat_map([[0.0, 1.0, 0.5]], list("abc"), ["x"], color=True, width=80)
    assert shades(drawn)[1] == [SHADES[0]] * 2 + [SHADES[-1]] * 2 + [SHADES[len(SHADES) // 2]] * 2
    assert not set(GLYPHS[1:]) & set(drawn.plain)


def luminance(color):
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 255 / 12.92 if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("system", [ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT])
def test_larger_weights_are_brighter_in_every_color_system(system):
    light = [luminance(Color.parse(shade).downgrade(system).get_truecolor()) for shade in SHADES]
    assert light == sorted(light)
    assert len(set(light)) >= 8
    assert (light[-1] + 0.05) / (light[0] + 0.05) > 10  # a strong contrast between all and nothing


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_a_larger_weight_never_looks_smaller(weights):
    weights = sorted(weights)
    row = lines(render_heat_map([weights], ["a"] * len(weights), ["x"], color=False, width=200))[1][2:]
    levels = [GLYPHS.index(glyph) for glyph in row[::2]]
    assert levels == sorted(levels)
    assert all(abs(level / 5 - weight) <= 0.1 + 1e-9 for level, weight in zip(levels, weights, strict=True))


def test_rounding_errors_are_no_weights_and_what_is_not_a_number_shows():
    row = lines(render_heat_map([[1.0000001, -1e-9, float("nan")]], list("abc"), ["x"], color=False, width=80))[1]
    assert row == "x ██  ? "


def test_very_long_tokens_leave_room_for_the_map():
    drawn = lines(render_heat_map([[1.0, 0.0]], ["x" * 500, "y"], ["z" * 500], color=False, width=60))
    assert len(drawn) < 25
    assert all(cell_len(line) <= 60 for line in drawn)
    assert "…" in drawn[-3]
    assert drawn[-3].endswith("██  ")


def test_weights_that_do_not_fit_the_tokens_are_refused():
    with pytest.raises(ValueError, match=r"weights are \(1, 2\); 2 target and 1 source tokens"):
        render_heat_map([[0.5, 0.5]], ["a"], ["x", "y"], color=False, width=80)


def test_empty_sides_do_not_fail():
    assert render_heat_map(np.zeros((0, 2)), ["a", "b"], [], color=False, width=80).plain.startswith(" a b\n")
    assert render_heat_map(np.zeros((1, 0)), [], ["x"], color=True, width=80).plain


# -- grids -------------------------------------------------------------------------------------------------------------

FACE = {"kind": "image", "src": "", "rows": 2, "columns": 3, "first": 0}


def test_each_word_has_a_grid_of_shares_of_its_largest_weight():
    weights = [[0.2, 0, 0, 0, 0, 0.1], [0, 0, 0, 0.01, 0, 0]]
    drawn = render_grid_maps(FACE, weights, ["▁dog", "▁ran"], color=False, width=80).plain.split("\n")
    assert drawn[:3] == ["dog     ran", "██    │       │ ", "    ▒▒│ ██    │ "]
    assert drawn[-1].endswith("██ the most of each word")


def test_as_many_grids_stand_side_by_side_as_fit():
    words, weights = ["a", "b", "c"], [[1.0, 0, 0, 0, 0, 0]] * 3
    for width, rows in [(80, 1), (16, 2), (8, 3), (1, 3)]:
        drawn = render_grid_maps(FACE, weights, words, color=False, width=width).plain.split("\n")
        assert sum(line.startswith("██") for line in drawn) == rows
        assert all(cell_len(line) <= max(width, 8) for line in drawn[:-1])


def test_frames_of_a_clip_stand_in_a_row_and_a_word_that_is_too_long_is_cut():
    clip = {"kind": "video", "frames": ["", ""], "per_frame": 4, "first": 1}
    drawn = render_grid_maps(clip, [[0.5, 0, 0, 0, 0.1, 0, 0.5, 0, 0]], ["x" * 30], color=False, width=80).plain.split(
        "\n"
    )
    assert drawn[0] == f"{'x' * 9}…"
    assert drawn[1:3] == ["        ██│ ", "  ··      │ "]
    assert render_grid_maps(clip, [[0.0] * 9], ["x"], color=True, width=80).plain
