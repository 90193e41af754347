"""Errors of jobs.

JobError                    `code` is a short fixed word; codes: docs/spec/jobs.md
├── BadSpec                 the job's request is malformed or out of bounds
└── BadOutcome              the result in a claim cannot be read
"""

from ..errors import TaskError


class JobError(TaskError):
    """A job cannot be submitted, done or read."""


class BadSpec(JobError):
    """A job's request is malformed or out of bounds, so no node can do it."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-spec", message)


class BadOutcome(JobError):
    """A claim says that a job is done, but its result cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-outcome", message)
