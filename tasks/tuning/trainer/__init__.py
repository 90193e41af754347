"""The trainer of a fine-tuning: its data set, the optimiser, checkpoints, loss curves and results.

Public: `Tunings` (tunings.py), all fine-tunings of one node. The layers are computed elsewhere, by
a `TuningChain`. Guide: docs/finetune.md; decisions: docs/adr/0065-trainer.md.

Imports `averaging/`, `engine/`, `text/`, `dht/` and `transport/`.
"""
