"""Full training: all weights of a small model are trained on one node, in a process of its own.

The trainer is that of adapters (`tasks/tuning/trainer/`): rows, optimiser, checkpoints, loss curve,
averaging with others. This package has what differs: the network with derivatives by its weights
(`network.py`), the process that computes it (`child.py`, `process.py`), what the trainer sees of it
(`subject.py`), and the result, which is a model (`models.py`).

Public: `WholeModels`. Decisions: docs/adr/0079-full-training.md.

Imports `averaging/`, `engine/`, `trainer/`, `dht/` and `transport/`.
"""
