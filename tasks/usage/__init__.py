"""What other nodes' gateways had of this node: counted, and written as facts (docs/spec/jobs.md).

Public: `Meter`, `Accounting`. Imports nothing else of `tasks/`.
"""
