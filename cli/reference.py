"""Writes docs/cli.md from the commands themselves: `python -m shoal.cli.reference > docs/cli.md`.

A test compares the file with what this prints, so the reference cannot go stale.
"""

from collections.abc import Iterator

import click

from .errors import EXIT_CODES
from .main import shoal

INTRODUCTION = """\
# Commands

Written by `python -m shoal.cli.reference > docs/cli.md`; a test compares.

`shoal node` and `shoal join` run a daemon in the foreground; the other commands talk to it through
its data folder's control socket ([spec/control.md](spec/control.md)). `--data DIR`, or the variable
SHOAL_DATA, chooses the data folder; without it the platform's convention does
(`~/.local/share/shoal` on Linux). `shoal model` works without a daemon too.

Answers go to standard output; progress, notes and errors to standard error. An error is one line
`error: …` and one line `hint: …`. Colours appear on terminals only, and not where NO_COLOR is set.
With `--json`, standard output is one JSON object on one line. What comes from peers is shown with
characters escaped that would steer the terminal, reorder or hide text, and cut to 64 characters
(keys of facts to 256); JSON has it whole, in ASCII. `shoal state export` without `--json` leaves
letters of all scripts as they are, and escapes the same as the rest. A name that looks like another
says so: `t\\u0456ny (looks like "tiny")`.

## Exit codes

| code | meaning |
|---|---|
"""


def exit_codes() -> str:
    """The table of exit codes."""
    return "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())


def commands(
    command: click.Command, path: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """(command line, help text) of a command and all below it."""
    context = click.Context(command, info_name=path, parent=parent, terminal_width=80)
    context.help_option_names = ["-h", "--help"]
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from commands(command.commands[name], name, context)


def reference() -> str:
    """docs/cli.md."""
    parts = [INTRODUCTION, exit_codes()]
    for path, text in commands(shoal, "shoal"):
        parts.append(f"\n## {path}\n\n```\n{text}\n```\n")
    parts.append(ENVIRONMENT)
    return "".join(parts)


ENVIRONMENT = """
## Environment

| variable | meaning |
|---|---|
| SHOAL_DATA | the data folder, where `--data` is not given |
| NO_COLOR | any value: no colours |
"""


if __name__ == "__main__":
    print(reference(), end="")
