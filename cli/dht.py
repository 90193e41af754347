"""`shoal dht`: this node's part in the index of who holds what."""

from pathlib import Path
from typing import Any

import click

from ..transport import shortid
from . import render
from .options import data_option, example, json_option

SHOWN = 20  # own records in the table for a person
BUCKET_HEADS = ("SHARED", "CONTACTS", "REACHABLE", "WAITING")
OWN_HEADS = ("KIND", "ABOUT", "KEPT BY", "ANNOUNCED", "NEXT")


@click.command(
    short_help="Show this node's part in the index.",
    epilog=example("shoal dht", "shoal dht --json"),
)
@data_option
@json_option
def dht(data: Path, as_json: bool) -> None:
    """Show this node's part in the index of who holds what: whom it knows, what it keeps.

    Contacts stand by how many leading bits their key shares with this node's: the more, the nearer.
    """
    from .client import request

    answer = request(data, "dht")
    click.echo(render.as_json(answer) if as_json else report(answer))


def report(answer: dict[str, Any]) -> str:
    """The answer of `dht` for a person."""
    parts = [render.fields(rows(answer))]
    if answer["buckets"]:
        parts.append(render.table(BUCKET_HEADS, [bucket_row(each) for each in answer["buckets"]]))
    if answer["own"]:
        parts.append(render.table(OWN_HEADS, [own_row(each) for each in answer["own"][:SHOWN]]))
    if len(answer["own"]) > SHOWN:
        parts.append(f"and {len(answer['own']) - SHOWN} more of its own records")
    return "\n\n".join(parts)


def rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """What there is to say in all."""
    stored, own = answer["stored"], answer["own"]
    return [
        ("mode", f"{render.safe(answer['mode'], 16)}: {render.sentence(answer['why'])}"),
        ("network", _network(answer)),
        ("contacts", f"{answer['contacts']}, {answer['servers']} of them reachable by all"),
        ("links", f"{answer['links']} for look-ups alone"),
        ("stored", f"{render.count(stored['records'], 'record')} of others, "
                   f"{render.size(stored['bytes'])} of {render.size(stored['limit'])}"),
        ("refused", f"of what others asked and brought: {_codes(answer['refused'])}"),
        ("disbelieved", f"of what others answered: {_codes(answer['disbelieved'])}"),
        ("own", f"{render.count(len(own), 'record')}, {_walk(answer['walk'])}"),
    ]  # fmt: skip


def _codes(counts: dict[str, int]) -> str:
    """How often what, the most frequent first."""
    listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {render.safe(code, 32)}" for code, count in listed) or "nothing"


def _network(answer: dict[str, Any]) -> str:
    if not answer["contacts"]:
        return "no other node is known: `shoal doctor` says why, an invitation leads to one"
    nodes = round(answer["size"])
    return f"about {nodes} {'node that serves' if nodes == 1 else 'nodes that serve'}"


def _walk(walk: dict[str, Any] | None) -> str:
    if walk is None:
        return "not announced yet"
    keys, messages = render.count(walk["keys"], "key"), render.count(walk["messages"], "message")
    ago = render.duration(walk["ended_s"])
    return f"last announced {ago} ago: {keys}, {messages}, {walk['took_s']:.1f} s"


def bucket_row(bucket: dict[str, Any]) -> list[str]:
    """Contacts at one distance as a line of the table."""
    shared = bucket["shared"]
    return [
        render.count(shared, "bit"),
        str(bucket["contacts"]),
        str(bucket["reachable"]),
        str(bucket["waiting"]),
    ]


def own_row(own: dict[str, Any]) -> list[str]:
    """One record of this node's own as a line of the table."""
    announced, about = own["announced_s"], str(own["about"])
    return [
        render.safe(own["kind"], 16) + (" (withdrawn)" if own["gone"] else ""),
        render.short(about) if shortid.is_id(about) else render.safe(about, 60),
        render.count(own["kept"], "node"),
        "never" if announced is None else f"{render.duration(announced)} ago",
        "never" if own["due_s"] is None else f"in {render.duration(max(own['due_s'], 0))}",
    ]
