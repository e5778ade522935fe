"""What a model reads of an input, against texts split by hand and states counted in the model's own memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.errors import DataError, UserError
from dragoman.core.types import BOS, EOS, Example
from dragoman.data.batching import collate
from dragoman.inference.inputs import LENGTH_FACTOR, InputProcessor, is_blank, join_pieces, truncate, with_media_roots

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
def input_processor(shape: str) -> InputProcessor:
    value = {"data": {"train": "nowhere.tsv", "max_source": 5}, "tokenizer": {"joint": False}, **SHAPES[shape]}
    config = configs.validate(value, "a test")
    part, second = config.tokenizer.source, "text" if shape == "two texts" else None
    codec = learn_codec(part, part, config.tokenizer.joint, "nfc", [LETTERS], [LETTERS], [], second_source=second)
    model = configs.build_model(config, codec.source_size, len(codec.target), codec.second_source_size)
    return InputProcessor(model.eval(), codec, config)


def ids(text: str) -> list[int]:
    return input_processor("text").codec.source.encode(text)


# -- one line, one source or two ---------------------------------------------------------------------------------------


def test_a_tab_parts_two_sources_for_a_model_that_reads_two_and_is_a_letter_to_others() -> None:
    two = input_processor("two texts")
    found = two.to_example("ab\tc\td")
    assert (found.source, found.second_source) == ("ab", "c\td")
    given = Example("ab\tc", second_source="d")
    assert two.to_example(given) is given
    assert input_processor("text").to_example("ab\tc") == Example("ab\tc")
    assert two.to_example(" ") == Example(" ")
    for line in ("ab", "ab\t", "ab\t "):
        with pytest.raises(DataError, match=r"some\.txt:3.*reads two sources, and found one"):
            two.to_example(Example(line, file="some.txt", line=3))


def test_both_sources_are_read_and_each_ends_with_its_own_end() -> None:
    given = input_processor("two texts").encode_input(Example("ab", second_source="cde"))
    assert given == ([*ids("ab"), EOS], [*ids("cde"), EOS], False)
    assert given.longer_source == given.second_source
    assert given.row == ([*ids("ab"), EOS], [EOS], None, given.second_source)
    assert input_processor("two texts").source_labels(given) == ["a", "b", "</s>", "c", "d", "e", "</s>"]


# -- as far as it reads ------------------------------------------------------------------------------------------------


def test_a_source_is_read_as_far_as_four_times_the_longest_in_training_and_still_ends() -> None:
    one = input_processor("text")
    assert one.max_source_length == 4 * 5
    assert one.encode_input(Example("a" * 19)) == ([*ids("a" * 19), EOS], None, False)
    assert one.encode_input(Example("a" * 20)) == ([*ids("a" * 19), EOS], None, True)
    assert one.encode_source(Example("a" * 20)) == [*ids("a" * 20), EOS]
    assert one.encode_input(Example("a", source_truncated=True)).source_truncated  # its line was too long already
    two = input_processor("two texts").encode_input(Example("a", second_source="b" * 20))
    assert (two.second_source, two.source_truncated) == ([*ids("b" * 19), EOS], True)


def test_what_is_no_text_is_cut_without_an_end() -> None:
    frames = np.arange(12).reshape(6, 2)
    assert (truncate(frames, 4) == frames[:4]).all()
    assert truncate([5, 6, 7], 2) == [5, 6]  # the beginning of a text, which has no end yet
    assert truncate([5, 6, EOS], 3) == [5, 6, EOS]
    assert truncate([], 3) == []


def test_an_input_is_blank_unless_it_has_letters_or_bytes() -> None:
    assert is_blank(Example(" \t"))
    assert not is_blank(Example("a"))
    assert not is_blank(Example("", content=b""))


# -- the states that stand for it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["text", "pyramid", "two texts"])
def test_there_is_a_piece_for_every_state_of_the_memory(shape: str) -> None:
    one = input_processor(shape)
    seconds = ["b", "hgfed", "ab"] if shape == "two texts" else ["", "", ""]
    examples = [
        Example(text, second_source=second) for text, second in zip(["abc", "a", "fedcba"], seconds, strict=True)
    ]
    given = [one.encode_input(example) for example in examples]
    batch = collate([each.row for each in given], [0, 1, 2])
    with torch.no_grad():
        lengths = one.model.encode(*batch.encoder_inputs).lengths.tolist()
    assert one.count_states(batch) == lengths
    assert [len(one.source_labels(each)) for each in given] == lengths


def test_a_state_made_of_several_tokens_has_their_pieces_joined() -> None:
    assert join_pieces("abcde", 2) == ["ab", "cd", "e"]
    one = input_processor("pyramid")
    assert one.source_labels(one.encode_input(Example("abcd"))) == ["ab", "cd", "</s>"]
    assert one.count_length_units(5) == 5  # of a text, tokens count


# -- pairs -------------------------------------------------------------------------------------------------------------


def test_a_pair_is_a_row_of_both_sides_and_a_text_of_a_language_model_is_all_target() -> None:
    assert input_processor("text").encode_pair(Example("ab", "c")) == ([*ids("ab"), EOS], [*ids("c"), EOS], None, None)
    lm = input_processor("language model")
    letters = lm.codec.target.encode("ab")
    for text in (Example("ab"), Example("no matter", "ab")):
        assert lm.encode_pair(text) == ([], [*letters, EOS], None, None)
    assert lm.encode_source(Example("ab")) == letters
    assert BOS not in letters


def test_a_pair_that_is_too_long_for_positions_is_refused_with_its_place() -> None:
    one = input_processor("one sequence")
    assert len(one.encode_pair(Example("a" * 7, "b" * 7)).target) == 8
    assert len(one.encode_pair(Example("a", "b" * 13)).target) == 14  # both stand in one sequence of 16
    with pytest.raises(DataError, match=r"pairs\.tsv:7.*the target has 14 tokens.*at most 13"):
        one.encode_pair(Example("ab", "b" * 13, file="pairs.tsv", line=7))
    assert (
        len(input_processor("text").encode_pair(Example("a" * 99, "b")).source) == 100
    )  # whole, where no positions end


def test_a_bounded_pair_is_refused_beyond_four_times_the_longest_in_training_though_positions_have_no_end() -> None:
    open_end = input_processor("text")
    bounded = replace(open_end, bounded=True)
    most_source, most_target = open_end.max_source_length, LENGTH_FACTOR * open_end.config.data.max_target
    fits = Example("a" * (most_source - 1), "b" * (most_target - 1))  # </s> is the last token of each
    assert bounded.encode_pair(fits) == open_end.encode_pair(fits)
    for long, said in [
        (Example("a" * most_source, "b"), rf"the source has {most_source + 1:,} tokens.*at most {most_source:,}"),
        (Example("a", "b" * most_target), rf"the target has {most_target + 1:,} tokens.*at most {most_target:,}"),
    ]:
        assert len(open_end.encode_pair(long).source)
        with pytest.raises(DataError, match=said):
            bounded.encode_pair(long)
    assert (open_end.max_target_length(0), bounded.max_target_length(0)) == (None, most_target)


def test_a_model_of_texts_has_no_files_to_look_for() -> None:
    for shape in ("text", "two texts"):
        with pytest.raises(UserError, match="leave --files out"):
            with_media_roots(input_processor(shape).codec, ["."])
