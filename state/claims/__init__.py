"""The decisions of one node about jobs of others (docs/spec/jobs.md). No I/O.

Public: `Claimant` (the decisions), `WorkerRing` (the preferred worker of each job). Claims and the
rule that ranks them are in `views/jobs.py`. Imports `feeds/` and `views/`.
"""
