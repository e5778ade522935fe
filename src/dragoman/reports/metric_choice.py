"""What the task is, from a model's config and some pairs: the metrics that fit it, and the words for its results.

    kind        recognized by                                                    metrics
    labels      a classifier, or few different short targets                     accuracy or exact match
    tags        the objective `tags`                                             accuracy, exact match
    speech      sound, or features without several references                    WER, CER
    captions    images or clips, or features with several references             BLEU-1 … 4, CIDEr-D, ROUGE-L
    words       words → phonemes (symbols)                                       sequence error rate, PER
                anything → one word                                              exact match, CER
    strings     one string that is no word (a date, a number)                    exact match, CER
    edits       targets that are nearly their sources                            exact match, WER, CER
    programs    brackets, underscores or SQL in most targets                     exact match, BLEU
    symbols     other sequences of symbols                                       exact match, WER
    summaries   long sources, short targets                                      ROUGE-1, ROUGE-2, ROUGE-L
    sentences   all else                                                         BLEU, chrF, TER

The first kind that applies is taken, from top to bottom. Nothing but the first 2,000 pairs is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rapidfuzz.distance import Levenshtein

from dragoman.config import Config
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inspection.assessment import MetricScore
from dragoman.text.scripts import main_script

Kind = Literal[
    "labels", "tags", "speech", "captions", "words", "strings", "programs", "symbols", "edits", "summaries", "sentences"
]
Unit = Literal["phoneme", "symbol", "character", "word", "label", "tag"]

SAMPLE = 2000  # pairs to look at
MOST = 0.9  # the share of pairs that decides what all are
UNSEGMENTED = ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar")  # scripts without spaces
PROGRAM = re.compile(r"[(){}\[\]=;|]|\w_\w|\bSELECT\b| -\w")
MEDIA_ITEMS = {"image": "images", "audio": "recordings", "video": "clips", "features": "recordings"}


@dataclass(frozen=True)
class Task:
    """What a model does, as far as its results are concerned."""

    kind: Kind
    metrics: tuple[Part, ...]  # that fit, the most important first
    items: str  # what the results are of, in the plural: words, sentences, recordings …
    unit: Unit  # of the target, in which errors are aligned
    is_exact: bool  # an output is right or wrong as a whole
    is_open: bool = False  # many outputs are right, so that aligned errors say little


@dataclass(frozen=True)
class TargetProfile:
    """What the pairs look like."""

    single_source: float  # share of sources that are one word
    single_target: float
    source_words: float  # mean number of words
    target_words: float
    symbol_length: float  # mean characters between the spaces of a target
    letters: float  # share of letters among the characters of targets
    distinct: int  # different targets
    count: int
    references: float  # mean number
    programs: float  # share of targets that look like a program
    similarity: float  # of source and target, mean: 1 is equal
    script: str  # of most target letters

    @property
    def is_unsegmented(self) -> bool:
        """Whether targets are sentences without spaces."""
        return self.script in UNSEGMENTED and self.symbol_length > 8


def choose_metrics(config: Config, examples: Sequence[Example]) -> list[Part]:
    """Choose the metrics that fit a model and pairs like those it is evaluated on, the most important first."""
    return list(detect_task(config, examples).metrics)


def detect_task(config: Config, examples: Sequence[Example]) -> Task:
    """Recognize the task from the model's inputs, tokenizers and objective, and from some of the pairs."""
    profile = profile_targets(examples[:SAMPLE])
    media = _media_kind(config)
    items = _name_items(profile, media)
    objective = config.training.objective.name
    if objective == "tags":
        return Task("tags", _parts("accuracy", "exact"), items, "tag", is_exact=False)
    if objective == "labels" or (media != "audio" and _has_few_targets(profile)):
        metric = "accuracy" if profile.single_target == 1.0 else "exact"
        return Task("labels", _parts(metric), items, "label", is_exact=True)
    if media == "audio" or (media == "features" and profile.references < 1.5):
        if profile.is_unsegmented:
            return Task("speech", _parts("cer", "ser"), items, "character", is_exact=True)
        return Task("speech", _parts("wer", "cer", "ser"), items, "word", is_exact=profile.target_words < 4)
    if media and profile.target_words >= 3:
        metrics = _parts("bleu", "cider", "rougel", "bleu1", "bleu2", "bleu3")
        return Task("captions", metrics, items, "word", is_exact=False, is_open=True)
    return _text_task(config, profile, items)


def _text_task(config: Config, profile: TargetProfile, items: str) -> Task:
    """Recognize a task whose targets are neither labels nor transcripts nor captions."""
    target = config.tokenizer.target or config.tokenizer.source
    is_short = profile.single_target < MOST and profile.symbol_length <= 2.5 and profile.script not in UNSEGMENTED
    has_symbols = target.name == "symbols" or is_short
    if has_symbols and profile.single_source >= MOST and profile.symbol_length <= 3:
        return Task("words", _parts("ser", "per"), "words", "phoneme", is_exact=True)
    if profile.single_target >= MOST and not profile.is_unsegmented:
        if profile.letters >= MOST:
            return Task("words", _parts("exact", "cer"), "words", "character", is_exact=True)
        return Task("strings", _parts("exact", "cer"), items, "character", is_exact=True)
    if profile.similarity >= 0.65:
        unit: Unit = "character" if profile.is_unsegmented else "word"
        return Task("edits", _parts("exact", "wer", "cer"), items, unit, is_exact=True)
    if profile.programs >= 0.5:
        bleu = Part("bleu", {"tokenize": "none"})
        return Task("programs", (Part("exact"), bleu), items, "symbol", is_exact=True)
    if has_symbols:
        return Task("symbols", _parts("exact", "wer"), items, "symbol", is_exact=True)
    if profile.source_words >= 25 and profile.source_words >= 2.5 * profile.target_words:
        return Task("summaries", _parts("rougel", "rouge1", "rouge2"), "texts", "word", is_exact=False, is_open=True)
    if profile.is_unsegmented:
        bleu = Part("bleu", {"tokenize": "zh" if profile.script == "Han" else "char"})
        return Task("sentences", (bleu, Part("chrf")), items, "character", is_exact=False)
    return Task("sentences", _parts("bleu", "chrf", "ter"), items, "word", is_exact=False)


def profile_targets(examples: Sequence[Example]) -> TargetProfile:
    """Measure what decides the kind of a task."""
    sources, targets = [example.source for example in examples], [example.target or "" for example in examples]
    words = [target.split() for target in targets]
    texts, count = "".join("".join(each) for each in words), max(len(examples), 1)
    symbols = [symbol for each in words for symbol in each]
    similar = (Levenshtein.normalized_similarity(*pair) for pair in zip(sources, targets, strict=True))
    return TargetProfile(
        single_source=sum(len(source.split()) <= 1 for source in sources) / count,
        single_target=sum(len(each) <= 1 for each in words) / count,
        source_words=sum(len(source.split()) for source in sources) / count,
        target_words=len(symbols) / count,
        symbol_length=fmean(map(len, symbols)) if symbols else 0.0,
        letters=sum(c.isalpha() or not c.isascii() for c in texts) / max(len(texts), 1),
        distinct=len({*targets}),
        count=len(examples),
        references=sum(len(example.accepted) for example in examples) / count,
        programs=sum(bool(PROGRAM.search(target)) for target in targets) / count,
        similarity=sum(similar) / count,
        script=main_script(texts[:20_000]),
    )


def label_scores(scores: dict[str, MetricScore], task: Task) -> None:
    """Name the sequence error rate after what the outputs are, in place: "words with an error"."""
    if "ser" in scores:
        scores["ser"].own_label = f"{task.items} with an error"
    if "per" in scores and task.unit == "phoneme":
        scores["per"].own_label = "phoneme errors (PER)"


def _has_few_targets(profile: TargetProfile) -> bool:
    return profile.count >= 20 and profile.distinct <= min(50, profile.count / 10) and profile.target_words <= 3


def _name_items(profile: TargetProfile, media: str) -> str:
    if media:
        return MEDIA_ITEMS.get(media, "sources")
    if profile.single_source >= MOST:
        return "words" if profile.letters >= 0.5 else "sources"
    return "sentences" if profile.source_words <= 60 else "texts"


def _media_kind(config: Config) -> str:
    """The kind of the media that a model reads (image, audio, video, features); "" for texts alone."""
    second = config.model.second_source
    frontends = [config.model.frontend.name, *([second.frontend.name] if second is not None else [])]
    return next((name for name in frontends if name != "tokens"), "")


def _parts(*names: str) -> tuple[Part, ...]:
    return tuple(map(Part, names))
