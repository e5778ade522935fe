"""A file answered by many processes is the file answered by one: every line, in order, the same words."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core import processes as workers
from dragoman.core.errors import DataError, UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inference import pipeline as inference
from dragoman.inference import windows
from dragoman.inference.parallel import count_workers, map_windows, predict_stream, score_stream
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inference.windows import Window

LETTERS = "abcdefgh"
GREEDY = GenerationOptions(beam=1)
COUNTS = [1, 2, 3] if workers.can_fork() else [1]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows small enough that a few lines are many."""
    monkeypatch.setattr(inference, "WINDOW", 8)
    for name, value in {"NEARLY_FULL": 4, "SMALLEST": 2}.items():
        monkeypatch.setattr(windows, name, value)


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """Random weights, large enough that the model says something definite."""
    part = {"name": "transformer", "layers": 1, "heads": 2}
    model = {"width": 16, "tie": "none", "encoder": part, "decoder": part}
    value = {
        "data": {"train": "nowhere.tsv"},
        "model": model,
        "generation": {"max_length_ratio": 1.0, "max_length_extra": 3},
    }
    config = configs.validate(value, "a test")
    source = config.tokenizer.source
    codec = learn_codec(source, source, config.tokenizer.joint, "nfc", [LETTERS], [LETTERS], [])
    torch.manual_seed(5)
    built = configs.build_model(config, len(codec.source), len(codec.target)).eval()
    with torch.no_grad():
        for p in built.parameters():
            p.mul_(1.5)
    return Pipeline(built, codec, config, torch.device("cpu"))


def some_lines(count: int) -> list[str]:
    rng = torch.Generator().manual_seed(3)
    sizes = torch.randint(0, 12, (count,), generator=rng).tolist()
    return ["".join(LETTERS[int(i)] for i in torch.randint(0, 8, (n,), generator=rng)) for n in sizes]


def same(a: Prediction, b: Prediction) -> None:
    assert (a.text, a.tokens, a.finish_reason, a.source_tokens) == (b.text, b.tokens, b.finish_reason, b.source_tokens)
    assert a.log_probs == pytest.approx(b.log_probs, abs=1e-5)
    for one, two in zip(a.alternatives, b.alternatives, strict=True):
        same(one, two)


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("lines", [0, 1, 3, 17, 50])
def test_workers_give_what_one_process_gives(pipeline: Pipeline, lines: int, count: int) -> None:
    sources = some_lines(lines)
    found = list(predict_stream(pipeline, iter(sources), GenerationOptions(beam=3, nbest=2), workers=count))
    expected = pipeline.predict(sources, beam=3, nbest=2)
    assert len(found) == lines
    for a, b in zip(found, expected, strict=True):
        same(a, b)


@pytest.mark.skipif(not workers.can_fork(), reason="workers need Linux")
def test_a_short_file_too_is_shared_by_workers_and_a_few_lines_are_not(pipeline: Pipeline) -> None:
    def who(window: Window[int]) -> Iterator[int]:
        return iter([os.getpid()] * len(window.inputs))

    few, more = windows.SMALLEST, 4 * windows.SMALLEST
    assert set(map_windows(pipeline, who, range(few), 2)) == {os.getpid()}
    found = set(map_windows(pipeline, who, range(more), 2))
    assert len(found) == 2
    assert os.getpid() not in found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", COUNTS)
def test_samples_depend_on_the_index_of_a_line_and_not_on_the_process(pipeline: Pipeline, count: int) -> None:
    samples = GenerationOptions(search=Part("sample"), seed=7, num_samples=2, nbest=2)
    sources = ["abc"] * 40
    found = list(predict_stream(pipeline, sources, samples, workers=count))
    for a, b in zip(found, pipeline.predict(sources, samples), strict=True):
        same(a, b)
    assert len({prediction.text for prediction in found}) > 8  # lines of one window at most, were places begun anew


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", COUNTS)
def test_scores_of_pairs_are_those_of_one_process(pipeline: Pipeline, count: int) -> None:
    pairs = list(zip(some_lines(50), reversed(some_lines(50)), strict=True))
    found = list(score_stream(pipeline, iter(pairs), workers=count))
    for a, b in zip(found, pipeline.token_scores(pairs), strict=True):
        assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("good", [0, 1, 8, 29])
def test_a_line_that_cannot_be_read_stops_after_the_lines_before_it(pipeline: Pipeline, good: int, count: int) -> None:
    def sources() -> Iterator[str]:
        yield from some_lines(good)
        raise DataError("not UTF-8", "sources.txt", good + 1)

    found: list[Any] = []
    with pytest.raises(DataError, match=rf"^sources.txt:{good + 1}: not UTF-8$"):
        found.extend(predict_stream(pipeline, sources(), GREEDY, workers=count))
    assert [p.text for p in found] == [p.text for p in pipeline.predict(some_lines(good), beam=1)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("good", [0, 3, 8, 29])
def test_a_source_that_the_model_cannot_read_stops_after_the_results_before_it(
    pipeline: Pipeline, good: int, count: int
) -> None:
    wrong = Example("abc", target="abc", target_lang="xx", file="sources.txt", line=good + 1)
    found: list[Any] = []
    with pytest.raises(DataError, match=rf"^sources.txt:{good + 1}: "):
        found.extend(predict_stream(pipeline, [*some_lines(good), wrong, *some_lines(5)], GREEDY, workers=count))
    assert [p.text for p in found] == [p.text for p in pipeline.predict(some_lines(good), beam=1)]
    found, pairs = [], [(line, line) for line in some_lines(good)]
    with pytest.raises(DataError, match=rf"^sources.txt:{good + 1}: "):
        found.extend(score_stream(pipeline, [*pairs, wrong, *pairs], workers=count))
    scores = [pytest.approx(row, abs=1e-5) for row in pipeline.token_scores(pairs)]
    assert found == scores
    assert list(score_stream(pipeline, [*pairs, wrong, *pairs], workers=count, skip=True)) == [
        *scores,
        [],
        *scores,
    ]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", COUNTS)
def test_an_endless_input_is_read_only_so_far_ahead(pipeline: Pipeline, count: int) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for source in itertools.cycle(some_lines(20)):
            read += 1
            yield source

    results = predict_stream(pipeline, endless(), GREEDY, workers=count)
    for done, _ in enumerate(itertools.islice(results, 150)):
        assert (
            read <= done + (workers.TASKS_PER_WORKER + 1) * count * 8 + 8
        )  # in flight, read ahead, and the window handed out
    results.close()


# -- how many ----------------------------------------------------------------------------------------------------------


def test_the_number_of_workers_is_asked_for_or_in_the_config_or_that_of_threads(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # other tests may have left threads in this process
    assert count_workers(pipeline, 3) == 3
    assert count_workers(pipeline, None) == (6 if workers.can_fork() else 1)
    with pytest.raises(UserError, match="workers is 0; it must be at least 1"):
        count_workers(pipeline, 0)
    runtime = pipeline.config.runtime.model_copy(update={"workers": 4})
    configured = Pipeline(
        pipeline.model, pipeline.codec, pipeline.config.model_copy(update={"runtime": runtime}), torch.device("cpu")
    )
    assert count_workers(configured, None) == (4 if workers.can_fork() else 1)
    on_gpu = Pipeline(configured.model, configured.codec, configured.config, torch.device("cuda"))
    assert count_workers(on_gpu, None) == 1
    with pytest.raises(UserError, match="the model is on cuda"):
        count_workers(on_gpu, 2)


def test_a_program_with_threads_is_not_forked_unasked(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert count_workers(pipeline, None) == 1
    finally:
        done.set()
        thread.join()
