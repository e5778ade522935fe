"""Ways in which a model fails, counted over sources that are made to provoke them.

    sources ─predict→ outputs ─check→ hits          a check fails where hits / inputs > its limit

    repetition          an output says the same tokens three times in a row and the source does not, or has less than
                        a third of the source's different tokens, over as many tokens
    babble              the same on degenerate sources, as ag ag ag …: more often in a row than there
    hallucination       a degenerate source has an output far too long or without end, or one that it hardly changes
    copying             an output is nearly its source, and no reference is
    under-translation   more than half of the source's tokens j were hardly looked at, Σ_t a_tj < 0.1
    over-translation    some token of the source was looked at for too many tokens, Σ_t a_tj > 4 r
    length              an output was stopped by its length limit
    empty               a source that is not blank has a blank output
    pairs               two sources that differ in a word have one output, or one lacks what was expected of it
    neutral             all outputs about an item have the same gendered pronoun, though no source has any

a_tj is the attention of target token t to source token j, and r the target tokens for each source token as is usual: in
the references, or in the outputs themselves. Without attention an output of less than half or more than twice the usual
length counts as under- or over-translated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from rapidfuzz import fuzz

from dragoman.core.errors import UserError, nearest
from dragoman.core.types import EOS, SPECIALS, Example
from dragoman.inference.pipeline import Pipeline, Prediction
from dragoman.inspection import probe_inputs
from dragoman.inspection.probe_inputs import PRONOUNS, Neutral, Pronoun, Swap, parse_pronouns
from dragoman.text.codec import tags

# The share of inputs that may show a failure before its check fails.
LIMITS = {
    "repetition": 0.05,
    "babble": 0.25,  # of degenerate sources, which are meant to be hard
    "hallucination": 0.25,
    "copying": 0.1,
    "under-translation": 0.1,
    "over-translation": 0.1,
    "length": 0.02,
    "empty": 0.0,
    "pairs": 0.1,
    "neutral": 0.5,
}

REPEATS = 3  # times in a row that make a loop
VARIETY = 1 / 3  # of the source's type/token ratio
ENOUGH = 8  # tokens from which on variety is judged: of fewer, two or three may well be alike
NEAR = 90.0  # rapidfuzz's ratio (0 to 100) from which on two texts are nearly the same
FLUENT = 5  # tokens of an output that says something
FAR_LONGER = 3.0  # times the usual length
UNSEEN = 0.1  # of one target token's attention
UNSEEN_SHARE = 0.5  # of a source's tokens; 500 words by two good models of pronunciation: most often 0, never more
TOO_MUCH = 4.0  # times r; 2.4 was the most in the same words
TWICE, SLACK = 2.0, 2  # times the usual length, and by more than so many tokens: short texts vary
EXAMPLES = 5


class Hit(NamedTuple):
    """One input that shows the failure, and how."""

    source: str
    output: str
    detail: str


@dataclass(frozen=True)
class Check:
    """What a check found: so many hits in `of` inputs."""

    name: str
    what: str  # the hits in words, behind "3 of 200"
    of: int
    hits: list[Hit]
    table: dict[str, Any] | None = None  # {"columns": […], "rows": [[…], …]}

    def as_json(self, limit: float) -> dict[str, Any]:
        count = len(self.hits)
        return {
            "name": self.name,
            "failed": count / max(self.of, 1) > limit,
            "count": count,
            "of": self.of,
            "limit": limit,
            "sentence": f"{count:,} of {self.of:,} {self.what}",
            "examples": [hit._asdict() for hit in self.hits[:EXAMPLES]],
            "table": self.table,
        }


def probe(
    pipeline: Pipeline,
    *,
    sources: Sequence[str | Example] | None = None,
    swaps: Sequence[Sequence[str]] = (),
    neutral: Sequence[Sequence[str]] = (),
    limits: Mapping[str, float] | None = None,
    pronouns: str = PRONOUNS,
    count: int = 200,
    beam: int | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> dict[str, Any]:
    """Every check on the first `count` sources, or on as many made of the vocabulary, and on degenerate ones.

    Swaps are (a, b) or (a, b, part of a's output, part of b's output); neutral sources are (source, item).
    """
    refuse(pipeline)
    allowed, groups = checked_limits(limits or {}), parse_pronouns(pronouns)
    pairs, items = probe_inputs.checked_swaps(swaps), probe_inputs.checked_neutral(neutral)
    usual = probe_inputs.chosen(pipeline.codec, sources, count, source_lang, target_lang)

    def answers(texts: Sequence[str]) -> tuple[list[Example], list[Prediction]]:
        examples = probe_inputs.tagged(texts, source_lang or usual[0].source_lang, target_lang or usual[0].target_lang)
        return examples, pipeline.predict(examples, beam=beam)

    outputs = pipeline.predict(usual, beam=beam, attention=True)
    odd, odd_outputs = answers(probe_inputs.degenerate(pipeline.codec))
    ratio = usual_ratio(pipeline, usual, outputs)
    checks = [
        repetition(usual, outputs),
        repetition(odd, odd_outputs, "babble"),
        hallucination(odd, odd_outputs, ratio),
        copying(usual, outputs),
        under_translation(usual, outputs, ratio),
        over_translation(usual, outputs, ratio),
        length(usual, outputs),
        empty(usual, outputs),
    ]
    if pairs:
        checks.append(minimal_pairs(pairs, answers([text for swap in pairs for text in (swap.a, swap.b)])[1]))
    if items:
        checks.append(neutral_sources(items, answers([item.source for item in items])[1], groups))
    return {"view": "probes", "checks": [check.as_json(allowed[check.name]) for check in checks]}


# -- the checks --------------------------------------------------------------------------------------------------------


def repetition(sources: Sequence[Example], outputs: Sequence[Prediction], name: str = "repetition") -> Check:
    """Loops that the source does not have, and outputs of far fewer different tokens."""
    hits = []
    for source, output in zip(sources, outputs, strict=True):
        times, tokens = loop(output.tokens)
        n = min(len(output.tokens), len(output.source_tokens))  # variety falls with length: compare like with like
        if times >= REPEATS and times > loop(output.source_tokens)[0]:
            hits.append(Hit(source.source, output.text, f"'{' '.join(tokens)}' {times} times in a row"))
        elif n >= ENOUGH and variety(output.tokens, n) < VARIETY * variety(output.source_tokens, n):
            kinds = len(set(output.tokens[-n:]))
            hits.append(Hit(source.source, output.text, f"{kinds} different tokens among the last {n}"))
    return Check(name, "outputs repeat themselves", len(sources), hits)


def loop(tokens: Sequence[str]) -> tuple[int, list[str]]:
    """How many times in a row some tokens are said, the most there is, and which; (1, []) below REPEATS times."""
    most, found = REPEATS - 1, slice(0)
    for n in range(1, len(tokens) // REPEATS + 1):
        same = 0  # tokens in a row that equal the one n before them
        for i in range(n, len(tokens)):
            same = same + 1 if tokens[i] == tokens[i - n] else 0
            if same // n + 1 > most:
                most, found = same // n + 1, slice(i + 1 - n, i + 1)
    looping = list(tokens[found])
    return (most, looping) if looping else (1, [])


def variety(tokens: Sequence[str], n: int) -> float:
    """Different tokens among the last n, as a share: a model that begins to loop does not stop."""
    return len(set(tokens[-n:])) / n


def hallucination(sources: Sequence[Example], outputs: Sequence[Prediction], usual: float) -> Check:
    """Fluent answers to sources that say nothing; sources 2k and 2k + 1 are of a kind."""
    hits = []
    for i, (source, output) in enumerate(zip(sources, outputs, strict=True)):
        other = outputs[i ^ 1]
        if len(output.tokens) < FLUENT:
            continue
        if output.finish_reason == "length" or ratio_of(output) > FAR_LONGER * usual:
            detail = f"{ratio_of(output) / usual:.1f} times as long as usual for so many source tokens"
            hits.append(Hit(source.source, output.text, detail + ", and no end" * (output.finish_reason == "length")))
        elif output.source_tokens != other.source_tokens and near(output.text, other.text):
            hits.append(Hit(source.source, output.text, f"nearly the same as for '{_short(sources[i ^ 1].source)}'"))
    return Check("hallucination", "degenerate sources get an answer that is not about them", len(sources), hits)


def copying(sources: Sequence[Example], outputs: Sequence[Prediction]) -> Check:
    """Outputs that are nearly their source, unless a reference is, too."""
    hits, right = [], 0
    for source, output in zip(sources, outputs, strict=True):
        right += (as_reference := any(near(text, source.source) for text in source.accepted))
        if near(output.text, source.source) and not as_reference:
            hits.append(Hit(source.source, output.text, f"{_likeness(output.text, source.source):.0f} % alike"))
    said = f" (in {right:,} more copying is right)" if right else ""
    return Check("copying", f"outputs are nearly their source{said}", len(sources), hits)


def under_translation(sources: Sequence[Example], outputs: Sequence[Prediction], usual: float) -> Check:
    """Much of the source left out: hardly looked at, or without attention, an output far too short."""
    hits = []
    for source, output in zip(sources, outputs, strict=True):
        if not output.text.strip():
            continue  # the check for empty outputs has it
        looked = coverage(source, output)
        expected = usual * len(output.source_tokens)
        if looked is None and len(output.tokens) + 1 < expected / TWICE - SLACK:
            detail = f"{len(output.tokens)} tokens, about {expected - 1:.0f} are usual"
            hits.append(Hit(source.source, output.text, detail))
        unseen = [output.source_tokens[j] for j, a in looked or () if a < UNSEEN]
        if looked and len(unseen) > UNSEEN_SHARE * len(looked):
            detail = f"{len(unseen)} of {len(looked)} source tokens hardly looked at: {_short(' '.join(unseen))}"
            hits.append(Hit(source.source, output.text, detail))
    return Check("under-translation", "outputs leave much of their source out", len(sources), hits)


def over_translation(sources: Sequence[Example], outputs: Sequence[Prediction], usual: float) -> Check:
    """Some of the source said again and again: looked at too much, or without attention, an output far too long."""
    hits = []
    for source, output in zip(sources, outputs, strict=True):
        looked = coverage(source, output)
        expected = usual * len(output.source_tokens)
        if looked is None and len(output.tokens) + 1 > expected * TWICE + SLACK:
            detail = f"{len(output.tokens)} tokens, about {expected - 1:.0f} are usual"
            hits.append(Hit(source.source, output.text, detail))
        elif looked:
            j, most = max(looked, key=lambda place: place[1])
            if most > TOO_MUCH * usual:
                detail = f"'{output.source_tokens[j]}' has the attention of {most:.1f} target tokens"
                hits.append(Hit(source.source, output.text, detail))
    return Check("over-translation", "outputs say some of their source too often", len(sources), hits)


def coverage(source: Example, output: Prediction) -> list[tuple[int, float]] | None:
    """(j, Σ_t a_tj) for every token of the source's own text: language tags and </s> are no text."""
    if output.attention is None:
        return None
    last = len(output.source_tokens) - (output.source_tokens[-1:] == [SPECIALS[EOS]])
    total = np.asarray(output.attention, dtype=np.float64).sum(0)
    return [(j, float(total[j])) for j in range(len(tags(source)), last)]


def length(sources: Sequence[Example], outputs: Sequence[Prediction]) -> Check:
    """Outputs that had no end."""
    both = zip(sources, outputs, strict=True)
    hits = [
        Hit(s.source, o.text, f"stopped after {len(o.tokens)} tokens") for s, o in both if o.finish_reason == "length"
    ]
    return Check("length", "outputs were stopped by their length limit", len(sources), hits)


def empty(sources: Sequence[Example], outputs: Sequence[Prediction]) -> Check:
    """Blank outputs of sources that are not."""
    both = zip(sources, outputs, strict=True)
    hits = [Hit(s.source, o.text, "no output") for s, o in both if s.source.strip() and not o.text.strip()]
    return Check("empty", "outputs are empty", len(sources), hits)


def minimal_pairs(swaps: Sequence[Swap], outputs: Sequence[Prediction]) -> Check:
    """Pairs whose difference the outputs do not show; outputs 2k and 2k + 1 belong to swap k."""
    hits = []
    for k, swap in enumerate(swaps):
        a, b = outputs[2 * k].text, outputs[2 * k + 1].text
        missing = [(s, o, part) for s, o, part in ((swap.a, a, swap.in_a), (swap.b, b, swap.in_b)) if part]
        missing = [(s, o, part) for s, o, part in missing if not occurrences(part, o)]
        if a.strip() == b.strip():
            hits.append(Hit(swap.a, a, f"the same output as for '{_short(swap.b)}'"))
        elif missing:
            source, output, _ = missing[0]
            hits.append(Hit(source, output, " and ".join(f"'{part}' is missing" for _, _, part in missing)))
    return Check("pairs", "pairs of sources have outputs that miss their difference", len(swaps), hits)


# -- pronouns ----------------------------------------------------------------------------------------------------------


def neutral_sources(items: Sequence[Neutral], outputs: Sequence[Prediction], pronouns: Sequence[Pronoun]) -> Check:
    """Items about which every output has the same gendered pronoun; the table counts outputs, item by pronoun."""
    by_item: dict[str, list[tuple[Neutral, str]]] = {}
    for neutral, output in zip(items, outputs, strict=True):
        by_item.setdefault(neutral.item, []).append((neutral, output.text))
    hits, rows = [], []
    for item, said in by_item.items():
        found = [[p for p in pronouns if any(occurrences(form, text) for form in p.forms)] for _, text in said]
        rows.append([item, *(sum(p in some for some in found) for p in pronouns), sum(not some for some in found)])
        genders = [[p.forms[0] for p in some if p.gendered] for some in found]
        if len(genders[0]) == 1 and all(gender == genders[0] for gender in genders):
            (first, text), always = said[0], genders[0][0]
            hits.append(Hit(first.source, text, f"{item}: always '{always}'"))
    columns = ["item", *(p.forms[0] for p in pronouns), "none"]
    what = "items have one and the same gendered pronoun in every output"
    return Check("neutral", what, len(by_item), hits, {"columns": columns, "rows": rows})


def occurrences(word: str, text: str) -> int:
    """How often a word stands in a text, in any case; "he" does not stand in "she".

    A letter that has a case may not go on with another. Scripts without case are often written without spaces.
    """
    word, text, count, at = word.casefold(), text.casefold(), 0, -1
    while (at := text.find(word, at + 1)) >= 0:
        before, after = text[at - 1 : at], text[at + len(word) : at + len(word) + 1]
        count += not (_cased(before) and _cased(word[0])) and not (_cased(after) and _cased(word[-1]))
    return count


def _cased(letter: str) -> bool:
    return letter.lower() != letter.upper()


# -- likeness and length -----------------------------------------------------------------------------------------------


def near(a: str, b: str) -> bool:
    return _likeness(a, b) >= NEAR


def _likeness(a: str, b: str) -> float:
    return float(fuzz.ratio(" ".join(a.casefold().split()), " ".join(b.casefold().split())))


def ratio_of(output: Prediction) -> float:
    """Target tokens for each source token, </s> counted on both sides."""
    return (len(output.tokens) + 1) / max(len(output.source_tokens), 1)


def usual_ratio(pipeline: Pipeline, sources: Sequence[Example], outputs: Sequence[Prediction]) -> float:
    """The median ratio of the references, or of the outputs themselves where there is none."""
    ratios = [
        len(pipeline.codec.encode_target(source.target)) / max(len(output.source_tokens), 1)
        for source, output in zip(sources, outputs, strict=True)
        if source.target is not None
    ]
    return median(ratios or [ratio_of(output) for output in outputs])


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


# -- what was asked for ------------------------------------------------------------------------------------------------


def checked_limits(given: Mapping[str, float]) -> dict[str, float]:
    """Every limit, those given over the usual ones."""
    for name, share in given.items():
        if name not in LIMITS:
            raise UserError(f"there is no check '{name}'{nearest(name, LIMITS)} (there is {', '.join(LIMITS)})")
        if not 0.0 <= share <= 1.0:
            raise UserError(f"the limit of {name} is {share}; it is a share of the inputs, from 0 to 1")
    return LIMITS | dict(given)


def refuse(pipeline: Pipeline) -> None:
    """Models without an output to probe."""
    if pipeline.model.head is not None:
        raise UserError("the model answers with labels from a head; probes are for models that write an output")
    if pipeline.continues_text:
        raise UserError("this is a language model, which goes on with a text; probes are for models with a source")
    if pipeline.codec.modality is not None or pipeline.codec.second_source is not None:
        raise UserError("the model reads files, or two sources; probes are for models of one text")
