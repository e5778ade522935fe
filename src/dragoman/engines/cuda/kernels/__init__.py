"""The pieces of a search on a GPU that torch would take many passes over memory for, one Triton kernel each.

    residual.py     x = f E[y] + P[t]     x ← x + y, h = norm(x)        what a step reads from and adds to
    attention.py    a = softmax(s q·k)    c = a v                       of one query to the past and to the source
    ranking.py      the n largest of log softmax(z)                     from 32,000 logits to a few candidates
    search.py       one step of greedy search, one of a beam            what is done with the candidates

A row is a hypothesis of a sentence, b·k + j. Sentences that are done are skipped. Sums and softmaxes are in float32,
sums of log p in float64. Callers import these files where they need them: Triton is not on every machine.

B sentences, k hypotheses, C room for target and S for source positions, H heads, G key heads, D width, V vocabulary,
R room for results. Names that begin with P are D, k, … rounded up to a power of two, as Triton wants its blocks.
"""
