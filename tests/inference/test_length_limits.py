"""Lengths worked out by hand from the config, the wishes and the positions of the decoder."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from dragoman import config as configs
from dragoman.core.errors import UserError
from dragoman.inference.constraints import Constraints
from dragoman.inference.inputs import Reading
from dragoman.inference.length_limits import NOTHING, for_each, limits_for
from dragoman.text import codec as codecs

RATIOS = {"ratio": 1.5, "extra": 2, "shortest_ratio": 0.5, "shortest": 3}


def reading(generation: dict[str, Any], positions: int | None = None, one: bool = False) -> Reading:
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
    codec = codecs.learn(kind, kind, True, "nfc", ["abcd"], ["abcd"], [])
    return Reading(configs.build_model(config, len(codec.source), len(codec.target)), codec, config)


def lengths(one: Reading, sources: list[int], *wishes: Constraints) -> tuple[list[int], list[int]]:
    given = list(wishes) or [NOTHING] * len(sources)
    found = limits_for(one, torch.tensor(sources), list(range(len(sources))), given, ["a"] * len(sources))
    assert isinstance(found.shortest, torch.Tensor)
    return found.longest.tolist(), found.shortest.tolist()


def test_a_result_is_as_long_as_its_source_and_the_config_have_it() -> None:
    assert lengths(reading(RATIOS), [1, 5, 11]) == ([3, 9, 18], [3, 3, 5])
    assert lengths(reading({"ratio": 0.0, "extra": 1, "shortest": 4}), [1, 9]) == ([4, 4], [4, 4])


def test_a_wish_goes_before_the_config_and_what_is_required_has_room() -> None:
    wishes = [
        NOTHING,
        Constraints(longest=4),
        Constraints(shortest=7),
        Constraints(prefix="abc", require=("dd", "a")),
        Constraints(choices=("a", "abcdabcd")),
    ]
    assert lengths(reading({"ratio": 1.0, "extra": 0}), [5] * 5, *wishes) == ([5, 4, 7, 6, 8], [0, 0, 7, 0, 0])


def test_the_positions_of_the_decoder_go_before_both() -> None:
    far = {"ratio": 20.0, "extra": 0}
    assert lengths(reading(far, 12), [5, 1], Constraints(longest=40), Constraints(shortest=30)) == ([11, 11], [0, 11])
    assert lengths(reading(far, 16, one=True), [5, 1]) == ([10, 14], [0, 0])  # the source stands before the target
    assert lengths(reading(far, 16, one=True), [15]) == ([1], [0])


def test_one_set_of_constraints_is_for_all_sources_and_several_are_one_for_each() -> None:
    one, other = Constraints(prefix="a"), Constraints(prefix="b")
    assert list(itertools.islice(for_each(one), 3)) == [one] * 3
    assert list(itertools.islice(for_each(None), 3)) == [NOTHING] * 3
    several = for_each([one, other])
    assert [next(several), next(several)] == [one, other]
    with pytest.raises(UserError, match="more sources than sets of constraints, 2"):
        next(several)
