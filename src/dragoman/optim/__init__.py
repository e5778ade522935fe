"""Optimizers, learning rate schedules, and schedules of scheduled sampling."""
