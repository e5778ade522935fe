"""`dragoman pack`: one zip that every command takes as MODEL, and that says nothing about its maker's machine."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.checkpoint.kept_examples import read_examples
from dragoman.cli.serve import parse_model_arguments
from dragoman.inference import pipeline
from dragoman.reports.card import read_card, render_card
from dragoman.reports.card_building import build_card

from .conftest import CONFIG, Done, process

RUN = "runs/copy"


@pytest.fixture(scope="module")
def packed(work: Path) -> Path:
    done = process("pack", RUN, "-o", "copy.zip", "--license", "CC BY 4.0", "--name", "Copying letters", cwd=work)
    assert done.code == 0, done.err
    assert "wrote copy.zip" in done.err
    return work / "copy.zip"


def test_the_card_says_what_was_trained_and_measured(packed: Path, work: Path, here: Callable[..., Done]) -> None:
    card = read_card(packed)
    assert card is not None
    assert (card.name, card.license, card.seed, card.columns) == ("Copying letters", "CC BY 4.0", 1, "source, target")
    assert [(part.role, part.file, part.pairs) for part in card.data] == [
        ("training", "train.tsv", 800),
        ("validation", "valid.tsv", 20),
    ]
    metrics = here("evaluate", RUN, "valid.tsv", "--metrics", "exact", "--json")
    exact = json.loads(metrics.out)["metrics"]["exact"]
    [score] = [score for score in card.scores if score.label == "exact match"]
    assert [score.value, score.low, score.high] == [exact["value"], *exact["interval"]]
    assert "20 validation pairs" in card.measured
    assert "chose the checkpoint" in card.measured
    pairs = dict(line.split("\t") for line in (work / "valid.tsv").read_text().splitlines())
    assert len(card.examples) == 5
    assert all(pairs[example.source] == example.target for example in card.examples)
    sources = "\n".join(example.source for example in card.examples)
    outputs = here("predict", RUN, input=sources.encode()).out.split("\n")
    assert [example.output for example in card.examples] == outputs[:5]


def test_validation_pairs_come_along_for_the_playground_or_stay_private(
    packed: Path, work: Path, here: Callable[..., Done]
) -> None:
    pairs = {tuple(line.split("\t")) for line in (work / "valid.tsv").read_text().splitlines()}
    kept = read_examples(packed)
    assert len(kept) == 5
    assert {(one.source, one.target) for one in kept} <= pairs
    assert here("pack", RUN, "-o", "private.zip", "--examples", "0").code == 0
    assert read_examples(work / "private.zip") == []


def test_the_commands_on_the_card_work(
    packed: Path, here: Callable[..., Done], capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(packed) as file:
        text = file.read("MODEL.md").decode()
    [(source, command)] = re.findall(r"^    echo (.*) \| dragoman (.*)$", text, re.MULTILINE)
    done = here(*shlex.split(command), input=shlex.split(source)[0].encode())
    code = "\n".join(line[4:] for line in text[text.index("    import dragoman") :].split("\n") if line[:4] == "    ")
    exec(code, {})
    card = read_card(packed)
    assert card is not None
    assert done.out == capsys.readouterr().out == f"{card.examples[0].output}\n"


def test_the_same_run_gives_the_same_bytes(packed: Path, work: Path, here: Callable[..., Done]) -> None:
    (work / "again").mkdir(exist_ok=True)
    again = ["pack", RUN, "-o", "again/copy.zip", "--license", "CC BY 4.0", "--name", "Copying letters"]
    assert here(*again).code == 0
    assert (work / "again" / "copy.zip").read_bytes() == packed.read_bytes()


@pytest.mark.parametrize(
    "args",
    [
        ["predict", "MODEL", "test.tsv", "--format", "jsonl"],
        ["predict", "MODEL+MODEL", "test.tsv", "--beam", "2"],
        ["predict", "MODEL", "test.tsv", "--reference"],
        ["score", "MODEL", "test.tsv"],
        ["evaluate", "MODEL", "test.tsv", "--metrics", "exact,cer"],
        ["inspect", "MODEL", "a b", "--view", "alignment,beam,steps"],
        ["inspect", "early", "a b", "--beside", "MODEL"],
        ["compare", "MODEL", "early", "--data", "test.tsv", "--metrics", "exact"],
        ["probe", "MODEL", "--count", "5", "--json"],
        ["tokenizer", "explain", "MODEL", "abc"],
        ["data", "check", "test.tsv", "--model", "MODEL"],
    ],
    ids=lambda args: " ".join(args),
)
def test_every_command_takes_the_zip_as_it_takes_the_run(
    packed: Path, work: Path, here: Callable[..., Done], args: list[str]
) -> None:
    if "early" in args and not (work / "early").exists():
        (work / "early").symlink_to(work / RUN / "checkpoints" / "step-80")
    answers = []
    for model in (RUN, "copy.zip"):
        done = here(*(word.replace("MODEL", model) for word in args))
        assert done.code in (0, 4), done.err  # a probe may not pass
        text = done.out.replace(model, "MODEL").replace(RUN, "MODEL")
        answers.append((done.code, re.sub(r"decoded in .*|-+|\s+|compared with .*", " ", text)))
    assert answers[0] == answers[1]


def test_a_training_may_start_from_a_zip(packed: Path, work: Path, here: Callable[..., Done]) -> None:
    sets = ["--set", "training.steps=1", "--set", "training.schedule.warmup=1"]
    start = ["--set", "training.start_from=copy.zip"]
    done = here("train", "copy.yaml", *sets, *start, "--run", "runs/from-zip")
    assert done.code == 0, done.err
    done = here("train", "copy.yaml", *sets, "--set", "tokenizer.load=copy.zip", "--run", "runs/load")
    assert done.code == 0, done.err


def test_a_server_serves_a_zip_under_its_name(packed: Path, work: Path) -> None:
    assert parse_model_arguments([str(packed)]) == {"copy": str(packed)}
    command = [sys.executable, "-m", "dragoman", "serve", "copy.zip", "--port", "0", "--workers", "1"]
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            body = json.dumps({"inputs": ["a b"]}).encode()
            request = urllib.request.Request(f"{address}/v1/predict", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
            with urllib.request.urlopen(f"{address}/v1/models", timeout=60) as response:
                assert "copy" in response.read().decode()
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert answer["model"] == "copy"


def test_no_path_no_home_and_no_user_of_the_maker_is_in_the_zip(work: Path, tmp_path: Path) -> None:
    """Data, tokenizers and a folder of media all named by absolute paths below a home."""
    home = tmp_path / "zaphod-home"
    folder = home / "beeblebrox" / "projects"
    (folder / "media").mkdir(parents=True)
    for name in ("train.tsv", "valid.tsv"):
        (folder / name).write_bytes((work / name).read_bytes())
    (folder / "notes.md").write_text("# About\nMade of *made-up* letters.\n")
    (folder / "c.yaml").write_text(CONFIG)
    values = {
        "data.train": folder / "train.tsv",
        "data.valid": f"{folder}/valid.tsv",
        "data.files": f"[{folder}/media]",
        "data.cache": folder / "cache",
        "tokenizer.source": "{name: bpe, size: 20, byte_fallback: false}",
        "training.steps": 2,
        "training.schedule.warmup": 1,
    }
    sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    env = {"HOME": str(home), "USER": "zaphod", "LOGNAME": "zaphod"}
    trained = process("train", folder / "c.yaml", *sets, "--run", folder / "runs/secret", cwd=folder, env=env)
    assert trained.code == 0, trained.err
    command = [
        "pack",
        folder / "runs/secret",
        "-o",
        folder / "m.zip",
        "--notes",
        folder / "notes.md",
        "--examples",
        "2",
    ]
    done = process(*command, cwd=folder, env=env)
    assert done.code == 0, done.err
    everything = (folder / "m.zip").read_bytes()
    with zipfile.ZipFile(folder / "m.zip") as file:
        everything += b"".join(file.read(name) for name in file.namelist())
        assert "Made of *made-up* letters." in file.read("MODEL.md").decode()
        assert "path: train.tsv" in file.read("config.yaml").decode()
    forbidden = ["zaphod", "beeblebrox", "secret", str(tmp_path), str(Path.home()) + "/", os.uname().nodename]
    if getpass.getuser() != "root":
        forbidden.append(getpass.getuser())
    assert [word for word in forbidden if word.encode() in everything] == []
    assert process("predict", "m.zip", cwd=folder, input=b"a b\n").code == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["pack", "runs/nothing", "-o", "x.zip"], "no such model"),
        (["pack", f"{RUN}+{RUN}", "-o", "x.zip"], "no such model"),
        (["pack", "test.tsv", "-o", "x.zip"], "neither a folder nor a zip"),
        (["pack", RUN], "Missing option"),
        (["pack", RUN, "-o", "runs"], "is a folder"),
        (["pack", RUN, "-o", "x.zip", "--license", "two\nlines"], "--license must be one line"),
        (["pack", RUN, "-o", "x.zip", "--name", " "], "--name must be one line"),
        (["pack", RUN, "-o", "x.zip", "--notes", "none.md"], "--notes none.md: cannot be read"),
        (["pack", RUN, "-o", "x.zip", "--notes", "runs/copy/checkpoints"], "cannot be read"),
        (["pack", RUN, "-o", "x.zip", "--examples", "-1"], "examples"),
        (["pack", "copy.zip", "-o", "copy.zip"], "is also an input"),
    ],
    ids=lambda value: " ".join(value).replace("\n", " ") if isinstance(value, list) else "",
)
def test_what_cannot_be_packed_is_one_sentence_and_leaves_nothing(
    packed: Path, work: Path, here: Callable[..., Done], args: list[str], words: str
) -> None:
    before = packed.read_bytes()
    done = here(*args)
    assert done.code == 2
    assert words in " ".join(done.err.split())
    assert not (work / "x.zip").exists()
    assert packed.read_bytes() == before


def test_a_damaged_zip_is_one_sentence(packed: Path, work: Path, here: Callable[..., Done]) -> None:
    data = bytearray(packed.read_bytes())
    at = data.find(b"model.safetensors") + 5000
    data[at] ^= 1
    (work / "damaged.zip").write_bytes(data)
    (work / "cut.zip").write_bytes(data[:-100])
    for name in ("damaged.zip", "cut.zip"):
        for args in (["predict", name], ["tokenizer", "explain", name, "a"], ["pack", name, "-o", "x.zip"]):
            done = here(*args, input=b"a b\n")
            assert (done.code, done.out) == (2, "")
            assert done.err.count("\n") == 1
            assert name in done.err


def test_a_packed_model_keeps_its_card_when_it_is_packed_again(
    packed: Path, work: Path, here: Callable[..., Done]
) -> None:
    args = ["pack", "copy.zip", "-o", "licensed.zip", "--license", "MIT", "--examples", "1"]
    assert here(*args).code == 0
    old, new = read_card(packed), read_card(work / "licensed.zip")
    assert old is not None
    assert new == old.model_copy(update={"license": "MIT", "examples": old.examples[:1]})


def test_a_model_whose_data_are_elsewhere_has_a_card_without_scores(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    card = build_card(pipeline.load(work / RUN), work / RUN)
    assert [(part.file, part.pairs) for part in card.data] == [("train.tsv", None), ("valid.tsv", None)]
    assert (card.scores, card.examples, card.license) == ([], [], None)
    assert "Not measured" in render_card(card, "m.zip")


def test_the_card_of_divided_pairs_measures_the_test_pairs_and_says_how_they_were_divided(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """plan.json as `dragoman train PAIRS` writes it."""
    run = Path(shutil.copytree(work / RUN, work / "runs" / "divided", dirs_exist_ok=True))
    plan = {"test": "test.tsv", "division": "800 to learn from, 20 for validation, 30 for the test (seed 1)"}
    (run / "plan.json").write_text(json.dumps(plan))
    monkeypatch.chdir(work)
    card = build_card(pipeline.load(run), run, examples=2)
    assert [(part.role, part.pairs) for part in card.data][1:] == [("validation", 20), ("test", 30)]
    assert card.measured.startswith("Measured on 30 test pairs")
    assert "chose the checkpoint" not in card.measured
    assert "Divided: 800 to learn from, 20 for validation" in render_card(card, "m.zip")
    validation = (work / "valid.tsv").read_text()
    assert all(f"{example.source}\t{example.target}\n" in validation for example in card.examples)
