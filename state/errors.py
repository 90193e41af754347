"""What can go wrong in what the swarm knows of itself.

StateError                  `code` is a short fixed word; codes: docs/spec/membership.md, state.md
├── BadRecord               a record or a message about records is malformed or out of bounds
│   └── Forged              not signed by whom it names: who hands it on is to blame
├── BadEntry                an entry of a feed is malformed, forged or of no known kind
├── BadUpdate               an update is none that an honest author writes into this document
├── BadFact                 a fact is none that a view takes: it is passed over
├── FeedFull                an own fact has no room in its feed, or the feed takes none
├── GroupRefused            this node may not do that in its group, or not now
├── BadOrder                an entry does not follow the stored ones of its feed
├── FeedDamaged             the stored entries of a feed are not those that were stored
├── StoreDamaged            the store's file was damaged, and has been put aside
└── StoreRefused            the disk takes nothing now: `disk-full`, `disk-error`
"""

import errno
from pathlib import Path

from ..transport.errors import ShoalError

_SHOWN = 200  # characters of another program's message


class StateError(ShoalError):
    """An error of this package."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
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


class GroupRefused(StateError):
    """A change of the group that this node may not make, or not now. Codes: docs/spec/group.md."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(code, message)
        self.hint = hint


class BadOrder(StateError):
    """An entry does not follow those that are stored of its feed."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-order", message)


class FeedDamaged(StateError):
    """What is stored of a feed is not what was stored: it is to be fetched again."""

    own = True

    def __init__(self, message: str) -> None:
        super().__init__("damaged", message)


class StoreDamaged(StateError):
    """The store's file was damaged: it lies at `aside`, and a new one has been begun."""

    own = True

    def __init__(self, aside: Path, error: Exception) -> None:
        super().__init__(
            "store-damaged",
            f"what was known of the swarm's state was damaged and is fetched again "
            f"({_printable(str(error))})",
        )
        self.hint = f"check the disk; the damaged file is `{aside}`, it can be deleted"


def _printable(text: str) -> str:
    """The words of a database that has read damaged bytes: they may hold some of them."""
    one_line = " ".join(text[:_SHOWN].split())
    return "".join(letter if letter.isprintable() else "?" for letter in one_line)


class StoreRefused(StateError):
    """The disk takes nothing, or gives nothing, for now: `disk-full`, `disk-error`."""

    own = True

    def __init__(self, path: Path, error: OSError) -> None:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = error.strerror or str(error)
        super().__init__(
            "disk-full" if full else "disk-error", f"cannot keep state in `{path}`: {reason}"
        )
        self.path = path
        self.error = error
        hint = "free some space" if full else "check the disk"
        self.hint = f"{hint}; the daemon then goes on by itself"


class BadMessage(StateError):
    """A message about feeds is malformed or out of bounds."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-message", message)
