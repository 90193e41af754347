"""`shoal model add | list | pull | rm | show`: the models of this node and of its swarm."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import render
from ..errors import CommandError
from ..options import Commands, data_flag, data_option, example, json_option
from . import pull, remove

if TYPE_CHECKING:
    from ...node.control.messages import models as messages
    from ..progress import Bar

HEADS = ("NAME", "LAYERS", "WEIGHTS", "HERE", "SERVED", "VOUCHED BY", "ROOT")
FAMILY_HEADS = ("FAMILY", "ARCHITECTURE", "DEVICE", "PRECISIONS")
PULLED = 16  # digits of a root in a suggested command: too many to find another root by trial
SHOWN = 8  # most vouchers, and most other models of the same name, that are printed


@click.group(cls=Commands, epilog=example("shoal model add ./Llama-3.2-1B", "shoal model list"))
def model() -> None:
    """Add, list, show, get and remove models."""


model.add_command(pull.pull)
model.add_command(remove.remove_model)


@model.command(
    epilog=example("shoal model add ./Llama-3.2-1B", "shoal model add ./out --name mine")
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the model (default: the folder's name).")
@data_option
@json_option
def add(folder: Path, name: str | None, data: Path, as_json: bool) -> None:
    """Add the Hugging Face model in FOLDER to this node's library.

    FOLDER must contain safetensors files, config.json and tokenizer.json. Nothing in it is
    executed. Works with and without a running daemon.
    """
    from ..progress import Bar

    if name is not None:
        from ...dht.content.library import check_new_name

        check_new_name(name)
    folder = folder.resolve()
    with Bar("reading") as bar:
        answer = _add(data, folder, name, bar)
    if as_json:
        click.echo(render.as_json(answer))
        return
    click.echo(f"added {render.name(answer.name)}: {_summary(answer)}")
    if old := answer.replaced:
        root = render.short(old)
        click.echo(f"this name meant {root} here before; that model stays on this disk")
        click.echo(f"remove it with `shoal model rm {root}{data_flag(data)}`")
    name = render.name(answer.name)
    click.echo(f"serve it with `shoal node --model {name}{data_flag(data)}`")
    pulled = f"{name}@{render.safe(answer.root[:PULLED])}"
    click.echo(f"while a node runs here, others get it with `shoal model pull {pulled}`")


def _add(data: Path, folder: Path, name: str | None, bar: "Bar") -> "messages.AddedModel":
    """Add a model through the daemon. If none runs, add it to the library on disk."""
    from ..client import is_running, request

    if not is_running(data):
        import trio

        from ...node.control.offline import add_model
        from ...transport.host.real import RealHost

        return trio.run(add_model, RealHost(), data, folder, name, bar.show)
    from ...node.control.messages.models import AddModel

    ask = AddModel(path=str(folder), name=name)
    return request(data, ask, wait=True, on_event=lambda e: bar.show(e.done, e.total))


@model.command("list", epilog=example("shoal model list", "shoal model list --supported"))
@click.option(
    "--supported", is_flag=True, help="List the families of models that shoal can compute instead."
)
@data_option
@json_option
def list_(supported: bool, data: Path, as_json: bool) -> None:
    """List the models of this node and, while its daemon runs, of the swarm."""
    if supported:
        _list_supported(as_json)
        return
    answer = _models(data)
    if as_json:
        click.echo(render.as_json(answer))
    elif not answer.models:
        click.echo("no models are known; add one with `shoal model add FOLDER`")
    else:
        rows = [_row(item) for item in answer.models]
        click.echo(render.table(HEADS, rows))
        if any(item.complete is False for item in answer.models):
            click.echo("incomplete: no node serves some layers; `shoal model show NAME` lists them")


def _list_supported(as_json: bool) -> None:
    """Print the families with the devices and precisions in which the tests cover them."""
    from ...tasks.engine.families import supported

    found = supported()
    if as_json:
        rows = [asdict(each) | {"precisions": list(each.precisions)} for each in found]
        click.echo(render.as_json({"supported": rows}))
        return
    cells = [[each.family, each.architecture, each.device, *each.precisions] for each in found]
    click.echo(render.table(FAMILY_HEADS, [[*row[:3], ", ".join(row[3:])] for row in cells]))
    click.echo("a model's family is the word in `architectures` of its config.json")


def _row(item: "messages.ListedModel") -> list[str]:
    served = item.complete
    return [
        render.name(item.name),
        str(item.layers),
        render.size(item.weight_bytes),
        _here(item),
        "-" if served is None else "complete" if served else "incomplete",
        _by(item.vouchers),
        render.short(item.root),
    ]


def _here(item: "messages.ListedModel") -> str:
    if not item.local:
        return "no"
    return "partly" if item.lacks else "yes"


def _by(vouchers: "Sequence[messages.VoucherView]") -> str:
    if not vouchers:
        return "-"
    first = "this node" if vouchers[0].source == "here" else render.short(vouchers[0].peer)
    return first + (f" and {len(vouchers) - 1} more" if len(vouchers) > 1 else "")


@model.command(epilog=example("shoal model show tiny", "shoal model show tiny --json"))
@click.argument("name")
@data_option
@json_option
def show(name: str, data: Path, as_json: bool) -> None:
    """Show a model's configuration, its size, and the nodes that serve it. NAME may be a root."""
    answer = _model(data, name)
    click.echo(render.as_json(answer) if as_json else render.fields(_show_rows(answer)))


def _models(data: Path) -> "messages.ModelsView":
    """Ask the daemon for the list of models. If none runs, read the library on disk."""
    from ...node.control.messages.models import ListModels
    from ..client import request

    try:
        return request(data, ListModels())
    except CommandError as error:
        if error.code != "not-running":
            raise
    import trio

    from ...node.control import offline
    from ...transport.host.real import RealHost

    return trio.run(offline.list_models, RealHost(), data)


def _model(data: Path, name: str) -> "messages.ShownModel":
    """Return the description of one model from the daemon or, if no daemon is running, from the
    library on disk."""
    from ...node.control.messages.models import ShowModel
    from ..client import request

    try:
        return request(data, ShowModel(name=name))
    except CommandError as error:
        if error.code != "not-running":
            raise
    import trio

    from ...dht.errors import ModelError
    from ...node.control import offline
    from ...transport.host.real import RealHost

    try:
        return trio.run(offline.show_model, RealHost(), data, name)
    except ModelError as error:
        if error.code != "unknown-model":
            raise
        flag = data_flag(data)
        raise CommandError(
            error.code,
            error.message,
            hint=f"`shoal node{flag}` starts one, `shoal model add FOLDER{flag}` adds a model",
        ) from None


def _summary(item: "messages.ModelEntry") -> str:
    return (
        f"{item.layers} layers, {render.size(item.weight_bytes)} of weights, "
        f"root {render.short(item.root)}"
    )


def _show_rows(answer: "messages.ShownModel") -> list[tuple[str, str]]:
    rows = [
        ("name", render.name(answer.name)),
        ("root", render.safe(answer.root)),
        ("layers", str(answer.layers)),
        ("weights", render.size(answer.weight_bytes)),
        *((render.safe(key, 24), render.safe(value)) for key, value in answer.config.items()),
    ]
    vouchers = answer.vouchers
    rows += [("vouched by", pull.voucher(one)) for one in vouchers[:SHOWN]]
    if len(vouchers) > SHOWN:
        rows.append(("vouched by", f"{len(vouchers) - SHOWN} more"))
    for other in (answer.others or ())[:SHOWN]:
        named = render.safe(other.name, 160)
        rows.append(("also means", f"{named}, {pull.vouched(other.vouchers)}"))
    for holder in answer.holders:
        rows.append(("served by", f"{render.short(holder.peer)} {_span(holder)}"))
    if answer.missing:
        rows.append(("missing", render.sentence(answer.missing)))
    return rows


def _span(holder: "messages.ServingNode") -> str:
    return f"layers {render.safe(holder.layers, 16)} ({render.safe(holder.dtype, 16)})"
