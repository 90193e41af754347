"""Reads an answer of the daemon, and continues when the connection to the daemon drops."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import defaults
from .client import is_running, request
from .errors import CommandError
from .options import data_flag

if TYPE_CHECKING:
    from ..node.control.messages.generation import GeneratedText, Run, TextEvent


class _Events:
    """The events that have arrived, by their number, their text, and the token and seed of the
    answer."""

    def __init__(self, take: "Callable[[TextEvent], None]") -> None:
        self._take = take
        self.token = ""
        self.seed = 0
        self.count = 0
        self.text = ""

    def __call__(self, event: "TextEvent") -> None:
        from ..node.control.messages.generation import AnswerResumable, TextPiece

        if isinstance(event, AnswerResumable):
            self.token, self.seed, self.count = event.token, event.seed, 0
            return
        self.count += 1
        if isinstance(event, TextPiece):
            self.text += event.text
        self._take(event)


def answer(data: Path, ask: "Run", take: "Callable[[TextEvent], None]") -> "GeneratedText":
    """Send a prompt and return the answer. `take` receives its events.

    If the connection drops while the daemon lives, the answer continues over another one. If the
    daemon was restarted, the new one generates the rest. If the command is interrupted, the daemon
    stops the answer. Raises CommandError as `request` does.
    """
    events = _Events(take)
    try:
        try:
            return request(data, replace(ask, resumable=True), on_event=events, wait=True)
        except CommandError as error:
            if error.code != "not-running" or not events.token:
                raise
            return _resumed(data, ask, events, error)
    except BaseException:
        _forget(data, events.token)
        raise


def _resumed(data: Path, run: "Run", events: _Events, dropped: CommandError) -> "GeneratedText":
    """Continue an answer. A daemon that does not know it begins it again with the same seed, and
    leaves out what has arrived.

    Raises `dropped`, the error of the first connection, if the daemon has not answered for
    RESUME_PATIENCE seconds. Raises CommandError `not-running` at once if it has ended, and after
    that time if it was killed and not started again.
    """
    from ..node.control.messages.generation import Resume

    until, known = time.monotonic() + defaults.RESUME_PATIENCE, True
    while True:
        if not is_running(data):
            if not _was_killed(data) or time.monotonic() > until:
                raise _ended(data, events.seed)
            time.sleep(defaults.RESUME_PAUSE)
            continue
        count, token = events.count, events.token
        try:
            if known:
                ask = Resume(token=events.token, since=count)
                return request(data, ask, on_event=events, wait=True)
            again = replace(run, resumable=True, seed=events.seed, received=events.text)
            return request(data, again, on_event=events, wait=True)
        except CommandError as error:
            if error.code == "unknown-answer" and known:  # the daemon was restarted
                known = False
                continue
            if error.code != "not-running":
                raise
            known = known or events.token != token  # it has begun the answer again
            if events.count > count or events.token != token:
                until = time.monotonic() + defaults.RESUME_PATIENCE
            if time.monotonic() > until:
                hint = "; ".join(filter(None, (dropped.hint, _same_text(events.seed))))
                raise CommandError(dropped.code, dropped.message, hint=hint) from None
        time.sleep(defaults.RESUME_PAUSE)


def _was_killed(data: Path) -> bool:
    """Return whether a daemon that does not run has left its socket. One that ends removes it."""
    return (data / "control.sock").exists()


def _ended(data: Path, seed: int) -> CommandError:
    """Return the error for an answer whose daemon has ended."""
    return CommandError(
        "not-running",
        f"the daemon on `{data}` has ended, and the answer with it",
        hint=f"start it again with `shoal node{data_flag(data)}`, and run this command again; "
        + _same_text(seed),
    )


def _same_text(seed: int) -> str:
    """Return the part of a hint that says how to get the text of a lost answer."""
    return f"with `--seed {seed}` the text is the same, also on another node of the swarm"


def _forget(data: Path, token: str) -> None:
    """Stop an answer that is not wanted any more, if the daemon can be reached."""
    from ..node.control.messages.generation import Forget

    if token:
        with suppress(CommandError):
            request(data, Forget(token=token))
