"""The kernels of `../../kernels` as this process calls them.

`library.py` finds and calls them, `check.py` compares them with torch before their use, `steps.py`
computes a step through the layers of a shard. They may import the rest of `compute`; of that, the
products and `torchcompute.py` use them.
"""
