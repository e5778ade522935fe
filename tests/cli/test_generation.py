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
from dragoman.cli import generation as searching
from dragoman.inference import pipeline

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
        ("--require dd --require bc", lambda text: "dd" in text and "bc" in text),
        ("--require dd --require bc --ordered", lambda text: re.search("dd.*bc", text)),
        ("--require bc --require dd --ordered", lambda text: re.search("bc.*dd", text)),
        ("--forbid a --forbid dd", lambda text: "a" not in text and "dd" not in text),
        ("--choose ab --choose dcd --choose c", lambda text: text in {"ab", "dcd", "c"}),
        ("--pattern [ab]+c?", lambda text: re.fullmatch("[ab]+c?", text)),
        ("--pattern (d[abc])*", lambda text: re.fullmatch("(d[abc])*", text)),
        ("--no-repeat 1 --longest 4", lambda text: len(text) == len({*text})),
        ("--shortest 11", lambda text: len(text) >= 11),
        ("--longest 2", lambda text: len(text) <= 2),
        ("--search diverse --prefix d --forbid a", lambda text: text.startswith("d") and "a" not in text),
        ("--search greedy --prefix d --forbid a", lambda text: text.startswith("d") and "a" not in text),
        ("--search sample --temperature 2 --pattern b*c --longest 30", lambda text: re.fullmatch("b*c", text)),
    ],
)
def test_results_keep_to_what_is_asked(
    ask: Callable[..., list[str]], options: str, holds: Callable[[str], object]
) -> None:
    found = ask(*options.split())
    assert all(holds(text) for text in found), found
    assert found != ask()


def test_a_repetition_penalty_multiplies_log_p_of_what_was_said(records: Callable[..., list[dict[str, Any]]]) -> None:
    twice = ["--choose", "dd", "--search", "greedy"]
    for plain, other in zip(records(*twice), records(*twice, "--repetition", "1.5"), strict=True):
        first, again, end = plain["log_probs"]
        assert other["log_probs"] == pytest.approx([first, 1.5 * again, end])


# -- searches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        "--beam 1",
        "--search beam --beam 1",
        "--search sample --top-k 1",
        "--search sample --top-p 0.0001",
        "--search sample --min-p 0.999",
        "--search sample --epsilon 0.999",
        "--search sample --temperature 0.0001",
        "--search diverse --beam 1 --groups 1",
    ],
)
def test_the_searches_that_come_down_to_the_most_probable_token_agree(
    ask: Callable[..., list[str]], options: str
) -> None:
    shortest = ["--shortest", "6"]  # where the model is not sure of what it says
    assert ask(*options.split(), *shortest) == ask("--search", "greedy", *shortest)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--length-rule none", lambda n: 1.0),
        ("--length-rule mean", lambda n: n),
        ("--alpha 0.5", lambda n: n**0.5),
        ("--length-rule power --alpha 2", lambda n: n**2),
        ("--length-rule gnmt", lambda n: ((5 + n) / 6) ** 0.6),
        ("--length-rule gnmt --alpha 1.5 --search diverse", lambda n: ((5 + n) / 6) ** 1.5),
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
    limits = ["--longest", "2", "--nbest", "5"]
    beam = records("--beam", "80", "--stop", "exact", *limits)
    for one, other in zip(records("--search", "exhaustive", *limits), beam, strict=True):
        for a, b in zip([one, *one["alternatives"]], [other, *other["alternatives"]], strict=True):
            assert a["text"] == b["text"]
            assert a["score"] == pytest.approx(b["score"], abs=1e-5)


def test_groups_that_avoid_each_other_begin_with_different_tokens(
    records: Callable[..., list[dict[str, Any]]],
) -> None:
    options = ["--search", "diverse", "--beam", "3", "--groups", "3", "--shortest", "1", "--nbest", "3"]
    for strength, different in (("100", 3), ("0", 1)):
        for record in records(*options, "--strength", strength):
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
    for record in records("--search", "sample", "--samples", "6", "--temperature", "3", "--nbest", "4"):
        scores = [found["score"] for found in [record, *record["alternatives"]]]
        assert len(scores) == 4
        assert scores == sorted(scores, reverse=True)


def test_minimum_bayes_risk_chooses_what_is_most_like_all_results(
    records: Callable[..., list[dict[str, Any]]],
) -> None:
    beam = ["--beam", "5", "--nbest", "5", "--shortest", "5"]  # a length the model must invent something for
    draws = ["--search", "sample", "--samples", "5", "--nbest", "5", "--temperature", "3"]
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
        ("--search greedy --temperature 2", "--temperature is not an option of the search 'greedy': --search sample"),
        ("--search sample --stop exact", "--stop is not an option of the search 'sample': --search beam has it"),
        ("--search sample --length-rule mean", "--length-rule is not an option"),
        ("--search greedy --beam 3", "--beam is not an option of the search 'greedy'"),
        ("--samples 3", "--samples is not an option of the search 'beam': --search sample has it"),
        ("--groups 2", "--groups is not an option of the search 'beam': --search diverse has it"),
        ("--search sample --temperature 0", "temperature: must be greater than 0, found 0.0"),
        ("--search sample --top-p 1.5", "top_p"),
        ("--stop never", "stop"),
        ("--coverage -1", "coverage: must be"),
        ("--length-rule gnmtt", "no length rule called 'gnmtt'; did you mean 'gnmt'?"),
        ("--length-rule mean --alpha 1", "--alpha: the length rule mean has no exponent; power and gnmt have one"),
        ("--search diverse --groups 4", "cannot be shared evenly by 4 groups"),
        ("--search sample --nbest 2 --format tsv", "2 best results need as many samples"),
        ("--search exhaustive", "more than 200,000"),
        ("--search greedy --require ab", "required phrases need a beam"),
        ("--trace", "need --format jsonl"),
        ("--trace --format jsonl --search greedy", "a trace is of a beam"),
        ("--require xyz", "'xyz' holds something that the model's vocabulary lacks"),
        ("--pattern (a", "'(a' is no regular expression"),
        ("--shortest 5 --longest 3", "the longest length is 3; it must be at least the shortest, 5"),
        ("--repetition 0.5", "repetition: must be greater than or equal to 1"),
        ("--no-repeat -1", "no_repeat"),
        ("--mbr chrff", "did you mean 'chrf'?"),
        ("--lm runs/copy", "fusion needs a language model"),
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
    search: Any = {"name": "beam", "size": 4, "stop": "exact", "length": {"name": "gnmt", "alpha": 0.9}}
    changes = {"search": search, "no_repeat": 3}
    generation = opened.config.generation.model_validate(changes)
    own = pipeline.replace(opened, config=opened.config.model_copy(update={"generation": generation}))
    for beam, rule, given, expected in [
        (None, None, {"coverage": 0.1}, search | {"coverage": 0.1}),
        (7, None, {"ending": "shrink"}, search | {"size": 7, "ending": "shrink"}),
        (None, None, {"alpha": 0.2}, search | {"length": {"name": "gnmt", "alpha": 0.2}}),
        (None, "none", {}, search | {"length": "none"}),
    ]:
        found = searching.part(own, None, beam, rule, given)
        assert found == opened.config.generation.model_validate({"search": expected}).search
    assert searching.part(own, None, 7, None, {}) is None  # which is left to the Pipeline
    assert own.search_part(7, 1) == opened.config.generation.model_validate({"search": search | {"size": 7}}).search
    greedy = searching.part(own, "greedy", None, None, {})
    assert greedy is not None
    assert greedy.name == "greedy"
    assert own.with_generation(repetition=2.0).config.generation == generation.model_copy(update={"repetition": 2.0})


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
