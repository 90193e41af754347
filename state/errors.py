"""Errors of the shared state, with the fixed codes that users and programs see.

StateError                  `code` is a short fixed word; codes: docs/spec/membership.md, state.md
├── BadRecord               a record or a message about records is malformed or out of bounds
│   └── Forged              the record is not signed by the author that it names
├── BadEntry                an entry of a feed is malformed, forged or of an unknown kind
├── BadUpdate               an update of a document is one that no honest author would write
├── BadFact                 a fact is malformed or unknown; views skip such facts
├── FeedFull                one of this node's own facts cannot be written to its feed
├── GroupRefused            this node may not make a change to its group, or not now
├── BadOrder                an entry does not follow the stored entries of its feed
├── FeedDamaged             the stored entries of a feed are damaged
├── StoreDamaged            the store's file was damaged, and was moved aside
├── StoreRefused            the disk refuses to write or read: `disk-full`, `disk-error`
└── BadMessage              a message about feeds is malformed or out of bounds
"""

import errno
from pathlib import Path

from ..transport.errors import ShoalError

_SHOWN = 200  # characters of another program's message


class StateError(ShoalError):
    """An error of the shared state. `code` is a short fixed word."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class BadRecord(StateError):
    """A record or a message about records is malformed or out of bounds."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-record", message)


class Forged(BadRecord):
    """A record is not signed by the author that it names.

    An honest peer never forwards such a record, so the peer that sent it is to blame.
    """


class BadEntry(StateError):
    """An entry of a feed, or a proof of a fork, is invalid. `code` gives the reason."""


class BadUpdate(StateError):
    """An update is one that no honest author would write.

    The codes are `too-large` and `bad-update`.
    """


class BadFact(StateError):
    """A fact in a feed is malformed, out of bounds, or written by a later version."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-fact", message)


class FeedFull(StateError):
    """A fact of this node cannot be written to its feed. `code` gives the reason."""


class GroupRefused(StateError):
    """This node may not make a change to its group, or not now.

    The codes are in docs/spec/group.md.
    """

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(code, message)
        self.hint = hint


class BadOrder(StateError):
    """An entry does not follow the stored entries of its feed."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-order", message)


class FeedDamaged(StateError):
    """The stored entries of a feed are damaged, and must be fetched from peers again."""

    own = True

    def __init__(self, message: str) -> None:
        super().__init__("damaged", message)


class StoreDamaged(StateError):
    """The store's file was damaged. The file was moved to `aside`, and a new one was created."""

    own = True

    def __init__(self, aside: Path, error: Exception) -> None:
        super().__init__(
            "store-damaged",
            f"the stored state of the swarm was damaged and is fetched again "
            f"({_printable(str(error))})",
        )
        self.hint = f"check the disk; the damaged file `{aside}` can be deleted"


def _printable(text: str) -> str:
    """Return a database's error message as one line of at most `_SHOWN` printable characters.

    The message may contain bytes of the damaged file. Unprintable characters become "?".
    """
    one_line = " ".join(text[:_SHOWN].split())
    return "".join(letter if letter.isprintable() else "?" for letter in one_line)


class StoreRefused(StateError):
    """The disk refuses to write or read for now. The codes are `disk-full` and `disk-error`."""

    own = True

    def __init__(self, path: Path, error: OSError) -> None:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = error.strerror or str(error)
        super().__init__(
            "disk-full" if full else "disk-error", f"cannot store state in `{path}`: {reason}"
        )
        self.path = path
        self.error = error
        hint = "free some space" if full else "check the disk"
        self.hint = f"{hint}; the daemon then continues by itself"


class BadMessage(StateError):
    """A message about feeds is malformed or out of bounds."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-message", message)
