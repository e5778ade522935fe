"""From a config to its parts: the readers of its sources, and its model.

    source_readers(config)       what reads the sources, where they are files
    build_model(config, sizes)   the model, freshly initialized
    build_meta_model(config)     the same without memory, to ask for its size and which engines serve it

rehearsal.py runs a tiny batch through the model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dragoman.config.schema import Config
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Modality
from dragoman.nn.frontends import frontend_class
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.text import codec as codecs
from dragoman.text.codec import Codec, SecondSourceReader

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
    templates = options.source_template, options.target_template
    return codecs.build_codec(options.source, target, options.joint, form, *source_readers(config), *templates)


def build_model(config: Config, source_size: int, target_size: int, second_source_size: int = 0) -> Seq2Seq:
    """Build the model of a config, freshly initialized, for vocabularies (or input widths) of these sizes."""
    options = {key: getattr(config.model, key) for key in type(config.model).model_fields if key != "extend"}
    return Seq2Seq(source_size, target_size, second_source_size, **options)


def sizes_with_vocabulary_of_8(config: Config) -> tuple[int, int, int]:
    """The sizes of build_model for vocabularies of 8, with the widths of sources that are files."""
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
        return build_model(config, *(sizes or sizes_with_vocabulary_of_8(config)))


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
