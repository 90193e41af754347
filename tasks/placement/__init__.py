"""Which layers of which model a node takes, from facts that all nodes share. No I/O, but for the
probe.

Public: `probe`, `plan`, `Placing`, `choose_model`, `Held`. Imports the interface of `engine/`.
Spec: docs/spec/membership.md; why: ADR 0032.
"""
