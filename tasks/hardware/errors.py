"""Errors of the probe."""

from ..errors import TaskError


class ProbeFailed(TaskError):
    """The machine could not be measured. The message completes the sentence "the speed of this
    machine was not measured: …"."""

    def __init__(self, message: str) -> None:
        super().__init__("probe-failed", message)
