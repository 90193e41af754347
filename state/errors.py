"""What can go wrong in what the swarm knows of itself.

StateError                  `code` is a short fixed word; codes: docs/spec/membership.md
└── BadRecord               a record is malformed, out of bounds, or not its author's
"""

from ..transport.errors import ShoalError


class StateError(ShoalError):
    """An error of this package."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BadRecord(StateError):
    """A record is malformed, out of bounds, or not its author's."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-record", message)
