"""Entry point of `shoal`: registers the commands, and prints every error as two lines.

This file and the command files import only click and light modules at the top. A command imports
what it needs when it runs, so that `shoal --help` is fast (bench/startup.py).
"""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from .. import __version__
from ..transport.errors import ShoalError
from . import endings, errors, options, render
from .commands import (
    adapter,
    api,
    blob,
    config,
    demo,
    dht,
    doctor,
    find,
    finetune,
    group,
    job,
    model,
    node,
    plan,
    run,
    share,
    sim,
    state,
    status,
    usage,
)


@click.group(
    cls=options.Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=options.example("shoal demo", "shoal node", 'shoal run tiny "In the beginning"')
    + "\n\nExit codes and every option: docs/cli.md.",
)
@click.version_option(__version__, "--version", message="shoal %(version)s")
@click.pass_context
def shoal(context: click.Context) -> None:
    """Run language models together on the computers of volunteers, without a central server."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (
    node.node, node.join, node.invite, node.stop, group.group, model.model, adapter.adapter,
    blob.blob, share.share, run.run, api.api, finetune.finetune,
    plan.plan, status.status, status.peers, doctor.doctor, find.find, dht.dht, state.state,
    job.job, usage.usage, config.config,
    demo.demo, sim.sim,
):  # fmt: skip
    shoal.add_command(_command)


def main() -> None:
    """Run the command line of this process, and exit with its code."""
    endings.outlive_terminal()
    with endings.endings_as_interrupt():
        code = invoke(sys.argv[1:])
    sys.exit(code)


def invoke(args: Sequence[str]) -> int:
    """Run a command line, print its errors, and return its exit code. Never raises an Exception."""
    try:
        code = _invoke(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the output may have stopped in the middle of a line
        return errors.INTERRUPTED
    except BrokenPipeError:
        endings.discard(1)
        return errors.OK  # the reader of the output needs no more of it
    except ShoalError as error:
        render.report_error(error.message, error.hint or errors.OTHER_HINT)
        return errors.exit_code(error)
    except OSError as error:
        what = f"`{error.filename}`: " if error.filename else ""
        render.report_error(f"{what}{(error.strerror or str(error)).lower()}", _os_hint(error))
        return errors.FAILED
    except Exception as error:  # noqa: BLE001  a bug of this program, caught at its outermost frame
        return _report_internal(error, args)


def _invoke(args: Sequence[str]) -> int:
    try:
        with shoal.make_context("shoal", list(args)) as context:
            shoal.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return errors.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message())
    except click.UsageError as error:
        render.report_error(sentence(error.format_message()), _usage_hint(error))
        return errors.USAGE
    except BaseExceptionGroup as group:
        raise _innermost(group) from None
    return errors.OK


def _innermost(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error of a group that is to be reported: Ctrl-C before a bug, and a bug before an
    expected error."""
    for kind in (KeyboardInterrupt, Exception):
        found = group.subgroup(kind)
        if found is None:
            continue
        known = group.split((ShoalError, OSError))[1] if kind is Exception else found
        error: BaseException = known or found
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return error
    return group


def sentence(message: str) -> str:
    """Rewrite a message of click in the style of this program: lower case first, no full stop,
    backticks."""
    # An apostrophe between two letters stays: only quotation marks become backticks.
    text = re.sub(r"(?<!\w)'([^']*)'(?!\w)", r"`\1`", " ".join(message.split()).rstrip("."))
    text = text.replace(". Did you mean", ", did you mean")
    text = _RANGE.sub(_expected, text)
    text = _PATH.sub(_wrong_path, text)
    for kind, words in _NUMBERS.items():
        text = text.replace(f"is not a valid {kind}", f"is not a {words}")
    if ". (Did you mean one of: " in text:
        text = text.replace(". (Did you mean one of: ", ", did you mean one of ").replace("?)", "?")
    return text[:1].lower() + text[1:]


# How click reports a number outside its range: `0 is not in the range 1<=x<=16`.
_RANGE = re.compile(r"(\S+) is not in the range (?:x>=(\S+)|(\S+?)(<=?)x<=(\S+))")


# How click reports a path, such as "File `x` does not exist" or "Directory `x` is a file".
_PATH = re.compile(r"(?:File|Directory|Path) (`[^`]*`) (does not exist|is a directory|is a file)")


def _wrong_path(found: re.Match[str]) -> str:
    """Say in words what is wrong with a path."""
    path, what = found.groups()
    return (
        f"there is no {path}"
        if "exist" in what
        else f"{path} {what.replace('directory', 'folder')}"
    )


_NUMBERS = {
    "integer range": "whole number", "integer": "whole number", "float range": "number",
    "float": "number",
}  # fmt: skip
"""What click calls numbers, and plain words for them; the longer names come first."""


def _expected(found: re.Match[str]) -> str:
    """Say in words which numbers are expected."""
    value, least, low, above, high = found.groups()
    if least:
        bound = f"of at least {least}"
    else:
        bound = f"from {low} to {high}" if above == "<=" else f"above {low}, at most {high}"
    return f"expected a number {bound}, got {value}"


def _usage_hint(error: click.UsageError) -> str:
    """Return the hint for a wrong command line."""
    if (
        isinstance(error, options.UnknownCommand | options.Misused | options.Misplaced)
        and error.hint
    ):
        return error.hint
    path = error.ctx.command_path if error.ctx else "shoal"
    return f"`{path} --help` shows the usage with an example"


def _os_hint(error: OSError) -> str:
    import errno

    if error.errno in (errno.ENOENT, errno.EISDIR) and error.filename:
        folder = os.path.dirname(str(error.filename)) or "."
        return f"check the name: `ls {shlex.quote(folder)}`"
    return {
        errno.ENOSPC: "free some space on that disk; no partial file was kept",
        errno.EACCES: "check its owner, or choose another folder with `--data DIR`",
        errno.EEXIST: "it is not a folder: choose another with `--data DIR`",
        errno.ENOTDIR: "it is not a folder: choose another with `--data DIR`",
        errno.EROFS: "choose a writable folder with `--data DIR`",
    }.get(error.errno or 0, errors.OTHER_HINT)


def _report_internal(error: Exception, args: Sequence[str]) -> int:
    """Print an error that is a bug of this program, store a report of it in a file, and return the
    exit code."""
    text = f"shoal {__version__}, python {sys.version.split()[0]}, {sys.platform}\n"
    text += f"command: {list(args)[:1]}\n" + "".join(traceback.format_exception(error))
    hint = "please report it, with the command that you typed"
    if (path := _keep_report(text)) is not None:
        hint = f"please report it with the file `{path}`"
    render.report_error(f"internal: {type(error).__name__}: {error}", hint)
    return errors.FAILED


def _keep_report(text: str) -> Path | None:
    """Store the report of a bug in a temporary file, and return its path. Returns None if the disk
    refuses."""
    import tempfile

    try:
        descriptor, name = tempfile.mkstemp(prefix="shoal-error-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return None
    return Path(name)


if __name__ == "__main__":
    main()
