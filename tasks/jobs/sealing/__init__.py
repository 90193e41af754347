"""Sealed jobs: outputs that only their author can read, and inputs that only the members of a
private group can read. Spec: docs/spec/sealing.md.

Public: `JobSeals`, `StateSeal`, `sealed_draft`. Imports `state/` and `transport/`.
"""
