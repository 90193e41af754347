"""Exceptions of the daemon.

ShoalError
└── NodeError          `code` is a short fixed word; cli/errors.py maps it to an exit code
    ├── DataFolderInUse    another daemon uses the data folder
    ├── BadInvite          an invitation code that cannot be read
    ├── OtherSwarm         the data folder belongs to another private swarm than the inviter
    ├── BadSetting         an invalid setting (a layer range, a size, an address)
    └── ControlError       a request on the control socket that is refused
"""

from ..transport.errors import ShoalError


class NodeError(ShoalError):
    """The daemon cannot do what was requested. Codes: docs/spec/control.md."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class DataFolderInUse(NodeError):
    """The data folder is in use by another daemon."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("locked", message, hint=hint)


class BadInvite(NodeError):
    """An invitation code with a typing error or of another version."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("bad-invite", message, hint=hint)


class OtherSwarm(NodeError):
    """A data folder belongs to another private swarm than the inviter."""

    def __init__(self, message: str) -> None:
        hint = "join with another folder: `shoal join CODE --data DIR`"
        super().__init__("other-swarm", message, hint=hint)


class BadSetting(NodeError):
    """A setting is invalid."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("bad-setting", message, hint=hint)


class ControlError(NodeError):
    """A control request is refused."""
