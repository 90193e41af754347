"""`shoal model quantize`: makes a smaller model from one in the library."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ... import render
from ...options import data_flag, data_option, example, json_option

if TYPE_CHECKING:
    from ....node.control.messages import models as messages
    from ...progress import Bar

PULLED = 16  # digits of a root in a suggested command: too many to find another root by trial


@click.command(
    short_help="Make a smaller model from one in the library.",
    epilog=example(
        "shoal model quantize tiny --to int8", "shoal model quantize tiny --to int4 --name small"
    ),
)
@click.argument("model", metavar="NAME")
@click.option(
    "--to",
    type=click.Choice(["int8", "int4"]),
    required=True,
    help="Bits of a weight: half or a quarter of the memory of bfloat16.",
)
@click.option("--name", metavar="NAME", help="Name of the new model (default: NAME-int8).")
@data_option
@json_option
def quantize(
    model: str, to: Literal["int8", "int4"], name: str | None, data: Path, as_json: bool
) -> None:
    """Make a quantised model from the model NAME of this node's library.

    The new model has its own name and root; the old one stays. int8 loses about 0.1 %, int4 about
    2 % in loss. Works with and without a running daemon.
    """
    from ....node.control.messages.models import QuantizeModel
    from ...progress import Bar

    if name is not None:
        from ....dht.content.modelnames import check_new_name

        check_new_name(name)
    with Bar("quantising", "storing") as bar:
        answer = _quantize(data, QuantizeModel(model=model, to=to, name=name), bar)
    click.echo(render.as_json(answer) if as_json else report_added(answer, data))


def _quantize(data: Path, ask: "messages.QuantizeModel", bar: "Bar") -> "messages.AddedModel":
    """Quantise through the daemon. If none runs, do it in this process and its child."""
    from ...client import is_running, request

    if not is_running(data):
        import trio

        from ....node.control.offline import quantize_model
        from ....transport.host.real import RealHost

        return trio.run(quantize_model, RealHost(), data, ask, bar.show)
    return request(data, ask, wait=True, on_event=lambda e: bar.show(e.done, e.total))


def report_added(answer: "messages.AddedModel", data: Path) -> str:
    """Return what to print about a model that was added."""
    name = render.name(answer.name)
    size = render.size(answer.weight_bytes)
    lines = [
        f"added {name}: {answer.layers} layers, {size} of weights, root {render.short(answer.root)}"
    ]
    lines += [render.sentence(note) for note in answer.notes or ()]
    if old := answer.replaced:
        root = render.short(old)
        lines.append(f"this name meant {root} here before; that model stays on this disk")
        lines.append(f"remove it with `shoal model rm {root}{data_flag(data)}`")
    pulled = f"{name}@{render.safe(answer.root[:PULLED])}"
    lines.append(f"serve it with `shoal node --model {name}{data_flag(data)}`")
    lines.append(f"while a node runs here, others get it with `shoal model pull {pulled}`")
    return "\n".join(lines)
