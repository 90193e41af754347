"""Metering and accounting of what other nodes' gateways use of this node.

The counts are written as entries of this node's feed (docs/spec/jobs.md). Public: `UsageMeter`,
`Accounting`. Imports nothing else of `tasks/`.
"""
