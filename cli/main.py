"""`shoal`: the command group, and the edge of its process where every error becomes two lines.

Only click is imported here and at the top of the command files; what a command needs it imports
when it runs, so that `shoal --help` is quick (bench/startup.py).
"""

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from .. import __version__
from ..transport.errors import ShoalError
from . import (
    blob,
    config,
    demo,
    dht,
    doctor,
    endings,
    errors,
    find,
    group,
    job,
    model,
    node,
    options,
    render,
    run,
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
    """Volunteers' computers as one compute network, with no one in charge."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (
    node.node, node.join, node.invite, node.stop, group.group, model.model, blob.blob, run.run,
    status.status, status.peers, doctor.doctor, find.find, dht.dht, state.state,
    job.job, usage.usage, config.config,
    demo.demo, sim.sim,
):  # fmt: skip
    shoal.add_command(_command)


def main() -> None:
    """The console script."""
    endings.outlive_terminal()
    with endings.endings_as_interrupt():
        code = invoke(sys.argv[1:])
    sys.exit(code)


def invoke(args: Sequence[str]) -> int:
    """Run one command line; prints its errors and returns its exit code. Never raises."""
    try:
        code = _invoke(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # what was being written may not have ended its line
        return errors.INTERRUPTED
    except BrokenPipeError:
        endings.discard(1)
        return errors.OK  # whoever read us has read enough
    except ShoalError as error:
        render.report_error(error.message, error.hint or errors.OTHER_HINT)
        return errors.exit_code(error)
    except OSError as error:
        what = f"`{error.filename}`: " if error.filename else ""
        render.report_error(f"{what}{(error.strerror or str(error)).lower()}", _os_hint(error))
        return errors.FAILED
    except Exception as error:  # noqa: BLE001  the edge of this process: a mistake of ours
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
        render.report_error(_sentence(error.format_message()), _usage_hint(error))
        return errors.USAGE
    except BaseExceptionGroup as group:
        raise _innermost(group) from None
    return errors.OK


def _innermost(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What to tell of a group: Ctrl-C first, then a mistake of ours, then the first error."""
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


def _sentence(message: str) -> str:
    """click's message in our style: lower case first, no full stop, backticks."""
    text = " ".join(message.split()).rstrip(".").replace("'", "`")
    text = text.replace(". Did you mean", ", did you mean")
    if ". (Did you mean one of: " in text:
        text = text.replace(". (Did you mean one of: ", ", did you mean one of ").replace("?)", "?")
    return text[:1].lower() + text[1:]


def _usage_hint(error: click.UsageError) -> str:
    if isinstance(error, options.UnknownCommand | options.Misused) and error.hint:
        return error.hint
    path = error.ctx.command_path if error.ctx else "shoal"
    return f"`{path} --help` shows how it is used, with an example"


def _os_hint(error: OSError) -> str:
    import errno

    if error.errno in (errno.ENOENT, errno.EISDIR) and error.filename:
        folder = os.path.dirname(str(error.filename)) or "."
        return f"look for the right name: `ls {shlex.quote(folder)}`"
    return {
        errno.ENOSPC: "free some space on that disk; nothing half-written was kept",
        errno.EACCES: "check who owns it, or choose another folder with `--data DIR`",
        errno.EEXIST: "it is no folder: choose another with `--data DIR`",
        errno.ENOTDIR: "it is no folder: choose another with `--data DIR`",
        errno.EROFS: "choose a folder that can be written with `--data DIR`",
    }.get(error.errno or 0, errors.OTHER_HINT)


def _report_internal(error: Exception, args: Sequence[str]) -> int:
    text = f"shoal {__version__}, python {sys.version.split()[0]}, {sys.platform}\n"
    text += f"command: {list(args)[:1]}\n" + "".join(traceback.format_exception(error))
    hint = "please report it, with what you typed"
    if (path := _keep_report(text)) is not None:
        hint = f"please report it with the file `{path}`"
    render.report_error(f"internal: {type(error).__name__}: {error}", hint)
    return errors.FAILED


def _keep_report(text: str) -> Path | None:
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
