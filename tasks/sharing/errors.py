"""Errors of shared engines.

ShareError                  `code` is a short fixed word; codes: docs/spec/sharing.md
├── EngineFailed             the engine cannot be asked, or its answer is invalid
│   └── EngineGone          nothing listens at the engine's address
└── BadShare                a sharer's message is malformed or exceeds a limit
"""

from ..errors import SessionError


class ShareError(SessionError):
    """A shared model cannot be offered, or a request to one failed."""


class EngineFailed(ShareError):
    """An engine cannot be asked, or its answer is invalid."""


class EngineGone(EngineFailed):
    """Nothing listens at the address of an engine."""

    def __init__(self, message: str) -> None:
        super().__init__("engine-gone", message, hint="start the engine, or check its address")


class BadShare(ShareError):
    """A message between a gateway and a sharer is malformed or exceeds a limit."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-share", message)
