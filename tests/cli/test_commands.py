"""From pairs to a model and its scores through the command line, as a user would: every command a process."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dragoman.cli.list_parts import KINDS, load_registries
from dragoman.config import list_presets
from dragoman.recipes import load_recipe
from dragoman.version import __version__

from .conftest import Done, process

RUN = "runs/copy"


def pairs(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]


def succeeded(done: Done) -> Done:
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    return done


# -- the whole way -----------------------------------------------------------------------------------------------------


def test_a_run_folder_holds_what_it_promises(work: Path) -> None:
    run = work / RUN
    assert {"config.yaml", "env.json", "metrics.jsonl", "train.log", "checkpoints", "best", "last"} <= {
        path.name for path in run.iterdir()
    }
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {record["kind"] for record in records} == {"train", "valid"}
    losses = [record["loss"] for record in records if record["kind"] == "valid"]
    assert losses[-1] < losses[0]


def test_predict_answers_every_line_and_a_copying_model_copies(work: Path) -> None:
    sources = [source for source, _ in pairs(work / "test.tsv")]
    lines = [sources[0], "", *sources[1:], "   "]
    done = succeeded(process("predict", RUN, cwd=work, input="\n".join(lines).encode() + b"\n"))
    results = done.out.split("\n")
    assert results.pop() == ""
    assert len(results) == len(lines)
    assert (results[1], results[-1]) == ("", "")
    assert sum(a == b for a, b in zip(results, lines, strict=True) if b.strip()) >= 5
    assert done.err == ""


def test_score_prints_a_log_probability_for_each_pair_and_the_perplexity_over_all(
    work: Path, here: Callable[..., Done]
) -> None:
    test = pairs(work / "test.tsv")
    done = succeeded(process("score", RUN, "test.tsv", cwd=work))
    scores = [float(line) for line in done.out.split()]
    assert len(scores) == len(test)
    assert all(score < 0 for score in scores)
    tokens = sum(len(target) + 1 for _, target in test)
    assert f"perplexity {math.exp(-sum(scores) / tokens):.4f} over {tokens:,} tokens" in done.err
    each = succeeded(here("score", RUN, "test.tsv", "--tokens")).out.rstrip("\n").split("\n")
    for line, score, (_, target) in zip(each, scores, test, strict=True):
        assert len(line.split()) == len(target) + 1
        assert abs(sum(map(float, line.split())) - score) < 1e-4
    means = sorted((statistics.fmean(map(float, line.split())), -i) for i, line in enumerate(each))
    worst = succeeded(here("score", RUN, "test.tsv", "--worst", "3")).out.rstrip("\n").split("\n")
    for line, (mean, number) in zip(worst, means[:3], strict=True):
        assert line.split("\t") == [f"{mean:.3f}", f"test.tsv:{1 - number}", *test[-number]]


def test_evaluate_prints_one_json_object_with_every_metric(work: Path, here: Callable[..., Done]) -> None:
    value = json.loads(succeeded(process("evaluate", RUN, "test.tsv", "--json", "--metrics", "all", cwd=work)).out)
    test = pairs(work / "test.tsv")
    assert (value["model"], value["pairs"], value["n"]) == (RUN, "test.tsv", len(test))
    assert set(value["metrics"]) == set(load_registries()["metrics"].names)
    for score in value["metrics"].values():
        low, high = score["interval"]
        assert low <= score["value"] <= high
    results = succeeded(here("predict", RUN, input="".join(f"{s}\n" for s, _ in test).encode())).out.split("\n")
    right = sum(result == target for result, (_, target) in zip(results, test, strict=False))
    assert math.isclose(value["metrics"]["exact"]["value"], 100 * right / len(test))
    assert value["decoding"]["sentences_per_second"] > 0
    perplexity = here("score", RUN, "test.tsv").err.split()[1]
    assert abs(value["perplexity"] - float(perplexity)) < 1e-3
    table = succeeded(here("evaluate", RUN, "test.tsv", "--metrics", "exact,chrf")).out
    assert f"{100 * right / len(test):.1f}" in table
    assert "chrF" in table
    assert "\nBLEU " not in table


def test_inspect_shows_a_map_and_draws_it(work: Path, tmp_path: Path, here: Callable[..., Done]) -> None:
    png = tmp_path / "map.png"
    done = succeeded(process("inspect", RUN, "a b", "c", "--png", png, cwd=work))
    assert done.out.count("→") == 2
    assert "█" in done.out
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert str(png) in done.err
    assert "blank" in succeeded(here("inspect", RUN, " ")).out
    assert "b a → " in succeeded(here("inspect", RUN, input=b"b a\n")).out


def test_compare_shows_both_models_and_whether_they_differ(
    work: Path, tmp_path: Path, here: Callable[..., Done]
) -> None:
    older = f"{RUN}/checkpoints/step-80"
    png, page = tmp_path / "lengths.png", tmp_path / "pages" / "compared.html"
    options = ["--data", "test.tsv", "--json", "--png", png, "--html", page]
    done = succeeded(process("compare", RUN, older, *options, cwd=work))
    value: dict[str, Any] = json.loads(done.out)
    assert list(value) == [RUN, older]
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    for metric in ("bleu", "chrf", "exact"):
        gain = value[older]["metrics"][metric]["value"] - value[RUN]["metrics"][metric]["value"]
        assert math.isclose(value[older]["against_first"][metric]["difference"], gain, abs_tol=1e-9)
        for model in value.values():
            assert sum(bucket["count"] for bucket in model["by_length"][metric]) == 30
            assert sum(bucket["count"] for bucket in model["by_rarity"][metric]) == 30
    # Sources are made of few characters here, so the rarest of a source is the rarest of all or not far from it.
    seen = Counter(character for source, _ in pairs(work / "train.tsv") for character in source)
    rarest = [min(seen[character] for character in source) for source, _ in pairs(work / "test.tsv")]
    buckets = value[RUN]["by_rarity"]["exact"]
    assert value[RUN]["rarity_of"] == "training"
    assert (buckets[0]["low"], buckets[-1]["high"]) == (min(rarest), max(rarest))
    text = page.read_text(encoding="utf-8")
    assert "Models compared on test.tsv" in text
    assert f"{value[older]['perplexity']}" in text  # the data of the view, as it is
    table = succeeded(here("compare", RUN, older, "--data", "test.tsv", "--metrics", "exact")).out
    assert f"{older} against {RUN}: exact" in table
    assert "p = " in table
    assert "exact by source length in tokens" in table
    assert "exact by the rarest source token: its count in training" in table


def test_data_check_says_what_it_found_and_exits_with_2_where_it_must_be_mended(
    work: Path, tmp_path: Path, here: Callable[..., Done]
) -> None:
    done = succeeded(process("data", "check", "train.tsv", "--valid", "valid.tsv", "--json", cwd=work))
    value = json.loads(done.out)
    assert value["ok"] is True
    assert value["statistics"]["train"]["pairs"] == 800
    assert "identical" in {finding["code"] for finding in value["findings"]}
    measured = json.loads(succeeded(here("data", "check", "test.tsv", "--model", RUN, "--json")).out)
    assert measured["statistics"]["train"]["unit"] == "tokens"
    (tmp_path / "bad.tsv").write_bytes(b"a\tb\nno tab\nc\xff\td\n")
    bad = here("data", "check", tmp_path / "bad.tsv")
    assert bad.code == 2
    assert "bad.tsv:2" in bad.out
    assert "bad.tsv:3" in bad.out
    missing = here("data", "check", tmp_path / "none.tsv")
    assert missing.code == 2
    assert "none.tsv" in missing.err


def test_data_check_goes_by_the_normalization_that_training_will_have(
    here: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "train.tsv").write_text("\uac00 \ub09c\ta\n", encoding="utf-8")  # ga nan
    (tmp_path / "valid.tsv").write_text("\uac04 \ub098\ta\n", encoding="utf-8")  # gan na
    check = ("data", "check", tmp_path / "train.tsv", "--valid", tmp_path / "valid.tsv")
    assert "unseen-source" in succeeded(here(*check)).out
    decomposed = succeeded(here(*check, "--normalization", "nfd")).out
    assert "unseen-source" not in decomposed
    assert "nfc" not in decomposed.lower()
    twice = here(*check, "--normalization", "nfd", "--model", RUN)
    assert twice.code == 2
    assert "--model" in twice.err


def test_list_prints_every_part_with_its_options(here: Callable[..., Done], work: Path) -> None:
    everything = succeeded(process("list", cwd=work)).out
    for kind, registry in load_registries().items():
        one = succeeded(here("list", kind)).out
        assert one.strip() in everything
        for name in registry.names:
            assert f"{name}: " in one
            for option in registry.schema(name).model_fields:
                assert f"    {option} " in one
    assert set(load_registries()) == {kind for kind in KINDS if kind != "presets"}
    assert all(f"{name}: " in everything for name in list_presets())


# -- explain, check, resume --------------------------------------------------------------------------------------------


def test_explain_shows_every_value_whole_and_where_it_came_from(work: Path, here: Callable[..., Done]) -> None:
    path = "x" * 150 + ".tsv"
    done = succeeded(here("train", "copy.yaml", "--set", f"data.train={path}", "--explain", "--run", "never"))
    squeezed = "".join(done.out.split())
    assert "…" not in done.out
    assert squeezed.count("x") >= 150
    assert "training.steps160copy.yaml" in squeezed
    assert "--setdata.train" in squeezed
    assert not (work / "never").exists()


def test_a_right_config_is_called_right_and_nothing_is_started(here: Callable[..., Done], work: Path) -> None:
    before = sorted(work.rglob("*"))
    out = succeeded(here("config", "check", "copy.yaml")).out
    assert "copy.yaml is right" in out
    for purpose in ("training", "decoding"):
        assert f"{purpose} on cpu: " in out
        assert f"{purpose} on cuda: " in out
    assert here("config", "check", "copy.yaml", "--set", "model.widht=3").code == 2
    assert sorted(work.rglob("*")) == before


def test_the_same_command_again_finds_the_run_finished(here: Callable[..., Done], work: Path) -> None:
    before = (work / RUN / "metrics.jsonl").read_bytes()
    done = succeeded(here("train", "copy.yaml"))
    assert "already finished" in done.err
    assert (work / RUN / "metrics.jsonl").read_bytes() == before


def test_the_command_to_try_next_is_one_line_however_narrow_the_terminal_is(
    here: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    last = succeeded(here("train", "copy.yaml")).err.splitlines()[-1]
    assert re.fullmatch(rf"try it: echo '[a-h ]+' \| .+ predict {RUN}", last), last


def test_commands_of_a_recipe_are_one_line_however_narrow_the_terminal_is(
    here: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": "60", "FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", succeeded(here("recipe", "show", "code")).out)
    assert "# English to code" not in shown  # it was rendered, as in a terminal
    commands = [line.strip() for line in load_recipe("code").readme.splitlines() if line.startswith("    dragoman")]
    assert max(map(len, commands)) > 60
    assert set(commands) <= {line.strip() for line in shown.splitlines()}
    assert all(len(line) <= 60 for line in shown.splitlines() if line and not line.startswith(" "))


# -- what a shell expects ----------------------------------------------------------------------------------------------


def test_help_is_quick_and_does_not_import_torch(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['dragoman', '--help']\n"
        "from dragoman.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'numpy', 'sentencepiece', 'sacrebleu', 'matplotlib', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    times = []
    for _ in range(3):  # another process may be in the way once, not every time
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        times.append(time.perf_counter() - began)
        assert done.returncode == 0, done.stderr
        if times[-1] < 2:
            break
    assert min(times) < 2
    for command in ("train", "predict", "score", "evaluate", "inspect", "compare", "data", "config", "list", "demo"):
        assert f" {command} " in done.stdout


def test_importing_the_package_does_not_import_torch(tmp_path: Path) -> None:
    script = "import dragoman, sys; assert 'torch' not in sys.modules; assert dragoman.__version__"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)


def test_a_closed_pipe_is_no_error(work: Path) -> None:
    many = work / "many.txt"
    many.write_text("a b\n" * 20_000)
    command = [sys.executable, "-m", "dragoman", "predict", RUN, str(many), "--beam", "1"]
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline().endswith(b"\n")
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(60) == 0


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")
def test_a_full_disk_behind_the_standard_output_is_one_message(work: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dragoman", "list", "presets"],
            cwd=work,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 2
    assert b"disk is full" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_no_color_is_honored(here: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert Console().color_system is not None, "this test needs colors to begin with"
    assert "\x1b[" in here("inspect", RUN, "a b").out
    assert "\x1b[" in here("predict", "runs/none").err
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in here("inspect", RUN, "a b").out
    assert "\x1b[" not in here("predict", "runs/none").err


def test_the_version_is_printed(here: Callable[..., Done]) -> None:
    assert here("--version") == Done(0, f"dragoman {__version__}\n", "")


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["predict", RUN, "--nonsense"],
        ["predict"],
        ["train"],
        ["train", "copy.yaml", "extra.yaml"],
        ["predict", RUN, "--beam", "many"],
        ["predict", RUN, "--format", "xml"],
        ["predict", RUN, "--on-error", "ignore"],
        ["predict", RUN, "--nbest", "9", "--format", "tsv"],
        ["predict", RUN, "--beam", "0"],
        ["predict", RUN, "--device", "abacus"],
        ["predict", RUN, "--plugin", "no_such_module"],
        ["predict", RUN, "--plugin", "no_such_file.py"],
        ["evaluate", RUN, "test.tsv", "--metrics", "blue"],
        ["score", RUN, "test.tsv", "--columns", "source,tgt"],
        ["compare", RUN, "--data", "test.tsv"],
        ["compare", RUN, RUN, "--data", "test.tsv"],
        ["list", "encodrs"],
        ["train", "--preset", "dats"],
        ["train", "--preset", "dates"],
    ],
    ids=lambda args: " ".join(args),
)
def test_a_wrong_command_line_exits_with_2_and_says_why(here: Callable[..., Done], args: list[str]) -> None:
    done = here(*args, input=b"a b\n")
    assert done.code == 2
    assert done.out == ""
    assert done.err.strip()
    assert "Traceback" not in done.err


def test_a_file_of_the_working_directory_does_not_run_because_we_import_its_name(tmp_path: Path) -> None:
    """Somebody's folder must not choose what code runs; -P is as the installed command starts."""
    (tmp_path / "sacrebleu.py").write_text("open('it-ran', 'w').close()\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dragoman", "list", "metrics"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("plugin", ["my_parts", "plugins/my_parts.py"])
def test_a_plugin_named_by_module_or_by_file_may_register_parts(work: Path, plugin: str) -> None:
    file = work / (plugin if plugin.endswith(".py") else f"{plugin}.py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        "from dragoman.search import searches\n"
        "from dragoman.search.greedy import Greedy\n"
        "searches.register('my_search')(Greedy)\n"
    )
    assert "my_search: " in succeeded(process("list", "searches", "--plugin", plugin, cwd=work)).out


# -- no network (FAULTS 19) --------------------------------------------------------------------------------------------

OFFLINE = """
import sys
def refuse(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind"):
        raise RuntimeError(f"the network was used: {event} {args}")
sys.addaudithook(refuse)
import socket
try:
    socket.create_connection(("127.0.0.1", 9))
except RuntimeError:
    pass
else:
    sys.exit("the guard does not guard")
from dragoman.cli.main import main
for args in [
    ["train", "copy.yaml", "--run", sys.argv[1], "--set", "training.steps=30"],
    ["predict", sys.argv[1], "test.tsv"],
    ["score", sys.argv[1], "test.tsv"],
    ["evaluate", sys.argv[1], "test.tsv"],
    ["inspect", sys.argv[1], "a b"],
    ["data", "check", "test.tsv"],
    ["config", "schema"],
    ["list"],
]:
    saved, sys.argv = sys.argv, ["dragoman", *args]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, args
    sys.argv = saved
"""


def test_no_core_command_opens_a_connection(work: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(tmp_path / "run")],
        cwd=work,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HF_HUB_OFFLINE": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert "network was used" not in done.stderr


# -- language tags -----------------------------------------------------------------------------------------------------


def test_one_model_serves_many_languages(work: Path, tmp_path: Path, here: Callable[..., Done]) -> None:
    rows = []
    for source, _ in pairs(work / "train.tsv")[:400]:
        rows += [f"{source}\t{source.upper()}\tlow\tup", f"{source.upper()}\t{source}\tup\tlow"]
        rows += [f"{source}\t{source}\tlow\tlow", f"{source.upper()}\t{source.upper()}\tup\tup"]
    (tmp_path / "tagged.tsv").write_text("".join(row + "\n" for row in rows))
    options = {
        "data.train": tmp_path / "tagged.tsv",
        "data.valid": "null",
        "data.columns": "[source, target, source_lang, target_lang]",
        "training.steps": 120,
    }
    sets = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    run = tmp_path / "many"
    succeeded(here("train", "copy.yaml", "--run", run, *sets))

    def share_of_capitals(*args: str) -> float:
        done = succeeded(here("predict", run, *args, input=b"a b c\nd a\nb b a c\n"))
        letters = [c for c in done.out if c.isalpha()]
        assert letters
        return sum(map(str.isupper, letters)) / len(letters)

    assert share_of_capitals("--source-lang", "low", "--target-lang", "up") > 0.9
    assert share_of_capitals("--source-lang", "low", "--target-lang", "low") < 0.1

    # A line's own language goes before the one on the command line.
    (tmp_path / "own.jsonl").write_text(
        '{"source": "a b", "source_lang": "low", "target_lang": "up"}\n{"source": "a b", "source_lang": "low"}\n'
    )
    own, other = succeeded(here("predict", run, tmp_path / "own.jsonl", "--target-lang", "low")).out.split("\n")[:2]
    assert (own.isupper(), other.islower()) == (True, True)

    (tmp_path / "test.tsv").write_text("a b\tA B\tlow\tup\n")
    columns = "source,target,source_lang,target_lang"
    assert succeeded(here("evaluate", run, tmp_path / "test.tsv", "--columns", columns, "--metrics", "exact")).out
    unknown = here("predict", run, "--target-lang", "sw", input=b"a\n")
    assert unknown.code == 2
    assert "<to:sw>" in unknown.err
