"""What nodes do with compute: placement, engine workers, sessions, jobs.

Imports `state/`, `dht/` and `transport/`. Public: `Serving` (`serving/`), `Gateway` and `Stage`
(`inference/`), `EngineProcess` (`engine/`), `Worker` and `Desk` (`jobs/`). `torch` is imported only
inside worker processes.
"""
