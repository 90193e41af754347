"""Errors of jobs.

JobError                    `code` is a short fixed word; codes: docs/spec/jobs.md
├── BadSpec                 the request of a job is malformed or exceeds a limit
└── BadOutcome              the result in a claim is invalid
    └── Unsealable          an envelope cannot be opened here
JobsDiskFull                blobs of other nodes' jobs have no room on this disk
"""

from ...dht.errors import ModelError, NotEnoughDisk, mebibytes
from ..errors import TaskError


class JobError(TaskError):
    """A job cannot be submitted, done or loaded. `code` is a short fixed word
    (docs/spec/jobs.md)."""


class BadSpec(JobError):
    """The request of a job is malformed or exceeds a limit, so no node can do the job."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-spec", message)


class BadOutcome(JobError):
    """A claim states that a job is done, but its result is invalid."""

    def __init__(self, message: str, code: str = "bad-outcome") -> None:
        super().__init__(code, message)


class Unsealable(BadOutcome):
    """An envelope cannot be opened here: this node lacks the key (`no-key`), or the envelope was
    made with another key, for another place, or was changed (`bad-seal`)."""

    def __init__(self, message: str, code: str = "bad-seal") -> None:
        super().__init__(message, code)


class JobsDiskFull(NotEnoughDisk):
    """Blobs of other nodes' jobs have `used` bytes, and `needed` more exceed their `part` of the
    disk limit."""

    def __init__(self, needed: int, part: int, used: int) -> None:
        ModelError.__init__(
            self,
            "jobs-disk-full",
            f"no disk space for other nodes' jobs: needs {mebibytes(needed)}; "
            f"{mebibytes(used)} of {mebibytes(part)} are used",
            hint="a job's space is free an hour after its author's last job",
        )
        self.needed = needed
        self.free = max(0, part - used)
