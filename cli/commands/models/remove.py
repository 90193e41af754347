"""`shoal model rm` and `shoal blob rm`: show what would be lost, ask, and remove."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ... import render
from ...confirm import confirm
from ...errors import CommandError
from ...options import data_option, example, json_option

if TYPE_CHECKING:
    from ....node.control.messages.models import Removed

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command(
    "rm",
    short_help="Remove a model from this node's disk.",
    epilog=example("shoal model rm tiny", "shoal model rm 3c9fb632 --yes"),
)
@click.argument("name")
@yes_option
@data_option
@json_option
def remove_model(name: str, yes: bool, data: Path, as_json: bool) -> None:
    """Remove the model NAME from this node: its names, its manifest, and the chunks that no other
    model or blob here needs.

    NAME is a name, NAME@HASH, or a root or its first 8 or more digits. The command shows what the
    swarm would lose, then asks; without a terminal, `--yes` is required. Copies on other nodes
    stay. A model that this node serves or fetches cannot be removed: end that first. Works with
    and without a running daemon.
    """

    def ask(sure: bool) -> "Removed":
        from ....node.control.messages.models import RemoveModel
        from ...client import request

        try:
            return request(data, RemoveModel(name=name, sure=sure), wait=True)
        except CommandError as error:
            if error.code != "not-running":
                raise
        import trio

        from ....node.control import offline
        from ....transport.host.real import RealHost

        async def remove() -> "Removed":
            return await offline.remove_model(RealHost(), data, name, sure=sure)

        return trio.run(remove)

    _remove(ask, yes=yes, as_json=as_json)


@click.command(
    "rm",
    short_help="Remove a blob from this node's disk.",
    epilog=example("shoal blob rm abababab", "shoal blob rm abababab --yes"),
)
@click.argument("root")
@yes_option
@data_option
@json_option
def remove_blob(root: str, yes: bool, data: Path, as_json: bool) -> None:
    """Remove the blob ROOT from this node, with the chunks that no other model or blob here needs.

    The beginning of ROOT is enough. The command shows what the swarm would lose, then asks; without
    a terminal, `--yes` is required. Copies on other nodes stay, and so do files written from the
    blob. A blob that is being fetched cannot be removed. Needs a running daemon.
    """
    from ....node.control.messages.models import RemoveBlob
    from ...client import request

    _remove(
        lambda sure: request(data, RemoveBlob(root=root, sure=sure), wait=True),
        yes=yes,
        as_json=as_json,
    )


@click.command(
    "rm",
    short_help="Remove an adapter from this node's disk.",
    epilog=example("shoal adapter rm poet", "shoal adapter rm poet --yes"),
)
@click.argument("name")
@yes_option
@data_option
@json_option
def remove_adapter(name: str, yes: bool, data: Path, as_json: bool) -> None:
    """Remove the LoRA adapter NAME from this node, with its names.

    NAME is a name, or a root or its first 8 or more digits. The command shows what the swarm would
    lose, then asks; without a terminal, `--yes` is required. Answers that use it continue. Needs a
    running daemon.
    """
    from ....node.control.messages.adapters import RemoveAdapter
    from ...client import request

    _remove(
        lambda sure: request(data, RemoveAdapter(name=name, sure=sure), wait=True),
        yes=yes,
        as_json=as_json,
    )


def _remove(ask: "Callable[[bool], Removed]", *, yes: bool, as_json: bool) -> None:
    """Show what a removal would lose, ask for confirmation, and remove.

    `ask` sends the request: with False it returns the losses, and with True it also removes.
    """
    if not (yes and as_json):
        loss = ask(False)
        for line in lost(loss):
            print(line, file=sys.stderr)
        confirm(f"Remove it and free {render.size(loss.freed)}?", yes=yes)
    removed = ask(True)
    if as_json:
        click.echo(render.as_json(removed))
    else:
        root = render.safe(removed.root[:16])
        click.echo(f"removed {root}; {render.size(removed.freed)} of this disk are free again")


def lost(loss: "Removed") -> list[str]:
    """Describe in sentences what is removed, and what the swarm loses."""
    names = " and ".join(render.name(name) for name in loss.names)
    called = f"{names}, " if names else ""
    what = f"{render.safe(loss.kind)} {called}root {render.safe(loss.root[:16])}"
    lines = [f"{what}: {render.size(loss.freed)} on this disk"]
    if loss.shared:
        chunks = render.count(loss.shared, "chunk")
        lines.append(f"{chunks} of it stay, because other models or blobs here need them")
    return [*lines, *_elsewhere(loss)]


def _elsewhere(loss: "Removed") -> list[str]:
    """Describe in sentences the copies on other nodes."""
    copies, partial = loss.copies, loss.partial
    if copies is None:
        said = ["no daemon runs here, so copies on other nodes are unknown"]
    elif copies:
        said = [f"{render.count(copies, 'other node')} {_says(copies)} all of it"]
    else:
        said = ["this is the last known copy: no other node claims to hold all of it"]
        if not loss.linked:
            said.append("this node has no links, so copies on other nodes are unknown")
    if partial:
        said.append(f"{render.count(partial, 'other node')} {_says(partial)} parts of it")
    if loss.embedded:
        said.append("every installation of shoal can add this model again: it is the embedded one")
    return said


def _says(count: int) -> str:
    return "claims to hold" if count == 1 else "claim to hold"
