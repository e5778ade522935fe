"""The report of outputs that were written by hand: every number can be counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.reports.made_up import ALPHABET, made_assessment, made_pipeline

from dragoman.core.types import Example
from dragoman.inspection.assessment import Assessment
from dragoman.inspection.views.quality import count_training_tokens
from dragoman.reports.edits import Column
from dragoman.reports.items import nearest_reference
from dragoman.reports.report import EvaluationReport, build_report, evaluate
from dragoman.reports.terminal import report_lines
from dragoman.reports.training_overlap import find_trained_sources

ROWS = [
    ("ab", "A B", "A B", 0.9),
    ("cd", "C D", "C E", 0.8),
    ("ef", "E F", "E", 0.3),
    ("gh", "G H", "G H H", 0.6),
    ("ij", "I J", "", 0.1),
    ("kl", "K L", "K L", 0.7),
]
WORDS = [a + b + c for a in "abcdefgh" for b in "ijklmnop" for c in "rst"]  # 192


def spell(word: str) -> str:
    return " ".join(word.upper())


def report_of(assessment: Assessment, **options: object) -> EvaluationReport:
    return build_report(made_pipeline(), assessment, **options)  # type: ignore[arg-type]


def planted(is_wrong: dict[str, str], probability: float = 0.9) -> Assessment:
    """Outputs of which exactly those are wrong that are given here, by word."""
    rows = [(word, spell(word), is_wrong.get(word, spell(word)), probability) for word in WORDS]
    return made_assessment(rows)


def test_items_are_right_or_have_their_edits() -> None:
    report = report_of(made_assessment(ROWS))
    assert [item.is_right for item in report.items] == [True, False, False, False, False, True]
    assert [item.edits for item in report.items] == [0, 1, 1, 1, 2, 0]
    assert report.items[1].columns == (Column("C", "C"), Column("D", "E"))
    assert [item.probability for item in report.items] == pytest.approx([0.9, 0.8, 0.3, 0.6, 0.1, 0.7])
    assert report.items[4].flags == ("empty",)
    assert {str(confusion): confusion.count for confusion in report.confusions} == {
        "D → E": 1, "F missing": 1, "H added": 1, "I missing": 1, "J missing": 1,
    }  # fmt: skip


def test_the_headline_is_in_the_tasks_own_words() -> None:
    report = report_of(made_assessment(ROWS), trained_sources=set())
    assert report.headline.startswith("2 of 6 new words right [")
    assert report.headline.endswith("; phoneme errors (PER) 41.7 %")  # 5 of 12
    assert report_of(made_assessment(ROWS)).headline.startswith("2 of 6 words right [")  # unknown whether new
    assert report.scores["ser"].label == "words with an error"
    assert report_of(planted({WORDS[0]: "X"})).headline.startswith("99")  # of a hundred and more, the share


def test_the_worst_have_most_errors_and_the_most_confident_most_probability() -> None:
    report = report_of(made_assessment(ROWS))
    assert [item.source for item in report.worst_mistakes(2)] == ["ij", "cd"]
    sure = {item.source: item.token_probability for item in report.confident_mistakes()}
    assert list(sure) == sorted(sure, key=lambda source: -sure[source]) == ["cd", "gh", "ef", "ij"]


def test_several_references_give_the_nearest() -> None:
    assessment = made_assessment([("ab", "A B C D E", "A B", 0.5), ("cd", "X", "Y", 0.5)])
    assessment.examples[0] = Example("ab", "A B C D E", references=("A B C D E", "A B C"))
    (first, _) = report_of(assessment).items
    assert first.reference == "A B C"
    assert first.edits == 1


def test_the_nearest_reference_has_the_fewest_edits_per_unit() -> None:
    assert nearest_reference("A B", ["X", "A B C D E"], "phoneme") == "A B C D E"  # 3 of 5, and not 2 of 1
    assert nearest_reference("A B", ["A C", "A D", "A B"], "phoneme") == "A B"


def test_groups_hold_every_pair_once_and_all_errors() -> None:
    wrong = dict.fromkeys(WORDS[:40], "X")
    counts = {letter: n**2 + 1 for n, letter in enumerate(ALPHABET)}
    report = report_of(planted(wrong), training_counts=counts)
    assert {grouping.key for grouping in report.groupings} >= {"rarity", "probability"}
    for grouping in report.groupings:
        assert sum(group.count for group in grouping.groups) == len(WORDS)
        assert sum(group.wrong for group in grouping.groups) == 40
        for group in grouping.groups:
            assert group.value == pytest.approx(100 * group.wrong / group.count)


def test_languages_and_scripts_are_groups_of_their_own() -> None:
    assessment = planted({})
    assessment.examples[:] = [
        Example(word, spell(word), target_lang="de" if n < 100 else "hu") for n, word in enumerate(WORDS)
    ]
    (languages,) = [each for each in report_of(assessment).groupings if each.key == "language"]
    assert [(group.name, group.count) for group in languages.groups] == [("de", 100), ("hu", 92)]


def test_errors_that_gather_in_rare_letters_are_named() -> None:
    wrong = {word: "X" for word in WORDS if word[0] == "a"} | dict.fromkeys(WORDS[-4:], "X")
    counts = Counter({letter: 3 if letter == "a" else 500 for letter in ALPHABET})
    report = report_of(planted(wrong), training_counts=counts)
    assert any("a (24×)" in sentence and "fewer than 5 times" in sentence for sentence in report.advice)
    assert any(sentence.startswith("Sources whose rarest token is 3") for sentence in report.findings)
    assert "86 % of the errors, but 12 % of the pairs" in " ".join(report.advice)  # 24 of 28, 24 of 192


def test_errors_spread_evenly_name_no_kind_of_pair() -> None:
    wrong = {word: f"{spell(word)} Z" for word in WORDS[::6]}
    counts = Counter(dict.fromkeys(ALPHABET, 50))
    report = report_of(planted(wrong), training_counts=counts)
    assert len(report.advice) == 1
    assert "No kind of pair stands out" in report.advice[0]


def test_overconfidence_is_a_finding() -> None:
    wrong = dict.fromkeys(WORDS[::2], "X")
    report = report_of(planted(wrong, probability=0.95))
    assert report.calibration is not None
    assert report.calibration.error == pytest.approx(0.45)
    assert any("overconfident" in finding and "95 %" in finding for finding in report.findings)


def test_what_the_model_never_saw_and_cannot_write_is_found() -> None:
    rows = [*ROWS, ("жж", "A", "B", 0.4), ("m", "Ж", "M", 0.4)]
    report = report_of(made_assessment(rows))
    assert report.unseen.counts == Counter({"ж": 2})
    assert report.unwritable.counts == Counter({"Ж": 1})
    assert [item.flags for item in report.items[-2:]] == [("unseen",), ("unwritable",)]
    assert any("cannot write (Ж (1×))" in finding for finding in report.findings)


def test_sources_that_were_trained_on_are_named(tmp_path: Path) -> None:
    train = tmp_path / "train.tsv"
    train.write_text("ab\tA B\ncd\tC D\nzz\tZ Z\n", encoding="utf-8")
    pipeline, assessment = made_pipeline(train=str(train)), made_assessment(ROWS)
    assert count_training_tokens(pipeline) == Counter("abcdzz")
    trained = find_trained_sources(pipeline, assessment.examples)
    assert trained == {0, 1}
    report = build_report(pipeline, assessment, None, {}, trained)
    assert "2 sources are also in the training data; of the others 25 % are right." in report.findings
    assert "new words" not in report.headline


def test_words_are_called_new_only_where_the_training_data_were_read(tmp_path: Path) -> None:
    train = tmp_path / "train.tsv"
    examples = [Example("gh", "G H"), Example("ij", "I J")]
    assert "new words" not in evaluate(made_pipeline(train=str(train)), examples)[1].headline
    train.write_text("ab\tA B\n", encoding="utf-8")
    assert "new words" in evaluate(made_pipeline(train=str(train)), examples)[1].headline


def test_at_most_five_findings_and_everything_fits_into_json() -> None:
    report = report_of(planted(dict.fromkeys(WORDS[:90], "X")), trained_sources={0})
    assert 1 < len(report.findings) <= 5
    data = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert data["wrong"] == 90
    assert data["confusions"][0]["count"] == report.confusions[0].count


def test_the_terminal_shows_names_units_directions_and_findings() -> None:
    text = "\n".join(report_lines(report_of(made_assessment(ROWS))))
    assert "words with an error" in text
    assert "Sequence error rate: the share of outputs" in text
    assert "↓ is better" in text
    assert "D → E 1×" in text
    assert "line 2: cd → C E   reference: C D" in text


def test_outputs_that_are_all_right_need_no_advice() -> None:
    report = report_of(planted({}))
    assert (report.advice, report.wrong, report.confusions) == ((), [], ())
    assert report.calibration is None
    assert "hardly any output is wrong" in report.calibration_note
