"""The daemon's parts, the order of their life, and its clean end.

Public: `run_node(host, config, *, engine_factory=None, say=…)`, which the simulator starts as well,
and `Node`. Imports every other room of `node/`.
"""
