"""`dragoman data check`: every kind of issue in one report, from hashes and histograms alone."""

from __future__ import annotations

import gzip
import json
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec_learning import learn_codec

from dragoman.core.errors import DataError
from dragoman.core.registry import Part
from dragoman.core.types import EOS, UNK, Example
from dragoman.data.lines import LINE_LIMIT
from dragoman.data.quality import diagnosis, survey
from dragoman.data.quality.diagnosis import check_pairs
from dragoman.data.quality.report import Finding, QualityReport


def write(folder: Path, content: bytes | str, name: str = "a.tsv") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def table(pairs) -> str:
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


def finding(report: QualityReport, code: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.code == code]
    return found


def codes(report: QualityReport) -> set[str]:
    return {finding.code for finding in report.findings}


GOOD = [("Hund", "dog"), ("Katze", "cat"), ("Maus", "mouse"), ("Haus", "house"), ("Baum", "tree")]


def test_good_pairs_have_no_findings(tmp_path):
    report = check_pairs(write(tmp_path, table(GOOD)))
    assert report.findings == []
    assert report.ok


def test_statistics_are_those_of_the_texts(tmp_path):
    rng = random.Random(3)
    pairs = [("ab ö"[: rng.randint(1, 4)] * rng.randint(1, 9) + "x", "yz" * rng.randint(1, 60)) for _ in range(501)]
    one = check_pairs(write(tmp_path, table(pairs))).statistics["train"]
    assert one.pairs == 501
    for side, texts in ((one.source, [s for s, _ in pairs]), (one.target, [t for _, t in pairs])):
        lengths = sorted(map(len, texts))
        assert side.median == statistics.median(lengths)
        assert side.percentile_95 == np.quantile(lengths, 0.95, method="inverted_cdf")
        assert (side.longest, side.characters) == (max(lengths), sum(lengths))
        assert side.distinct == len(set("".join(texts)))
    longer = [max(len(s), len(t)) for s, t in pairs]
    assert one.dropped == {limit: sum(n > limit for n in longer) for limit in (64, 128, 256, 512, 1024)}
    assert one.unit == "characters"


# -- structure ----------------------------------------------------------------------------------------------------


def test_one_run_shows_everything_that_is_wrong_with_the_lines(tmp_path):
    content = b"".join(
        [
            b"\xef\xbb\xbfa\tb\r\n",
            b"caf\xe9\tb\n",
            b"nul\0\tb\n",
            b"no tab\n",
            b"one\rtwo\tb\n",
            b"x" * (LINE_LIMIT + 9) + b"\n",
            b"\tb\n",
            b"a\t \n",
            b"\n",
            b"caf\xe9\tb\n",
        ]
    )
    path = write(tmp_path, content)
    report = check_pairs([path])
    lines = {"bom": 1, "crlf": 1, "encoding": 2, "nul": 3, "columns": 4, "separators": 5, "truncated": 6}
    blanks = {"blank-source": 7, "blank-target": 8, "blank-pair": 9}
    for code, line in (lines | blanks).items():
        found = finding(report, code)
        assert found.locations[0] == f"{path}:{line}", code
        assert found.count == (2 if code == "encoding" else 1)
    assert not report.ok
    assert {f.code for f in report.findings if f.severity == "error"} == {"encoding", "nul", "columns"}
    assert "0xE9 at offset 3" in finding(report, "encoding").message
    assert report.statistics["train"].pairs == 2


@pytest.mark.parametrize("fast", [False, True])
def test_sides_of_different_lengths_are_an_error_with_both_counts(tmp_path, fast):
    a, b = write(tmp_path, "a\n" * 30, "a"), write(tmp_path, "b\n" * 28, "b")
    report = check_pairs([f"{a},{b}"], fast=fast)
    assert not report.ok
    assert f"{a} has 30 lines and {b} has 28 lines" in finding(report, "sides").message


def test_files_that_cannot_be_read_to_their_end_are_findings_and_the_others_are_still_read(tmp_path):
    good = write(tmp_path, table(GOOD), "good.tsv")
    truncated = write(tmp_path, gzip.compress(table(GOOD * 99).encode())[:-9], "a.tsv.gz")
    wide = write(tmp_path, table(GOOD).encode("utf-16"), "wide.tsv")
    empty = write(tmp_path, "", "empty.tsv")
    report = check_pairs([truncated, wide, empty, good])
    assert [f.code for f in report.findings if f.severity == "error"] == ["unreadable", "unreadable", "empty"]
    assert "UTF-16" in report.render()
    assert report.statistics["train"].pairs >= len(GOOD)


def test_only_a_missing_file_raises_and_does_so_before_anything_is_read(tmp_path):
    good = write(tmp_path, table(GOOD))
    with pytest.raises(DataError, match="no such file"):
        check_pairs([good], [str(tmp_path / "missing.tsv")])
    with pytest.raises(DataError, match="folder"):
        check_pairs([f"{good},{tmp_path}"])


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=80))
def test_no_bytes_make_the_check_fail(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    for name in ("a.tsv", "a.jsonl", "a.tsv.gz"):
        report = check_pairs([write(folder, content, name)])
        json.dumps(report.as_json())
        assert report.render()


# -- what pairs have in common ------------------------------------------------------------------------------------


def key(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.split()))


words = st.sampled_from(["a", "b", "a b", "a  b", " a", "é", "e\u0301", "c"])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(words, words), min_size=1, max_size=25),
    st.lists(st.tuples(words, words), min_size=1, max_size=9),
)
def test_duplicates_and_overlap_are_those_found_by_comparing_texts(tmp_path_factory, train, valid):
    folder = tmp_path_factory.mktemp("pairs")
    a, b = write(folder, table(train), "a.tsv"), write(folder, table(valid), "b.tsv")
    report = check_pairs([a], [b])
    first = [(key(s), key(t)) for s, t in train]
    again = [i for i, pair in enumerate(first) if pair in first[:i]]
    other = [i for i, (s, t) in enumerate(first) if (s, t) not in first[:i] and any(s == x for x, _ in first[:i])]
    held = [(key(s), key(t)) for s, t in valid]
    both = [i for i, pair in enumerate(held) if pair in first]
    sources = [i for i, (s, t) in enumerate(held) if (s, t) not in first and any(s == x for x, _ in first)]
    prefixed = {"train": a, "valid": b}
    for code, split, rows in (
        ("duplicates", "train", again),
        ("many-targets", "train", other),
        ("overlap-pairs", "valid", both),
        ("overlap-sources", "valid", sources),
    ):
        found = [f for f in report.findings if f.code == code and f.message.startswith(split)]
        assert [f.count for f in found] == ([len(rows)] if rows else [])
        if rows:
            assert found[0].locations == tuple(f"{prefixed[split]}:{i + 1}" for i in rows[:5])


def test_locations_name_the_right_file_of_several(tmp_path):
    a, b = write(tmp_path, table(GOOD), "a.tsv"), write(tmp_path, table([("neu", "new"), GOOD[2]]), "b.tsv")
    assert finding(check_pairs([a, b]), "duplicates").locations == (f"{b}:2",)


def test_the_same_source_into_two_languages_is_no_ambiguity(tmp_path):
    path = write(tmp_path, "dog\tHund\tde\ndog\tchien\tfr\ndog\tRüde\tde\n")
    report = check_pairs([path], columns=["source", "target", "target_lang"])
    assert finding(report, "many-targets").locations == (f"{path}:3",)


def test_copies_are_a_notice_and_a_warning_when_there_are_many(tmp_path):
    few = check_pairs(write(tmp_path, table([(f"quelle {i}", f"source {i}") for i in range(50)] + [("ok", "ok")])))
    many = check_pairs(write(tmp_path, table([*GOOD, ("ok", "ok")])))
    assert (finding(few, "identical").severity, finding(few, "identical").count) == ("notice", 1)
    assert finding(many, "identical").severity == "warning"


def test_pairs_with_an_unusual_length_ratio_are_found_and_usual_ones_are_not(tmp_path):
    rng = random.Random(1)
    pairs = [("s" * n, "t" * round(n * rng.uniform(1.0, 1.5))) for n in (rng.randint(10, 80) for _ in range(400))]
    pairs[99], pairs[299] = ("s" * 60, "t" * 4), ("s" * 5, "t" * 80)
    path = write(tmp_path, table(pairs))
    found = finding(check_pairs(path), "length-ratio")
    assert found.locations == (f"{path}:100", f"{path}:300")
    assert found.severity == "notice"


def test_text_that_is_not_composed_is_noticed(tmp_path):
    path = write(tmp_path, table([*GOOD, ("cafe\u0301", "coffee"), ("coffee", "cafe\u0301"), ("café", "coffee")]))
    assert finding(check_pairs(path), "not-nfc").locations == (f"{path}:6", f"{path}:7")


@pytest.mark.parametrize("form", ["nfc", "nfd", "nfkc", "none"])
def test_no_other_form_is_recommended_than_the_one_that_was_chosen(tmp_path, form):
    spellings = [("caf\u00e9", "coffee"), ("cafe\u0301", "tea"), ("\ufb01n", "milk")]
    path = write(tmp_path, table(spellings))
    found = [one for one in check_pairs(path, normalization=form).findings if one.code.startswith("not-")]
    assert [one.code for one in found] == ([] if form == "none" else [f"not-{form}"])
    for one in found:
        rows = [i for i, (text, _) in enumerate(spellings, 1) if unicodedata.normalize(form.upper(), text) != text]
        assert one.locations == tuple(f"{path}:{row}" for row in rows)
        others = {"nfc", "nfd", "nfkc"} - {form}
        assert not any(f"normalization: {other}" in one.message for other in others)


def test_a_syllable_whose_letters_training_shows_is_not_unseen_where_texts_are_decomposed(tmp_path):
    shown = write(tmp_path, table([("\uac00 \ub09c", "\uac00 \ub09c")]), "d.tsv")  # ga, nan
    again = write(tmp_path, table([("\uac04 \ub098", "\uac04 \ub098")]), "e.tsv")  # gan, na: the same letters
    assert {"unseen-source", "unseen-target"} <= codes(check_pairs(shown, again))
    assert not {"unseen-source", "unseen-target"} & codes(check_pairs(shown, again, normalization="nfd"))
    other = write(tmp_path, table([("\uac00", "\ud55c")]), "f.tsv")  # ga, han: its first letter is new
    message = finding(check_pairs(shown, other, normalization="nfd"), "unseen-target").message
    assert "\u1112" in message
    assert "\ud55c" not in message


def test_texts_are_the_same_where_their_chosen_forms_are(tmp_path):
    path = write(tmp_path, table([("\ufb01n caf\u00e9", "a"), ("fin cafe\u0301", "a"), ("\ufb01n cafe\u0301", "a")]))
    repeated = {
        form: finding(report, "duplicates").count if "duplicates" in codes(report) else 0
        for form in ("nfc", "nfd", "nfkc", "none")
        for report in [check_pairs(path, normalization=form)]
    }
    assert repeated == {"nfc": 1, "nfd": 1, "nfkc": 2, "none": 0}


def test_characters_that_training_never_shows_are_named(tmp_path):
    report = check_pairs(write(tmp_path, table(GOOD)), write(tmp_path, table([("Straße", "street")]), "b.tsv"))
    assert "'ß'" in finding(report, "unseen-source").message
    assert "unseen-target" not in codes(report)


def test_texts_without_targets_can_be_checked(tmp_path):
    report = check_pairs(write(tmp_path, "a text\nanother one\n\na text\n"), columns=["source"])
    assert codes(report) == {"blank-source", "duplicates"}
    assert report.ok


# -- under a codec ------------------------------------------------------------------------------------------------


class Letters:
    """Every known letter is a token; the others are unknown."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) if c in "abcdefghijklmnopqrstuvwxyz " else UNK for c in text]


class Words:
    """Every known word is a token."""

    def encode(self, text: str) -> list[int]:
        return [7 if word in ("a", "dog", "cat") else UNK for word in text.split()]


class LittleCodec:
    source, target = Letters(), Words()
    modality = second_source = None

    def encode_source(self, example: Example) -> list[int]:
        if example.source_lang == "xx":
            raise DataError("the language tag is not known")
        return [*self.source.encode(example.source), EOS]

    def encode_second_source(self, example: Example) -> list[int]:
        return [*self.source.encode(example.second_source), EOS]

    def encode_target(self, example: Example) -> list[int]:
        return [*self.target.encode(example.target), EOS]


class Seeing(LittleCodec):
    """Sources name files of 50 rows of numbers; one of them is lost."""

    modality = "an image"

    def encode_source(self, example: Example) -> np.ndarray:
        if example.source == "lost.png":
            raise DataError("there is no file 'lost.png'", example.file, example.line)
        return np.full((50, 3), UNK)


class Asked(Seeing):
    second_source = "text"


def test_unknown_tokens_are_counted_and_the_most_frequent_are_named(tmp_path):
    path = write(tmp_path, table([("größe", "a dog"), ("größer", "a bad dog"), ("é", "a bad mood")]))
    report = check_pairs(path, codec=LittleCodec())
    source, target = finding(report, "unknown-source"), finding(report, "unknown-target")
    assert source.count == 5
    assert "'ö' 2×, 'ß' 2×, 'é' 1×" in source.message
    assert f"{5 / (6 + 7 + 2):.2%}" in source.message
    assert target.count == 3
    assert "'bad' 2×, 'mood' 1×" in target.message


def test_what_is_unknown_is_named_as_the_tokenizer_reads_it(tmp_path):
    pairs = [("\uac04 \ub09c", "\uac04"), ("\uac00", "\ub098")]
    only = Part("characters")
    codec = learn_codec(only, only, True, "nfd", [pairs[0][0]], [pairs[0][1]], [])
    assert "unknown-source" not in codes(check_pairs(write(tmp_path, table(pairs)), codec=codec, normalization="nfd"))
    path = write(tmp_path, table([("\ud55c", "\uac00")]))  # han: of its three letters the first was not learned
    found = finding(check_pairs(path, codec=codec, normalization="nfd"), "unknown-source")
    assert found.count == 1
    assert "'\u1112' 1×" in found.message
    assert "\ud55c" not in found.message


def test_limits_count_tokens_under_a_codec(tmp_path):
    lengths = [10, 63, 64, 100, 300]
    path = write(tmp_path, table([("a" * n, "dog") for n in lengths]))
    one = check_pairs(path, codec=LittleCodec(), limits=[64, 200]).statistics["train"]
    assert one.unit == "tokens"
    assert one.dropped == {limit: sum(n + 1 > limit for n in lengths) for limit in (64, 200)}


def test_a_language_that_the_codec_does_not_know_is_an_error(tmp_path):
    path = write(tmp_path, "a\tdog\tde\na\tcat\txx\n")
    report = check_pairs(path, codec=LittleCodec(), columns=["source", "target", "source_lang"])
    assert finding(report, "unknown-language").locations == (f"{path}:2",)
    assert not report.ok


def test_a_file_has_no_tokens_and_one_that_cannot_be_read_is_noted(tmp_path):
    path = write(tmp_path, "a.png\ta dog\nlost.png\ta cat\nb.png\ta dog\n" + "c" * 300 + ".png\ta cat\n")
    valid = write(tmp_path, "ö.png\ta dog\n", "valid.tsv")
    report = check_pairs(path, valid, codec=Seeing(), limits=[10])
    assert codes(report) == {"unreadable-file"}  # nothing of the letters and lengths of names
    lost = finding(report, "unreadable-file")
    assert (lost.count, lost.locations) == (1, (f"{path}:2",))
    assert "there is no file 'lost.png'" in lost.message
    assert report.ok  # training leaves it out
    assert report.statistics["train"].dropped == {10: 0}


def test_the_tokens_of_a_second_source_count_beside_a_file(tmp_path):
    path = write(tmp_path, f"a.png\twhat is é\ta dog\nb.png\t{'a' * 20}\ta cat\n")
    report = check_pairs(path, columns=["source", "second_source", "target"], codec=Asked(), limits=[10, 15])
    assert finding(report, "unknown-source").count == 1
    assert report.statistics["train"].dropped == {10: 1, 15: 1}


# -- size and speed -----------------------------------------------------------------------------------------------


def test_thirty_thousand_pairs_are_checked_fast_within_a_second(tmp_path):
    rng = random.Random(0)
    path = write(tmp_path, table((f"w{rng.random()}", f"W{rng.random()}") for _ in range(30_000)))
    best = min(timed(lambda: check_pairs([path], fast=True)) for _ in range(3))
    assert best < 1.0


def timed(call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def test_the_fast_check_reads_a_part_and_says_so_but_counts_all_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnosis, "FAST_CHECK_PAIRS", 10)
    a, b = write(tmp_path, "a\n" * 30, "a"), write(tmp_path, "b\n" * 30, "b")
    report = check_pairs([f"{a},{b}"], fast=True)
    assert report.ok
    assert report.statistics["train"].pairs == 10
    assert "first 10 pairs" in finding(report, "partly").message
    write(tmp_path, "b\n" * 29, "b")
    assert "29 lines" in finding(check_pairs([f"{a},{b}"], fast=True), "sides").message


def test_texts_are_not_kept(tmp_path):
    path = write(tmp_path, table((f"{i} " + "s" * 2000, f"{i} " + "t" * 2000) for i in range(2000)))  # 8 MB
    tracemalloc.start()
    try:
        check_pairs([path])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


def test_after_the_limit_pairs_are_not_compared_and_the_report_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "MAX_COMPARED_PAIRS", 5)
    report = check_pairs(write(tmp_path, table(GOOD * 2)))
    assert "only the first 5 pairs were compared" in finding(report, "partly").message
    assert "duplicates" not in codes(report)


# -- the report ---------------------------------------------------------------------------------------------------


def test_a_report_is_json_and_text_and_puts_errors_first(tmp_path):
    path = write(tmp_path, table([*GOOD, GOOD[0], ("", "x")]) + "no tab\ncafe\u0301\tcoffee\r\n")
    report = check_pairs([path], [write(tmp_path, table(GOOD[:1]), "b.tsv")])
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["ok"] is False
    assert plain["statistics"]["train"]["source"]["longest"] == 5
    severities = [found["severity"] for found in plain["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "notice"].index)
    assert set(severities) == {"error", "warning", "notice"}
    text = report.render()
    assert text.index("\nerror ") < text.index("\nwarning ") < text.index("\nnotice ")
    assert f"{path}:8" in text
    counts = Counter(severities)
    assert text.endswith(f"\n1 error, {counts['warning']} warnings, {counts['notice']} notices")


def test_data_check_does_not_need_torch():
    program = "import sys, dragoman.data.quality.diagnosis; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
