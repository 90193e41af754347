"""`shoal node`, `shoal join`, `shoal invite`, `shoal stop`: start, connect and stop a daemon."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from .. import render
from ..confirm import confirm
from ..options import (
    NodeOption,
    data_flag,
    data_option,
    example,
    given_settings,
    json_option,
    node_options,
)

if TYPE_CHECKING:
    from ...node.control.messages.reach import InvitationView
    from ...node.settings.config import DataFolder

_CODE_LETTERS: Final = 1024  # most letters read as a code, including spaces and line breaks


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
@click.option("--yes", is_flag=True, help="Do not ask before --private takes a used folder out of "
              "an open swarm.")  # fmt: skip
def node(
    data: Path, private: bool, parent_fd: int | None, yes: bool, **options: NodeOption
) -> None:
    """Run the daemon.

    On its first start, the node creates an identity. It measures the machine, connects to other
    nodes, loads as many model layers as fit in its memory and serves them until it is stopped
    (Ctrl-C, or `shoal stop`).

    Options except --private are stored in the data folder for later starts. The value `default`
    removes one: `--memory default`. `shoal config` shows and changes them.
    """
    from ...node.defaults import API_PORT
    from ...node.settings.config import NodeConfig
    from ..foreground import run_foreground

    config = NodeConfig(data=data, private=private, api=API_PORT, measure=True)
    if config.private and _was_open(config.folder):
        _confirm_private(config.data, yes=yes)
    run_foreground(config, given_settings(options), parent_fd)


def _was_open(folder: "DataFolder") -> bool:
    """Return whether the data folder belongs to a node of an open swarm."""
    from ...transport.identity import IDENTITY_FILE

    grouped = folder.group.exists() or folder.swarm_key.exists()
    return (folder.path / IDENTITY_FILE).exists() and not grouped


def _confirm_private(data: Path, *, yes: bool) -> None:
    """Ask the owner before a node leaves its open swarm for good. Raises CommandError if the owner
    does not agree."""
    for line in (
        f"`{data}` is a node of an open swarm. `--private` takes it out of that swarm for good:",
        "it creates a swarm of its own, keeps its identity, models and blobs, and links only with",
        "nodes that it invites. Nodes of the open swarm can no longer link to it. Its jobs there",
        "are not done, and its records there remain known.",
        "To create a private swarm in another folder: `shoal node --private --data DIR`",
    ):
        print(line, file=sys.stderr)
    confirm("Make this node private?", yes=yes)


@click.command(
    short_help="Run the daemon and join with a code.",
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
    **options: NodeOption,
) -> None:  # fmt: skip
    """Run the daemon and join a swarm with an invitation CODE.

    The code comes from `shoal invite` on any node of the swarm. It is needed once; later, use
    `shoal node`. Without CODE, the command prompts for it or reads standard input. Prefer that:
    command lines are visible to other users and stay in the shell's history.

    Options are stored for later starts, as with `shoal node`.
    """
    from ...node.defaults import API_PORT
    from ...node.invite import decode
    from ...node.settings.config import NodeConfig

    invitation = decode(_code(code, source))
    config = NodeConfig(
        data=data, private=private, invitation=invitation, api=API_PORT, measure=True
    )
    from ..foreground import run_foreground

    run_foreground(config, given_settings(options), parent_fd)


def _code(code: str | None, source: TextIO | None) -> str:
    """Return the invitation code from the argument, the file, a prompt on the terminal, or standard
    input.

    Raises UsageError if there is no code, or both an argument and a file.
    """
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
    short_help="Print a code for joining.",
    epilog=example("shoal invite", "shoal invite --uses 5 --role client"),
)
@data_option
@click.option("--uses", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N",
              help="Number of nodes that may join with the code.")  # fmt: skip
@click.option("--role", type=click.Choice(("client", "operator", "owner")),
              help="Role of the joining nodes in a private swarm (default: operator if an owner "
              "invites, client if an operator invites).")  # fmt: skip
@click.option("--address", metavar="IP:PORT", help="Address at which joining nodes reach this one "
              "(default: its first address).")  # fmt: skip
@json_option
def invite(data: Path, uses: int, role: str | None, address: str | None, as_json: bool) -> None:
    """Print a short code with which another machine can join.

    The code is valid for 24 hours. It contains this node's address and the fingerprint of its key.
    This node must be running when the code is used. In a private swarm, `shoal group` lists the
    unused codes and `shoal group uninvite CODE` revokes one.
    """
    from ...node.control.messages.reach import Invite
    from ..client import request

    answer = request(data, Invite(uses=uses, role=role, address=address))
    if as_json:
        click.echo(render.as_json(answer))
        return
    click.echo(answer.code)
    join = "on the other machine: run `shoal join` and enter this code"
    for note in (join, *_narrow(answer)):
        click.echo(render.coloured(note, "dim", sys.stderr), err=True)


def _narrow(answer: "InvitationView") -> list[str]:
    """Return a warning if only nearby machines can reach the address in a code, with what to do
    about it. Returns no line if all can."""
    where = {
        "private": "machines on this network",
        "loopback": "programs on this machine",
    }.get(answer.near)
    if where is None:
        return []
    return [
        f"it leads to {answer.address}, which only {where} can reach; to invite machines "
        "elsewhere, create the code on a public node (`shoal doctor`), or give a port that the "
        "router forwards: `shoal invite --address IP:PORT`"
    ]


@click.command(
    short_help="Stop the daemon.",
    epilog=example("shoal stop", "shoal stop --data /tmp/shoal-demo-x1y2z3"),
)
@data_option
def stop(data: Path) -> None:
    """Stop the daemon. Running answers get at most 10 seconds to finish.

    For a folder that `shoal demo --keep` left, stop all its nodes and remove the folder.
    """
    from ..lifecycle import remove_demo, stop_daemon

    if remove_demo(data):
        click.echo("stopped")
        return
    stop_daemon(data)
    click.echo(f"stopped; start it again with `shoal node{data_flag(data)}`")
