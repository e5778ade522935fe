"""Inspection: views compute plain data about a model; terminal, image files, pages and notebooks show it."""
