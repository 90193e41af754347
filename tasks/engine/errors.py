"""Errors of the engine, each with a code of docs/spec/engine.md and a sentence.

EngineError refused or failed; `code` is a word of docs/spec/engine.md └── EngineUnavailable torch
is not installed on this machine, or its device cannot be used
"""

from ...transport.errors import ShoalError


class EngineError(ShoalError):
    """The engine refused a request or failed. `code` is a short fixed word; the message is for
    people."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class EngineUnavailable(EngineError):
    """This machine has no torch, or not the chosen device, so it cannot compute. Its node is still
    a full member."""

    def __init__(
        self,
        message: str = "torch is not installed, so this node holds no layers",
        hint: str = "`pip install torch==2.13.0`",
    ) -> None:
        super().__init__("engine-unavailable", message, hint=hint)
