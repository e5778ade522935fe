"""What a config stands for: the readers of its sources, its model, and a rehearsal of both.

    modality(config), second_source(config)   what reads its sources, where they are files
    build_model(config, sizes)       its model, freshly initialized
    rehearse(config)                 one tiny batch through that model

A width that does not fit fails in the rehearsal, before data is read.
"""

from __future__ import annotations

from typing import Any

from dragoman.config import compatibility
from dragoman.config.schema import Config
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Modality
from dragoman.nn.frontends import frontends
from dragoman.nn.multi_source import Second
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.text.codec import Reader


def modality(config: Config) -> Modality | None:
    """What reads the sources of a config, where they are files and no texts."""
    return _reader(config.model.frontend, config)  # type: ignore[attr-defined]


def second_source(config: Config) -> Reader | None:
    """What reads the second sources of a config, where there are any."""
    parts: Second | None = config.model.second_source  # type: ignore[attr-defined]
    return None if parts is None else _reader(parts.frontend, config) or "text"


def _reader(frontend: Part, config: Config) -> Modality | None:
    kind: Any = frontends[frontend.name]
    found: Modality | None = kind.reader(frontend.options, config.data.files)
    return found


def build_model(config: Config, source_size: int, target_size: int, second_source_size: int = 0) -> Seq2Seq:
    """The model of a config, freshly initialized."""
    options = {key: getattr(config.model, key) for key in type(config.model).model_fields}
    return Seq2Seq(source_size, target_size, second_source_size, **options)


def rehearse(config: Config) -> list[str]:
    """Build the model with a vocabulary of 8 and run a tiny batch through it: widths that do not fit fail here."""
    import torch

    from dragoman.core.types import Capacity

    state = torch.random.get_rng_state()
    try:
        readers = modality(config), second_source(config)
        sizes = [8 if reader is None or isinstance(reader, str) else reader.width for reader in readers]
        model, batch = build_model(config, sizes[0], 8, sizes[1]).eval(), compatibility.rehearsal(config, *readers)
        with torch.no_grad():
            model.loss(batch)
            if model.decoder is not None:
                memory = model.encode(*batch.given)
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
