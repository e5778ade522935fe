"""Texts as other tokenizers cut them, by hand."""

from __future__ import annotations

import pytest

from dragoman.recipes.scoring_tokenization import tokenize_for_scoring


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Two dogs run.", "two dogs run ."),
        ("A man in a T-shirt isn't here, he's out!", "a man in a t - shirt is n't here , he 's out !"),
        ("It costs 3.50 or 1,000.", "it costs 3.50 or 1,000 ."),
        ("wait... what?", "wait ... what ?"),
        ("can't won't", "ca n't wo n't"),
    ],
)
def test_words_are_cut_as_spacy_cuts_them(text, words):
    assert tokenize_for_scoring(text, "spacy words", lowercase=True) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Zwei Hunde laufen.", "Zwei Hunde laufen ."),
        ("Ein Mann im T-Shirt, der lacht!", "Ein Mann im T-Shirt , der lacht !"),
        ("the man's hat", "the man 's hat"),
        ("um 12:30 Uhr", "um 12:30 Uhr"),
    ],
)
def test_tokens_are_cut_as_moses_cuts_them(text, words):
    assert tokenize_for_scoring(text, "moses words") == words


def test_code_is_cut_into_names_numbers_and_signs():
    assert (
        tokenize_for_scoring("self.x[0] += foo_bar(1.5, 'a')", "code tokens")
        == "self . x [ 0 ] + = foo_bar ( 1.5 , ' a ' )"
    )


def test_a_text_may_stay_as_it_is():
    assert tokenize_for_scoring("Don't  touch.", "as it is") == "Don't  touch."
