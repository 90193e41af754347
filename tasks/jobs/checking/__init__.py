"""Checks of results: another chain recomputes some rows of a piece, chosen after its result is
published.

Public: `ResultChecks`, `Trust`, `credits_of`. Spec: docs/spec/checking.md.

Imports `inference/`, `kinds/`, `sealing/`, `state/` and `transport/`.
"""
