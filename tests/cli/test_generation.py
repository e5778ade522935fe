"""Every search option of `dragoman predict` reaches its search: results keep to it, or are what its formula says."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

import dragoman
from dragoman.cli.generation import parse_options
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.inference import pipeline
from dragoman.search import search_part

from .conftest import Done, process

RUN = "runs/copy"
LINES = ["a b", "", "c a d", "b", "d d a b c", "c"]
TEXT = "".join(f"{line}\n" for line in LINES).encode()
WRITTEN = [line for line in LINES if line]  # a blank line has a blank result, whatever is asked


@pytest.fixture
def ask(here: Callable[..., Done]) -> Callable[..., list[str]]:
    """The results of LINES that are not blank, with some options."""

    def run(*options: str, model: str = RUN) -> list[str]:
        done = here("predict", model, *options, input=TEXT)
        assert done.code == 0, done.err
        found = done.out.split("\n")[:-1]
        assert len(found) == len(LINES)
        return [result for line, result in zip(LINES, found, strict=True) if line]

    return run


@pytest.fixture
def records(ask: Callable[..., list[str]]) -> Callable[..., list[dict[str, Any]]]:
    def run(*options: str, model: str = RUN) -> list[dict[str, Any]]:
        return [json.loads(line) for line in ask("--format", "jsonl", *options, model=model)]

    return run


# -- what a result must keep to ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "holds"),
    [
        ("--prefix d", lambda text: text.startswith("d")),
        ("--force-phrases dd --force-phrases bc", lambda text: "dd" in text and "bc" in text),
        ("--force-phrases dd --force-phrases bc --force-phrases-ordered", lambda text: re.search("dd.*bc", text)),
        ("--force-phrases bc --force-phrases dd --force-phrases-ordered", lambda text: re.search("bc.*dd", text)),
        ("--forbid-phrases a --forbid-phrases dd", lambda text: "a" not in text and "dd" not in text),
        ("--choices ab --choices dcd --choices c", lambda text: text in {"ab", "dcd", "c"}),
        ("--pattern [ab]+c?", lambda text: re.fullmatch("[ab]+c?", text)),
        ("--pattern (d[abc])*", lambda text: re.fullmatch("(d[abc])*", text)),
        ("--no-repeat-ngram-size 1 --max-new-tokens 4", lambda text: len(text) == len({*text})),
        ("--min-new-tokens 11", lambda text: len(text) >= 11),
        ("--max-new-tokens 2", lambda text: len(text) <= 2),
        ("--search diverse --prefix d --forbid-phrases a", lambda text: text.startswith("d") and "a" not in text),
        ("--search greedy --prefix d --forbid-phrases a", lambda text: text.startswith("d") and "a" not in text),
        ("--search sample --temperature 2 --pattern b*c --max-new-tokens 30", lambda text: re.fullmatch("b*c", text)),
    ],
)
def test_outputs_obey_their_constraints(
    ask: Callable[..., list[str]], options: str, holds: Callable[[str], object]
) -> None:
    found = ask(*options.split())
    assert all(holds(text) for text in found), found
    assert found != ask()


def test_a_repetition_penalty_multiplies_log_p_of_what_was_said(records: Callable[..., list[dict[str, Any]]]) -> None:
    twice = ["--choices", "dd", "--search", "greedy"]
    for plain, other in zip(records(*twice), records(*twice, "--repetition-penalty", "1.5"), strict=True):
        first, again, end = plain["log_probs"]
        assert other["log_probs"] == pytest.approx([first, 1.5 * again, end])


# -- searches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        "--beam 1",
        "--search beam --beam 1 --patience 1",
        "--search sample --top-k 1",
        "--search sample --top-p 0.0001",
        "--search sample --min-p 0.999",
        "--search sample --epsilon-cutoff 0.999",
        "--search sample --temperature 0.0001",
        "--search diverse --beam 1 --num-beam-groups 1",
    ],
)
def test_the_searches_that_come_down_to_the_most_probable_token_agree(
    ask: Callable[..., list[str]], options: str
) -> None:
    longer = ["--min-new-tokens", "6"]  # where the model is not sure of what it says
    assert ask(*options.split(), *longer) == ask("--search", "greedy", *longer)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--length-rule none", lambda n: 1.0),
        ("--length-rule mean", lambda n: n),
        ("--length-penalty 0.5", lambda n: n**0.5),
        ("--length-rule power --length-penalty 2", lambda n: n**2),
        ("--length-rule gnmt", lambda n: ((5 + n) / 6) ** 0.6),
        ("--length-rule gnmt --length-penalty 1.5 --search diverse", lambda n: ((5 + n) / 6) ** 1.5),
    ],
)
def test_a_length_rule_divides_log_p_as_its_formula_says(
    records: Callable[..., list[dict[str, Any]]], options: str, rule: Callable[[int], float]
) -> None:
    for record in records(*options.split(), "--nbest", "3"):
        for found in [record, *record["alternatives"]]:
            n = len(found["log_probs"])  # </s> included
            assert found["log_prob"] == pytest.approx(sum(found["log_probs"]))
            assert found["score"] == pytest.approx(found["log_prob"] / rule(n))


def test_exhaustive_search_finds_what_an_exact_beam_wider_than_everything_finds(
    records: Callable[..., list[dict[str, Any]]],
) -> None:
    limits = ["--max-new-tokens", "2", "--nbest", "5"]
    beam = records("--beam", "80", "--early-stopping", "never", *limits)
    for one, other in zip(records("--search", "exhaustive", *limits), beam, strict=True):
        for a, b in zip([one, *one["alternatives"]], [other, *other["alternatives"]], strict=True):
            assert a["text"] == b["text"]
            assert a["score"] == pytest.approx(b["score"], abs=1e-5)


def test_groups_that_avoid_each_other_begin_with_different_tokens(
    records: Callable[..., list[dict[str, Any]]],
) -> None:
    options = ["--search", "diverse", "--beam", "3", "--num-beam-groups", "3", "--min-new-tokens", "1", "--nbest", "3"]
    for strength, different in (("100", 3), ("0", 1)):
        for record in records(*options, "--diversity-penalty", strength):
            assert len({found["tokens"][0] for found in [record, *record["alternatives"]]}) == different


def test_a_seed_decides_what_is_drawn(ask: Callable[..., list[str]], work: Path) -> None:
    draw = ["--search", "sample", "--temperature", "3"]
    one, again, other = (ask(*draw, "--seed", seed) for seed in "112")
    assert one == again
    assert one != other
    assert ask(*draw) == ask(*draw, "--seed", "0")
    done = process("predict", RUN, *draw, "--seed", "1", cwd=work, input=TEXT)
    assert done.code == 0, done.err
    assert [line for line in done.out.split("\n") if line] == [line for line in one if line]


def test_as_many_samples_as_asked_come_best_first(records: Callable[..., list[dict[str, Any]]]) -> None:
    for record in records("--search", "sample", "--num-samples", "6", "--temperature", "3", "--nbest", "4"):
        scores = [found["score"] for found in [record, *record["alternatives"]]]
        assert len(scores) == 4
        assert scores == sorted(scores, reverse=True)


def test_minimum_bayes_risk_chooses_what_is_most_like_all_results(
    records: Callable[..., list[dict[str, Any]]],
) -> None:
    beam = ["--beam", "5", "--nbest", "5", "--min-new-tokens", "5"]  # a length the model must invent something for
    draws = ["--search", "sample", "--num-samples", "5", "--nbest", "5", "--temperature", "3"]
    for options, sampled in ((beam, False), (draws, True)):
        for plain, chosen in zip(records(*options), records(*options, "--mbr", "chrf"), strict=True):
            found = [plain, *plain["alternatives"]]
            weights = [1.0 if sampled else math.exp(one["log_prob"]) for one in found]

            def utility(text: str, found: list[Any] = found, weights: list[float] = weights) -> float:
                return sum(
                    weight * sacrebleu.sentence_chrf(text, [other["text"]]).score
                    for weight, other in zip(weights, found, strict=True)
                )

            best = max(utility(one["text"]) for one in found)
            assert utility(chosen["text"]) == pytest.approx(best)


def test_an_ensemble_on_the_command_line_says_the_mean_of_its_members_probabilities(
    records: Callable[..., list[dict[str, Any]]], work: Path
) -> None:
    early, late = (f"{RUN}/checkpoints/step-{n}" for n in (80, 160))
    members = [dragoman.load(work / name, device="cpu") for name in (early, late)]
    for line, record in zip(WRITTEN, records(model=f"{early}+{late}"), strict=True):
        ps = [[math.exp(x) for x in member.token_scores([(line, record["text"])])[0]] for member in members]
        assert record["log_probs"] == pytest.approx([math.log((p + q) / 2) for p, q in zip(*ps, strict=True)], abs=1e-5)


# -- what a result carries ---------------------------------------------------------------------------------------------


def test_a_trace_leads_from_every_result_back_to_the_beginning(records: Callable[..., list[dict[str, Any]]]) -> None:
    for record in records("--trace", "--beam", "3", "--nbest", "3"):
        nodes = {node["id"]: node for node in record["trace"]}
        assert len(nodes) == len(record["trace"])
        told = {}
        for node in record["trace"]:
            assert node["fate"] in {"kept", "finished", "dropped"}
            assert (node["reason"] == "") <= (node["fate"] != "dropped")
            if node["fate"] == "finished":
                path = [node]
                while path[0]["parent"]:
                    path.insert(0, nodes[path[0]["parent"]])
                    assert path[0]["fate"] == "kept"
                assert node["total"] == pytest.approx(sum(one["log_prob"] for one in path))
                told["".join(one["piece"] for one in path[:-1])] = node["score"]
        for found in [record, *record["alternatives"]]:
            if found["finish_reason"] == "eos":
                assert told["".join(found["tokens"])] == pytest.approx(found["score"])


def test_attention_has_a_row_for_each_token_and_the_end(records: Callable[..., list[dict[str, Any]]]) -> None:
    for record in records("--attention"):
        assert len(record["attention"]) == len(record["tokens"]) + 1
        for row in record["attention"]:
            assert len(row) == len(record["source_tokens"])
            assert sum(row) == pytest.approx(1, abs=1e-2)


def test_a_result_that_nothing_fits_is_empty_and_still_json(records: Callable[..., list[dict[str, Any]]]) -> None:
    for record in records("--pattern", "x"):
        assert (record["text"], record["finish_reason"], record["score"]) == ("", "no_valid_token", None)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--search gredy", "no search called 'gredy'; did you mean 'greedy'?"),
        (
            "--search greedy --temperature 2",
            "temperature is not an option of the search 'greedy': set search to sample",
        ),
        (
            "--search sample --early-stopping never",
            "early_stopping is not an option of the search 'sample': set search to beam",
        ),
        ("--search sample --length-rule mean", "length_rule is not an option of the search 'sample'"),
        ("--search sample --length-penalty 1", "length_penalty is not an option of the search 'sample'"),
        ("--search greedy --beam 5", "beam is not an option of the search 'greedy'"),
        ("--num-samples 3", "num_samples is not an option of the search 'beam': set search to sample"),
        ("--num-beam-groups 2", "num_beam_groups is not an option of the search 'beam': set search to diverse"),
        ("--search sample --temperature 0", "--temperature: must be greater than 0, found 0.0"),
        ("--search sample --top-p 1.5", "--top-p: must be less than or equal to 1, found 1.5"),
        ("--early-stopping exact", "--early-stopping: must be False, True or 'never', found 'exact'"),
        ("--finished-policy pool", "--finished-policy: must be 'collect' or 'shrink', found 'pool'"),
        ("--coverage-penalty -1", "--coverage-penalty: must be greater than or equal to 0, found -1.0"),
        ("--length-rule gnmtt", "no length rule called 'gnmtt'; did you mean 'gnmt'?"),
        (
            "--length-rule mean --length-penalty 1",
            "length_penalty: the length rule mean has no exponent; power and gnmt",
        ),
        ("--search diverse --num-beam-groups 4", "cannot be divided evenly into 4 groups"),
        ("--search sample --nbest 2 --format tsv", "nbest 2 needs as many num_samples, not 1"),
        ("--search exhaustive", "exhaustive search met over 200,000 prefixes"),
        ("--search greedy --force-phrases ab", "force_phrases needs a beam search, and the search is 'greedy'"),
        ("--trace", "need --format jsonl"),
        ("--trace --format jsonl --search greedy", "trace needs a beam search, and the search is 'greedy'"),
        ("--force-phrases xyz", "'xyz' is not covered by the model's vocabulary"),
        ("--pattern (a", "'(a' is no regular expression"),
        ("--min-new-tokens 5 --max-new-tokens 3", "max_new_tokens is 3; it must be at least min_new_tokens, 5"),
        ("--repetition-penalty 0.5", "--repetition-penalty: must be greater than or equal to 1, found 0.5"),
        ("--no-repeat-ngram-size -1", "--no-repeat-ngram-size: must be greater than or equal to 0, found -1"),
        ("--mbr chrff", "did you mean 'chrf'?"),
        ("--lm runs/copy", "shallow fusion needs a language model"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(here: Callable[..., Done], options: str, words: str) -> None:
    done = here("predict", RUN, *options.split(), input=TEXT)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "Traceback" not in done.err
    assert done.err.count("\n") <= 2


def test_an_option_changes_the_models_own_search_and_leaves_the_rest_of_it(work: Path) -> None:
    opened = pipeline.load(work / RUN, "cpu")
    fields: dict[str, Any] = {"beam": 4, "early_stopping": "never", "length_rule": {"name": "gnmt", "alpha": 0.9}}
    generation = GenerationOptions.model_validate(fields | {"no_repeat_ngram_size": 3})
    own = pipeline.replace(opened, config=opened.config.model_copy(update={"generation": generation}))
    for given, expected in [
        ({}, {}),
        ({"coverage_penalty": 0.1}, {"coverage_penalty": 0.1}),
        ({"beam": 7, "finished_policy": "shrink"}, {"beam": 7, "finished_policy": "shrink"}),
        ({"length_penalty": 0.2}, {"length_rule": {"name": "gnmt", "alpha": 0.2}}),
        ({"length_rule": "none"}, {"length_rule": "none"}),
        ({"early_stopping": "false"}, {"early_stopping": False}),
        ({"early_stopping": "true"}, {"early_stopping": True}),
        ({"search": "beam"}, {}),
        (
            {"search": "diverse", "num_beam_groups": 2},
            {"search": "diverse", "num_beam_groups": 2, "early_stopping": True},
        ),
    ]:
        missing = {name: None for name in GenerationOptions.model_fields if name not in given}  # as typer leaves them
        resolved = own.resolve_options(parse_options(given | missing))
        assert search_part(resolved) == search_part(GenerationOptions.model_validate(fields | expected))
        assert resolved.no_repeat_ngram_size == 3
    assert search_part(own.resolve_options(parse_options({"beam": 1}))).name == "greedy"
    greedy = own.resolve_options(parse_options({"search": "greedy", "repetition_penalty": 2.0}))
    assert greedy.explicit == {"search": Part("greedy"), "no_repeat_ngram_size": 3, "repetition_penalty": 2.0}


# -- N lines in, N lines out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--beam", "3"], ["--search", "sample", "--temperature", "2"]])
def test_500_odd_lines_give_500_results_in_order(here: Callable[..., Done], options: list[str]) -> None:
    rng, odd = random.Random(5), "abcd  \t\r\x0b\x1c\x85\u2028\u200b\u202e\u0301é日\U0001f9d1\u200d\ufeff<>/s"
    lines = ["".join(rng.choice(odd) for _ in range(rng.randrange(9))).rstrip("\r") for _ in range(500)]
    lines[:2] = ["a b c", ""]
    done = here("predict", RUN, *options, input="".join(f"{line}\n" for line in lines).encode())
    assert done.code == 0, done.err
    found = done.out.split("\n")
    assert found.pop() == ""
    assert len(found) == 500
    alone = 0
    for i in [0, *rng.sample(range(500), 12)]:
        if not lines[i].strip():
            assert found[i] == ""
        else:  # the lines before it are blank, so that it stands at its place
            padded = "".join(f"{line}\n" for line in [""] * i + [lines[i]]).encode()
            assert here("predict", RUN, *options, input=padded).out == "\n" * i + found[i] + "\n"
            alone += 1
    assert alone > 5
