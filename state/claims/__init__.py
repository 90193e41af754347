"""The rule of claims: which node holds a job, and whose result counts (docs/spec/jobs.md). No I/O.

Public: `Claim` (a node's statement about its work on a job), `Claimant` (the decisions of one
node), `Shares` (the preferred worker of each job). Imports `feeds/` and `views/`.
"""
