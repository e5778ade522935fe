"""The benchmarks' own arithmetic, that competitors compute what we do, and that every command runs at a toy size."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of bench/, which is no part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))

    def module(name: str) -> ModuleType:
        return importlib.import_module(f"bench.{name}")

    return module


# -- arithmetic --------------------------------------------------------------------------------------------------------


def test_contenders_take_turns_and_the_first_turns_do_not_count(bench):
    timing, calls = bench("timing"), []

    def contender(name: str, rates: list[float]) -> Any:
        left = iter(rates)

        def turn() -> Any:
            calls.append(name)
            return timing.Turn(work=next(left) * 2.0, seconds=2.0)

        return turn

    found = timing.measure_in_turns({"a": contender("a", [99, 4, 6, 8]), "b": contender("b", [99, 2, 2, 4])}, 3)
    assert "".join(calls) == "ab" * 4
    assert found["a"].samples == (4, 6, 8)
    assert found["a"].median == 6
    assert timing.ratio(found["a"], found["b"]).samples == (2, 3, 2)  # of neighbors, not of medians
    assert timing.format_ratios(found, "a") == ["a / b: 2 [2, 3]"]


def test_a_repeated_turn_counts_all_it_did_and_stops_after_its_seconds(bench):
    turn = bench("timing").repeat_for(lambda: 3.0, seconds=0.01)
    found = turn()
    assert found.seconds >= 0.01
    assert found.work % 3.0 == 0
    assert found.work >= 3.0


def test_a_table_is_markdown_with_numbers_that_can_be_read(bench):
    timing = bench("timing")
    text = timing.markdown_table(
        [{"a": "x", "rate": timing.Measurement((1234567.0, 1.0, 2e9))}, {"a": 5, "rate": 0.12345}]
    )
    assert text.split("\n") == [
        "| a | rate |",
        "| --- | --- |",
        "| x | 1,234,567 [1, 2,000,000,000] |",
        "| 5 | 0.123 |",
    ]


def test_generated_pairs_have_the_lengths_and_the_vocabulary_of_their_shape(bench, tmp_path):
    task = bench("task")
    shape = replace(task.SHAPES["tiny"], pairs=4000, vocabulary=300)
    task.write_pairs(tmp_path, shape, seed=3)
    pairs = [line.split("\t") for line in (tmp_path / "train.tsv").read_text().split("\n")[:-1]]
    source, target = (np.array([len(pair[side].split()) for pair in pairs]) for side in (0, 1))
    assert len(pairs) == 4000
    assert source.mean() == pytest.approx(25, rel=0.05)
    assert np.log(source).std() == pytest.approx(0.5, rel=0.1)
    assert np.corrcoef(source, target)[0, 1] > 0.8
    assert len({symbol for pair in pairs for symbol in pair[0].split()}) == 300 - 4


# -- competitors -------------------------------------------------------------------------------------------------------


def test_the_plain_lstms_of_the_demo_have_as_many_parameters_as_the_demos_and_so_has_its_marian(bench, tmp_path):
    task, competitors, configs = bench("task"), bench("competitors"), importlib.import_module("dragoman.config")
    settings = {"device": "cpu", "threads": 1, "precision": "float32", "seed": 1, "steps": 1, "workers": 0}
    config = task.training_config(task.SHAPES["demo"], None, tmp_path, **settings)
    ours = sum(p.numel() for p in configs.build_model(config, 30, 30).parameters())
    assert sum(p.numel() for p in competitors.PlainRNN(30).parameters()) == pytest.approx(ours, rel=0.01)
    pytest.importorskip("transformers")
    theirs = competitors.build_marian(task.SHAPES["demo"], 30)
    assert sum(p.numel() for p in theirs.parameters() if p.requires_grad) == pytest.approx(ours, rel=0.01)


def test_a_twin_with_our_weights_finds_our_results(bench, tmp_path):
    pytest.importorskip("transformers")
    task, decode, competitors = bench("task"), bench("decode"), bench("competitors")
    dragoman = importlib.import_module("dragoman")
    shape = task.SHAPES["toy"]
    decode.write_model(tmp_path / "model", shape, 9)
    ours = dragoman.load(tmp_path / "model", "cpu", reference=True)
    twin = competitors.marian_searcher(competitors.convert_to_marian(shape, ours.model), "cpu", "float32")
    drawn = torch.randint(4, shape.vocabulary, (6, 5), generator=torch.Generator().manual_seed(1))
    sources = [[*row, 2] for row in drawn.tolist()]
    for beam in (1, 3):
        found = decode.text_searcher(ours, 1)(sources, beam, 9)
        assert found == twin(sources, beam, 9)
        assert {len(tokens) for tokens in found} == {9}


def test_a_rival_loop_follows_the_smoothed_loss_downhill(bench):
    competitors = bench("competitors")
    collate = importlib.import_module("dragoman.data.batching").collate
    torch.manual_seed(1)
    model = competitors.PlainRNN(12, 8, 8)
    batch = collate([([5, 6, 2], [7, 8, 2]), ([9, 2], [10, 2])], [0, 1])
    with torch.no_grad():
        log_p = model(batch).log_softmax(-1)
    gold = batch.target[:, 1:]
    smoothed = -(0.9 * log_p.gather(-1, gold[..., None])[..., 0] + 0.1 * log_p.mean(-1))
    expected = smoothed[gold != 0].mean()
    losses = competitors.training_loop(model, iter([batch] * 50), "cpu", "float32")
    first = next(losses)
    assert_close(first, expected)
    assert list(losses)[-1] < first


# -- commands ----------------------------------------------------------------------------------------------------------

TOY = ["--shape", "toy", "--repeats", "1", "--seconds", "0.01"]
COMMANDS = [
    (["train", "--family", "rnn-additive", "--competitors", "elsewhere"], "| Dragoman |"),
    (
        ["decode", "--competitors", "reference", "--batches", "2", "--beams", "2"],
        "beam 2 × 2: Dragoman, float32 / Dragoman",
    ),
    (["texts", "--batches", "2", "--beams", "2"], "beam 2 × 2: Dragoman, float32 / CTranslate2"),
    (["loader", "--pairs", "500", "--workers", "0", "--ahead", "0", "2"], "| 0 workers, 2 ahead |"),
    pytest.param(
        ["serve", "--workers", "1", "--clients", "2"],
        "the server, 2 clients / a loop in 1 process: ",
        marks=pytest.mark.long,
    ),
    pytest.param(
        ["serve", "--workers", "2", "--clients", "1", "--overload", "30"], "the server", marks=pytest.mark.long
    ),
    pytest.param(["startup", "--competitors"], "| dragoman predict, one line |", marks=pytest.mark.long),
    pytest.param(["shards", "--lines", "9000", "--growth", "9000"], "equal outputs", marks=pytest.mark.long),
    pytest.param(["growth", "--axes", "length", "--points", "1"], "| 16 |", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("command", "last"), COMMANDS)
def test_every_command_runs_and_says_its_figures_last(bench, tmp_path, capsys, command, last):
    file = tmp_path / "results.json"
    bench("__main__").main([command[0], *TOY, "--json", str(file), *command[1:]])
    said, written = capsys.readouterr().out, json.loads(file.read_text())
    assert said.strip().split("\n")[-1].startswith(last)
    assert ("elsewhere is left out" in said) == ("elsewhere" in command)
    assert written["about"]["seed"] == written["about"]["threads"] == 1
    assert {"commit", "machine", "versions", "command"} <= written["about"].keys()
    assert not any(math.isnan(number) for number in numbers(written["results"]))


def test_seconds_of_a_command_are_those_of_every_turn_but_the_first(bench, tmp_path):
    count = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    found = bench("startup").measure({"count": [sys.executable, "-c", count]}, repeats=2)
    assert len(found["count"].samples) == 2
    assert (tmp_path / "runs").read_text() == "xxx"


def test_a_percentile_is_a_value_that_so_many_do_not_exceed(bench):
    percentile, values = bench("serve").percentile, [float(i) for i in range(200, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [100, 198, 200]
    assert percentile([3.0], 0.5) == percentile([3.0], 0.99) == 3


def test_clients_ask_until_the_time_is_over_and_come_back_when_they_are_told_to(bench):
    serve = bench("serve")
    busy, got, opened = 3, [], 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal busy, opened
        opened += 1
        while head := await reader.readline():
            while line := (await reader.readline()).strip():
                head += line.lower() + b";"
            size = int(head.split(b"content-length: ")[1].split(b";")[0])
            got.append(json.loads(await reader.readexactly(size))["inputs"][0]["source"])
            busy -= 1
            start = b"429 Busy\r\nRetry-After: 0\r\n" if busy >= 0 else b"200 OK\r\n"
            writer.write(b"HTTP/1.1 " + start + b"Content-Length: 5\r\n\r\nhello")

    async def scenario() -> Any:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        requests = itertools.cycle([serve.encode_request({"source": text}, 2) for text in "abc"])
        found = await serve.drive(server.sockets[0].getsockname()[1], 4, requests, 0.2)
        server.close()
        return found

    found = asyncio.run(scenario())
    assert [one.status for one in found].count(429) == 3
    assert {one.status for one in found} == {200, 429}
    assert opened == 4 + 3, "who was refused comes back on a new connection, who was not keeps its own"
    assert len(got) == len(found) > 4
    counts = [got.count(text) for text in "abc"]
    assert max(counts) - min(counts) <= 1, "each source in its turn"


def test_points_of_growth_change_one_size_each(bench):
    growth, shape = bench("growth"), bench("task").SHAPES["tiny"]
    sizes = {"length": "length", "batch": "tokens", "depth": "layers", "vocabulary": "vocabulary"}
    for axis, name in sizes.items():
        values = list(growth.points(axis, shape, 3))
        assert [replace(changed, **{name: getattr(shape, name)}) for _, changed in values] == [shape] * 3
        assert [getattr(changed, name) for _, changed in values] == [value for value, _ in values]
    assert [value for value, _ in growth.points("length", shape, 6)] == [16, 32, 64, 128, 256, 512]


def numbers(value: Any) -> list[float]:
    """All numbers in a nesting of lists and mappings."""
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return [number for item in inside for number in numbers(item)]
    return [value] if isinstance(value, float) else []


def test_the_model_of_scaling_agrees_with_hand_counting_and_with_its_page(bench):
    scaling = bench("scaling")
    assert scaling.moved_bytes(1000, 4) == 2 * 3 / 4 * 4000
    assert scaling.moved_bytes(1000, 4, is_sharded=True) == 3 * 3 / 4 * 4000
    assert scaling.efficiency(3.0, 1.0, overlaps=False) == 0.75
    assert scaling.efficiency(3.0, 1.0, overlaps=True) == 1.0  # hidden behind two thirds of the step
    assert scaling.efficiency(3.0, 5.0, overlaps=True) == 0.5
    page = (Path(__file__).parents[1] / "docs/scaling.md").read_text()
    for between in (400e9, 12.5e9):
        cluster = scaling.Cluster(8, 450e9, between, 0.8)
        lines = scaling.table(60_522_496, 65_536 / 1.57e6, cluster, [2, 4, 8, 16, 32, 64])
        assert "\n".join(lines) in page
