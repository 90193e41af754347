"""Engine, which computes shards in one worker process per device. Spec: docs/spec/engine.md.

Public: `Engine` and its values (`interface.py`), `EngineProcess`, `TuningEngine` (`passes.py`),
`EngineError`. Imports `costs/` and `transport/`.
"""
