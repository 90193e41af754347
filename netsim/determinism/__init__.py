"""Determinism of a simulation: the same seed gives the same run, on any machine.

Public: `strict`, `deterministic_collection`, `reexec`.

Imports only the modules at the top of the folders that contain it.
"""
