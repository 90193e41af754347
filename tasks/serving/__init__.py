"""Serving of shards, each in a slot: chooses a model, claims layers, fetches, loads and publishes
them.

Public: `Slots`, `ServingSettings`, `ServingDevice`. Imports `placement/`, `inference/` and
`engine/`.
"""
