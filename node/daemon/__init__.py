"""The parts of a daemon, the order in which they start, and its clean shutdown.

Public: `run_node(host, config, *, engine_factory=None, say=…)`, which the simulator uses as well,
and `Node`. Imports every other package of `node/`: `control/`, `http/`, `models/`, `settings/` and
`swarm/`.
"""
