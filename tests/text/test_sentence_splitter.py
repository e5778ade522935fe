"""A long text falls into sentences and comes together again, without a character lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.text.sentence_splitter import Piece, join_pieces, split_sentences

# Texts from what splitting looks at, which plain random text would seldom hold.
BITS = st.sampled_from(
    [
        *" \n\t.!?…。！？।؟,;:，、'\"”»)」",
        "\u00a0",
        "\r\n",
        " - ",
        "Dr",
        "z.B",
        "3.14",
        "e\u0301",
        "wort",
        "Haus",
        "今日",
        "\u2028",
    ]
)
TEXTS = st.one_of(st.text(), st.lists(BITS, max_size=60).map("".join))


def texts(text: str, max_chars: int = 400) -> list[str]:
    return [piece.text for piece in split_sentences(text, max_chars)]


@given(TEXTS, st.integers(1, 50))
@example(" leading and trailing \n", 5)
def test_pieces_that_are_not_translated_are_the_text_again(text, max_chars):
    pieces = split_sentences(text, max_chars)
    assert join_pieces(pieces, [piece.text for piece in pieces]) == text
    assert all(len(piece.text) <= max_chars for piece in pieces)
    assert all(piece.text == piece.text.strip() and not piece.space.strip() for piece in pieces)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("He came. She left.", ["He came.", "She left."]),
        ("Really?! Yes… No... Maybe", ["Really?!", "Yes…", "No...", "Maybe"]),
        ("Dr. No met Prof. Bunsen. They spoke.", ["Dr. No met Prof. Bunsen.", "They spoke."]),
        ("Das ist z. B. Obst. Am 3. Mai war es z.B. Gemüse.", ["Das ist z. B. Obst.", "Am 3. Mai war es z.B. Gemüse."]),
        (
            "J. S. Bach wrote it. Pi is 3.14 today. In 1990. Then",
            ["J. S. Bach wrote it.", "Pi is 3.14 today.", "In 1990.", "Then"],
        ),
        ("We met approx. ten people, e.g. Ann. Good.", ["We met approx. ten people, e.g. Ann.", "Good."]),
        ('"Stop." (He did.) “Go!” she said.', ['"Stop."', "(He did.)", "“Go!” she said."]),
        ("Il dit : « Quoi ? » Elle rit.", ["Il dit : « Quoi ? »", "Elle rit."]),
        ("今日は晴れ。明日は雨！「はい。」", ["今日は晴れ。", "明日は雨！", "「はい。」"]),
        ("यह पहला है। वह दूसरा है॥ अंत", ["यह पहला है।", "वह दूसरा है॥", "अंत"]),
        ("كيف حالك؟ أنا بخير. شكرا", ["كيف حالك؟", "أنا بخير.", "شكرا"]),
        ("یہ ایک ہے۔ وہ دو ہے۔", ["یہ ایک ہے۔", "وہ دو ہے۔"]),
        ("Title\n\nFirst line\nsecond line.\r\nThird", ["Title", "First line", "second line.", "Third"]),
        ("example.org and a.b.c are names", ["example.org and a.b.c are names"]),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text, sentences):
    assert texts(text) == sentences


def test_a_long_sentence_is_cut_at_a_stop_then_a_comma_then_a_space_then_anywhere():
    assert texts("one two three. four five, six seven", 20) == ["one two three.", "four five, six seven"]
    assert texts("one two three, four five six seven", 20) == ["one two three,", "four five six seven"]
    assert texts("one two three four five six seven", 20) == ["one two three four", "five six seven"]
    assert texts("x" * 45, 20) == ["x" * 20, "x" * 20, "x" * 5]
    assert texts("ab" * 9 + "xe\u0301y", 20) == ["ab" * 9 + "x", "e\u0301y"]  # the accent stays on its letter


def test_line_breaks_and_spaces_survive_translation():
    pieces = split_sentences("  One.  Two.\n\n\tThree.\n")
    assert join_pieces(pieces, [piece.text.upper() for piece in pieces]) == "  ONE.  TWO.\n\n\tTHREE.\n"


def test_sentences_are_spaced_as_the_target_language_spaces_them():
    assert join_pieces(split_sentences("今日は。明日は。"), ["Today.", "Tomorrow."]) == "Today. Tomorrow."
    assert join_pieces(split_sentences("Today. Tomorrow."), ["今日は。", "明日は。"]) == "今日は。明日は。"
    assert join_pieces(split_sentences("Today. Tomorrow."), ["오늘이다.", "내일이다."]) == "오늘이다. 내일이다."
    assert join_pieces([Piece("abc", ""), Piece("def", "")], ["uvw", "xyz"]) == "uvwxyz"  # cut inside a word


@pytest.mark.parametrize("end", ["😀", "👍🏽", "❤️", "👩‍🚀", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣", "ㅋㅋ", "하하 😀"])
def test_an_emoji_or_a_korean_letter_at_the_end_of_a_sentence_keeps_its_space(end):
    assert join_pieces(split_sentences("Great. Next."), [f"Super {end}", "Weiter."]) == f"Super {end} Weiter."


def test_an_emoji_after_a_chinese_or_japanese_sentence_needs_no_space():
    assert join_pieces(split_sentences("Great. Next."), ["最高😀", "次。"]) == "最高😀次。"


def test_no_text_takes_more_than_a_moment_to_split():
    """Every kind of run that a pattern could walk through again and again; a quadratic walk would take minutes."""
    for bit in (".", " ", "a. ", '?"', "a", "\n", ". \u00a0»", ", ", "Dr. ", " - "):
        text = (bit * 100_000)[:100_000]
        pieces = split_sentences(text)
        assert join_pieces(pieces, [piece.text for piece in pieces]) == text


def test_simple_text_is_split_at_every_stop_before_a_capital_letter():
    """On words, single spaces and plain stops, the rule is one regular expression."""
    text = "Alpha beta gamma. Delta epsilon! Zeta eta theta? Iota kappa. " * 20
    assert texts(text) == re.split(r"(?<=[.!?]) (?=[A-Z])", text.rstrip())
