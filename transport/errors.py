"""What can go wrong below everything else.

ShoalError                  every error of ours; `message`, and a `hint` where one helps
├── HostError               the world refused (file, port, name)
│   ├── AddressInUse
│   ├── AlreadyLocked
│   ├── DatabaseDamaged
│   └── FileTooLarge
├── Undecodable             bytes are no value, or one beyond its reader's bounds (decoding.py)
└── TransportError          talking to a peer failed
    ├── DialFailed          no address answered, or the peer that answered is another one
    ├── LinkClosed          the link ended; `code` says why (a word of docs/spec/lane.md)
    └── CallRefused         the peer answered a call with a coded refusal
"""

from typing import Final

MISHAP: Final = "mishap"
"""The code by which ends what has run into a mistake of this program (guard.py)."""


class ShoalError(Exception):
    """An error for a person: what happened on what, and what to do about it.

    Messages start in lower case and end without a full stop; `hint` is one line with the
    exact command where there is one.
    """

    own = False
    """Whether this machine is at fault (its disk, its ports), so that no peer can be (guard.py)."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class HostError(ShoalError):
    """The world refused."""

    own = True


class AddressInUse(HostError):
    """Another program listens on that port."""


class AlreadyLocked(HostError):
    """Another process holds the lock."""


class DatabaseDamaged(HostError):
    """A file is no database of ours, or not a sound one."""


class FileTooLarge(HostError):
    """A file is larger than its reader allows."""


class Undecodable(ShoalError):
    """Bytes are not msgpack, or announce more than their reader takes."""


class TransportError(ShoalError):
    """Talking to a peer failed. `code` is a short fixed word, the rest is for people."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class DialFailed(TransportError):
    """No link to the peer could be made."""

    @classmethod
    def unreachable(cls, name: str, reason: str) -> "DialFailed":
        """Nothing answers, or what does hangs up."""
        return cls("unreachable", f"`{name}` cannot be reached: {reason}")


class LinkClosed(TransportError):
    """The link ended while it was needed."""


class CallRefused(TransportError):
    """The peer refused a call, by code."""
