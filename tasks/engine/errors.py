"""Errors of the engine, each with a code of docs/spec/engine.md and a sentence.

EngineError refused or failed; `code` is a word of docs/spec/engine.md └── EngineUnavailable torch
is not installed on this machine
"""

from ...transport.errors import ShoalError


class EngineError(ShoalError):
    """The engine refused a request or failed. `code` is a short fixed word; the message is for
    people."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class EngineUnavailable(EngineError):
    """This machine has no torch, so it cannot compute. Its node is still a full member."""

    def __init__(self) -> None:
        super().__init__(
            "engine-unavailable",
            "torch is not installed, so this node holds no layers",
            hint="`pip install torch==2.13.0`",
        )
