"""Control socket operations on work that goes on without its client: jobs and fine-tunings.

Public: `JobOperations`, `TuningOperations`. Spec: docs/spec/control.md.

Imports `daemon/`, `messages/`, `tasks/`, `state/`, `dht/` and `transport/`.
"""
