"""Averaging of training over volunteers: rounds without a coordinator, in which peers exchange
compressed updates, check them, and compute the same new state.

Public: `Averager` (one peer's part in a run), `RunTerms` (what all peers of a run agree on),
`Judge` (the trainer's held-out loss). Spec: docs/spec/averaging.md.

Imports `engine/`, `state/`, `dht/` and `transport/`.
"""
