"""Exceptions of the daemon.

ShoalError
└── NodeError          `code` is a short fixed word; cli/errors.py maps it to an exit code
    ├── DataFolderInUse    another daemon uses the data folder
    ├── BadInvite          an invitation code is invalid
    ├── OtherSwarm         the data folder and the inviter belong to different private swarms
    ├── BadSetting         a setting is invalid (a layer range, a size, an address)
    ├── ControlError       a request on the control socket is refused
    └── ApiRefusal         a request to the HTTP API is refused
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
    """An invitation code has a typing error, or is of another version."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("bad-invite", message, hint=hint)


class OtherSwarm(NodeError):
    """The data folder and the inviter belong to different private swarms."""

    def __init__(self, message: str) -> None:
        hint = "join with another folder: `shoal join CODE --data DIR`"
        super().__init__("other-swarm", message, hint=hint)


class BadSetting(NodeError):
    """A setting is invalid."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("bad-setting", message, hint=hint)


class ControlError(NodeError):
    """A request on the control socket is refused."""


class ApiRefusal(NodeError):
    """A request to the HTTP API is refused with an HTTP status.

    `param` names the parameter at fault, if there is one. `allow` lists the methods of the
    resource if the request's method is not one of them. `retry_s` is the number of seconds after
    which the client should try again, or 0 if that would not help or is unknown.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        allow: str = "",
        retry_s: int = 0,
    ) -> None:
        super().__init__(code, message)
        self.status = status
        self.param = param
        self.allow = allow
        self.retry_s = retry_s
