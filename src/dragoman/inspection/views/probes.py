"""Known ways in which models fail, counted over sources that provoke them.

    sources ─predict→ outputs ─check→ hits          a check fails where hits / inputs > its limit

    repetition          an output has the same tokens three times in a row and the source does not, or has less than
                        a third of the source's different tokens, over as many tokens
    babble              the same for degenerate sources, such as ag ag ag …: more repetitions in a row than there
    hallucination       a degenerate source has an output far too long or without end, or one that hardly depends on it
    copying             an output is nearly its source, and no reference is
    under-translation   more than half of the source's tokens j got hardly any attention, Σ_t a_tj < 0.1
    over-translation    some token of the source got the attention of too many tokens, Σ_t a_tj > 4 r
    length              an output was stopped by its length limit
    empty               a source that is not blank has a blank output
    pairs               two sources that differ in a word have one output, or one lacks what was expected of it
    neutral             all outputs about an item have the same gendered pronoun, though no source has any

a_tj is the attention of target token t to source token j, and r the usual number of target tokens for each source
token: in the references, or in the outputs themselves. Without attention an output of less than half or more than twice
the usual length counts as under- or over-translated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from pydantic import Field
from rapidfuzz import fuzz
from rich.console import Console

from dragoman.core.errors import UserError, did_you_mean
from dragoman.core.types import EOS, SPECIALS, Example
from dragoman.data.lines import format_count
from dragoman.inspection import probe_inputs
from dragoman.inspection.blockers import decoder_blocker
from dragoman.inspection.probe_inputs import PRONOUNS, MinimalPair, NeutralSource, Pronoun, parse_pronouns
from dragoman.inspection.render.terminal import shorten
from dragoman.inspection.views import BeamSize, RequestSize, ViewData, register_view
from dragoman.text.templates import LANGUAGE_TAG

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inference.prediction import Prediction

Text = Annotated[str, Field(max_length=1_000_000)]
Language = Annotated[str, Field(min_length=1, max_length=100)]

# The fraction of inputs that may show a failure before its check fails.
LIMITS = {
    "repetition": 0.05,
    "babble": 0.25,  # of degenerate sources, which are hard on purpose
    "hallucination": 0.25,
    "copying": 0.1,
    "under-translation": 0.1,
    "over-translation": 0.1,
    "length": 0.02,
    "empty": 0.0,
    "pairs": 0.1,
    "neutral": 0.5,
}

MIN_REPEATS = 3  # in a row, that count as a loop
MIN_VARIETY = 1 / 3  # of the source's type/token ratio
MIN_VARIETY_TOKENS = 8  # of fewer tokens, two or three may well be alike
SIMILAR = 90.0  # rapidfuzz's ratio (0 to 100) from which on two texts are nearly the same
FLUENT_TOKENS = 5  # of an output that is a sentence
FAR_LONGER = 3.0  # times the usual length
LOW_COVERAGE = 0.1  # of one target token's attention
MAX_UNCOVERED = 0.5  # of a source's tokens; 500 words by two good models of pronunciation: most often 0, never more
HIGH_COVERAGE = 4.0  # times r; 2.4 was the most in the same words
MAX_LENGTH_FACTOR, LENGTH_SLACK = 2.0, 2  # times the usual length, and tokens on top: short texts vary
MAX_EXAMPLES = 5  # of each check
MAX_DETAIL = 60  # characters of a text in the description of a hit
PRINTED_EXAMPLES = 3


Case = tuple[Example, "Prediction"]  # a source, and the model's output


class Hit(NamedTuple):
    """One input that shows the failure, and a description of it."""

    source: str
    output: str
    detail: str


@dataclass(frozen=True)
class ProbeResult:
    """The inputs that show one failure, out of `of` inputs."""

    name: str
    what: str  # the hits in words, behind "3 of 200"
    of: int
    hits: list[Hit]
    table: ViewData | None = None  # {"columns": […], "rows": [[…], …]}

    def as_json(self, limit: float) -> ViewData:
        """Return the result as JSON; it failed if more than the fraction `limit` of the inputs are hits."""
        count = len(self.hits)
        return {
            "name": self.name,
            "failed": count / max(self.of, 1) > limit,
            "count": count,
            "of": self.of,
            "limit": limit,
            "sentence": f"{count:,} of {self.of:,} {self.what}",
            "examples": [hit._asdict() for hit in self.hits[:MAX_EXAMPLES]],
            "table": self.table,
        }


def _probes_blocker(pipeline: Pipeline) -> str | None:
    if pipeline.continues_text:
        return "a language model continues a text; probes are for models with a source"
    if pipeline.codec.modality is not None or pipeline.codec.second_source is not None:
        return "this model reads files or two sources; probes sample texts for models of one text"
    return decoder_blocker(pipeline)


def print_probes(out: Console, data: ViewData) -> None:
    """Print each check's rate, limit and verdict, then per check a few of the cases that it counted and its table."""
    from rich.table import Column, Table
    from rich.text import Text

    table = Table("check", "found", "limit", "", box=None, pad_edge=False)
    for check in data["checks"]:
        verdict = Text("failed", style="red") if check["failed"] else Text("passed", style="green")
        rate = check["count"] / max(check["of"], 1)
        table.add_row(check["name"], f"{rate:.1%}", f"{check['limit']:.1%}", verdict)
    out.print(table)
    for check in data["checks"]:
        if check["count"] or check["table"]:
            out.print(f"\n{check['name']}: {check['sentence']}", markup=False, soft_wrap=True)
        for example in check["examples"][:PRINTED_EXAMPLES]:
            source, output = shorten(example["source"], 100), shorten(example["output"], 100)
            out.print(f"  {source} → {output}   ({example['detail']})", markup=False, soft_wrap=True)
        if check["table"]:
            names = [Column(Text(name), overflow="fold") for name in check["table"]["columns"]]
            counts = Table(*names, box=None, pad_edge=False)
            for row in check["table"]["rows"]:
                counts.add_row(*(Text(str(cell)) for cell in row))
            out.print(counts)


def _probes_cost(size: RequestSize) -> int:
    sampled = int(size.options["count"]) * probe_inputs.MAX_TOKENS  # where the request has no sources
    tokens = (sum(size.sources) or sampled) + probe_inputs.DEGENERATE_TOKENS + size.extra_tokens
    return (size.beam + 1) * tokens + size.vocabulary // 100  # a pass over each output for its attention


@register_view("probes", inputs="sources", cost=_probes_cost, print_view=print_probes, blocker=_probes_blocker)
def run_probes(
    pipeline: Pipeline,
    sources: Sequence[str | Example] | None = None,
    *,
    minimal_pairs: Annotated[
        Sequence[Annotated[Sequence[Text], Field(min_length=2, max_length=4)]], Field(max_length=1000)
    ] = (),
    neutral: Annotated[
        Sequence[Annotated[Sequence[Text], Field(min_length=2, max_length=2)]], Field(max_length=1000)
    ] = (),
    limits: Mapping[str, float] | None = None,
    pronouns: Annotated[str, Field(max_length=1000)] = PRONOUNS,
    count: Annotated[int, Field(ge=1, le=2000)] = 200,
    beam: BeamSize | None = None,
    source_lang: Language | None = None,
    target_lang: Language | None = None,
) -> ViewData:
    """Counts of known failures: repetition, hallucination, copying, coverage, lengths, minimal pairs, pronouns.

    Probes the first `count` sources, or as many sampled from the vocabulary, and degenerate ones. Minimal pairs are
    (a, b) or (a, b, part of a's output, part of b's output); neutral sources are (source, item).
    """
    allowed, groups = check_limits(limits or {}), parse_pronouns(pronouns)
    pairs, items = probe_inputs.parse_minimal_pairs(minimal_pairs), probe_inputs.parse_neutral_sources(neutral)
    usual = probe_inputs.select_sources(pipeline.codec, sources, count, source_lang, target_lang)

    languages = source_lang or usual[0].source_lang, target_lang or usual[0].target_lang

    def predict(examples: Sequence[Example], attention: bool = False) -> list[Case]:
        return list(zip(examples, pipeline.predict(examples, beam=beam, attention=attention), strict=True))

    def predict_texts(texts: Sequence[str]) -> list[Case]:
        return predict(probe_inputs.with_languages(texts, *languages))

    cases, odd_cases = predict(usual, True), predict_texts(probe_inputs.degenerate_sources(pipeline.codec))
    ratio = median_length_ratio(pipeline, cases)
    omission, excess = partial(describe_omission, ratio), partial(describe_excess, ratio)
    results = [
        find_hits("repetition", "outputs repeat themselves", cases, describe_repetition),
        find_hits("babble", "outputs repeat themselves", odd_cases, describe_repetition),
        check_hallucination(odd_cases, ratio),
        check_copying(cases),
        find_hits("under-translation", "outputs leave much of their source out", cases, omission),
        find_hits("over-translation", "outputs say some of their source too often", cases, excess),
        find_hits("length", "outputs were stopped by their length limit", cases, describe_length),
        find_hits("empty", "outputs are empty", cases, describe_empty),
    ]
    if pairs:
        pair_cases = predict_texts([text for pair in pairs for text in (pair.a, pair.b)])
        results.append(check_minimal_pairs(pairs, [output.text for _, output in pair_cases]))
    if items:
        item_cases = predict_texts([item.source for item in items])
        results.append(check_neutral_sources(items, [output.text for _, output in item_cases], groups))
    return {"checks": [result.as_json(allowed[result.name]) for result in results]}


# -- the checks --------------------------------------------------------------------------------------------------------


def find_hits(
    name: str, what: str, cases: Sequence[Case], describe: Callable[[Example, Prediction], str]
) -> ProbeResult:
    """Find the inputs whose failure `describe` puts into words; it returns '' for all others."""
    hits = [Hit(source.source, output.text, detail) for source, output in cases if (detail := describe(source, output))]
    return ProbeResult(name, what, len(cases), hits)


def describe_repetition(_: Example, output: Prediction) -> str:
    """Describe a loop that the source lacks, or far fewer different tokens than the source has."""
    times, tokens = find_loop(output.tokens)
    if times >= MIN_REPEATS and times > find_loop(output.source_tokens)[0]:
        return f"'{' '.join(tokens)}' {times} times in a row"
    n = min(len(output.tokens), len(output.source_tokens))  # the ratio falls with length: compare equal lengths
    if n < MIN_VARIETY_TOKENS:
        return ""
    is_varied = type_token_ratio(output.tokens, n) >= MIN_VARIETY * type_token_ratio(output.source_tokens, n)
    return "" if is_varied else f"{len(set(output.tokens[-n:]))} different tokens among the last {n}"


def describe_length(_: Example, output: Prediction) -> str:
    """Describe an output that was stopped by the length limit."""
    return f"stopped after {format_count(len(output.tokens), 'token')}" if output.finish_reason == "length" else ""


def describe_empty(source: Example, output: Prediction) -> str:
    """Describe a blank output of a source that is not blank."""
    return "no output" if source.source.strip() and not output.text.strip() else ""


def find_loop(tokens: Sequence[str]) -> tuple[int, list[str]]:
    """Return the largest number of repetitions in a row, and the repeated tokens; (1, []) below MIN_REPEATS."""
    most, longest = MIN_REPEATS - 1, slice(0)
    for n in range(1, len(tokens) // MIN_REPEATS + 1):
        same = 0  # tokens in a row that equal the one n before them
        for i in range(n, len(tokens)):
            same = same + 1 if tokens[i] == tokens[i - n] else 0
            if same // n + 1 > most:
                most, longest = same // n + 1, slice(i + 1 - n, i + 1)
    repeated = list(tokens[longest])
    return (most, repeated) if repeated else (1, [])


def type_token_ratio(tokens: Sequence[str], n: int) -> float:
    """Return the number of different tokens among the last n, divided by n."""
    return len(set(tokens[-n:])) / n


def check_hallucination(cases: Sequence[Case], usual: float) -> ProbeResult:
    """Find long answers to sources without content that are far too long, or alike for both sources of one kind."""
    hits = []
    for i, (source, output) in enumerate(cases):
        other_source, other = cases[i ^ 1]
        if len(output.tokens) < FLUENT_TOKENS:
            continue
        if output.finish_reason == "length" or length_ratio(output) > FAR_LONGER * usual:
            detail = f"{length_ratio(output) / usual:.1f} times as long as usual for so many source tokens"
            hits.append(Hit(source.source, output.text, detail + ", and no end" * (output.finish_reason == "length")))
        elif output.source_tokens != other.source_tokens and is_similar(output.text, other.text):
            same = shorten(other_source.source, MAX_DETAIL)
            hits.append(Hit(source.source, output.text, f"nearly the same as for '{same}'"))
    return ProbeResult("hallucination", "degenerate sources get an answer that is not about them", len(cases), hits)


def check_copying(cases: Sequence[Case]) -> ProbeResult:
    """Find outputs that are nearly their source, except where a reference is, too."""
    hits, correct = [], 0
    for source, output in cases:
        correct += (as_reference := any(is_similar(text, source.source) for text in source.accepted))
        if is_similar(output.text, source.source) and not as_reference:
            hits.append(Hit(source.source, output.text, f"{_similarity(output.text, source.source):.0f} % alike"))
    note = f" (in {correct:,} more copying is right)" if correct else ""
    return ProbeResult("copying", f"outputs are nearly their source{note}", len(cases), hits)


def describe_omission(usual: float, source: Example, output: Prediction) -> str:
    """Describe an output that leaves much of the source out: low coverage, or without attention, far too short."""
    covered, expected = coverage(output), usual * len(output.source_tokens)
    if not output.text.strip():
        return ""  # describe_empty counts it
    if covered is None:
        is_short = len(output.tokens) + 1 < expected / MAX_LENGTH_FACTOR - LENGTH_SLACK
        return _unusual_length(output, expected) if is_short else ""
    uncovered = [output.source_tokens[j] for j, a in covered if a < LOW_COVERAGE]
    tokens = shorten(" ".join(uncovered), MAX_DETAIL)
    detail = f"{len(uncovered)} of {len(covered)} source tokens got hardly any attention: {tokens}"
    return detail if len(uncovered) > MAX_UNCOVERED * len(covered) else ""


def describe_excess(usual: float, source: Example, output: Prediction) -> str:
    """Describe an output that translates some token too often: high coverage, or without attention, far too long."""
    covered, expected = coverage(output), usual * len(output.source_tokens)
    if covered is None:
        is_long = len(output.tokens) + 1 > expected * MAX_LENGTH_FACTOR + LENGTH_SLACK
        return _unusual_length(output, expected) if is_long else ""
    j, most = max(covered, key=lambda pair: pair[1], default=(0, 0.0))
    detail = f"'{output.source_tokens[j]}' has the attention of {most:.1f} target tokens"
    return detail if most > HIGH_COVERAGE * usual else ""


def _unusual_length(output: Prediction, expected: float) -> str:
    return f"{format_count(len(output.tokens), 'token')}, about {expected - 1:.0f} are usual"


def coverage(output: Prediction) -> list[tuple[int, float]] | None:
    """Return (j, Σ_t a_tj) for each source token j, without language tags and </s>; None without attention."""
    if output.attention is None:
        return None
    last = len(output.source_tokens) - (output.source_tokens[-1:] == [SPECIALS[EOS]])
    total = np.asarray(output.attention, dtype=np.float64).sum(0)
    return [(j, float(total[j])) for j in range(last) if not LANGUAGE_TAG.fullmatch(output.source_tokens[j])]


def check_minimal_pairs(pairs: Sequence[MinimalPair], outputs: Sequence[str]) -> ProbeResult:
    """Find pairs with equal outputs, or without the expected words; outputs 2k and 2k + 1 belong to pair k."""
    hits = []
    for k, pair in enumerate(pairs):
        a, b = outputs[2 * k : 2 * k + 2]
        missing = [(s, o, part) for s, o, part in ((pair.a, a, pair.expected_a), (pair.b, b, pair.expected_b)) if part]
        missing = [(s, o, part) for s, o, part in missing if not count_word(part, o)]
        if a.strip() == b.strip():
            hits.append(Hit(pair.a, a, f"the same output as for '{shorten(pair.b, MAX_DETAIL)}'"))
        elif missing:
            source, output, _ = missing[0]
            hits.append(Hit(source, output, " and ".join(f"'{part}' is missing" for _, _, part in missing)))
    return ProbeResult("pairs", "pairs of sources have outputs that miss their difference", len(pairs), hits)


# -- pronouns ----------------------------------------------------------------------------------------------------------


def check_neutral_sources(
    items: Sequence[NeutralSource], outputs: Sequence[str], pronouns: Sequence[Pronoun]
) -> ProbeResult:
    """Find items whose outputs all have the same gendered pronoun; the table counts outputs by item and pronoun."""
    by_item: dict[str, list[tuple[NeutralSource, str]]] = {}
    for neutral, output in zip(items, outputs, strict=True):
        by_item.setdefault(neutral.item, []).append((neutral, output))
    hits, rows = [], []
    for item, answers in by_item.items():
        used = [[p for p in pronouns if any(count_word(form, text) for form in p.forms)] for _, text in answers]
        rows.append([item, *(sum(p in some for some in used) for p in pronouns), sum(not some for some in used)])
        genders = [[p.forms[0] for p in some if p.gendered] for some in used]
        if len(genders[0]) == 1 and all(gender == genders[0] for gender in genders):
            (first, text), always = answers[0], genders[0][0]
            hits.append(Hit(first.source, text, f"{item}: always '{always}'"))
    columns = ["item", *(p.forms[0] for p in pronouns), "none"]
    what = "items have one and the same gendered pronoun in every output"
    return ProbeResult("neutral", what, len(by_item), hits, {"columns": columns, "rows": rows})


def count_word(word: str, text: str) -> int:
    """Count a word in a text, ignoring case; whole words only, but in scripts without case, often written unspaced."""
    word, text, count, at = word.casefold(), text.casefold(), 0, -1
    while (at := text.find(word, at + 1)) >= 0:
        before, after = text[at - 1 : at], text[at + len(word) : at + len(word) + 1]
        count += not (_has_case(before) and _has_case(word[0])) and not (_has_case(after) and _has_case(word[-1]))
    return count


def _has_case(letter: str) -> bool:
    return letter.lower() != letter.upper()


# -- similarity and length ---------------------------------------------------------------------------------------------


def is_similar(a: str, b: str) -> bool:
    """Whether two texts are nearly the same, apart from case and spaces."""
    return _similarity(a, b) >= SIMILAR


def _similarity(a: str, b: str) -> float:
    return float(fuzz.ratio(" ".join(a.casefold().split()), " ".join(b.casefold().split())))


def length_ratio(output: Prediction) -> float:
    """Return the number of target tokens with </s>, divided by that of source tokens."""
    return (len(output.tokens) + 1) / max(len(output.source_tokens), 1)


def median_length_ratio(pipeline: Pipeline, cases: Sequence[Case]) -> float:
    """Return the median length ratio of the references, or of the outputs where there are no references."""
    ratios = [
        len(pipeline.codec.encode_target(source)) / max(len(output.source_tokens), 1)
        for source, output in cases
        if source.target is not None
    ]
    return median(ratios or [length_ratio(output) for _, output in cases])


# -- limits ------------------------------------------------------------------------------------------------------------


def check_limits(limits: Mapping[str, float]) -> dict[str, float]:
    """Return the limit of every check, the defaults overridden by `limits`; a wrong one raises UserError."""
    for name, limit in limits.items():
        if name not in LIMITS:
            raise UserError(f"there is no check '{name}'{did_you_mean(name, LIMITS)} (there is {', '.join(LIMITS)})")
        if not 0.0 <= limit <= 1.0:
            raise UserError(f"the limit of {name} is {limit}; it is a fraction of the inputs, from 0 to 1")
    return LIMITS | dict(limits)
