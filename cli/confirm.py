"""Asks the user for confirmation before a command does something that cannot be undone."""

import sys

import click

from .errors import CommandError


def confirm(question: str, *, yes: bool) -> None:
    """Return if `--yes` is given, or if the user at the terminal agrees. Raises CommandError
    `not-confirmed` otherwise."""
    if yes:
        return
    if not is_asked():
        raise CommandError(
            "not-confirmed",
            "nothing was changed: confirmation is required, and there is no terminal to ask on",
            hint="add `--yes` to the command",
        )
    if not click.confirm(question, err=True):
        raise CommandError("not-confirmed", "nothing was changed", hint="`--yes` does not ask")


def is_asked() -> bool:
    """Return whether there is a terminal on which a user can read and answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()
