"""From a config to a trained model: `run(config)` yields a Report for everything that happens."""

from dragoman.training.loop import run
from dragoman.training.report import Report

__all__ = ["Report", "run"]
