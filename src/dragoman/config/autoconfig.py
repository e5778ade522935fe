"""What to train for some data: a table of measured choices, and the settings that follow from sizes and time.

    DataProfile ─candidates→ [Candidate, …], the best first ─settings→ a config over the candidate's preset

A candidate is a preset with a few settings, and the number of epochs between which it is worth its time: with fewer
than `least_epochs` the next one, which is smaller, is the better choice. The table below is all that decides; what was
measured for it is in docs/recipes.md ("From your own pairs").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dragoman.data.quality.profile import TASK_NAMES, DataProfile, SideProfile, Task

MIN_VALID_FOR_EXACT = 400  # validation pairs; on fewer, whole outputs are too coarse a measure
VALIDATIONS, PATIENCE = 24, 10  # of a training; how many without improvement end it
MANY_CHARACTERS = 300  # different ones: more than an alphabet has
MIN_CHARACTER_COUNT = 40  # of an alphabet of many: rarer ones are numbered
MANY_SYLLABLES = 100  # different ones that Unicode writes as one character each, and takes apart into letters
MOSTLY_COPIED = 0.5  # of the target's characters: both sides share one vocabulary
MIN_INTERVAL = 20  # steps between two validations


@dataclass(frozen=True)
class Candidate:
    """A system that may be chosen: a preset, settings over it, and how many epochs it wants."""

    title: str  # for messages
    preset: str
    epochs: int  # more bring little
    least_epochs: float  # with fewer, a smaller system is better
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted keys
    gpu_only: bool = False


@dataclass(frozen=True)
class Rule:
    """For data of a task up to a number of pairs: the candidates, the best first."""

    task: Task
    max_pairs: float
    candidates: tuple[Candidate, ...]
    reason: str  # what was measured
    rivals: tuple[Candidate, ...] = ()  # besides, in a race

    def cells(self) -> tuple[str, str, str, str]:
        """The rule as a row of a table: task, pairs, systems, what was measured."""
        size = "any number" if self.max_pairs == math.inf else f"up to {self.max_pairs:,.0f}"
        systems = [f"{one.title}{' (on a GPU)' if one.gpu_only else ''}" for one in self.candidates]
        return TASK_NAMES[self.task], size, "; ".join(systems), self.reason


def _dropout(rate: float) -> dict[str, Any]:
    return {"model.encoder.dropout": rate, "model.decoder.dropout": rate}


_SMALL = {
    "model.width": 128,
    **{f"model.{side}.{key}": value for side in ("encoder", "decoder") for key, value in
       {"layers": 3, "feedforward": 512}.items()},
    "training.batch_sentences": 64,
    "training.optimizer.rate": 2.0e-3,
}  # fmt: skip
_WIDE = {
    "model.width": 512,
    **{f"model.{side}.{key}": value for side in ("encoder", "decoder") for key, value in
       {"heads": 8, "feedforward": 2048}.items()},
    "training.batch_tokens": 8192,
    "training.optimizer.rate": 1.0e-3,
    "training.schedule.warmup": 1000,
}  # fmt: skip

_WIDE_LSTM = {
    "model.width": 256,
    "model.encoder.layers": 2,
    "training.batch_sentences": None,
    "training.batch_tokens": 8192,
    "training.optimizer.rate": 1.0e-3,
}

_LSTM = Candidate("LSTM with attention", "characters-lstm", 60, 3)
_TINY_LSTM = Candidate("small LSTM with attention", "pronunciation", 60, 0, _dropout(0.2))
_DEEP_LSTM = Candidate("LSTM with attention, 2 + 1 layers", "characters-lstm", 60, 5, _WIDE_LSTM, gpu_only=True)
_LARGE_LSTM = replace(
    _DEEP_LSTM,
    title="LSTM with attention, 2 + 1 layers, the encoder of 1,024",
    settings=_WIDE_LSTM | {"model.encoder.width": 1024},
)
_CHARACTERS = Candidate("Transformer, 4 + 4 layers of 256", "characters-transformer", 120, 40, gpu_only=True)
_SMALL_CHARACTERS = Candidate(
    "Transformer, 3 + 3 layers of 128", "characters-transformer", 60, 15, _SMALL | _dropout(0.2)
)
_RIVALS = (_SMALL_CHARACTERS, replace(_LSTM, title="LSTM with attention, dropout 0.5", settings=_dropout(0.5)))
_TINY = Candidate("Transformer, 4 + 4 layers of 128", "transformer-tiny", 60, 0)
_MEDIUM = Candidate("Transformer, 4 + 4 layers of 512", "transformer-tiny", 30, 5, _WIDE | _dropout(0.3), gpu_only=True)

RULES = (
    Rule("pronunciation", 3_000, (_LSTM, _TINY_LSTM), "1,000 words: LSTM PER 28.1, Transformer 31.2", _RIVALS),
    Rule(
        "pronunciation",
        30_000,
        (_DEEP_LSTM, _LSTM, _TINY_LSTM),
        "not measured at this size: as for more words",
        _RIVALS,
    ),
    Rule(
        "pronunciation",
        math.inf,
        (_LARGE_LSTM, _DEEP_LSTM, _LSTM, _TINY_LSTM),
        "100,000 words: LSTM 23.8 % wrong, Transformer 25.1",
        _RIVALS,
    ),
    Rule("strings", 3_000, (_LSTM, _TINY_LSTM), "as for pronunciation", _RIVALS),
    Rule(
        "strings",
        math.inf,
        (_CHARACTERS, _LSTM, _TINY_LSTM),
        "inflection, transliteration: the recipes' system",
        _RIVALS,
    ),
    Rule("sentences", 5_000, (_TINY,), "1,000 sentences: Transformer BLEU 4.8, LSTM 2.4"),
    Rule("sentences", 50_000, (_TINY,), "10,000 sentences: 4 + 4 layers of 128 30.6, of 512 32.4, LSTM 20.3"),
    Rule("sentences", math.inf, (_MEDIUM, _TINY), "100,000 sentences: 4 + 4 layers of 512 52.9, of 128 48.6"),
    Rule(
        "commands",
        math.inf,
        (
            Candidate(
                "Transformer, 3 + 3 layers of 128",
                "commands",
                150,
                20,
                {"training.batch_sentences": 256},
                gpu_only=True,
            ),
            Candidate("Transformer, 3 + 3 layers of 128", "commands", 100, 0),
        ),
        "SCAN: 100 % right, as the LSTM, in a third of its steps",
    ),
    Rule(
        "code",
        math.inf,
        (Candidate("LSTM with attention and a pointer", "copying-lstm", 25, 0),),
        "Django: 60.7 % right with a pointer, 55.5 % without",
    ),
    Rule("labels", math.inf, (Candidate("Transformer classifier", "classifier", 20, 0),), "entailment: 99.4 % right"),
    Rule(
        "text",
        math.inf,
        (
            Candidate("3 LSTM layers of 512", "char-rnn-lm", 50, 3, gpu_only=True),
            Candidate(
                "LSTM of 256", "char-rnn-lm", 30, 0, {"model.width": 256, "model.decoder": {"width": 256, "layers": 1}}
            ),
        ),
        "a character model: 1.33 bits a character",
    ),
    Rule(
        "image",
        math.inf,
        (Candidate("Show, Attend and Tell", "show-attend-tell-soft", 40, 0),),
        "Flickr8k: BLEU-4 15.5, Transformer 14.6",
    ),
    Rule(
        "audio", math.inf, (Candidate("pyramid of LSTMs", "speech-pyramid", 60, 0),), "AN4: WER 7.9, Transformer 15.8"
    ),
)


def find_rule(profile: DataProfile) -> Rule:
    """The rule for data of this task and size."""
    return next(rule for rule in RULES if rule.task == profile.task and profile.pairs <= rule.max_pairs)


def candidates(profile: DataProfile, has_gpu: bool, rivals: bool = False) -> list[Candidate]:
    """The systems to choose from for this data and machine, the best first; in a race, rivals too."""
    rule = find_rule(profile)
    every = (*rule.candidates, *rule.rivals) if rivals else rule.candidates
    return [candidate for candidate in every if has_gpu or not candidate.gpu_only]


def settings(profile: DataProfile, candidate: Candidate, valid_pairs: int, has_gpu: bool) -> dict[str, Any]:
    """What follows from data and machine, over the preset, by dotted keys; without paths, steps and intervals."""
    chosen = {**_tokenizer_settings(profile, candidate), **candidate.settings}
    if needs_decomposition(profile):
        chosen["data.normalization"] = "nfd"
    if has_gpu:
        chosen["training.precision"] = "bfloat16"
    chosen |= _length_settings(profile)
    if valid_pairs:
        metric = validation_metric(profile, valid_pairs)
        chosen |= {
            "training.validate_metrics": [] if metric == "loss" else [_METRIC_PARTS.get(metric, metric)],
            "training.best": metric,
            "training.validate_examples": min(valid_pairs, 500),
            "training.patience": PATIENCE,
        }
    return chosen


def needs_decomposition(profile: DataProfile) -> bool:
    """Whether sources of letters are syllables that Unicode can take apart, such as Korean, and targets are not."""
    source, target = profile.source, profile.target
    if source.unit != "letters" or target is None or target.alphabet > MANY_CHARACTERS:
        return False
    return source.alphabet - source.decomposed > MANY_SYLLABLES


_METRIC_PARTS: dict[str, Any] = {"bleu-words": {"name": "bleu", "tokenize": "none"}}


def validation_metric(profile: DataProfile, valid_pairs: int) -> str:
    """The metric that selects the best checkpoint: whole outputs where they are short and many, else parts of them."""
    fine = {"pronunciation": "per", "strings": "cer"}
    if profile.task in fine:
        return "exact" if valid_pairs >= MIN_VALID_FOR_EXACT else fine[profile.task]
    by_task = {"sentences": "bleu", "commands": "exact", "code": "bleu", "image": "bleu", "audio": "wer"}
    return by_task.get(profile.task, "loss")


def interval_settings(steps: int, warmup: int) -> dict[str, Any]:
    """How often to validate and save, and a warm-up of at most a tenth, for a training of so many steps."""
    every = max(steps // VALIDATIONS, min(MIN_INTERVAL, steps))
    return {
        "training.steps": steps,
        "training.validate_every": every,
        "training.save_every": every,
        "training.schedule.warmup": max(min(warmup, steps // 10), 1),
    }


def _tokenizer_settings(profile: DataProfile, candidate: Candidate) -> dict[str, Any]:
    """The tokenizers for the units of both sides, with sizes for the number of pairs."""
    source, target = profile.source, profile.target
    if profile.task in ("image", "audio"):
        assert target is not None
        return {"tokenizer.target": _tokenizer(target, profile.pairs)}
    if candidate.preset in ("characters-lstm", "characters-transformer", "pronunciation"):
        assert target is not None
        tokenizer = _tokenizer(source, profile.pairs)
        if source.has_features:
            tokenizer = {"name": "characters", "features": True}
        copies = source.has_features or profile.copied >= MOSTLY_COPIED  # letters, as inflection and spelling do
        shares = candidate.preset == "characters-transformer" and target.unit == "letters" and not target.has_features
        if copies and shares:
            shared = {"tokenizer.target": None, "tokenizer.joint": True, "model.tie": "all", **_dropout(0.2)}
            if source.alphabet <= MANY_CHARACTERS:
                return shared | {"tokenizer.source": tokenizer}
            # Rare characters are numbered and copied, as unseen ones have to be.
            numbered = {"name": "characters", "features": source.has_features, "min_count": MIN_CHARACTER_COUNT}
            return shared | {
                "tokenizer.source": numbered,
                "tokenizer.copy_slots": 6,
                "generation.allow_unk": False,
            }
        return {"tokenizer.source": tokenizer, "tokenizer.target": _tokenizer(target, profile.pairs)}
    if candidate.preset == "commands":
        return {f"tokenizer.{name}": _symbols(side) for name, side in (("source", source), ("target", target)) if side}
    if candidate.preset in ("transformer-tiny", "classifier"):
        return {"tokenizer.source": {"name": "bpe", "size": subword_count(profile.pairs)}}
    return {}


def _tokenizer(side: SideProfile, pairs: int) -> Any:
    if side.unit == "letters":
        return "characters"
    return "symbols" if side.unit != "sentences" else {"name": "bpe", "size": subword_count(pairs)}


def _symbols(side: SideProfile) -> Any:
    """Symbols of a closed vocabulary; of an open one, those seen once are left to <unk>, so that it is learned."""
    return "symbols" if side.unit in ("closed", "symbols") else {"name": "symbols", "min_count": 2}


def subword_count(pairs: int) -> int:
    """The size of a subword vocabulary: 1,000 for 1,000 pairs, 4,000 for 10,000, 8,000 for 100,000 and more."""
    return 1_000 if pairs < 3_000 else 4_000 if pairs < 20_000 else 8_000


def _length_settings(profile: DataProfile) -> dict[str, Any]:
    """Limits that leave nothing out but the longest few in a thousand, and outputs as long as targets are."""
    chosen: dict[str, Any] = {}
    for key, side in (("data.max_source", profile.source), ("data.max_target", profile.target)):
        if side is None or (key == "data.max_source" and profile.task in ("image", "audio")):
            continue
        longest = (
            side.longest if side.unit == "letters" else side.longest_words * (2 if side.unit == "sentences" else 1)
        )
        chosen[key] = max(64, -(-2 * longest // 32) * 32)
    if profile.target is not None and profile.task in ("commands", "code"):
        chosen["generation.max_length_ratio"] = 0.0
        chosen["generation.max_length_extra"] = min(chosen["data.max_target"], 1000)
    return chosen
