"""Asking before something is done that cannot be undone."""

import sys

import click

from .errors import CommandError


def confirm(question: str, *, yes: bool) -> None:
    """Go on after `--yes`, or once a person at the terminal agrees. Raises CommandError
    `not-confirmed`."""
    if yes:
        return
    if not is_asked():
        raise CommandError(
            "not-confirmed",
            "nothing was changed: this has to be confirmed, and there is no terminal to ask on",
            hint="add `--yes` to the command",
        )
    if not click.confirm(question, err=True):
        raise CommandError("not-confirmed", "nothing was changed", hint="`--yes` does not ask")


def is_asked() -> bool:
    """Return whether a person can read a question here and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()
