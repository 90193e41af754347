"""Computing on a graphics card with own kernels: products, attention and norms in Triton.

Public: `card.py` only. Imports `families/`, `kv/` and `scheduling/`. It is imported when a worker
computes on a card and Triton is there; without Triton, the code of torch computes on the card too.
"""
