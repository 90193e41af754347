"""Choice of a chain: what stages promise, what they then do, and the shortest path over it.

Public: `Prefix`, `CachedNames`, `Hotness`, `ranked` (where prefixes are cached), `StepTimes`,
`Pending`, `seconds_until_room` (a stage predicts waits), `Beliefs`, `Load` (what a gateway believes
of stages), `Search` (the shortest path), `Router` (which stages are asked, and which chain is
taken). No I/O and no clock: `inference/choice.py` sends the probes.

Imports `costs/`, `engine/` and `transport/`.
"""
