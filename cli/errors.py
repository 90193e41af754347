"""Exit codes, and which error ends with which. The table in docs/cli.md is checked against this."""

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
    FAILED: "failed; the error line says what",
    USAGE: "the command line cannot be understood",
    NOT_RUNNING: "no daemon runs on this data folder, or it does not answer",
    LOCKED: "another daemon already runs on this data folder",
    NOT_AUTHORISED: "the swarm or the invitation does not let this node in",
    CANNOT_SERVE: "the swarm cannot serve the model now: layers or memory are missing",
    CANNOT_SIMULATE: "a scenario is wrong, or this machine lacks what its run needs",
    INTERRUPTED: "interrupted: Ctrl-C, SIGTERM, or a closed terminal",
}

# Codes of errors (NodeError.code, TransportError.code, the control protocol) -> exit code.
EXIT_OF_ERROR = {  # an unknown name is 1: waiting does not help there
    "not-running": NOT_RUNNING,
    "locked": LOCKED,
    "not-authorised": NOT_AUTHORISED,
    "invite-refused": NOT_AUTHORISED,
    "cannot-serve": CANNOT_SERVE,
    "no-route": CANNOT_SERVE,
    "no-fit": CANNOT_SERVE,
    "no-memory": CANNOT_SERVE,
    "interrupted": INTERRUPTED,
    "bad-scenario": CANNOT_SIMULATE,
    "cannot-simulate": CANNOT_SIMULATE,
}

# An error that brings no hint of its own still ends with one.
OTHER_HINT = "`shoal status` shows how this node is, `shoal --help` what else it can do"


class CommandError(ShoalError):
    """A command cannot go on. `code` as in EXIT_OF_ERROR, else the exit code is 1."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


def exit_code(error: ShoalError) -> int:
    """The exit code that an error of ours ends a command with."""
    code = getattr(error, "code", None)
    return EXIT_OF_ERROR.get(code, FAILED) if isinstance(code, str) else FAILED
