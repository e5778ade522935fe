"""From a config to its parts: the readers of its sources, its model, and a rehearsal of both.

    source_readers(config)       what reads the sources, where they are files
    build_model(config, sizes)   the model, freshly initialized
    build_meta_model(config)     the same without memory, to ask which engines serve it
    rehearse(config)             one tiny batch through that model

A width that does not fit fails in the rehearsal, before data is read.
"""

from __future__ import annotations

import torch

from dragoman.config import compatibility
from dragoman.config.schema import Config
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Capacity, Modality
from dragoman.nn.frontends import frontend_class
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.text import codec as codecs
from dragoman.text.codec import Codec, SecondSourceReader


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


def _build_with_vocabulary_of_8(config: Config) -> Seq2Seq:
    readers = source_readers(config)
    source_size, second_source_size = (8 if r is None or isinstance(r, str) else r.width for r in readers)
    return build_model(config, source_size, 8, second_source_size)


def build_meta_model(config: Config) -> Seq2Seq:
    """Build the model of a config on torch's meta device, without memory and with a vocabulary of 8."""
    with torch.device("meta"):
        return _build_with_vocabulary_of_8(config)


def rehearse(config: Config) -> list[str]:
    """Build a config's model with a vocabulary of 8 and run a tiny batch through it; return what fails as problems."""
    state = torch.random.get_rng_state()
    try:
        model = _build_with_vocabulary_of_8(config).eval()
        batch = compatibility.rehearsal_batch(config, *source_readers(config))
        with torch.no_grad():
            model.loss(batch)
            if model.decoder is not None:
                memory = model.encode(*batch.encoder_inputs)
                model.step(batch.target[:, :1], model.start(memory, Capacity(1, 2)))
    except PartError as error:
        return [f"model: {error}"]
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        return ["model: too large for this machine's memory; lower its widths"]
    finally:
        torch.random.set_rng_state(state)
    return []
