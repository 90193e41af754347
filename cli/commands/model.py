"""`shoal model add | list | pull | quantize | rm | show`: models of this node and its swarm."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import render
from ..errors import CommandError
from ..options import Commands, data_flag, data_option, example, json_option
from .models import pull, quantize, remove
from .models.quantize import report_added
from .share import OWNERS_WORD, SHARED_HEADS, offer_rows

if TYPE_CHECKING:
    from ...node.control.messages import models as messages
    from ..progress import Bar

HEADS = ("NAME", "LAYERS", "WEIGHTS", "HERE", "SERVED", "VOUCHED BY", "ROOT")
FAMILY_HEADS = ("FAMILY", "ARCHITECTURE", "ON A CPU", "ON CUDA")
PULLED = 16  # digits of a root in a suggested command: too many to find another root by trial
CONFIG_WIDTH = 160  # most characters that are shown of one value of a configuration
SHOWN = 8  # most vouchers, and most other models of the same name, that are printed


@click.group(cls=Commands, epilog=example("shoal model add ./Llama-3.2-1B", "shoal model list"))
def model() -> None:
    """Add, list, show, get and remove models."""


model.add_command(pull.pull)
model.add_command(remove.remove_model)
model.add_command(quantize.quantize)


@model.command(
    epilog=example(
        "shoal model add ./Llama-3.2-1B", "shoal model add ollama:llama3.2:1b --name mine"
    )
)
@click.argument("source")
@click.option("--name", metavar="NAME", help="Name of the model (default: the source's name).")
@data_option
@json_option
def add(source: str, name: str | None, data: Path, as_json: bool) -> None:
    """Add the model SOURCE to this node's library.

    SOURCE is a Hugging Face folder, also one quantised by AWQ or GPTQ; a GGUF file; ollama:NAME
    for a model of the local Ollama; or ORG/NAME for one of a hub (HF_ENDPOINT, HF_TOKEN). Nothing
    in it is executed. Works with and without a running daemon.
    """
    from ..progress import Bar
    from .models.source import asked

    if name is not None:
        from ...dht.content.modelnames import check_new_name

        check_new_name(name)
    ask = asked(source, name)
    with Bar("downloading" if ask.origin == "hub" else "reading", "storing") as bar:
        answer = _add(data, ask, bar)
    click.echo(render.as_json(answer) if as_json else report_added(answer, data))


def _add(data: Path, ask: "messages.AddModel", bar: "Bar") -> "messages.AddedModel":
    """Add a model through the daemon. If none runs, add it to the library on disk."""
    from ..client import is_running, request

    if not is_running(data):
        import trio

        from ...node.control.offline import add_model
        from ...transport.host.real import RealHost

        return trio.run(add_model, RealHost(), data, ask, bar.show)
    return request(data, ask, wait=True, on_event=lambda e: bar.show(e.done, e.total))


@model.command("list", epilog=example("shoal model list", "shoal model list --supported"))
@click.option(
    "--supported", is_flag=True, help="List the families of models that shoal can compute instead."
)
@data_option
@json_option
def list_(supported: bool, data: Path, as_json: bool) -> None:
    """List the models of this node and of the swarm.

    While the daemon runs, models of other nodes are listed, too.
    """
    if supported:
        _list_supported(as_json)
        return
    answer = _models(data)
    if as_json:
        click.echo(render.as_json(answer))
    elif not answer.models and not answer.shared:
        click.echo("no models are known; add one with `shoal model add FOLDER`")
    else:
        rows = [_row(item) for item in answer.models]
        if rows:
            click.echo(render.table(HEADS, rows))
        if any(item.complete is False for item in answer.models):
            click.echo("incomplete: no node serves some layers; `shoal model show NAME` lists them")
        if answer.shared:
            before = "\n" if rows else ""
            click.echo(before + render.table(SHARED_HEADS, offer_rows(answer.shared)))
            click.echo(OWNERS_WORD)


def _list_supported(as_json: bool) -> None:
    """Print the families with the devices and precisions in which the tests cover them."""
    from ...tasks.engine.families import supported

    found = supported()
    if as_json:
        rows = [asdict(each) | {"precisions": list(each.precisions)} for each in found]
        click.echo(render.as_json({"supported": rows}))
        return
    cells: dict[str, list[str]] = {}
    for each in found:
        row = cells.setdefault(each.architecture, [each.family, each.architecture])
        row.append(", ".join(each.precisions) or "not tested")
    click.echo(render.table(FAMILY_HEADS, list(cells.values())))
    click.echo(
        "the tests compare these with transformers: on CUDA where they find a graphics card,"
    )
    click.echo(
        "else in Triton's interpreter; torch computes the families that are not tested there"
    )
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
    """Show a model's configuration, size and serving nodes.

    NAME may be a root.
    """
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


def _show_rows(answer: "messages.ShownModel") -> list[tuple[str, str]]:
    rows = [
        ("name", render.name(answer.name)),
        ("root", render.safe(answer.root)),
        ("layers", str(answer.layers)),
        ("weights", render.size(answer.weight_bytes)),
        *(
            (render.safe(key, 24), render.safe(value, CONFIG_WIDTH))
            for key, value in answer.config.items()
        ),
    ]
    vouchers = answer.vouchers
    rows += [("vouched by", pull.voucher(one)) for one in vouchers[:SHOWN]]
    if len(vouchers) > SHOWN:
        rows.append(("vouched by", f"{len(vouchers) - SHOWN} more"))
    for other in (answer.others or ())[:SHOWN]:
        named = render.safe(other.name, 160)
        rows.append(("also means", f"{named}, {pull.vouched(other.vouchers)}"))
    for holder in answer.providers:
        rows.append(("served by", f"{render.short(holder.peer)} {_span(holder)}"))
    if answer.missing:
        rows.append(("missing", render.sentence(answer.missing)))
    return rows


def _span(holder: "messages.ServingNode") -> str:
    return f"layers {render.safe(holder.layers, 16)} ({render.safe(holder.dtype, 16)})"
