"""What a model reads of an input, against texts split by hand and states counted in the model's own memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from dragoman import config as configs
from dragoman.core.errors import DataError, UserError
from dragoman.core.types import BOS, EOS, Example
from dragoman.data.batching import collate
from dragoman.inference.inputs import PATIENCE, Reading, blank, grouped, looking_in, shortened
from dragoman.text import codec as codecs

LETTERS = "abcdefgh"
RNN = {"name": "rnn", "cell": "gru"}
SHAPES: dict[str, dict[str, Any]] = {
    "text": {"model": {"width": 8, "tie": "none", "encoder": RNN, "decoder": RNN}},
    "pyramid": {"model": {"width": 8, "tie": "none", "encoder": {"name": "pyramid", "layers": 1}, "decoder": RNN}},
    "two texts": {
        "data": {"train": "nowhere.tsv", "max_source": 5, "columns": ["source", "second_source", "target"]},
        "model": {"width": 8, "tie": "none", "encoder": RNN, "decoder": RNN, "second_source": {"encoder": RNN}},
    },
    "language model": {
        "tokenizer": {"joint": True},
        "model": {"width": 8, "tie": "all", "encoder": "none", "decoder": {"name": "rnn", "source": "prefix"}},
        "training": {"objective": "lm"},
    },
    "one sequence": {
        "data": {"train": "nowhere.tsv", "max_source": 8, "max_target": 8},
        "tokenizer": {"joint": True},
        "model": {
            "width": 8,
            "tie": "all",
            "encoder": "none",
            "decoder": {
                "name": "transformer",
                "source": "prefix",
                "heads": 2,
                "position": {"name": "learned", "length": 16},
            },
        },
    },
}


@cache
def reading(shape: str) -> Reading:
    value = {"data": {"train": "nowhere.tsv", "max_source": 5}, "tokenizer": {"joint": False}, **SHAPES[shape]}
    config = configs.validate(value, "a test")
    part, second = config.tokenizer.source, "text" if shape == "two texts" else None
    codec = codecs.learn(part, part, config.tokenizer.joint, "nfc", [LETTERS], [LETTERS], [], second_source=second)
    model = configs.build_model(config, codec.source_size, len(codec.target), codec.second_source_size)
    return Reading(model.eval(), codec, config)


def ids(text: str) -> list[int]:
    return reading("text").codec.source.encode(text)


# -- one line, one source or two ---------------------------------------------------------------------------------------


def test_a_tab_parts_two_sources_for_a_model_that_reads_two_and_is_a_letter_to_others() -> None:
    two = reading("two texts")
    found = two.example("ab\tc\td")
    assert (found.source, found.second_source) == ("ab", "c\td")
    given = Example("ab\tc", second_source="d")
    assert two.example(given) is given
    assert reading("text").example("ab\tc") == Example("ab\tc")
    assert two.example(" ") == Example(" ")
    for line in ("ab", "ab\t", "ab\t "):
        with pytest.raises(DataError, match=r"some\.txt:3.*reads two sources, and found one"):
            two.example(Example(line, file="some.txt", line=3))


def test_both_sources_are_read_and_each_ends_with_its_own_end() -> None:
    given = reading("two texts").given(Example("ab", second_source="cde"))
    assert given == ([*ids("ab"), EOS], [*ids("cde"), EOS], False)
    assert given.longer == given.second_source
    assert given.row == ([*ids("ab"), EOS], [EOS], None, given.second_source)
    assert reading("two texts").pieces(given) == ["a", "b", "</s>", "c", "d", "e", "</s>"]


# -- as far as it reads ------------------------------------------------------------------------------------------------


def test_a_source_is_read_as_far_as_four_times_the_longest_in_training_and_still_ends() -> None:
    one = reading("text")
    assert one.longest == 4 * 5
    assert one.given(Example("a" * 19)) == ([*ids("a" * 19), EOS], None, False)
    assert one.given(Example("a" * 20)) == ([*ids("a" * 19), EOS], None, True)
    assert one.encode(Example("a" * 20)) == [*ids("a" * 20), EOS]
    assert one.given(Example("a", source_truncated=True)).source_truncated  # its line was too long already
    two = reading("two texts").given(Example("a", second_source="b" * 20))
    assert (two.second_source, two.source_truncated) == ([*ids("b" * 19), EOS], True)


def test_what_is_no_text_is_cut_without_an_end() -> None:
    frames = np.arange(12).reshape(6, 2)
    assert (shortened(frames, 4) == frames[:4]).all()
    assert shortened([5, 6, 7], 2) == [5, 6]  # the beginning of a text, which has no end yet
    assert shortened([5, 6, EOS], 3) == [5, 6, EOS]
    assert shortened([], 3) == []


def test_an_input_is_blank_unless_it_has_letters_or_bytes() -> None:
    assert blank(Example(" \t"))
    assert not blank(Example("a"))
    assert not blank(Example("", content=b""))


# -- the states that stand for it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["text", "pyramid", "two texts"])
def test_there_is_a_piece_for_every_state_of_the_memory(shape: str) -> None:
    one = reading(shape)
    seconds = ["b", "hgfed", "ab"] if shape == "two texts" else ["", "", ""]
    examples = [
        Example(text, second_source=second) for text, second in zip(["abc", "a", "fedcba"], seconds, strict=True)
    ]
    given = [one.given(example) for example in examples]
    batch = collate([each.row for each in given], [0, 1, 2])
    with torch.no_grad():
        lengths = one.model.encode(*batch.given).lengths.tolist()
    assert one.states(batch) == lengths
    assert [len(one.pieces(each)) for each in given] == lengths


def test_a_state_made_of_several_tokens_has_their_pieces_joined() -> None:
    assert grouped("abcde", 2) == ["ab", "cd", "e"]
    one = reading("pyramid")
    assert one.pieces(one.given(Example("abcd"))) == ["ab", "cd", "</s>"]
    assert one.counted(5) == 5  # of a text, tokens count


# -- pairs -------------------------------------------------------------------------------------------------------------


def test_a_pair_is_a_row_of_both_sides_and_a_text_of_a_language_model_is_all_target() -> None:
    assert reading("text").row(Example("ab", "c")) == ([*ids("ab"), EOS], [*ids("c"), EOS], None, None)
    lm = reading("language model")
    letters = lm.codec.target.encode("ab")
    for text in (Example("ab"), Example("no matter", "ab")):
        assert lm.row(text) == ([], [*letters, EOS], None, None)
    assert lm.encode(Example("ab")) == letters
    assert BOS not in letters


def test_a_pair_that_is_too_long_for_positions_is_refused_with_its_place() -> None:
    one = reading("one sequence")
    assert len(one.row(Example("a" * 7, "b" * 7)).target) == 8
    assert len(one.row(Example("a", "b" * 13)).target) == 14  # both stand in one sequence of 16
    with pytest.raises(DataError, match=r"pairs\.tsv:7.*the target has 14 tokens.*at most 13"):
        one.row(Example("ab", "b" * 13, file="pairs.tsv", line=7))
    assert len(reading("text").row(Example("a" * 99, "b")).source) == 100  # whole, where no positions end


def test_a_bounded_pair_is_refused_beyond_four_times_the_longest_in_training_though_positions_have_no_end() -> None:
    open_end = reading("text")
    bounded = replace(open_end, bounded=True)
    most_source, most_target = open_end.longest, PATIENCE * open_end.config.data.max_target
    fits = Example("a" * (most_source - 1), "b" * (most_target - 1))  # </s> is the last token of each
    assert bounded.row(fits) == open_end.row(fits)
    for long, said in [
        (Example("a" * most_source, "b"), rf"the source has {most_source + 1:,} tokens.*at most {most_source:,}"),
        (Example("a", "b" * most_target), rf"the target has {most_target + 1:,} tokens.*at most {most_target:,}"),
    ]:
        assert len(open_end.row(long).source)
        with pytest.raises(DataError, match=said):
            bounded.row(long)
    assert (open_end.longest_target(0), bounded.longest_target(0)) == (None, most_target)


def test_a_model_of_texts_has_no_files_to_look_for() -> None:
    for shape in ("text", "two texts"):
        with pytest.raises(UserError, match="leave --files out"):
            looking_in(reading(shape).codec, ["."])
