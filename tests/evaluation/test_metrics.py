"""Metrics against sacreBLEU's and jiwer's public functions, values worked by hand, and brute force."""

from __future__ import annotations

import itertools
import re

import jiwer
import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dragoman.core.errors import DataError
from dragoman.core.registry import Part
from dragoman.evaluation.metrics import corpus_score, metrics, rouge_words

WORDS = ["the", "a", "cat", "sat", "on", "mat", "Mat", "mat.", "élan", "42"]
texts = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)
full_texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)
many_references = st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1, max_size=6)


def build(name, **options):
    return metrics.build(Part(name, options))


def streams(references):
    """One list for each rank of reference, None where an item has fewer: the form of sacreBLEU's public functions."""
    return [list(stream) for stream in itertools.zip_longest(*references)]


# -- what every metric promises ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", metrics.names)
def test_identical_texts_get_the_best_score(name):
    metric = build(name)
    lines = ["the cat sat on the mat", "a cat sat on a mat again"]
    best = 1000 if name == "cider" else 100 if metric.higher_is_better else 0
    assert corpus_score(metric, lines, [[line] for line in lines]) == pytest.approx(best)


@pytest.mark.parametrize("name", metrics.names)
def test_texts_with_nothing_in_common_get_the_worst_score(name):
    metric = build(name)
    worst = corpus_score(metric, ["b c d e", "b b b b"], [["x y z w"], ["y y y y"]])
    if name == "cer":
        assert worst == pytest.approx(100 * 8 / 14)  # the spaces are right
    else:
        assert worst == pytest.approx(0 if metric.higher_is_better else 100)


@pytest.mark.parametrize("name", metrics.names)
@settings(deadline=None, max_examples=15)
@given(items=many_references)
def test_scores_of_many_sums_are_the_scores_of_each_sum(name, items):
    metric = build(name)
    stats = metric.statistics([hypothesis for hypothesis, _ in items], [accepted for _, accepted in items])
    assert stats.shape[0] == len(items)
    totals = np.stack([[stats[:n].sum(0), stats[n - 1 :].sum(0)] for n in range(1, len(items) + 1)])  # (N, 2, F)
    together = metric.score(totals)
    assert together.shape == (len(items), 2)
    for index in np.ndindex(together.shape):
        assert together[index] == float(metric.score(totals[index]))


@pytest.mark.parametrize("name", metrics.names)
@pytest.mark.parametrize(("hypothesis", "reference"), [("", ""), ("", "a cat"), ("a cat", ""), (" ", "a"), ("!", "?")])
def test_empty_texts_have_a_finite_score(name, hypothesis, reference):
    for accepted in ([reference], [reference, ""], ["", reference]):
        score = corpus_score(build(name), [hypothesis], [accepted])
        assert np.isfinite(score)
        assert score >= 0


@pytest.mark.parametrize("name", metrics.names)
def test_a_label_a_line_and_only_known_options(name):
    metric = build(name)
    assert metric.label
    assert metric.name[0].isupper()
    assert metric.description.endswith(".")
    direction = "higher" if metric.higher_is_better else "lower"
    assert metrics.summary(name).startswith(f"{metric.name}: {metric.description[:-1]}")
    assert metrics.summary(name).endswith(f"({metric.unit}, {direction} is better).")
    assert metrics.parse(name).name == name
    with pytest.raises(ValidationError, match="no_such_option"):
        metrics.parse({"name": name, "no_such_option": 1})


def test_the_sequence_error_rate_counts_outputs_and_the_word_error_rate_edits():
    hypotheses, references = ["a x y", "b", "c d e f"], [["a b c"], ["b"], ["c d e f"]]
    assert corpus_score(build("ser"), hypotheses, references) == pytest.approx(100 / 3)
    assert corpus_score(build("wer"), hypotheses, references) == pytest.approx(100 * 2 / 8)


@given(items=many_references)
def test_the_sequence_error_rate_is_what_exact_match_leaves(items):
    hypotheses, references = [hypothesis for hypothesis, _ in items], [accepted for _, accepted in items]
    rates = [corpus_score(build(name), hypotheses, references) for name in ("ser", "exact")]
    assert sum(rates) == pytest.approx(100)


@pytest.mark.parametrize("name", metrics.names)
def test_what_has_no_score_is_refused(name):
    metric = build(name)
    with pytest.raises(DataError, match="2 hypotheses, but references for 1 items"):
        metric.statistics(["a", "b"], [["a"]])
    with pytest.raises(DataError, match="nothing to score"):
        metric.statistics([], [])
    with pytest.raises(DataError, match="item 2 has no reference"):
        metric.statistics(["a", "b"], [["a"], []])
    with pytest.raises(TypeError, match="item 1 are a str"):
        metric.statistics(["a"], ["a"])


# -- sacreBLEU ---------------------------------------------------------------------------------------------------------


SACRE = [
    ("bleu", {}, lambda: sacrebleu.BLEU()),
    ("bleu", {"tokenize": "char", "lowercase": True}, lambda: sacrebleu.BLEU(tokenize="char", lowercase=True)),
    ("bleu", {"smooth": "add-k"}, lambda: sacrebleu.BLEU(smooth_method="add-k")),
    ("bleu", {"smooth": "none", "tokenize": "intl"}, lambda: sacrebleu.BLEU(smooth_method="none", tokenize="intl")),
    ("bleu1", {}, lambda: sacrebleu.BLEU(max_ngram_order=1)),
    ("bleu2", {"lowercase": True}, lambda: sacrebleu.BLEU(max_ngram_order=2, lowercase=True)),
    ("bleu3", {}, lambda: sacrebleu.BLEU(max_ngram_order=3)),
    ("chrf", {}, lambda: sacrebleu.CHRF()),
    ("chrf", {"word_order": 2, "lowercase": True}, lambda: sacrebleu.CHRF(word_order=2, lowercase=True)),
    ("ter", {}, lambda: sacrebleu.TER()),
    ("ter", {"case_sensitive": True, "normalized": True}, lambda: sacrebleu.TER(case_sensitive=True, normalized=True)),
]


@pytest.mark.parametrize(("name", "options", "theirs"), SACRE)
@settings(deadline=None, max_examples=40)
@given(items=many_references)
def test_scores_and_signatures_are_those_of_sacrebleu(name, options, theirs, items):
    hypotheses, references = [list(side) for side in zip(*items, strict=True)]
    ours, scorer = build(name, **options), theirs()
    expected = scorer.corpus_score(hypotheses, streams(references)).score
    if name == "ter":  # the mean length of three references is no binary fraction: its sums may differ in the last bit
        assert corpus_score(ours, hypotheses, references) == pytest.approx(expected, rel=1e-14)
    else:
        assert corpus_score(ours, hypotheses, references) == expected
    assert ours.signature == str(scorer.get_signature())


def test_bleu_is_not_changed_by_scoring_twice():
    metric = build("bleu", smooth="add-k")  # sacreBLEU adds k to the counts it is given, in place
    totals = metric.statistics(["the cat sat on the mat"], [["the cat lay on the mat"]]).sum(0)
    before = totals.copy()
    assert float(metric.score(totals)) == float(metric.score(totals))
    assert (totals == before).all()


def test_a_signature_names_the_number_of_references():
    metric = build("bleu")
    assert metric.signature is None
    metric.statistics(["a", "b"], [["a", "c"], ["b", "d"]])
    assert "nrefs:2|" in metric.signature
    metric.statistics(["a", "b"], [["a", "c"], ["b"]])
    assert "nrefs:var|" in metric.signature
    assert build("wer").signature is None


def test_bleu_of_single_words_is_their_share_worked_by_hand():
    """5 of 6 words are in a reference, "the" twice as in the first; nothing is too short: 100 · 5 / 6."""
    references = [["the cat is on the mat", "there is a cat"]]
    assert corpus_score(build("bleu1"), ["the cat sat on the mat"], references) == pytest.approx(100 * 5 / 6)
    assert [build(name).label for name in ("bleu1", "bleu2", "bleu3", "bleu")] == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU"]


def test_labels_tell_chrf_from_chrf_plus_plus():
    assert [build("chrf", word_order=n).label for n in (0, 1, 2)] == ["chrF", "chrF+", "chrF++"]


# -- edit rates --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(items=st.lists(st.tuples(texts, full_texts), min_size=1, max_size=6))
def test_wer_cer_and_per_are_those_of_jiwer(items):
    hypotheses, references = [list(side) for side in zip(*items, strict=True)]
    single = [[reference] for reference in references]
    assert corpus_score(build("wer"), hypotheses, single) == pytest.approx(100 * jiwer.wer(references, hypotheses))
    assert corpus_score(build("per"), hypotheses, single) == pytest.approx(100 * jiwer.wer(references, hypotheses))
    assert corpus_score(build("cer"), hypotheses, single) == pytest.approx(100 * jiwer.cer(references, hypotheses))


def test_cer_counts_inner_spaces_and_not_outer_ones():
    assert corpus_score(build("cer"), [" ab "], [["a b"]]) == pytest.approx(100 / 3)
    assert corpus_score(build("cer"), [" a b\n"], [["a b"]]) == 0


def test_edits_are_summed_over_the_corpus_before_they_are_divided():
    # 1 edit in 1 and 0 edits in 3: not the mean of 100 % and 0 %
    assert corpus_score(build("per"), ["B", "K AE T"], [["D"], ["K AE T"]]) == pytest.approx(25)


def test_per_takes_the_reference_with_the_fewest_edits_per_phoneme():
    metric = build("per")
    # tomato: 2 edits from the first of 6, none from the second of 6
    assert metric.statistics(["T AH M AA T OW"], [["T AH M EY DX OW", "T AH M AA T OW"]]).tolist() == [[0, 6]]
    # 1 edit in 1 phoneme (100 %) against 2 edits in 4 (50 %): the second counts although it has more edits
    assert metric.statistics(["B D"], [["B"]]).tolist() == [[1, 1]]
    assert metric.statistics(["B D"], [["B", "B D Z S"]]).tolist() == [[2, 4]]
    assert metric.statistics(["B D"], [["B D Z S", "B"]]).tolist() == [[2, 4]]
    assert corpus_score(metric, ["B D", "K"], [["B", "B D Z S"], ["K"]]) == pytest.approx(100 * 2 / 5)


def test_an_edit_rate_over_nothing_is_that_of_ter():
    for name in ("wer", "cer", "per", "ter"):
        assert corpus_score(build(name), ["a b"], [[""]]) == 100
        assert corpus_score(build(name), [""], [[""]]) == 0
        assert corpus_score(build(name), ["", "b"], [["a"], [""]]) == 200


# -- exact match and accuracy ------------------------------------------------------------------------------------------


def test_exact_is_the_share_of_items_equal_to_one_of_their_references():
    references = [["a b", "b"], ["c"], ["d"], [""]]
    assert corpus_score(build("exact"), ["b", "C", "d ", ""], references) == 50


def test_accuracy_compares_position_by_position():
    accuracy = build("accuracy")
    assert corpus_score(accuracy, ["a x c"], [["a b c d"]]) == 50
    assert corpus_score(accuracy, ["a b c d e f"], [["a b c d"]]) == 100  # what follows the reference is not looked at
    assert corpus_score(accuracy, ["x a b c"], [["a b c"]]) == 0  # nothing is aligned
    assert corpus_score(accuracy, ["a b", "x"], [["a b"], ["y"]]) == pytest.approx(100 * 2 / 3)
    assert corpus_score(accuracy, ["a b"], [["a c", "a c c", "z b"]]) == 50
    assert corpus_score(accuracy, ["", "x"], [[""], [""]]) == 50


# -- ROUGE -------------------------------------------------------------------------------------------------------------


def test_rouge_of_lins_example():
    # Lin (2004): "police killed the gunman" against two that share as many words but not the same order
    reference = [["police killed the gunman"]]
    assert corpus_score(build("rougel"), ["police kill the gunman"], reference) == pytest.approx(75)
    assert corpus_score(build("rougel"), ["the gunman kill police"], reference) == pytest.approx(50)
    assert corpus_score(build("rouge2"), ["police kill the gunman"], reference) == pytest.approx(100 / 3)
    assert corpus_score(build("rouge2"), ["the gunman kill police"], reference) == pytest.approx(100 / 3)
    assert corpus_score(build("rouge1"), ["the gunman kill police"], reference) == pytest.approx(75)


def test_rouge_counts_a_word_no_more_often_than_the_other_side_has_it():
    # shared: the ×2; P = 2/3, R = 2/4 → F1 = 4/7
    assert corpus_score(build("rouge1"), ["the the the"], [["the cat the dog"]]) == pytest.approx(100 * 4 / 7)


def test_rouge_is_the_mean_over_items_of_the_best_reference():
    hypotheses = ["a b", "c"]
    references = [["a x", "a b c d"], ["d"]]  # F1: max(1/2, 4/6) and 0
    assert corpus_score(build("rouge1"), hypotheses, references) == pytest.approx(100 * (2 / 3) / 2)


def brute_force_lcs(a, b):
    """The longest of all subsequences of a that are subsequences of b."""

    def within(part):
        rest = iter(b)
        return all(any(x == y for y in rest) for x in part)

    parts = (part for n in range(len(a), -1, -1) for part in itertools.combinations(a, n))
    return len(next(part for part in parts if within(part)))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from("abcd"), max_size=7), st.lists(st.sampled_from("abcd"), max_size=7))
def test_rouge_l_agrees_with_brute_force(a, b):
    common = brute_force_lcs(a, b)
    precision, recall = (common / len(a) if a else 0.0), (common / len(b) if b else 0.0)
    expected = 200 * precision * recall / (precision + recall) if common else 0.0
    assert corpus_score(build("rougel"), [" ".join(a)], [[" ".join(b)]]) == pytest.approx(expected)


@settings(deadline=None, max_examples=100)
@given(st.text(st.characters(max_codepoint=127), max_size=40))
def test_ascii_text_is_split_as_the_rouge_score_package_does(text):
    assert rouge_words(text) == re.sub(r"[^a-z0-9]+", " ", text.lower()).split()


def test_letters_of_every_script_are_letters():
    assert rouge_words("Élan, naïve-Straße_über!") == ["élan", "naïve", "straße", "über"]
    assert rouge_words("हिन्दी भाषा।") == ["हिन्दी", "भाषा"]  # vowel signs belong to their word
    assert rouge_words("e\u0301lan Кот") == ["e\u0301lan", "кот"]
    assert corpus_score(build("rouge1"), ["черный кот"], [["белый кот"]]) == pytest.approx(50)
