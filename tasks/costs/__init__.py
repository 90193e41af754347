"""Cost model: predicts the seconds of steps, transfers and answers. Spec: docs/spec/costs.md.

Public: `ModelWork`, `ShardWork`, `EqualRows` (work), `DeviceRates`, `device_rates`, `LinkRates`
(rates), `step_seconds`, `transfer_seconds` (one step, one message), `CostedStage`, `chain_times`,
`window_times`, `window_prices` (a whole chain). Pure functions of frozen values: no I/O, no clock,
microseconds each. Units are seconds, bytes, floating point operations (flop) and positions. Imports
only `families/` and `interface.py` of `engine/`.
"""
