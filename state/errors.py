"""What can go wrong in what the swarm knows of itself.

StateError                  `code` is a short fixed word; codes: docs/spec/membership.md
└── BadRecord               a record or a message about records is malformed or out of bounds
    └── Forged              not signed by whom it names: who hands it on is to blame
"""

from ..transport.errors import ShoalError


class StateError(ShoalError):
    """An error of this package."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BadRecord(StateError):
    """A record or a message about records is malformed or out of bounds."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-record", message)


class Forged(BadRecord):
    """A record is not signed by whom it names: nobody honest hands it on."""
