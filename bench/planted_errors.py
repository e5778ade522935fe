"""Plant wrong pairs in a training set, and see whether `dragoman blame` names them.

    python bench/planted_errors.py [--models lstm,transformer] [--scenarios words,rule,rules] [--seeds 1,2] [--retrain]

Words of a made-up spelling are to be pronounced, which every model learns to do without a mistake; so an answer that is
wrong with 50 wrong pairs in the training set, and right when the model is trained without them, was spoiled by them.

    words   50 words with the pronunciation of another word; asked are these words, and words one letter away
    rule    50 words in which "ch" is pronounced f; asked are other words with "ch"
    rules   five such rules with 10 words each

Compared are the rankings of all training lines by edit distance of the sources, by nearest decoder states, by the inner
product of the output layer's gradients, and by `dragoman blame`. An answer counts if a culprit (the word itself, or a
pair with the same wrong rule) is among the first five. With --retrain, `mended` is the share of spoiled answers that
are right after a training without the first five lines of each, `changed` of those that are no longer the same.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor, nn

import dragoman
from dragoman import config as configs
from dragoman import training
from dragoman.core import yaml
from dragoman.core.types import PAD, Example
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection import attribution
from dragoman.inspection.training_index import TrainingIndex, batch_rows, build_index

VOWELS, CONSONANTS = "aeiou", "bdgklmnprtvz"
SOUNDS = {"ch": "tʃ", "sh": "ʃ", "th": "θ", "ph": "f", "nh": "ɲ"}
WRONG = {"ch": "f", "sh": "m", "th": "g", "ph": "l", "nh": "k"}
PLANTED, FIRST = 50, 5
RIGHT_PER_WRONG = 0.5  # right pairs with the rule's letters beside each wrong one

CONFIG = """
name: planted
seed: {seed}
data: {{train: {folder}/train.tsv, cache: {folder}/cache}}
tokenizer: {{source: characters, target: symbols}}
model: {model}
training:
  steps: {steps}
  batch_sentences: 32
  batch_tokens: 4096
  optimizer: {{name: adam, rate: {rate}}}
  schedule: {{name: linear, warmup: 50}}
  label_smoothing: 0.0
  save_every: 100000
runtime: {{device: cpu, threads: 1}}
"""
MODELS = {
    "lstm": """
  width: 48
  tie: none
  encoder: {name: rnn, cell: lstm, layers: 1, width: 96, directions: both, dropout: 0.0}
  decoder: {name: rnn, cell: lstm, layers: 1, width: 96, order: after, score: additive, dropout: 0.0}""",
    "transformer": """
  width: 64
  encoder: {name: transformer, layers: 2, heads: 4, feedforward: 128, dropout: 0.0}
  decoder: {name: transformer, layers: 2, heads: 4, feedforward: 128, dropout: 0.0}""",
}
RATES = {"lstm": 5.0e-3, "transformer": 2.0e-3}
STEPS = {"lstm": 800, "transformer": 1200}  # 40 to 60 times all lines: long enough to learn single words by heart

Pairs = dict[str, str]  # word → pronunciation
Ranking = list[int]  # numbers of training lines, from 0, the strongest first


@dataclass
class Experiment:
    """A training set with planted errors, and the words to ask with the planted words that may spoil them."""

    right: Pairs
    wrong: Pairs
    culprits: dict[str, set[str]]  # of each word to ask


# -- data --------------------------------------------------------------------------------------------------------------


def pronounce(word: str, sounds: dict[str, str] = SOUNDS) -> str:
    """The sounds of a word: `sounds` of two letters; g is soft before e and i, vowels are long before r."""
    phones, i = [], 0
    while i < len(word):
        letters = word[i : i + 2]
        if letters in sounds:
            phones.append(sounds[letters])
            i += 2
            continue
        after = word[i + 1 : i + 2]
        soft = word[i] == "g" and after in ("e", "i")
        phones.append("dʒ" if soft else word[i] + "ː" if word[i] in VOWELS and after == "r" else word[i])
        i += 1
    return " ".join(phones)


def make_words(rng: random.Random, letters: str = "") -> Iterator[str]:
    """Yield different words of two to four syllables, with these letters in one of them."""
    seen: set[str] = set()
    while True:
        syllables = [rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(2, 4))]
        if rng.random() < 0.4:
            syllables[-1] += rng.choice("nrt")
        if letters:
            at = rng.randrange(len(syllables))
            syllables[at] = letters + syllables[at][1:]
        word = "".join(syllables)
        if word not in seen:
            seen.add(word)
            yield word


def plant_errors(scenario: str, seed: int, size: int = 600, planted: int = PLANTED, asked: int = 60) -> Experiment:
    """Build a training set with planted errors."""
    rng = random.Random(f"{scenario} {seed}")
    plain = make_words(rng)
    right: Pairs = {word: pronounce(word) for word in islice(plain, size)}
    if scenario == "words":
        words = list(islice(plain, planted))
        wrong = {word: pronounce(next(plain)) for word in words}
        culprits = {word: {word} for word in words}
        for word in words:
            near = change_letter(word, rng)
            if near not in right and near not in wrong:
                culprits.setdefault(near, {word})
        return Experiment(right, wrong, culprits)
    wrong, culprits = {}, {}
    rules = list(SOUNDS) if scenario == "rules" else ["ch"]
    for letters in rules:
        with_letters = make_words(rng, letters)
        own = list(islice(with_letters, planted // len(rules)))
        wrong |= {word: pronounce(word, SOUNDS | {letters: WRONG[letters]}) for word in own}
        right |= {word: pronounce(word) for word in islice(with_letters, round(len(own) * RIGHT_PER_WRONG))}
        culprits |= {word: set(own) for word in islice(with_letters, asked // len(rules))}
    return Experiment(right, wrong, culprits)


def change_letter(word: str, rng: random.Random) -> str:
    """Replace a consonant of a word by another."""
    at = rng.choice([i for i, letter in enumerate(word) if letter in CONSONANTS])
    return word[:at] + rng.choice([letter for letter in CONSONANTS if letter != word[at]]) + word[at + 1 :]


# -- trainings ---------------------------------------------------------------------------------------------------------


def train(folder: Path, model: str, pairs: Sequence[tuple[str, str]], seed: int, steps: int = 0) -> Pipeline:
    """Train a model on pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    text = CONFIG.format(seed=seed, folder=folder, model=MODELS[model], steps=steps or STEPS[model], rate=RATES[model])
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    config = configs.validate(yaml.read(folder / "config.yaml"), "planted errors")
    for _ in training.run(config, folder / "run"):
        pass
    return dragoman.load(folder / "run", "cpu")


def answers(pipeline: Pipeline, words: Sequence[str]) -> list[str]:
    """The model's answers."""
    return [prediction.text for prediction in pipeline.predict(words, beam=4)]


# -- rankings ----------------------------------------------------------------------------------------------------------


def rank_by_edit_distance(pairs: Sequence[tuple[str, str]], source: str) -> Ranking:
    """Lines by the edit distance of their sources."""
    return sorted(range(len(pairs)), key=lambda i: Levenshtein.distance(source, pairs[i][0]))


@torch.inference_mode()
def rank_by_model(
    pipeline: Pipeline, index: TrainingIndex, source: str, output: str, similarity: Callable[..., Tensor]
) -> Ranking:
    """Lines by a similarity of the answer's positions and theirs, computed for all of them."""
    answer = pipeline.input_processor.encode_pair(Example(source, output))
    log_p, o = attribution.forward_row(pipeline, answer)
    y, scores = torch.tensor(list(answer.target)), torch.zeros(index.total)
    for lines, batch in batch_rows([index.row(i) for i in range(index.total)], pipeline.device):
        result = pipeline.model(batch)
        line_log_p = torch.log_softmax(result.logits.float(), -1)
        scores[lines] = similarity(y, log_p, o, result.gold, line_log_p, result.output.o)
    return torch.argsort(-scores, stable=True).tolist()


def state_similarity(y: Tensor, log_p: Tensor, o: Tensor, gold: Tensor, line_log_p: Tensor, line_o: Tensor) -> Tensor:
    """The cosine of the nearest state with the same token, summed over the answer."""
    cosines = nn.functional.normalize(line_o, dim=-1) @ nn.functional.normalize(o, dim=-1).T
    return torch.where(gold[..., None] == y, cosines, -1.0).amax(1).sum(-1)


def gradient_similarity(
    y: Tensor, log_p: Tensor, o: Tensor, gold: Tensor, line_log_p: Tensor, line_o: Tensor
) -> Tensor:
    """The inner product of the output layer's gradients of both losses (TracIn at the last checkpoint)."""
    e = log_p.exp() - nn.functional.one_hot(y, log_p.shape[-1])
    line_e = (line_log_p.exp() - nn.functional.one_hot(gold, log_p.shape[-1])) * (gold != PAD)[..., None]
    return torch.einsum("tv,bjv,td,bjd->b", e, line_e, o, line_o)


def rank_by_blame(pipeline: Pipeline, index: TrainingIndex, source: str, output: str) -> Ranking:
    """Lines as `dragoman blame` names them."""
    found = attribution.attribute_by_index(pipeline, index, source, output=output, top=FIRST)
    return [line.line - 1 for line in found.lines]


# -- the measure -------------------------------------------------------------------------------------------------------


def measure(folder: Path, model: str, scenario: str, seed: int, retrain: bool = True) -> dict[str, float]:
    """Train with and without the planted pairs; return the number of spoiled answers and the share of each ranking."""
    experiment = plant_errors(scenario, seed)
    pairs = [*experiment.right.items(), *experiment.wrong.items()]
    random.Random(seed).shuffle(pairs)
    words = list(experiment.culprits)
    pipeline = train(folder / "with", model, pairs, seed)
    without = train(folder / "without", model, [pair for pair in pairs if pair[0] not in experiment.wrong], seed)
    asked = list(zip(words, answers(pipeline, words), answers(without, words), strict=True))
    spoiled = {word: now for word, now, then in asked if now != pronounce(word) == then}
    result: dict[str, float] = {
        "right with": sum(now == pronounce(word) for word, now, _ in asked) / len(words),
        "right without": sum(then == pronounce(word) for word, _, then in asked) / len(words),
        "spoiled": len(spoiled),
    }
    for name, rank in build_rankings(pipeline, pairs).items():
        first = {word: {pairs[i][0] for i in rank(word, answer)[:FIRST]} for word, answer in spoiled.items()}
        hits = [len(lines & experiment.culprits[word]) for word, lines in first.items()]
        result[name] = mean(map(bool, hits))
        result[f"{name}, share of five"] = mean(hits) / FIRST
        if retrain and name in ("edit distance", "blame"):
            left_out = set().union(*first.values())
            other = train(folder / f"without {name}", model, [pair for pair in pairs if pair[0] not in left_out], seed)
            again = dict(zip(spoiled, answers(other, list(spoiled)), strict=True))
            result[f"lines left out by {name}"] = len(left_out)
            result[f"changed by {name}"] = mean(again[word] != answer for word, answer in spoiled.items())
            result[f"mended by {name}"] = mean(again[word] == pronounce(word) for word in spoiled)
    return result


def build_rankings(pipeline: Pipeline, pairs: Sequence[tuple[str, str]]) -> dict[str, Callable[[str, str], Ranking]]:
    """The rankings to compare, each of a source and the model's answer to it."""
    index = build_index(pipeline)
    return {
        "edit distance": lambda word, answer: rank_by_edit_distance(pairs, word),
        "nearest states": lambda word, answer: rank_by_model(pipeline, index, word, answer, state_similarity),
        "gradients": lambda word, answer: rank_by_model(pipeline, index, word, answer, gradient_similarity),
        "blame": lambda word, answer: rank_by_blame(pipeline, index, word, answer),
    }


def mean(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    every = list(values)
    return sum(every) / max(len(every), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"models": "lstm,transformer", "scenarios": "words,rule,rules", "seeds": "1,2"}.items():
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--retrain", action="store_true", help="also train without the first five lines")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, given.seeds.split(",")):
        for scenario in given.scenarios.split(","):
            for model in given.models.split(","):
                with tempfile.TemporaryDirectory() as folder:
                    result = measure(Path(folder), model, scenario, seed, given.retrain)
                shown = ", ".join(f"{name} {value:.2f}" for name, value in result.items())
                print(f"{model} {scenario} {seed}: {shown}", flush=True)


if __name__ == "__main__":
    main()
