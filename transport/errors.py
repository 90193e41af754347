"""Errors of this project that are not specific to a package above the transport.

ShoalError                  base of all our errors: `message`, and a `hint` if one helps
├── HostError               the operating system or network refused (file, port, name)
│   ├── AddressInUse
│   ├── AlreadyLocked
│   ├── DatabaseDamaged
│   └── FileTooLarge
├── Undecodable             bytes are not a value within its reader's bounds (decoding.py)
└── TransportError          communication with a peer failed
    ├── DialFailed          no address answered, or a different peer did
    ├── LinkClosed          the link ended; `code` says why (docs/spec/lane.md)
    └── CallRefused         the peer answered a call with a coded refusal
"""

from typing import Final

MISHAP: Final = "mishap"
"""Code of a connection or dial that was ended because it triggered a bug of this program
(guard.py)."""


class ShoalError(Exception):
    """An error that is shown to the user: what failed, on what, and what to do about it.

    Messages start in lower case and end without a full stop. `hint` is one line that says what to
    do, with the exact command if there is one.
    """

    own = False
    """Whether the cause is on this machine, such as its disk or its ports, so that no peer is to
    blame (guard.py)."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class HostError(ShoalError):
    """The operating system or the local network refused an operation."""

    own = True


class AddressInUse(HostError):
    """The port is in use by another program."""


class AlreadyLocked(HostError):
    """Another process holds the lock."""


class DatabaseDamaged(HostError):
    """A file is damaged or is not a database of this project."""


class FileTooLarge(HostError):
    """A file is larger than its reader accepts."""


class Undecodable(ShoalError):
    """Bytes are not valid MessagePack, or exceed the bounds set by their reader."""


class TransportError(ShoalError):
    """Communication with a peer failed. `code` is a short fixed word for programs, `message` is for
    people."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class DialFailed(TransportError):
    """No link to the peer could be established."""

    @classmethod
    def unreachable(cls, name: str, reason: str) -> "DialFailed":
        """Return the error for an address that does not answer, or where the peer closes the
        connection."""
        return cls("unreachable", f"`{name}` cannot be reached: {reason}")

    def copy(self) -> "DialFailed":
        """Return a copy of this error without traceback and causes, which can be stored or raised
        again.

        A traceback refers to the stack frames of the dial, and so keeps the dial's buffers and TLS
        state in memory. If one of those frames also refers to the error, only a full garbage
        collection frees them.
        """
        return DialFailed(self.code, self.message, hint=self.hint)


class LinkClosed(TransportError):
    """The link ended while an operation still needed it."""


class CallRefused(TransportError):
    """The peer refused a call, with a code that gives the reason."""
