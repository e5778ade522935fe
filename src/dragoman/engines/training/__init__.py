"""Faster training steps: packed rows, fused kernels, captured graphs."""
