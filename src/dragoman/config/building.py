"""From a config to its parts: the readers of its sources, its model, and a rehearsal of both.

    build_modality(config), build_second_source(config)   what reads the sources, where they are files
    build_model(config, sizes)                            the model, freshly initialized
    build_meta_model(config)                              the same without memory, to ask which engines serve it
    rehearse(config)                                      one tiny batch through that model

A width that does not fit fails in the rehearsal, before data is read.
"""

from __future__ import annotations

from dragoman.config import compatibility
from dragoman.config.schema import Config
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Modality
from dragoman.nn.frontends import frontend_class
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.text.codec import SecondSourceReader


def build_modality(config: Config) -> Modality | None:
    """Build the modality that reads the sources of a config; None if they are texts."""
    return _build_reader(config.model.frontend, config)


def build_second_source(config: Config) -> SecondSourceReader | None:
    """Return the reader of second sources: a modality, or "text"; None if the config has no second source."""
    parts = config.model.second_source
    return None if parts is None else _build_reader(parts.frontend, config) or "text"


def _build_reader(frontend: Part, config: Config) -> Modality | None:
    """Build the modality of a frontend; None for texts."""
    return frontend_class(frontend).build_modality(frontend.options, config.data.files)


def build_model(config: Config, source_size: int, target_size: int, second_source_size: int = 0) -> Seq2Seq:
    """Build the model of a config, freshly initialized, for vocabularies (or input widths) of these sizes."""
    options = {key: getattr(config.model, key) for key in type(config.model).model_fields}
    return Seq2Seq(source_size, target_size, second_source_size, **options)


def _build_with_vocabulary_of_8(
    config: Config, source: Modality | None, second_source: SecondSourceReader | None
) -> Seq2Seq:
    """Build the model of a config with a vocabulary of 8 for each text, and each modality's width."""
    readers = source, second_source
    source_size, second_source_size = (8 if r is None or isinstance(r, str) else r.width for r in readers)
    return build_model(config, source_size, 8, second_source_size)


def build_meta_model(config: Config) -> Seq2Seq:
    """Build the model of a config on torch's meta device, without memory and with a vocabulary of 8."""
    import torch

    with torch.device("meta"):
        return _build_with_vocabulary_of_8(config, build_modality(config), build_second_source(config))


def rehearse(config: Config) -> list[str]:
    """Build a config's model with a vocabulary of 8 and run a tiny batch through it; return what fails as problems."""
    import torch

    from dragoman.core.types import Capacity

    state = torch.random.get_rng_state()
    try:
        readers = build_modality(config), build_second_source(config)
        model = _build_with_vocabulary_of_8(config, *readers).eval()
        batch = compatibility.rehearsal_batch(config, *readers)
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
