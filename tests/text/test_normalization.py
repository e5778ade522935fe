"""Unicode forms, against unicodedata itself and hand-worked spellings."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.text.normalization import Form, normalize, replace_surrogates


@pytest.mark.parametrize(
    ("form", "expected"),
    [("nfc", "\u00e9 \ufb01"), ("nfd", "e\u0301 \ufb01"), ("nfkc", "\u00e9 fi"), ("none", "e\u0301 \ufb01")],
)
def test_each_form_writes_an_accent_and_a_ligature_its_own_way(form: Form, expected: str) -> None:
    assert normalize("e\u0301 \ufb01", form) == expected


@pytest.mark.parametrize("form", ["nfc", "nfd", "nfkc"])
@given(text=st.text())
@settings(deadline=None, max_examples=50)
def test_a_form_is_the_one_that_unicode_defines(form: Form, text: str) -> None:
    assert normalize(text, form) == unicodedata.normalize(form.upper(), text)


@given(text=st.text())
@settings(deadline=None, max_examples=50)
def test_none_leaves_every_text_alone(text: str) -> None:
    assert normalize(text, "none") == text


def test_spaces_and_case_are_left_alone() -> None:
    assert normalize("  A\t b \u00a0", "nfc") == "  A\t b \u00a0"


def test_a_lone_surrogate_becomes_the_replacement_character_and_nothing_else_changes() -> None:
    assert replace_surrogates("a\ud800b\udfff \U0001f600") == "a\ufffdb\ufffd \U0001f600"
    assert replace_surrogates("naïve 東京") == "naïve 東京"
