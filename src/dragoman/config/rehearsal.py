"""A rehearsal of a config: its model is built small and one tiny batch runs through it, before any data is read.

A part of a user's own that returns a wrong shape, or raises, becomes one sentence with its file, its name, and the
expected and the found shape:

    mine.py: encoder 'mine' returned states of (2, 3, 7); expected (2, 3, 8): its .d says 8
    mine.py: score 'mine' failed in line 12, given q (2, 2, 8), keys (2, 3, 9): mat1 and mat2 shapes cannot be …

Parts that are no modules, tokenizers and metrics, are tried on two short texts if they are a user's own.
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.config import compatibility
from dragoman.config.building import (
    NEEDS_MEMORY,
    build_meta_model,
    build_model,
    sizes_with_vocabulary_of_8,
    source_readers,
)
from dragoman.config.schema import Config
from dragoman.core.errors import DragomanError, PartError
from dragoman.core.registry import Part, Registry
from dragoman.core.types import EOS, Capacity, Memory, Output
from dragoman.evaluation.metrics import Metric, metrics
from dragoman.nn.adapters import adapters
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.frontends import frontends
from dragoman.nn.heads import heads
from dragoman.nn.layers import norms
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import positions
from dragoman.nn.scores import scores
from dragoman.nn.token_mixers import mixers
from dragoman.text.tokenizers import tokenizers

MODULE_KINDS: tuple[Registry[Any], ...] = (
    *(encoders, decoders, heads, frontends, scores, normalizers, mixers, positions, norms),
)
KINDS: tuple[Registry[Any], ...] = (*MODULE_KINDS, tokenizers, metrics)
CONTRACTS = ("encoder", "second_source.encoder", "decoder", "head")  # modules whose outputs are always checked
TEXTS = ("a bc a", "c ab")


def rehearse(config: Config) -> list[str]:
    """Build a config's model with a vocabulary of 8 and run a tiny batch through it; return what fails as problems."""
    state = torch.random.get_rng_state()
    try:
        for key, rehearse_parts in REHEARSALS.items():
            try:
                rehearse_parts(config)
            except PartError as error:
                return [f"{key}: {error}"]
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        return ["model: too large for this machine's memory; lower its widths"]
    finally:
        torch.random.set_rng_state(state)
    return []


def _rehearse_model(config: Config) -> None:
    outputs: list[tuple[nn.Module, Any]] = []  # of own parts, the last one last
    with _explain_own_parts(outputs):
        with suppress(*NEEDS_MEMORY):
            build_meta_model(config)
        model = build_model(config, *sizes_with_vocabulary_of_8(config)).eval()
        batch = compatibility.rehearsal_batch(config, *source_readers(config))
        for name, part in model.named_modules():
            if is_own(part):
                part.register_forward_hook(lambda part, inputs, output: outputs.append((part, output)))
                part.register_forward_hook(_check_attention_part)
            if name in CONTRACTS:
                part.register_forward_hook(partial(_check_contract, name))
        with torch.no_grad():
            model.loss(batch)
            if model.decoder is not None:
                memory = model.encode(*batch.encoder_inputs)
                log_p, _ = model.step(batch.target[:, :1], model.start(memory, Capacity(1, 2)))
                expected, found = (len(batch), 1, model.decoder.d), (*log_p.shape[:-1], model.decoder.d)
                _compare_shapes(model.decoder, "o of a step", expected, found)


def _rehearse_adapter(config: Config) -> None:
    """Check that the adapter fits the model, which takes no memory for it."""
    if config.training.adapter is not None:
        with suppress(*NEEDS_MEMORY):
            adapters.build(config.training.adapter).check(build_meta_model(config))


# -- shapes ------------------------------------------------------------------------------------------------------------


def _check_contract(name: str, part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """Raise PartError if what an encoder, decoder or head returns is not as its contract in core/types.py says."""
    kind = Memory if name.endswith("encoder") else Output
    if not isinstance(output, kind):
        raise PartError(f"{describe_part(part)} returned a {type(output).__name__}; expected a {kind.__name__}")
    d, x = getattr(part, "d", None), inputs[0].states if name == "head" else inputs[0]
    if not isinstance(d, int):
        raise PartError(
            f"{describe_part(part)} has a .d of {d!r:.40}; expected a whole number, the width of its outputs"
        )
    shapes: dict[str, tuple[Any, ...]] = {"o": (len(x), x.shape[1] if name == "decoder" else None, d)}
    if kind is Memory:
        shapes = {"states": (len(x), None, d), "lengths": (len(x),), "summary": (len(x), d)}
    for field, expected in shapes.items():
        _compare_shapes(part, field, expected, _shape(part, field, getattr(output, field)), f"its .d says {d}")


def _check_attention_part(part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """Raise PartError if a score or normalizer of a user's own returns no scores or weights for its inputs."""
    if _find_name(scores, part) is not None:
        q, keys = inputs[:2]
        expected = (*q.shape[:-1], keys.shape[-2])
        because = f"a score for each of {q.shape[-2]} queries and {keys.shape[-2]} keys"
        _compare_shapes(part, "e", expected, _shape(part, "e", output), because)
    if _find_name(normalizers, part) is not None:
        if not isinstance(output, tuple) or len(output) != 2 or not isinstance(output[1], dict):
            found = type(output).__name__
            raise PartError(f"{describe_part(part)} returned a {found}; expected weights and a dict of extras")
        expected = tuple(inputs[0].shape)
        _compare_shapes(part, "weights", expected, _shape(part, "weights", output[0]), "the shape of the scores")


def _shape(part: object, field: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, Tensor):
        raise PartError(f"{describe_part(part)} returned a {type(value).__name__} as {field}; expected a Tensor")
    return tuple(value.shape)


def _compare_shapes(
    part: object, field: str, expected: tuple[Any, ...], found: tuple[int, ...], because: str = ""
) -> None:
    """Raise PartError unless a shape is the expected one, in which None is any size."""
    if len(found) == len(expected):
        expected = tuple(own if size is None else size for size, own in zip(expected, found, strict=True))
    if found != expected:
        sizes = ", ".join("any" if size is None else str(size) for size in expected)
        sizes += "," if len(expected) == 1 else ""
        reason = f": {because}" if because else ""
        raise PartError(f"{describe_part(part)} returned {field} of {found}; expected ({sizes}){reason}")


# -- tokenizers and metrics --------------------------------------------------------------------------------------------


def _rehearse_tokenizers(config: Config) -> None:
    """Try the tokenizers of a config that are a user's own."""
    for part in (config.tokenizer.source, config.tokenizer.target):
        if part is not None and is_own(tokenizers[part.name]):
            _rehearse_tokenizer(part)


def _rehearse_tokenizer(part: Part) -> None:
    where = describe_part(None, tokenizers, part.name)
    with _explain_failure(where):
        tokenizer, restored = tokenizers.build(part), tokenizers.build(part)
        counts = Counter(unit for text in TEXTS for unit in tokenizer.learning_units(text))
        try:
            tokenizer.learn_from_counts(counts, ["<to:xx>"])
        except DragomanError:
            return  # it wants more text than two lines
        restored.restore(tokenizer.to_files())
        for text in TEXTS:
            ids = tokenizer.encode(text)
            if not isinstance(ids, list) or not all(isinstance(i, int) and EOS < i < len(tokenizer) for i in ids):
                allowed = f"a list of ids from {EOS + 1} to {len(tokenizer) - 1}"
                raise PartError(f"{where} encoded {text!r} as {ids!r:.80}; expected {allowed}")
            if (again := restored.encode(text)) != ids:
                raise PartError(f"{where} encoded {text!r} as {ids}, and as {again!r:.80} after it was restored")
            if not isinstance(found := tokenizer.decode(ids), str):
                raise PartError(f"{where} decoded {ids} to a {type(found).__name__}; expected a text")
            if len(pieces := tokenizer.pieces(ids)) != len(ids):
                raise PartError(f"{where} returned {len(pieces)} pieces for {len(ids)} ids; expected one for each")


def _rehearse_metrics(config: Config) -> None:
    """Try the metrics of the validation that are a user's own."""
    for part in config.training.validate_metrics:
        if is_own(metrics[part.name]):
            where = describe_part(None, metrics, part.name)
            with _explain_failure(where):
                _check_metric(where, metrics.build(part))


def _check_metric(where: str, metric: Metric) -> None:
    missing = [name for name in ("label", "higher_is_better", "signature") if not hasattr(metric, name)]
    if missing:
        raise PartError(f"{where} lacks {' and '.join(missing)}; see Metric in dragoman.evaluation.metrics")
    stats = np.asarray(metric.statistics(list(TEXTS), [[text] for text in TEXTS]))
    if stats.ndim != 2 or len(stats) != len(TEXTS):
        raise PartError(f"{where} returned statistics of {stats.shape}; expected ({len(TEXTS)}, any): a row an item")
    for name, totals, shape in (("one corpus", stats.sum(0), ()), ("3 corpora", np.stack([stats.sum(0)] * 3), (3,))):
        found = np.asarray(metric.score(totals))
        if found.shape != shape:
            raise PartError(f"{where} returned scores of {found.shape} for {name}; expected {shape}")


REHEARSALS = {  # by the key of a config that a problem begins with
    "tokenizer": _rehearse_tokenizers,
    "training.validate_metrics": _rehearse_metrics,
    "model": _rehearse_model,
    "training.adapter": _rehearse_adapter,
}


# -- whose part it is --------------------------------------------------------------------------------------------------


def is_own(part: object) -> bool:
    """Whether a part, or the class or function that makes it, is a user's own: neither ours nor torch's."""
    module = getattr(part, "__module__", None) or type(part).__module__
    return str(module).partition(".")[0] not in ("dragoman", "torch")


def describe_part(part: object, registry: Registry[Any] | None = None, name: str = "") -> str:
    """Name a part by its file, kind and registered name, as in `mine.py: encoder 'mine'`."""
    maker: Any = registry[name] if registry is not None else type(part)
    for kind in KINDS if registry is None else ():
        if (found := _find_name(kind, part)) is not None:
            registry, name = kind, found
            break
    file = ""
    if is_own(maker):
        with suppress(TypeError, OSError):
            file = f"{os.path.basename(inspect.getfile(maker))}: "
    return f"{file}{type(part).__name__}" if registry is None else f"{file}{registry.kind} '{name}'"


def _find_name(registry: Registry[Any], part: object) -> str | None:
    return next((name for name in registry.names if registry[name] is type(part)), None)


@contextmanager
def _explain_own_parts(outputs: Sequence[tuple[nn.Module, Any]]) -> Iterator[None]:
    """Turn an error that a user's own part raises into a PartError with its file, name, line and inputs.

    An error elsewhere is blamed on the last of the own parts' `outputs`, if there are any.
    """
    try:
        yield
    except (DragomanError, MemoryError):
        raise
    except Exception as error:
        if (where := _find_own_part(error)) is None:
            if not outputs:
                raise
            part, output = outputs[-1]
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            where = f"{describe_part(part)} returned {shape}, and the model failed with it"
        raise _part_error(where, error) from error


@contextmanager
def _explain_failure(where: str) -> Iterator[None]:
    try:
        yield
    except (DragomanError, MemoryError):
        raise
    except Exception as error:
        frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_own_frame(frame)]
        place = f" failed in line {frames[-1][1]}" if frames else ""
        raise _part_error(f"{where}{place}", error) from error


def _part_error(where: str, error: Exception) -> PartError:
    reason = " ".join(str(error).split()) or "no reason given"
    kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
    return PartError(f"{where}: {kind}{reason}"[:600])


def _find_own_part(error: Exception) -> str | None:
    """The innermost part in an error's traceback that is a user's own, with the line and what it was given."""
    found, outer = None, None
    for frame, line in traceback.walk_tb(error.__traceback__):
        part = frame.f_locals.get("self")
        if not isinstance(part, nn.Module) or not is_own(part):
            continue
        if _is_own_frame(frame):
            found = f"{describe_part(part)} failed in line {line}{_describe_inputs(frame)}"
        outer = outer or describe_part(part)  # torch's code on its behalf, such as a missing attribute
    return found or outer


def _is_own_frame(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] not in ("dragoman", "torch")


def _describe_inputs(frame: FrameType) -> str:
    code = frame.f_code
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    values = {name: frame.f_locals.get(name) for name in names}
    shapes = [f"{name} {tuple(value.shape)}" for name, value in values.items() if isinstance(value, Tensor)]
    return f", given {', '.join(shapes)}" if shapes else ""
