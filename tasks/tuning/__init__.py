"""Fine-tuning: of adapters through shards that other nodes serve, or of all weights on one node.

`trainer/` has the fine-tunings of this node's users, and `chain/` and `stage/` compute the steps of
one over nodes. `whole/` trains all weights, `averaging/` joins the fine-tunings of several nodes,
and `moving/` lets other nodes train. Public: `TuningChain` and its values (`interface.py`).

Imports `engine/`, `inference/` and `transport/`.
"""
