"""Fine-tuning of adapters through shards that other nodes serve.

Public: `TuningChain` and its values (interface.py).
"""
