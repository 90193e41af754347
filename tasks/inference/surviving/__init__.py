"""What sessions need to survive the loss of stages: deadlines, logs, changed chains, and rules for
stages that return.

Public: `Pace`, `Continuation` (of a gateway), `SentLog`, `Rebuilding`, `StageChanges` (of a stage),
and the rules in `recovery.py`.

Imports `engine/`, `serving/` and `transport/`.
"""
