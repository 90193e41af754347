"""Stages of this node that compute training passes for trainers.

Public: `TuningStage` (`stage.py`). Spec: docs/spec/tuning.md.

Imports `engine/`, `inference/`, `usage/` and `transport/`.
"""
