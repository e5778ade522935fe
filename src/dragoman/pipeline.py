"""Text → text and pairs → scores, with a trained model. What `import dragoman` offers.

    model = load("runs/g2p")
    model.predict(["dragoman"], beam=5, nbest=3)
    model.score([("dragoman", "D R AE G AH M AH N")])

Inputs are sorted by length and cut into batches inside; neither changes a result, and results come back in the order of
the inputs. A blank input has a blank result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dragoman import checkpoint
from dragoman.config import Config
from dragoman.core.errors import DataError, UserError
from dragoman.core.interfaces import EOS, Batch, Example, Hypothesis
from dragoman.core.registry import Part
from dragoman.data.batching import collate
from dragoman.nn.attention import watching
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Limits, Search, searches
from dragoman.text.codec import Codec

WINDOW = 4096  # inputs that are sorted together while streaming
PATIENCE = 4  # a source may be this many times as long as those in training before it is cut


@dataclass(frozen=True)
class Prediction:
    """One result; `alternatives` are the next best. Scores are log-probabilities: higher is better."""

    text: str
    score: float  # under the search's length rule
    log_prob: float  # of the whole sequence
    tokens: list[str]
    log_probs: list[float]  # of each token, and of </s> where the result ended by itself
    ended: str  # "end", "length", or "blank" for a blank source
    source_tokens: list[str]
    cut: bool = False  # the source was too long and only its beginning was read
    alternatives: list[Prediction] = field(default_factory=list)
    attention: np.ndarray | None = None  # (target tokens with </s>, source tokens), on request


@dataclass
class Pipeline:
    """A model with its tokenizers, on a device."""

    model: Seq2Seq
    codec: Codec
    config: Config
    device: torch.device
    path: Path | None = None

    # -- text → text -----------------------------------------------------------------------------------------------

    def predict(
        self,
        sources: Sequence[str | Example],
        *,
        beam: int | None = None,
        nbest: int = 1,
        search: Part | None = None,
        attention: bool = False,
    ) -> list[Prediction]:
        """One Prediction for each source, in order. `beam=1` is greedy; the config's search is the default."""
        return list(self.stream(sources, beam=beam, nbest=nbest, search=search, attention=attention))

    def stream(
        self,
        sources: Iterable[str | Example],
        *,
        beam: int | None = None,
        nbest: int = 1,
        search: Part | None = None,
        attention: bool = False,
    ) -> Iterator[Prediction]:
        """The same for any number of sources: reads and answers a window at a time, in order."""
        if isinstance(sources, str):
            raise UserError("predict takes a list of sources; for one source give a list with one: [source]")
        searching = searches.build(self.search_part(beam, nbest, search))
        if not 1 <= nbest <= searching.size:
            raise UserError(f"{nbest} best results need a beam of at least {nbest}, not {searching.size}")
        examples = (source if isinstance(source, Example) else Example(source) for source in sources)
        while window := list(itertools.islice(examples, WINDOW)):
            yield from self._window(window, searching, nbest, attention)

    def search_part(self, beam: int | None, nbest: int, part: Part | None = None) -> Part:
        """Which search to run: the one given, or the config's with another beam size where one is asked for."""
        if beam is not None and beam < 1:
            raise UserError(f"beam is {beam}; it must be at least 1")
        if part is not None:
            return part
        part = self.config.generation.search
        if beam is None:
            return part
        rules = {"length": part.options["length"]} if "length" in part.options else {}
        return Part("greedy") if beam == nbest == 1 else Part("beam", {"size": beam, **rules})

    def _window(self, window: list[Example], search: Search, nbest: int, attention: bool) -> Iterator[Prediction]:
        results: list[Prediction | None] = [None] * len(window)
        sources = [self.codec.encode_source(example) for example in window]
        cuts = [example.cut or len(ids) > self.longest for example, ids in zip(window, sources, strict=True)]
        sources = [ids if len(ids) <= self.longest else [*ids[: self.longest - 1], EOS] for ids in sources]
        for i, example in enumerate(window):
            if not example.source.strip():
                results[i] = Prediction("", 0.0, 0.0, [], [], "blank", self.codec.source_pieces(sources[i]))
        waiting = [i for i in range(len(window)) if results[i] is None]
        for rows in self._batches(waiting, sources, search.size):
            batch = collate([(sources[i], [EOS]) for i in rows], rows).to(self.device)
            found, maps = self._search(batch, search, nbest, attention)
            for i, best, weights in zip(rows, found, maps, strict=True):
                first, *others = [self._prediction(h, sources[i], cuts[i]) for h in best]
                results[i] = replace(first, alternatives=others, attention=weights)
        yield from (result for result in results if result is not None)

    @torch.inference_mode()
    def _search(
        self, batch: Batch, search: Search, nbest: int, attention: bool
    ) -> tuple[list[list[Hypothesis]], list[np.ndarray | None]]:
        self.model.eval()
        memory = self.model.encode(batch.source, batch.source_lengths)
        found = search(
            self.model.step, lambda capacity: self.model.start(memory, capacity), self._limits(batch.source_lengths)
        )
        best = [hypotheses[:nbest] for hypotheses in found]
        if not attention:
            return best, [None] * len(best)
        return best, list(self.attend(batch, [hypotheses[0].tokens for hypotheses in best]))

    def _limits(self, lengths: Tensor) -> Limits:
        options = self.config.generation
        longest = (lengths * options.ratio).long() + options.extra
        if self.model.longest_target is not None:
            longest = longest.clamp(max=self.model.longest_target - 1)
        return Limits(longest.clamp(min=max(options.shortest, 1)), options.shortest)

    def _prediction(self, hypothesis: Hypothesis, source: list[int], cut: bool) -> Prediction:
        return Prediction(
            self.codec.decode(hypothesis.tokens),
            hypothesis.score,
            hypothesis.total,
            self.codec.target_pieces(hypothesis.tokens),
            hypothesis.log_probs,
            hypothesis.ended,
            self.codec.source_pieces(source),
            cut,
        )

    @property
    def longest(self) -> int:
        """The most source tokens that are read; what is longer is cut and flagged."""
        reach = self.model.longest_source
        return PATIENCE * self.config.data.max_source if reach is None else reach

    def _batches(self, rows: list[int], sources: list[list[int]], hypotheses: int) -> Iterator[list[int]]:
        """Rows of like length, as many as a budget of padded tokens allows."""
        budget = max((65536 if self.device.type == "cuda" else 4096) // hypotheses, 1)
        ordered = sorted(rows, key=lambda i: len(sources[i]), reverse=True)
        while ordered:
            count = max(budget // len(sources[ordered[0]]), 1)
            yield ordered[:count]
            ordered = ordered[count:]

    # -- pairs → scores ----------------------------------------------------------------------------------------------

    def score(self, pairs: Iterable[tuple[str, str] | Example]) -> list[float]:
        """log p(target | source) of each pair."""
        return [sum(tokens) for tokens in self.token_scores(pairs)]

    @torch.inference_mode()
    def token_scores(self, pairs: Iterable[tuple[str, str] | Example]) -> list[list[float]]:
        """log p of every target token, </s> included, for each pair."""
        self.model.eval()
        examples = [pair if isinstance(pair, Example) else Example(pair[0], pair[1]) for pair in pairs]
        sources = [self.codec.encode_source(example) for example in examples]
        targets = [self.codec.encode_target(example.target or "") for example in examples]
        sizes = [
            source if len(source) > len(target) else target for source, target in zip(sources, targets, strict=True)
        ]
        for example, source, target in zip(examples, sources, targets, strict=True):
            self._reach("source", len(source), self.model.longest_source, example)
            self._reach("target", len(target), self.model.longest_target, example)
        results: list[list[float]] = [[] for _ in examples]
        for rows in self._batches(list(range(len(examples))), sizes, 1):
            batch = collate([(sources[i], targets[i]) for i in rows], rows).to(self.device)
            for i, log_probs in zip(rows, self.model.token_log_probs(batch).tolist(), strict=True):
                results[i] = log_probs[: len(targets[i])]
        return results

    @staticmethod
    def _reach(side: str, length: int, longest: int | None, example: Example) -> None:
        """A pair is scored whole or not at all."""
        if longest is not None and length > longest:
            text = (
                f"the {side} has {length:,} tokens, and the model's positions reach only {longest:,}. Shorten the pair"
            )
            raise DataError(text, example.file or None, example.line or None)

    @torch.inference_mode()
    def attend(self, batch: Batch, targets: Sequence[Sequence[int]]) -> Iterator[np.ndarray | None]:
        """Where the decoder looked for each token of given targets (and </s>), from one watched pass."""
        rows = [(batch.source[i, : int(batch.source_lengths[i])].tolist(), [*t, EOS]) for i, t in enumerate(targets)]
        forced = collate(rows, list(range(len(rows)))).to(self.device)
        with watching():
            output = self.model.decode(forced.target[:, :-1], self.model.encode(forced.source, forced.source_lengths))
        if output.attention is None:
            yield from (None for _ in rows)
            return
        weights = output.attention.float().cpu().numpy()
        for i, (source, target) in enumerate(rows):
            yield weights[i, : len(target), : len(source)]


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else Apple's GPU, else the CPU; a device that is not there is an error."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, found in there.items() if found)
    if not there.get(name.split(":")[0], False):
        raise UserError(
            f"there is no device '{name}' here; use {' or '.join(k for k, found in there.items() if found)}"
        )
    if name.startswith("cuda"):  # cuDNN's RNNs would round to TF32: 1e-4 per token off the CPU's results
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)


def load(path: str | Path, device: str = "auto") -> Pipeline:
    """A trained model from its model folder or run folder."""
    place = pick_device(device)
    opened = checkpoint.load(path)
    return Pipeline(opened.model.to(place), opened.codec, opened.config, place, opened.path)
