"""From a config to a trained model: `run(config)` yields a Report for everything that happens."""

from dragoman.training.loop import Report, run

__all__ = ["Report", "run"]
