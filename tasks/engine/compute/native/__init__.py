"""The kernels of `../../kernels` as this process calls them.

`library.py` finds and calls them, `check.py` compares them with torch before their use, `steps.py`
computes a step through the layers of a shard. Imports `kernels/`, `backward/`, `families/`, `kv/`
and the rest of `compute`, of which the products and `torchcompute.py` use it.

Public: `Kernels`, `NativeLinear`, `NativeSteps`, `choice`.
"""
