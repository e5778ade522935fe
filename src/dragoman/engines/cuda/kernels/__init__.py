"""Triton kernels of decoding; each replaces several torch operations that would each pass over memory.

    residual.py     x = f E[y] + P[t]     x ← x + y, h = norm(x)        the residual stream
    attention.py    a = softmax(s q·k)    c = a v                       of one step's queries to target and source
    ranking.py      the n largest of log softmax(z)                     from 32,000 logits to a few candidates
    search.py       one step of greedy search, one of beam search       from candidates to hypotheses

A row is a hypothesis of a sentence, b·k + j. Sentences that are done are skipped. Sums and softmaxes are in float32,
sums of log p in float64. Callers import these files where they need them: not every machine has Triton.

B sentences, k hypotheses, C target and S source positions of a slot, H heads, G key heads, D width, V vocabulary, R the
maximum number of tokens of a result. Names that begin with P are D, k, … rounded up to a power of two, as Triton
requires of its blocks.
"""
