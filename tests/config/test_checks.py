"""A config is right, or one error names every problem with its key, what was found and what is allowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from dragoman.cli.main import main
from dragoman.config import load
from dragoman.core.errors import ConfigError

from .conftest import written


def problems_of(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{caught.value.where}: ")
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


class Broken(NamedTuple):
    """A config and, for each of its problems, the words that the sentence about it must hold."""

    about: str
    text: str
    problems: list[list[str]]


DATA = "data: {train: a.tsv}\n"
BROKEN = [
    Broken("empty", "", [["data is missing"]]),
    Broken("a list", "- a\n- b\n", [["mapping", "list"]]),
    Broken("not YAML", DATA + "model: {width: 3\n", [["line", "column", "not valid YAML"]]),
    Broken("a key twice", DATA + "seed: 1\nseed: 2\n", [["line 3", "duplicate", "seed"]]),
    Broken("a number as key", DATA + "1: 2\n", [["key 1", "must be text"]]),
    Broken("a misspelt group", DATA + "modle: {width: 8}\n", [["modle is not an option", "'model'"]]),
    Broken(
        "three misspelt names in one group",
        DATA + "model: {widht: 3, encoder: {name: rnm}, decoder: {name: rnn, layer: 2}}\n",
        [
            ["model.widht is not an option", "did you mean 'width'"],
            ["model.encoder", "'rnm'", "did you mean 'rnn'", "transformer"],
            ["model.decoder.layer is not an option", "did you mean 'layers'"],
        ],
    ),
    Broken(
        "a part inside a part",
        DATA + "model: {decoder: {name: rnn, score: aditive, cell: lstmm}}\n",
        [
            ["model.decoder.score", "'aditive'", "did you mean 'additive'", "scaled_dot"],
            ["model.decoder.cell", "'lstmm'", "'gru' or 'lstm'", "did you mean 'lstm'"],
        ],
    ),
    Broken(
        "options of parts in a list",
        DATA + "training: {validate_metrics: [blue, {name: bleu, tokenise: no}]}\n",
        [
            ["training.validate_metrics.0", "'blue'", "did you mean 'bleu'"],
            ["training.validate_metrics.1.tokenise is not an option", "did you mean 'tokenize'"],
        ],
    ),
    Broken(
        "a metric twice",
        "data: {train: a.tsv, valid: b.tsv}\n"
        "training: {validate_metrics: [bleu, exact, {name: bleu, tokenize: char}, bleu]}\n",
        [["training", "validate_metrics names 'bleu' more than once", "name it once"]],
    ),
    Broken(
        "a weighted corpus",
        "data: {train: [a.tsv, {path: b.tsv, wieght: 2.0}, {weight: 0.0}]}\n",
        [
            ["data.train.1.wieght is not an option", "did you mean 'weight'"],
            ["data.train.2.path is missing"],
            ["data.train.2.weight", "greater than 0", "0.0"],
        ],
    ),
    Broken("no corpus", "data: {train: []}\n", [["data.train", "at least 1"]]),
    Broken("a corpus that is a number", "data: {train: 5}\n", [["data.train.0", "5"]]),
    Broken(
        "numbers of the wrong kind",
        DATA
        + 'training: {steps: 1.5, batch_tokens: "many", keep: true, epochs: 0, clip: -1.0, label_smoothing: 1.0}\n',
        [
            ["training.steps", "integer", "1.5"],
            ["training.batch_tokens", "integer", "'many'"],
            ["training.keep", "integer", "True"],
            ["training.epochs", "greater than 0", "found 0"],
            ["training.clip", "greater than 0", "-1.0"],
            ["training.label_smoothing", "less than 1", "1.0"],
        ],
    ),
    Broken(
        "numbers that are none",
        DATA + "training: {clip: .nan, optimizer: {name: adam, rate: .nan}}\ngeneration: {max_length_ratio: .inf}\n",
        [
            ["training.clip", "nan"],
            ["training.optimizer.rate", "nan"],
            ["generation.max_length_ratio", "finite", "inf"],
        ],
    ),
    Broken(
        "rules between fields, and a wrong type elsewhere",
        DATA
        + "seed: -1\ntokenizer: {source: bpe, target: characters, joint: true}\n"
        + "training: {steps: 10, schedule: {name: linear, warmup: 20}, average: 4, keep: 3, best: blue}\n",
        [
            ["seed", "greater than or equal to 0", "-1"],
            ["tokenizer.target", "joint"],
            ["training.schedule.warmup is 20", "10"],
            ["training.average is 4", "3"],
            ["training.best is 'blue'", "loss"],
        ],
    ),
    Broken(
        "rules between groups, and a wrong type elsewhere",
        "seed: x\ndata: {train: a.tsv, max_source: 100, max_target: 50}\n"
        + "model: {encoder: {name: transformer, position: {name: learned, length: 64}}}\n"
        + "training: {patience: 3}\n",
        [
            ["seed", "integer", "'x'"],
            ["data.valid is missing", "training.patience"],
            ["data.max_source is 100", "model.encoder.position", "64"],
        ],
    ),
    Broken(
        "a name that is no folder's, a seed that is too large",
        DATA + "name: ../escape\nseed: 99999999999999999999\n",
        [["name", "folder", "'../escape'"], ["seed", "less than", "99999999999999999999"]],
    ),
    Broken("columns", "data: {train: a.tsv, columns: [source, taget]}\n", [["data.columns.1", "'taget'", "'target'"]]),
    Broken(
        "columns without a target", "data: {train: a.tsv, columns: [source, '-']}\n", [["data.columns", "'target'"]]
    ),
    Broken(
        "options of generation that do not exist",
        DATA + "generation: {serch: beam, beam: 0}\n",
        [
            ["generation.serch is not an option", "did you mean 'search'"],
            ["generation.beam", "greater than 0", "found 0"],
        ],
    ),
    Broken(
        "an unknown search", DATA + "generation: {search: bean}\n", [["generation", "'bean'", "did you mean 'beam'"]]
    ),
    Broken(
        "an option that the search lacks",
        DATA + "generation: {search: {name: beam, coverage_penaltie: 1.0}}\n",
        [["generation", "search beam", "coverage_penaltie", "did you mean 'coverage_penalty'"]],
    ),
    Broken(
        "an option of another search",
        DATA + "generation: {search: greedy, temperature: 0.5}\n",
        [["generation", "temperature is not an option of the search 'greedy'", "set search to sample"]],
    ),
    Broken(
        "an option of another search than that of validation",
        DATA + "training: {validate_generation: {search: beam, top_k: 5}}\n",
        [["training.validate_generation", "top_k", "set search to sample"]],
    ),
    Broken(
        "a diverse beam that cannot be divided",
        DATA + "generation: {search: diverse, beam: 5, num_beam_groups: 2}\n",
        [["generation", "beam of 5", "2 groups"]],
    ),
    Broken("an unknown length rule", DATA + "generation: {length_rule: men}\n", [["generation", "'men'", "'mean'"]]),
    Broken("an unknown metric of risk", DATA + "generation: {mbr: chr}\n", [["generation", "'chr'", "'chrf'"]]),
    Broken(
        "lengths of generation that cross",
        DATA + "generation: {min_new_tokens: 5, max_new_tokens: 4}\n",
        [["generation.max_new_tokens is 4", "min_new_tokens, 5"]],
    ),
    Broken("an unknown preset", "preset: dats\n" + DATA, [["preset", "'dats'", "did you mean 'dates'"]]),
    Broken("a preset that is a list", "preset: [dates]\n" + DATA, [["preset", "dates"]]),
    Broken("a group that is a word", DATA + "model: rnn\n", [["model", "mapping", "'rnn'"]]),
    Broken("a part that is a list", DATA + "model: {encoder: [rnn]}\n", [["model.encoder", "encoder", "['rnn']"]]),
    Broken("code by key", DATA + "model: {_target_: os.system}\n", [["model._target_ is not an option"]]),
    Broken("code by tag", DATA + "model: !!python/object/apply:os.system [touch owned]\n", [["line 2", "tag"]]),
    Broken(
        "heads that do not divide the width",
        DATA + "model: {width: 64, encoder: {name: transformer, heads: 3}}\n",
        [["model", "64", "3 heads"]],
    ),
    Broken(
        "a tie that does not fit", DATA + "model: {width: 16, decoder: {name: rnn, width: 8}}\n", [["tie", "16", "8"]]
    ),
    Broken("a model larger than any memory", DATA + "model: {width: 6000000}\n", [["model", "memory"]]),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.about)
def test_every_problem_is_named_with_its_key_what_was_found_and_what_is_allowed(broken: Broken, tmp_path: Path) -> None:
    found = problems_of(written(tmp_path, broken.text))
    assert len(found) == len(broken.problems), found
    for words in broken.problems:
        matching = [sentence for sentence in found if all(word in sentence for word in words)]
        assert len(matching) == 1, (words, found)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("missing.yaml", None, "no such file"),
        ("latin.yaml", "name: caf\xe9".encode("latin-1"), "not UTF-8"),
        ("folder.yaml", "folder", "cannot be read"),
        ("huge.yaml", b"#" * 200_001, "200,000"),
        ("deep.yaml", b"a: " + b"[" * 1000, "not a config"),
        (
            "bomb.yaml",
            ("a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))).encode(),
            "aliases",
        ),
    ],
)
def test_a_file_that_is_no_config_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: bytes | str | None, word: str
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()
    (problem,) = problems_of(path)
    assert word in problem


def test_the_command_line_shows_the_same_problems_exits_with_2_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for i, broken in enumerate(BROKEN):
        path = written(tmp_path, broken.text, f"broken{i}.yaml")
        before = sorted(tmp_path.iterdir())
        if broken.about == "a part inside a part":  # one as a process of its own, the others in this one to save time
            command = [sys.executable, "-m", "dragoman", "train", path.name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            monkeypatch.setattr(sys, "argv", ["dragoman", "train", path.name])
            with pytest.raises(SystemExit) as ended:
                main()
            code, (out, err) = ended.value.code, capsys.readouterr()
        assert (code, out) == (2, ""), broken.about
        assert "Traceback" not in err
        for words in broken.problems:
            assert any(all(word in line for word in words) for line in err.split("\n")), (words, err)
        assert sorted(tmp_path.iterdir()) == before


def test_one_table_for_two_vocabularies_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.tie is 'all', but tokenizer\.joint is false"):
        load(None, "transformer-tiny", ["data.train=a.tsv", "tokenizer.joint=false"])
