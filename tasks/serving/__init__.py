"""What this node serves: it chooses a model, claims layers, fetches and loads them, and publishes
its shard.

Public: `Serving`, `ServingSettings`, `Device`. Imports `placement/`, `inference/` and `engine/`.
"""
