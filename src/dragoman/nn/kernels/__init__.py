"""Kernels that take one pass over memory where torch takes several, each beside its plain equation.

packed.py        attention over packed rows               packed_triton.py      the same on a GPU
entropy.py       output layer and cross entropy in one    entropy_triton.py     the same on a GPU
additive.py      the additive score of all pairs          fused_triton.py       everything between the matrix products
dropout.py       dropout                                                        of a Transformer block, on a GPU
"""
