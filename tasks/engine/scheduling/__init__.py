"""Numbers of the scheduler: predicted seconds of steps, and the virtual time of sessions.

Public: `StepCosts`, `PickCosts`, `AdapterCosts`, `Share`. Imports constants of the engine and
`kv/`.
"""
