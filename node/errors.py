"""What can go wrong in the daemon.

ShoalError
└── NodeError          `code` is a short fixed word; cli/errors.py maps it to an exit code
    ├── DataFolderInUse    another daemon holds the data folder
    ├── BadInvite          an invitation code that cannot be read
    ├── OtherSwarm         the data folder belongs to another private swarm than the inviter
    ├── BadSetting         a setting that means nothing (a layer range, a size, an address)
    └── ControlError       a request on the control socket that is refused
"""

from ..transport.errors import ShoalError


class NodeError(ShoalError):
    """The daemon cannot do what was asked. Codes: docs/spec/control.md."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class DataFolderInUse(NodeError):
    """Another daemon runs on this data folder."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("locked", message, hint=hint)


class BadInvite(NodeError):
    """An invitation code with a typing error, of another version, or used up."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("bad-invite", message, hint=hint)


class OtherSwarm(NodeError):
    """A data folder belongs to another private swarm than who invites."""

    def __init__(self, message: str) -> None:
        hint = "join with another folder: `shoal join CODE --data DIR`"
        super().__init__("other-swarm", message, hint=hint)


class BadSetting(NodeError):
    """A setting cannot be understood."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("bad-setting", message, hint=hint)


class ControlError(NodeError):
    """A control request is refused."""
