"""What can go wrong in what the swarm knows of itself.

StateError                  `code` is a short fixed word; codes: docs/spec/membership.md, state.md
├── BadRecord               a record or a message about records is malformed or out of bounds
│   └── Forged              not signed by whom it names: who hands it on is to blame
├── BadEntry                an entry of a feed is malformed, forged or of no known kind
├── BadUpdate               an update is none that an honest author writes into this document
├── BadFact                 a fact is none that a view takes: it is passed over
└── FeedFull                an own fact has no room in its feed, or the feed takes none
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


class BadEntry(StateError):
    """An entry of a feed, or a proof of two, is not what it should be; `code` says what."""


class BadUpdate(StateError):
    """An update is none that an honest author writes: `too-large`, `bad-update`."""


class BadFact(StateError):
    """A fact of a feed is malformed or out of bounds, or of a later version."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-fact", message)


class FeedFull(StateError):
    """A fact of this node's own cannot be written: `code` says why."""
