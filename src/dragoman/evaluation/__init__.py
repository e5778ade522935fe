"""Evaluation: metrics, bootstrap intervals and significance tests, and scores by source length."""
