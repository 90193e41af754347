"""Everything that a node computes: placement of layers, engine workers, sessions and jobs.

Imports `state/`, `dht/` and `transport/`. Public: `Serving` (`serving/`), `Gateway` and `Stage`
(`inference/`), `EngineProcess` (`engine/`), `Worker` and `Desk` (`jobs/`). `torch` is imported only
inside worker processes.
"""
