"""`shoal usage`: what users had of others' computers."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from . import render
from .options import data_option, example, json_option

NUMBERS = ("requests", "tokens_in", "tokens_out", "busy_s")
NOT_KEPT = "this node does not keep what others say of usage (`shoal node --state all` does)"
HEADS = ("REQUESTS", "TOKENS IN", "TOKENS OUT", "COMPUTING")


@click.command(
    short_help="Show who used whose computers.", epilog=example("shoal usage", "shoal usage --json")
)
@data_option
@json_option
def usage(data: Path, as_json: bool) -> None:
    """Show what each node had of the others' computers, and what each gave.

    Every figure is the word of the node that gave: each counts for itself, nobody checks it, and
    one that lies can say anything. What a node has of itself is not counted. Figures are written
    every 10 minutes. Needs a running daemon.
    """
    from .client import request

    answer = request(data, "usage", wait=True)
    if as_json:
        click.echo(render.as_json(answer))
        return
    rows = answer["usage"]
    if not rows:
        click.echo(
            "nobody has said that anybody used its computer"
            if answer.get("kept", True)
            else NOT_KEPT
        )
        return
    own = answer["own"]
    click.echo("had, as those say who gave it:")
    click.echo(
        _table(("NODE", "MODEL"), rows, lambda row: (_peer(row["client"], own), _model(row)))
    )
    click.echo("\ngave, as they say themselves:")
    click.echo(_table(("NODE",), rows, lambda row: (_peer(row["provider"], own),)))
    if answer["more"]:
        click.echo(f"and {answer['more']} more sums")
    if not answer.get("kept", True):
        click.echo(NOT_KEPT)


def _table(
    heads: tuple[str, ...],
    rows: Iterable[dict[str, Any]],
    key_of: Callable[[dict[str, Any]], tuple[str, ...]],
) -> str:
    """The sums of all rows with one key; those with most tokens first."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        total = sums.setdefault(key_of(row), [0] * len(NUMBERS))
        for at, name in enumerate(NUMBERS):
            total[at] += row[name]
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


def _model(row: dict[str, Any]) -> str:
    if row["root"] is None:
        return "-"
    return render.name(row["model"] or row["root"][:12])
