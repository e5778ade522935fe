"""Length bounds worked out by hand from the config, the request and the positions of the decoder."""

from __future__ import annotations

from typing import Any

import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.generation import GenerationOptions
from dragoman.core.types import Example
from dragoman.inference.constraints import build_constraints
from dragoman.inference.inputs import InputProcessor
from dragoman.search import apply_overrides

RATIOS = {"max_length_ratio": 1.5, "max_length_extra": 2, "min_length_ratio": 0.5, "min_new_tokens": 3}


def input_processor(generation: dict[str, Any], positions: int | None = None, one: bool = False) -> InputProcessor:
    part: dict[str, Any] = {"name": "transformer", "layers": 1, "heads": 2}
    if positions is not None:
        part["position"] = {"name": "learned", "length": positions}
    model = {"width": 8, "tie": "all", "encoder": "none" if one else part, "decoder": part}
    if one:
        model["decoder"] = part | {"source": "prefix"}
    data = {"train": "nowhere.tsv", "max_source": 8, "max_target": 8}
    value = {"data": data, "tokenizer": {"joint": True}, "model": model, "generation": generation}
    config = configs.validate(value, "a test")
    kind = config.tokenizer.source
    codec = learn_codec(kind, kind, True, "nfc", ["abcd"], ["abcd"], [])
    return InputProcessor(configs.build_model(config, len(codec.source), len(codec.target)), codec, config)


def lengths(inputs: InputProcessor, sources: list[int], *requests: GenerationOptions) -> tuple[list[int], list[int]]:
    """The maximum and minimum lengths of some sources of these lengths."""
    own = list(requests) or [GenerationOptions()] * len(sources)
    options = [apply_overrides(inputs.config.generation, one) for one in own]
    examples = [Example("a")] * len(sources)
    built = build_constraints(inputs, torch.tensor(sources), list(range(len(sources))), options, examples)
    assert isinstance(built.min_lengths, torch.Tensor)
    return built.max_lengths.tolist(), built.min_lengths.tolist()


def test_lengths_follow_from_the_source_and_the_config() -> None:
    assert lengths(input_processor(RATIOS), [1, 5, 11]) == ([3, 9, 18], [3, 3, 5])
    assert lengths(input_processor({"max_length_ratio": 0.0, "max_length_extra": 1, "min_new_tokens": 4}), [1, 9]) == (
        [4, 4],
        [4, 4],
    )


def test_a_request_overrides_the_config_and_forced_phrases_have_room() -> None:
    requests = [
        GenerationOptions(),
        GenerationOptions(max_new_tokens=4),
        GenerationOptions(min_new_tokens=7),
        GenerationOptions(prefix="abc", force_phrases=("dd", "a")),
        GenerationOptions(choices=("a", "abcdabcd")),
    ]
    assert lengths(input_processor({"max_length_ratio": 1.0, "max_length_extra": 0}), [5] * 5, *requests) == (
        [5, 4, 7, 6, 8],
        [0, 0, 7, 0, 0],
    )


def test_the_positions_of_the_decoder_override_both() -> None:
    far = {"max_length_ratio": 20.0, "max_length_extra": 0}
    assert lengths(
        input_processor(far, 12), [5, 1], GenerationOptions(max_new_tokens=40), GenerationOptions(min_new_tokens=30)
    ) == ([11, 11], [0, 11])
    assert lengths(input_processor(far, 16, one=True), [5, 1]) == (
        [10, 14],
        [0, 0],
    )  # the source stands before the target
    assert lengths(input_processor(far, 16, one=True), [15]) == ([1], [0])
