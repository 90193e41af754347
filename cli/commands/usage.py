"""`shoal usage`: shows how much nodes used each other's computers."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import render
from ..options import data_option, example, json_option

NUMBERS = ("requests", "tokens_in", "tokens_out", "busy_s")
NOTHING = "no node has reported use by another node; new figures are written every 10 minutes"
NOT_KEPT = "this node does not store the usage reports of others (`shoal node --state all` does)"
if TYPE_CHECKING:
    from ...node.control.messages.jobs import CheckedView, UsageRow

HEADS = ("REQUESTS", "TOKENS IN", "TOKENS OUT", "COMPUTING")


@click.command(
    short_help="Show how much nodes used each other.",
    epilog=example("shoal usage", "shoal usage --json"),
)
@data_option
@json_option
def usage(data: Path, as_json: bool) -> None:
    """Show how much each node used other nodes' computers, and how much each provided.

    Providers report the figures themselves. Reports are not verified, so a dishonest provider can
    claim anything. A node's use of its own computer is not counted. Figures are written every 10
    minutes. Needs a running daemon.

    CHECKED is the work on jobs that was found right: this node had some of its rows recomputed, or
    a member did whose own work this node has checked. Nothing else raises a node's share.
    """
    from ...node.control.messages.jobs import GetUsage
    from ..client import request

    answer = request(data, GetUsage(), wait=True)
    if as_json:
        click.echo(render.as_json(answer))
        return
    rows = answer.usage
    if not rows:
        click.echo(NOTHING if answer.stores else NOT_KEPT)
        return
    own = answer.own
    click.echo("used, as reported by the providers:")
    click.echo(_table(("NODE", "MODEL"), rows, lambda row: (_peer(row.client, own), _model(row))))
    click.echo("\nprovided, as reported by the providers:")
    checked = {_peer(each.provider, own): _checked(each) for each in answer.checked}
    click.echo(_table(("NODE",), rows, lambda row: (_peer(row.provider, own),), checked))
    if answer.more:
        click.echo(f"and {answer.more} more sums")
    if not answer.stores:
        click.echo(NOT_KEPT)


def _table(
    heads: tuple[str, ...],
    rows: "Iterable[UsageRow]",
    key_of: "Callable[[UsageRow], tuple[str, ...]]",
    checked: Mapping[str, str] | None = None,
) -> str:
    """Sum up the rows that have the same key (`key_of`), and format the sums as a table. Sums with
    the most tokens come first. `checked` are the cells of one more column, by the first column."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        total = sums.setdefault(key_of(row), [0] * len(NUMBERS))
        for at, name in enumerate(NUMBERS):
            total[at] += getattr(row, name)
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1] - item[1][2], item[0]))
    cells = [[*key, *_numbers(total)] for key, total in ordered]
    if checked is None:
        return render.table((*heads, *HEADS), cells)
    more = [[*row, checked.get(row[0], "-")] for row in cells]
    return render.table((*heads, *HEADS, "CHECKED"), more)


def _checked(view: "CheckedView") -> str:
    return "lied" if view.lied else _duration(view.seconds) if view.seconds else "-"


def _duration(seconds: float) -> str:
    return render.duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"


def _numbers(total: list[float]) -> list[str]:
    requests, tokens_in, tokens_out, busy = total
    return [f"{requests:.0f}", f"{tokens_in:.0f}", f"{tokens_out:.0f}", _duration(busy)]


def _peer(peer: str | None, own: str) -> str:
    if peer is None:
        return "others together"
    return "this node" if peer == own else render.short(peer)


def _model(row: "UsageRow") -> str:
    if row.root is None:
        return "-"
    return render.name(row.model or row.root[:12])
