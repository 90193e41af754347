"""`shoal node`, `shoal join`, `shoal invite`, `shoal stop`: a daemon's life."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from . import render
from .confirm import confirm
from .options import data_flag, data_option, example, given_settings, json_option, node_options

if TYPE_CHECKING:
    from ..node.config import DataFolder

_CODE_LETTERS: Final = 1024  # upper bound for a code with spaces and a line break


@click.command(
    short_help="Run the daemon.",
    epilog=example(
        "shoal node",
        "shoal node --bootstrap 192.0.2.7:4001 --memory 4GiB",
        "shoal node --model Llama-3.2-1B --layers 0:8",
        "shoal node --relay 1MB --up 4Mbit --down 20Mbit",
    ),
)
@node_options
@click.option("--yes", is_flag=True, help="With --private on a folder that was used in an open "
              "swarm: do not ask.")  # fmt: skip
def node(data: Path, private: bool, parent_fd: int | None, yes: bool, **options: Any) -> None:
    """Run the daemon.

    Makes an identity on its first start, measures the machine, finds the other nodes, fetches
    the layers it can carry and serves them until it is stopped (Ctrl-C, or `shoal stop`).

    Options are remembered in the data folder for later starts, but for --private. The value
    `default` forgets one: `--memory default`. `shoal config` shows and changes them.
    """
    from ..node.config import NodeConfig
    from .foreground import run_foreground

    config = NodeConfig(data=data, private=private)
    if config.private and _was_open(config.folder):
        _confirm_private(config.data, yes=yes)
    run_foreground(config, given_settings(options), parent_fd)


def _was_open(folder: "DataFolder") -> bool:
    """Return whether this data folder is a node's of an open swarm."""
    from ..transport.identity import IDENTITY_FILE

    grouped = folder.group.exists() or folder.swarm_key.exists()
    return (folder.path / IDENTITY_FILE).exists() and not grouped


def _confirm_private(data: Path, *, yes: bool) -> None:
    """Ask before a node leaves its open swarm for good. Raises CommandError."""
    for line in (
        f"`{data}` is a node of an open swarm. `--private` takes it out of that for good:",
        "it founds a swarm of its own, keeps its identity, models and blobs, and links only with",
        "nodes that it invites; nodes of the open swarm can no longer link with it, its jobs there",
        "are not done, and what it said there stays known.",
        "A new folder founds a private swarm beside it: `shoal node --private --data DIR`",
    ):
        print(line, file=sys.stderr)
    confirm("Make this node private?", yes=yes)


@click.command(
    short_help="Run the daemon, joining by a code.",
    epilog=example(
        "shoal join --memory 4GiB",
        "shoal join 2H03G-8K0ZV-…",
        "ssh alice shoal invite | shoal join",
    ),
)
@click.argument("code", required=False)
@click.option("--file", "source", type=click.File(), metavar="FILE",
              help="Read the code from a file (-: standard input).")  # fmt: skip
@node_options
def join(
    code: str | None, source: TextIO | None, data: Path, private: bool, parent_fd: int | None,
    **options: Any,
) -> None:  # fmt: skip
    """Run the daemon and join a swarm by an invitation CODE.

    The code comes from `shoal invite` on any node of the swarm. It is used once; later,
    `shoal node` is enough. Without CODE, the command prompts for it or reads standard input. Prefer
    that: command lines are visible to other users and stay in the shell's history.

    The other options are remembered for later starts, as those of `shoal node` are.
    """
    from ..node.config import NodeConfig
    from ..node.invite import decode

    config = NodeConfig(data=data, private=private, invitation=decode(_code(code, source)))
    from .foreground import run_foreground

    run_foreground(config, given_settings(options), parent_fd)


def _code(code: str | None, source: TextIO | None) -> str:
    """Return the code from the argument, the file, the prompt or standard input."""
    if code is not None and source is not None:
        raise click.UsageError("give either a CODE or --file FILE")
    if code is None and source is None:
        if sys.stdin.isatty():
            return str(click.prompt("Invitation code", err=True))
        source = sys.stdin
    if source is not None:
        code = source.read(_CODE_LETTERS).strip()
    if not code:
        raise click.UsageError("expected an invitation code, got an empty line")
    return code


@click.command(
    short_help="Print a code to join by.",
    epilog=example("shoal invite", "shoal invite --uses 5 --role client"),
)
@data_option
@click.option("--uses", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="How many nodes may join by the code.")  # fmt: skip
@click.option("--role", type=click.Choice(("client", "operator", "owner")),
              help="What joiners may do in a private swarm (default: operator, where an owner "
              "invites; an operator invites clients).")  # fmt: skip
@click.option("--address", metavar="IP:PORT", help="Where joiners reach this node "
              "(default: its first address).")  # fmt: skip
@json_option
def invite(data: Path, uses: int, role: str | None, address: str | None, as_json: bool) -> None:
    """Print a short code by which another machine can join.

    The code is valid for 24 hours and holds this node's address and the fingerprint of its key.
    This node has to run when it is used. `shoal group` lists the codes that are outstanding in a
    private swarm, `shoal group uninvite CODE` takes one back.
    """
    from .client import request

    answer = request(data, "invite", uses=uses, role=role, address=address)
    if as_json:
        click.echo(render.as_json(answer))
        return
    click.echo(answer["code"])
    join = "on the other machine: run `shoal join` and enter this code"
    for note in (join, *_narrow(answer)):
        click.echo(render.coloured(note, "dim", sys.stderr), err=True)


def _narrow(answer: dict[str, Any]) -> list[str]:
    """Where a code leads that not everybody can follow, and what to do for the others."""
    where = {
        "private": "a machine on this network",
        "loopback": "this machine itself",
    }.get(answer["near"])
    if where is None:
        return []
    return [
        f"it leads to {answer['address']}, which only {where} can reach; for others make it on a "
        "node that everybody reaches (`shoal doctor`), or name a port that the router forwards: "
        "`shoal invite --address IP:PORT`"
    ]


@click.command(
    short_help="Stop the daemon.",
    epilog=example("shoal stop", "shoal stop --data /tmp/shoal-demo-x1y2z3"),
)
@data_option
def stop(data: Path) -> None:
    """Stop the daemon: running answers end first, for at most 10 seconds.

    On a folder that `shoal demo --keep` left, stops all its nodes and removes the folder.
    """
    from .lifecycle import remove_demo, stop_daemon

    if remove_demo(data):
        click.echo("stopped")
        return
    stop_daemon(data)
    click.echo(f"stopped; start it again with `shoal node{data_flag(data)}`")
