"""The exit codes, and which error has which exit code. A test compares docs/cli.md with this
module."""

from ..transport.errors import ShoalError

OK = 0
FAILED = 1
USAGE = 2
NOT_RUNNING = 10
LOCKED = 11
NOT_AUTHORISED = 12
CANNOT_SERVE = 13
CANNOT_SIMULATE = 14
INTERRUPTED = 130

EXIT_CODES = {
    OK: "done",
    FAILED: "failed; see the error line",
    USAGE: "the command line is wrong",
    NOT_RUNNING: "no daemon runs on this data folder, or it does not answer",
    LOCKED: "another daemon already runs on this data folder",
    NOT_AUTHORISED: "the swarm does not admit this node, or refuses its invitation",
    CANNOT_SERVE: "the swarm cannot serve the model now: layers or memory are missing",
    CANNOT_SIMULATE: "a scenario is wrong, or this machine cannot run it",
    INTERRUPTED: "interrupted by Ctrl-C, SIGTERM or a closed terminal",
}

# Maps the codes of errors (NodeError, TransportError, the control protocol) to exit codes.
EXIT_OF_ERROR = {  # `unknown-model` gives FAILED, because waiting does not help
    "not-running": NOT_RUNNING,
    "locked": LOCKED,
    "not-authorised": NOT_AUTHORISED,
    "invite-refused": NOT_AUTHORISED,
    "cannot-serve": CANNOT_SERVE,
    "no-route": CANNOT_SERVE,
    "no-fit": CANNOT_SERVE,
    "no-memory": CANNOT_SERVE,
    "overloaded": CANNOT_SERVE,
    "interrupted": INTERRUPTED,
    "bad-scenario": CANNOT_SIMULATE,
    "cannot-simulate": CANNOT_SIMULATE,
}

# Hint for an error that has no hint.
OTHER_HINT = "`shoal status` shows the state of this node, `shoal --help` lists the commands"


class CommandError(ShoalError):
    """A command has failed. If `code` is not in EXIT_OF_ERROR, the exit code is 1."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class NoDaemon(CommandError):
    """No daemon runs on the data folder."""


def exit_code(error: ShoalError) -> int:
    """Return the exit code of a command that fails with this error."""
    code = getattr(error, "code", None)
    return EXIT_OF_ERROR.get(code, FAILED) if isinstance(code, str) else FAILED
