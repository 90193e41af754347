"""Determinism of a simulation: the same seed gives the same run, on any machine.

Public: `strict`, `deterministic_collection`, `reexec`.
"""
