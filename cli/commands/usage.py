"""`shoal usage`: shows how much nodes used each other's computers."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import render
from ..options import data_option, example, json_option

NUMBERS = ("requests", "tokens_in", "tokens_out", "busy_s")
NOTHING = "no node has reported use by another node; new figures are written every 10 minutes"
NOT_KEPT = "this node does not store the usage reports of others (`shoal node --state all` does)"
if TYPE_CHECKING:
    from ...node.control.messages.jobs import UsageRow

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
    """
    from ...node.control.messages.jobs import GetUsage
    from ..client import request

    answer = request(data, GetUsage(), wait=True)
    if as_json:
        click.echo(render.as_json(answer))
        return
    rows = answer.usage
    if not rows:
        click.echo(NOTHING if answer.kept else NOT_KEPT)
        return
    own = answer.own
    click.echo("used, as reported by the providers:")
    click.echo(_table(("NODE", "MODEL"), rows, lambda row: (_peer(row.client, own), _model(row))))
    click.echo("\nprovided, as reported by the providers:")
    click.echo(_table(("NODE",), rows, lambda row: (_peer(row.provider, own),)))
    if answer.more:
        click.echo(f"and {answer.more} more sums")
    if not answer.kept:
        click.echo(NOT_KEPT)


def _table(
    heads: tuple[str, ...],
    rows: "Iterable[UsageRow]",
    key_of: "Callable[[UsageRow], tuple[str, ...]]",
) -> str:
    """Sum up the rows that have the same key (`key_of`), and format the sums as a table. Sums with
    the most tokens come first."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        total = sums.setdefault(key_of(row), [0] * len(NUMBERS))
        for at, name in enumerate(NUMBERS):
            total[at] += getattr(row, name)
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1] - item[1][2], item[0]))
    cells = [[*key, *_numbers(total)] for key, total in ordered]
    return render.table((*heads, *HEADS), cells)


def _numbers(total: list[float]) -> list[str]:
    requests, tokens_in, tokens_out, busy = total
    shown = render.duration(busy) if busy >= 10 else f"{busy:.1f} s"
    return [f"{requests:.0f}", f"{tokens_in:.0f}", f"{tokens_out:.0f}", shown]


def _peer(peer: str | None, own: str) -> str:
    if peer is None:
        return "others together"
    return "this node" if peer == own else render.short(peer)


def _model(row: "UsageRow") -> str:
    if row.root is None:
        return "-"
    return render.name(row.model or row.root[:12])
