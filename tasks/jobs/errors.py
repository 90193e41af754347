"""What can go wrong with jobs.

JobError                    `code` is a short fixed word; codes: docs/spec/jobs.md
├── BadSpec                 what is asked for is malformed or out of bounds
└── BadOutcome              what a claimant says came of a job is none
"""

from ..errors import TaskError


class JobError(TaskError):
    """A job cannot be written, done or read."""


class BadSpec(JobError):
    """A job asks for something malformed or out of bounds: nobody can do it."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-spec", message)


class BadOutcome(JobError):
    """A claimant says that a job is done, and what came of it cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-outcome", message)
