"""The parts of a stage: what it takes in, what it sends on, how sessions end, and which peers it
dials.

`Stage` in `../stage.py` puts them together.

Public: `StageParts`, `StageInputs`, `StageOutputs`, `StageEndings`, `StageSession`, `ServedShard`,
`Meetings`. Imports `drafting/`, `engine/`, `placement/`, `routing/`, `surviving/`, `usage/` and
`transport/`.
"""
