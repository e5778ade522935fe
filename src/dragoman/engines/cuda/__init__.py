"""Decoding on one GPU: sentences in slots, every step one CUDA graph."""
