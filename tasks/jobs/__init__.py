"""Jobs: rows of prompts, texts or questions that any willing node computes, even while their author
is off.

In the order of a job's life: `submitting.py` (author), `claimant.py`, `worker.py`, `runner.py` and
`kinds/` (worker), `collecting.py` and `desk.py` (author). `replication.py` and `shelf.py` keep jobs
and their blobs on several nodes, `checking/` finds workers that lie, `sealing/` hides rows and
outputs. Spec: docs/spec/jobs.md.

Public: `Worker`, `Claimant`, `Crew`, `Desk`, `Submitter`, `Collector`, `Workshop`, `Shelf`,
`JobSpec`, `JobOutcome`. Imports `costs/`, `engine/`, `inference/`, `tuning/`, `state/`, `dht/` and
`transport/`.
"""
