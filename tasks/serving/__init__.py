"""Serving of one shard: chooses a model, claims layers, fetches and loads them, publishes the
shard.

Public: `Serving`, `ServingSettings`, `Device`. Imports `placement/`, `inference/` and `engine/`.
"""
