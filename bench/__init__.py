"""Side-by-side measurements against what users would pick instead; run `python -m bench` in the repository root."""
