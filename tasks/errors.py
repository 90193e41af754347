"""Errors of distributed inference.

TaskError                   `code` is a short fixed word
├── SessionError            a generation could not start or continue; codes: docs/spec/session.md
│   ├── BadMessage          a peer's message is malformed or exceeds a limit
│   ├── StageLost           a stage of the chain was lost
│   ├── Overloaded          all stages are busy; it says when to come back
│   └── PromptTooLong       more tokens than the model's context
├── ServingError            this node cannot serve its shard
├── TextError               tokens, text and chat templates; codes: docs/spec/text.md
├── NoFit                   no layers of the model fit this node
├── NoRoute                 no chain of members covers the model
└── BadNodes                a description of machines is invalid
"""

from ..transport.errors import ShoalError


class TaskError(ShoalError):
    """Base error of this package. `code` is a short fixed word for programs; the message is for
    people."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class SessionError(TaskError):
    """A generation could not start or continue."""


class BadMessage(SessionError):
    """A peer's message is malformed or exceeds a limit."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-message", message)


class StageLost(SessionError):
    """Error: the stage `peer` of the chain was lost. Another replica may hold its layers.

    `by` is the peer id of the stage that reported the loss, or None if this node noticed it.
    `cause` is the code with which the stage ended the session if it lost only its state and will
    serve its layers again, otherwise "".
    """

    def __init__(
        self,
        peer: str,
        message: str,
        *,
        by: str | None = None,
        cause: str = "",
        hint: str = "run it again: another replica may hold those layers",
    ) -> None:
        super().__init__("stage-lost", message, hint=hint)
        self.peer = peer
        self.by = by
        self.cause = cause


class Overloaded(SessionError):
    """The stages are too busy for one more request. `retry_s` is the number of seconds after which
    it will probably be accepted."""

    def __init__(self, message: str, retry_s: int) -> None:
        unit = "second" if retry_s == 1 else "seconds"
        super().__init__("overloaded", message, hint=f"try again in {retry_s} {unit}")
        self.retry_s = retry_s


class PromptTooLong(SessionError):
    """The prompt has more tokens than the model's context."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(
            "prompt-too-long",
            f"the prompt has {tokens} tokens and the model's context holds {context}",
            hint="shorten the prompt",
        )


class ServingError(TaskError):
    """This node cannot serve its shard."""


class TextError(TaskError):
    """The model's tokenizer or chat template refused its input, failed, or exceeded a limit."""


class NoFit(TaskError):
    """No layers of the model fit this node. The message says how much memory is missing."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("no-fit", message, hint=hint)


class NoRoute(TaskError):
    """No chain of members covers the model. The message says what is missing."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("no-route", message, hint=hint)


class BadNodes(TaskError):
    """A description of machines is invalid. The message names the entry."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-nodes", message, hint="docs/plan.md has the format, with an example")
