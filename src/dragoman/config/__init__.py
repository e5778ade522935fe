"""The typed config of a whole run, from YAML: every problem at once, or a config that has been rehearsed.

    preset, file, --set ─loading→ a mapping ─checking→ Config (schema) ─building→ readers and model, rehearsed

What is written here is all that others need of it: `from dragoman import config as configs`.
"""

from dragoman.config.building import build_model, modality, rehearse, second_source
from dragoman.config.checks import validate, validated_generation
from dragoman.config.loading import Loaded, explain, load, presets
from dragoman.config.schema import Backbone, Config, Tokenizing, Training

__all__ = [
    "Backbone",
    "Config",
    "Loaded",
    "Tokenizing",
    "Training",
    "build_model",
    "explain",
    "load",
    "modality",
    "presets",
    "rehearse",
    "second_source",
    "validate",
    "validated_generation",
]
