"""Decides which layers of which model each node serves, from facts that all nodes share.

Does no I/O, except for the probe. Public: `probe`, `plan`, `Placing`, `choose_model`, `Held`.
Imports the interface of `engine/`. Spec: docs/spec/membership.md; reasons: ADR 0032.
"""
