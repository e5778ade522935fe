"""The typed config of a whole run, from YAML: every problem at once, or a config that has been rehearsed.

    preset, file, --set ─loading→ a mapping ─checks→ Config (schema) ─building→ readers and model, in a rehearsal

The public names of the package: `from dragoman import config as configs`.
"""

from dragoman.config.building import (
    NEEDS_MEMORY,
    ModelTooLarge,
    build_codec,
    build_meta_model,
    build_model,
    source_readers,
)
from dragoman.config.checks import validate
from dragoman.config.loading import LoadedConfig, explain_origins, list_presets, load
from dragoman.config.rehearsal import rehearse
from dragoman.config.schema import Backbone, Config, RuntimeOptions, TokenizerOptions, TrainingOptions

__all__ = [
    "NEEDS_MEMORY",
    "Backbone",
    "Config",
    "LoadedConfig",
    "ModelTooLarge",
    "RuntimeOptions",
    "TokenizerOptions",
    "TrainingOptions",
    "build_codec",
    "build_meta_model",
    "build_model",
    "explain_origins",
    "list_presets",
    "load",
    "rehearse",
    "source_readers",
    "validate",
]
