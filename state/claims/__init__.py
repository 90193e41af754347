"""The rule of claims: which node holds a job, and whose result counts (docs/spec/jobs.md). No I/O.

Public: `Claim`, `Claimant`, `Shares`. Imports `feeds/` and `views/`.
"""
