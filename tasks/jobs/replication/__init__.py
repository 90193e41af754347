"""Replication of jobs: other nodes confirm that they store a job with its rows or its output.
Spec: docs/spec/jobs.md.

Public: `JobReplication`, `ReplicationTerms`, `OwnReplication`. Imports `inference/`, `state/`,
`dht/` and `transport/`.
"""
