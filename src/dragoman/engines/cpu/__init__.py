"""Decoding on a CPU: repacked weights, and CTranslate2."""
