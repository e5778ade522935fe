"""How good the outputs are: metrics, how sure one can be of a score or a difference, and quality by source length."""
