"""`shoal adapter add | list | show | pull | rm`: LoRA adapters of this node."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import render
from ..errors import CommandError
from ..options import Commands, data_flag, data_option, example, json_option
from .models import remove

if TYPE_CHECKING:
    from ...node.control.messages.adapters import AdaptersView, AdapterView

HEADS = ("NAME", "MODEL", "RANK", "LAYERS", "SIZE", "ROOT")


@click.group(
    cls=Commands, epilog=example("shoal adapter add ./poet --model tiny", "shoal adapter list")
)
def adapter() -> None:
    """Add, list, show, get and remove LoRA adapters."""


adapter.add_command(remove.remove_adapter)


@adapter.command(
    epilog=example("shoal adapter add ./poet", "shoal adapter add ./out --name poet --model tiny")
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the adapter (default: the folder's name).")
@click.option("--model", metavar="MODEL",
              help="Its model (default: the only one here that fits).")  # fmt: skip
@data_option
@json_option
def add(folder: Path, name: str | None, model: str | None, data: Path, as_json: bool) -> None:
    """Add a LoRA adapter that `peft` has saved to this node's library.

    FOLDER must contain adapter_config.json and adapter_model.safetensors. Nothing in it is
    executed. Works with and without a running daemon.
    """
    answer = _add(data, folder.resolve(), name, model)
    if as_json:
        click.echo(render.as_json(answer))
        return
    base = render.name(answer.model) if answer.model else render.short(answer.base)
    click.echo(
        f"added {render.name(answer.name)}: rank {answer.rank}, layers {answer.layers} of {base}, "
        f"{render.size(answer.size)}, root {render.short(answer.root)}"
    )
    flag = data_flag(data)
    click.echo(f'use it with `shoal run {base} "TEXT" --adapter {render.name(answer.name)}{flag}`')
    click.echo(f"on other nodes, `--adapter {render.safe(answer.root)}`")


def _add(data: Path, folder: Path, name: str | None, model: str | None) -> "AdapterView":
    """Add an adapter through the daemon. If none runs, add it to the library on disk."""
    from ..client import is_running, request

    if not is_running(data):
        import trio

        from ...node.control.offline import add_adapter
        from ...transport.host.real import RealHost

        return trio.run(add_adapter, RealHost(), data, folder, name, model)
    from ...node.control.messages.adapters import AddAdapter

    return request(data, AddAdapter(path=str(folder), name=name, model=model), wait=True)


@adapter.command("list", epilog=example("shoal adapter list", "shoal adapter list --json"))
@data_option
@json_option
def list_(data: Path, as_json: bool) -> None:
    """List the adapters that have a name on this node."""
    answer = _adapters(data)
    if as_json:
        click.echo(render.as_json(answer))
    elif not answer.adapters:
        click.echo("no adapters are known; add one with `shoal adapter add FOLDER`")
    else:
        click.echo(render.table(HEADS, [_row(item) for item in answer.adapters]))


def _row(item: "AdapterView") -> list[str]:
    return [
        render.name(item.name),
        render.name(item.model) if item.model else render.short(item.base),
        str(item.rank),
        render.safe(item.layers, 32),
        render.size(item.size),
        render.short(item.root),
    ]


def _adapters(data: Path) -> "AdaptersView":
    """Ask the daemon for the list of adapters. If none runs, read the library on disk."""
    from ...node.control.messages.adapters import ListAdapters
    from ..client import request

    try:
        return request(data, ListAdapters())
    except CommandError as error:
        if error.code != "not-running":
            raise
    import trio

    from ...node.control import offline
    from ...transport.host.real import RealHost

    return trio.run(offline.list_adapters, RealHost(), data)


@adapter.command(epilog=example("shoal adapter show poet", "shoal adapter show poet --json"))
@click.argument("name")
@data_option
@json_option
def show(name: str, data: Path, as_json: bool) -> None:
    """Show an adapter's model, rank, modules and hash. Needs a running daemon."""
    from ...node.control.messages.adapters import ShowAdapter
    from ..client import request

    answer = request(data, ShowAdapter(name=name))
    click.echo(render.as_json(answer) if as_json else render.fields(_rows(answer)))


@adapter.command(epilog=example(f"shoal adapter pull {'ab' * 32} --name poet"))
@click.argument("root")
@click.option("--name", metavar="NAME", required=True, help="Name of the adapter on this node.")
@data_option
@json_option
def pull(root: str, name: str, data: Path, as_json: bool) -> None:
    """Get an adapter from other nodes, and name it here. ROOT is its hash.

    A request may also name an adapter by its hash without this. Needs a running daemon.
    """
    from ...node.control.messages.adapters import PullAdapter
    from ..client import request
    from ..progress import Bar

    with Bar("fetching") as bar:
        ask = PullAdapter(root=root, name=name)
        answer = request(data, ask, wait=True, on_event=lambda e: bar.show(e.done, e.total))
    click.echo(render.as_json(answer) if as_json else render.fields(_rows(answer)))


def _rows(answer: "AdapterView") -> list[tuple[str, str]]:
    return [
        ("name", render.name(answer.name)),
        ("root", render.safe(answer.root)),
        ("model", render.name(answer.model) if answer.model else "not here"),
        ("model's root", render.safe(answer.base)),
        ("rank", str(answer.rank)),
        ("alpha", render.number(answer.alpha, "g")),
        ("kind", "rsLoRA" if answer.rslora else "LoRA"),
        ("dtype", render.safe(answer.dtype, 16)),
        ("modules", render.safe(" ".join(answer.modules), 160)),
        ("layers", render.safe(answer.layers, 160)),
        ("size", render.size(answer.size)),
    ]
