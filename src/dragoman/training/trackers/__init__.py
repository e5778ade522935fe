"""Trackers that receive the metrics of a run besides metrics.jsonl: one file each."""
