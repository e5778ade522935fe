"""What is computed in one pass over memory where torch would take several: each kernel beside its plain equation.

packed.py        attention over rows laid end to end      packed_triton.py      the same on a GPU
entropy.py       output layer and loss in one             entropy_triton.py     the same on a GPU
additive.py      the additive score of all pairs          fused_triton.py       what stands between the products of a
dropout.py       numbers left out at random                                     Transformer block, on a GPU

Hand-written because torch's variable-length attention computes tiles of 128 positions where sentences have 25, and its
cross entropy forms all logits, twice, in float32.
"""
