"""From a config to its parts: the readers of its sources, its model, and a rehearsal of both.

    source_readers(config)       what reads the sources, where they are files
    build_model(config, sizes)   the model, freshly initialized
    build_meta_model(config)     the same without memory, to ask for its size and which engines serve it
    rehearse(config)             one tiny batch through that model

A width that does not fit fails in the rehearsal, before data is read.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dragoman.config import compatibility
from dragoman.config.schema import Config
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Capacity, Memory, Modality, Output
from dragoman.nn.frontends import frontend_class
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.text import codec as codecs
from dragoman.text.codec import Codec, SecondSourceReader

PARTS = ("encoder", "second_source.encoder", "decoder", "head")  # whose outputs a rehearsal checks
NEEDS_MEMORY = (RuntimeError, TypeError, ValueError)  # raised by a part of a user's that computes as it is built
ARITHMETIC = frozenset(("mul", "add", "sub", "div", "neg", "exp", "sin", "cos"))
MAX_TENSORS = 12_000  # that building a model may make: a Transformer's layer takes 30


def source_readers(config: Config) -> tuple[Modality | None, SecondSourceReader | None]:
    """Build the modality of the first source (None: text), and what reads the second (None: there is none)."""

    def modality(frontend: Part) -> Modality | None:
        return frontend_class(frontend).build_modality(frontend.options, config.data.files)

    second = config.model.second_source
    return modality(config.model.frontend), None if second is None else modality(second.frontend) or "text"


def build_codec(config: Config) -> Codec:
    """Build the codec of a config, whose tokenizers have yet to be learned or restored."""
    options, form = config.tokenizer, config.data.normalization
    target = options.target or options.source
    return codecs.build_codec(options.source, target, options.joint, form, *source_readers(config))


def build_model(config: Config, source_size: int, target_size: int, second_source_size: int = 0) -> Seq2Seq:
    """Build the model of a config, freshly initialized, for vocabularies (or input widths) of these sizes."""
    options = {key: getattr(config.model, key) for key in type(config.model).model_fields}
    return Seq2Seq(source_size, target_size, second_source_size, **options)


def _sizes_with_vocabulary_of_8(config: Config) -> tuple[int, int, int]:
    source_size, second_source_size = (
        8 if reader is None or isinstance(reader, str) else reader.width for reader in source_readers(config)
    )
    return source_size, 8, second_source_size


def build_meta_model(
    config: Config,
    sizes: tuple[int, int, int] | None = None,
    max_numbers: int | None = None,
    max_tensors: int = MAX_TENSORS,
) -> Seq2Seq:
    """Build the model of a config on torch's meta device, without memory and without initial values.

    `sizes` are those of build_model; by default its vocabularies have a size of 8. ModelTooLarge as soon as the tensors
    that building makes have more than `max_numbers` numbers (None: what this machine's memory holds), or are too many.
    """
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 if max_numbers is None else max_numbers
    with torch.device("meta"), _SizeLimit(limit, max_tensors):
        return build_model(config, *(sizes or _sizes_with_vocabulary_of_8(config)))


class ModelTooLarge(PartError):
    """A model that is larger than allowed."""


class _SizeLimit(TorchFunctionMode):
    """Count the tensors that torch's functions return, up to a limit; what only fills a tensor is not called."""

    def __init__(self, max_numbers: int, max_tensors: int) -> None:
        super().__init__()
        self.numbers_left, self.tensors_left = max_numbers, max_tensors

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__"):
            return args[0] if args else kwargs.get("tensor")
        try:
            # For arithmetic on the meta device torch would import 900 modules, which take a second; shapes are enough.
            if name == "arange":
                func, args = torch.empty, (len(range(*args)),)
            elif name == "randn":
                func = torch.empty
            elif name in ARITHMETIC:
                shape = np.broadcast_shapes(*(x.shape for x in args if isinstance(x, Tensor)))
                func, args, kwargs = torch.empty, (shape,), {}
            elif name == "stack" and args[1:] == (-1,):
                func, args = torch.empty, ((*args[0][0].shape, len(args[0])),)
            result = func(*args, **kwargs)
        except (RuntimeError, TypeError, OverflowError) as error:
            if "overflow" not in str(error).lower():
                raise
            raise ModelTooLarge("its sizes are beyond what can be counted; lower its widths") from None
        if isinstance(result, Tensor):
            self.numbers_left -= result.numel()
            self.tensors_left -= 1
            if self.numbers_left < 0:
                raise ModelTooLarge("too large for this machine's memory; lower its widths and layers")
            if self.tensors_left < 0:
                raise ModelTooLarge(f"it has more than {MAX_TENSORS:,} weights; lower its layers")
        return result


def rehearse(config: Config) -> list[str]:
    """Build a config's model with a vocabulary of 8 and run a tiny batch through it; return what fails as problems."""
    state = torch.random.get_rng_state()
    try:
        with suppress(*NEEDS_MEMORY):
            build_meta_model(config)
        model = build_model(config, *_sizes_with_vocabulary_of_8(config)).eval()
        batch = compatibility.rehearsal_batch(config, *source_readers(config))
        for name, part in model.named_modules():
            if name in PARTS:
                part.register_forward_hook(partial(_check_shapes, name))
        with torch.no_grad():
            model.loss(batch)
            if model.decoder is not None:
                memory = model.encode(*batch.encoder_inputs)
                log_p, _ = model.step(batch.target[:, :1], model.start(memory, Capacity(1, 2)))
                expected, found = (len(batch), 1, model.decoder.d), (*log_p.shape[:-1], model.decoder.d)
                _compare_shapes("decoder", model.decoder, "o of a step", expected, found)
    except PartError as error:
        return [f"model: {error}"]
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            if (where := _find_own_part(error)) is None:
                raise
            return [f"model: {where}: {error}"]
        return ["model: too large for this machine's memory; lower its widths"]
    finally:
        torch.random.set_rng_state(state)
    return []


def _check_shapes(name: str, part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """Raise PartError if what a part returns is not as its contract in core/types.py says."""
    kind = Memory if name.endswith("encoder") else Output
    if not isinstance(output, kind):
        raise PartError(f"{name} ({type(part).__name__}): must return {kind.__name__}, found {type(output).__name__}")
    d, x = part.d, inputs[0].states if name == "head" else inputs[0]
    shapes: dict[str, tuple[Any, ...]] = {"o": (len(x), x.shape[1] if name == "decoder" else None, d)}
    if kind is Memory:
        shapes = {"states": (len(x), None, d), "lengths": (len(x),), "summary": (len(x), d)}
    for field, expected in shapes.items():
        _compare_shapes(name, part, field, expected, tuple(getattr(output, field).shape))


def _compare_shapes(name: str, part: nn.Module, field: str, expected: tuple[Any, ...], found: tuple[int, ...]) -> None:
    """Raise PartError unless a shape is the expected one, in which None is any size."""
    if len(found) != len(expected) or any(size not in (None, own) for size, own in zip(expected, found, strict=True)):
        sizes = ", ".join("any" if size is None else str(size) for size in expected)
        raise PartError(f"{name} ({type(part).__name__}): its {field} must have the shape ({sizes}), found {found}")


def _find_own_part(error: Exception) -> str | None:
    """The class, file and line of the innermost part in an error's traceback, if it is not one of ours; else None."""
    own = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        part, package = frame.f_locals.get("self"), str(frame.f_globals.get("__name__")).partition(".")[0]
        if isinstance(part, nn.Module) and package not in ("dragoman", "torch"):
            own = f"{type(part).__name__} ({frame.f_code.co_filename}:{line})"
    return own
