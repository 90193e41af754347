"""Serving of shards, each in a slot: chooses a model, claims layers, fetches, loads and publishes
them.

Public: `Slots`, `ServingSettings`, `ServingDevices`. Imports `placement/`, `inference/` and
`engine/`.
"""
