"""Client of the control socket (docs/spec/control.md). It blocks and does not use trio."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..node.control.messages.encoding import (
    Ask,
    Failure,
    decode,
    decode_event,
    encode,
    object_of,
    reply_type,
)
from ..node.errors import ControlError
from ..transport.host.localname import short_name
from . import defaults
from .errors import CommandError, NoDaemon
from .options import data_flag

if TYPE_CHECKING:
    from ..node.control.messages.encoding import Object

Reply = TypeVar("Reply")
Event = TypeVar("Event")


def request(
    data: Path,
    ask: Ask[Reply, Event],
    *,
    on_event: Callable[[Event], None] | None = None,
    wait: bool = False,
) -> Reply:
    """Send a request and return its reply. `on_event` is called with each event before the reply.

    Without `wait`, each part of the reply must arrive within ANSWER_TIMEOUT seconds; with `wait`,
    there is no limit. Raises CommandError with the code that the daemon sent, with `not-running` if
    no daemon answers, or with `failed` if this version does not understand the reply.
    """

    def hear(message: "Object") -> None:
        event = decode_event(ask, message)
        if event is not None and on_event is not None:
            on_event(event)

    try:
        reply = converse(data, {"op": ask.op, **encode(ask)}, hear, wait=wait)
        return decode(reply_type(ask), reply)
    except ControlError as error:
        raise CommandError(
            "failed",
            f"the daemon's reply is not understood: {error.message}",
            hint="the daemon may be of another version: stop it and start it again",
        ) from None


def converse(
    data: Path,
    message: "Object",
    on_event: "Callable[[Object], None]" = lambda event: None,
    *,
    wait: bool = False,
) -> "Object":
    """Send a request as a JSON object, and return the object that the reply has under `ok`. Raises
    CommandError as `request` does."""
    with _connect(data) as connection:
        connection.settimeout(None if wait else defaults.ANSWER_TIMEOUT)
        try:
            connection.sendall(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            pass  # the daemon refused early; its reply says why
        except TimeoutError:
            raise _silent(data) from None
        return _read_answer(connection, data, on_event)


def is_running(data: Path) -> bool:
    """Return whether a daemon accepts connections on this data folder."""
    try:
        _connect(data).close()
    except CommandError:
        return False
    return True


def _connect(data: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(defaults.CONNECT_TIMEOUT)
    try:
        with short_name(data / "control.sock") as name:
            connection.connect(name)
    except TimeoutError:
        connection.close()
        raise _silent(data) from None
    except OSError as error:  # absent, or left behind by a daemon that was killed
        connection.close()
        if isinstance(error, PermissionError):
            raise CommandError(
                "not-authorised",
                f"the daemon on `{data}` belongs to another user",
                hint="run the command as the user that started `shoal node`",
            ) from None
        raise not_running(data) from None
    return connection


def not_running(data: Path) -> NoDaemon:
    """Return the error for a command that needs a running daemon when there is none."""
    return NoDaemon(
        "not-running",
        f"no daemon is running on `{data}`",
        hint=f"start one in another terminal: `shoal node{data_flag(data)}`",
    )


def _silent(data: Path) -> CommandError:
    """Return the error for a daemon that does not answer in time."""
    return CommandError(
        "not-running",
        f"the daemon on `{data}` does not answer",
        hint="check its output, or stop it and start `shoal node` again",
    )


def _read_answer(
    connection: socket.socket, data: Path, on_event: "Callable[[Object], None]"
) -> "Object":
    buffer = b""
    while True:
        line, newline, rest = buffer.partition(b"\n")
        if not newline:
            buffer += _receive(connection, data, len(buffer))
            continue
        buffer = rest
        message = object_of(json.loads(line), "line")
        if "error" in message:
            failure = decode(Failure, message["error"], "error")
            raise CommandError(failure.code, failure.message, hint=failure.hint)
        if "ok" in message:
            return object_of(message["ok"], "ok")
        on_event(message)


def _receive(connection: socket.socket, data: Path, held: int) -> bytes:
    """Return the next bytes of the reply. `held` is the number of bytes that wait for the end of
    their line.

    Raises CommandError if the line is too long, or if the daemon is silent or has stopped.
    """
    if held > defaults.ANSWER_LIMIT:
        raise CommandError("failed", "the daemon's answer is too long")
    try:
        piece = connection.recv(1 << 16)
    except TimeoutError:
        raise _silent(data) from None
    except ConnectionResetError:
        piece = b""
    if not piece:
        raise CommandError(
            "not-running",
            "the daemon stopped before it replied",
            hint=f"start it again: `shoal node{data_flag(data)}`",
        )
    return piece
