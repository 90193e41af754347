"""The backward pass of a shard in torch, for training adapters.

Public: `ShardTuner`. Imports `families/`, `native/` and `scheduling/`.
"""
