"""What can go wrong while nodes compute.

TaskError                   `code` is a short fixed word
├── SessionError            a generation could not start or go on; codes: docs/spec/session.md
│   ├── BadMessage          a peer's message is malformed or beyond a bound
│   ├── StageLost           a stage of the chain is gone
│   └── PromptTooLong       more tokens than the model's context
├── ServingError            this node cannot serve the shard it was to serve
├── TextError               tokens, text and chat templates; codes: docs/spec/text.md
├── NoFit                   no layers of the model fit this node
└── NoRoute                 no chain of members covers the model
"""

from ..transport.errors import ShoalError


class TaskError(ShoalError):
    """An error of this package. `code` is a short fixed word, the rest is for people."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class SessionError(TaskError):
    """A generation could not start or go on."""


class BadMessage(SessionError):
    """A peer's message is malformed or beyond a bound."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-message", message)


class StageLost(SessionError):
    """A stage of the chain, `peer`, is gone, as the stage `by` says, or as this node has seen
    itself; another replica may hold its layers."""

    def __init__(self, peer: str, message: str, *, by: str | None = None) -> None:
        super().__init__(
            "stage-lost", message, hint="run it again: another replica may hold those layers"
        )
        self.peer = peer
        self.by = by


class PromptTooLong(SessionError):
    """The prompt has more tokens than the model's context."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(
            "prompt-too-long",
            f"the prompt has {tokens} tokens and the model's context holds {context}",
            hint="shorten the prompt",
        )


class ServingError(TaskError):
    """This node cannot serve the shard it was to serve."""


class TextError(TaskError):
    """The model's tokenizer or chat template refused, failed, or went over a limit."""


class NoFit(TaskError):
    """No layers of the model fit this node; the message says which memory is missing where."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("no-fit", message, hint=hint)


class NoRoute(TaskError):
    """No chain of members covers the model; the message says what is missing."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("no-route", message, hint=hint)
