"""`shoal dht`: shows this node's part in the DHT, the index of providers, peers and names."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...transport import shortid
from .. import render
from ..options import data_option, example, json_option

if TYPE_CHECKING:
    from ...dht.figures import AnnouncementFigures, BucketFigures, DhtFigures, OwnRecordFigures

SHOWN = 20  # most of this node's own records in the table
BUCKET_HEADS = ("SHARED", "CONTACTS", "REACHABLE", "WAITING")
OWN_HEADS = ("KIND", "ABOUT", "STORED BY", "ANNOUNCED", "NEXT")


@click.command(
    short_help="Show this node's part in the index.",
    epilog=example("shoal dht", "shoal dht --json"),
)
@data_option
@json_option
def dht(data: Path, as_json: bool) -> None:
    """Show this node's part in the swarm's index (a DHT): its contacts and the records it stores.

    Contacts are grouped by the number of leading bits that their key shares with this node's key:
    the more, the nearer.
    """
    from ...node.control.messages.dht import GetDht
    from ..client import request

    answer = request(data, GetDht())
    click.echo(render.as_json(answer) if as_json else report(answer))


def report(answer: "DhtFigures") -> str:
    """Format the reply of `dht` as a summary and tables."""
    parts = [render.fields(rows(answer))]
    if answer.buckets:
        parts.append(render.table(BUCKET_HEADS, [bucket_row(each) for each in answer.buckets]))
    if answer.own:
        parts.append(render.table(OWN_HEADS, [own_row(each) for each in answer.own[:SHOWN]]))
    if len(answer.own) > SHOWN:
        parts.append(f"and {len(answer.own) - SHOWN} more of its own records")
    return "\n\n".join(parts)


def rows(answer: "DhtFigures") -> list[tuple[str, str]]:
    """Return the summary as pairs of a name and a value."""
    stored, own = answer.stored, answer.own
    return [
        ("mode", f"{render.safe(answer.mode, 16)}: {render.sentence(answer.why)}"),
        ("network", _network(answer)),
        ("contacts", f"{answer.contacts}, {answer.servers} of them publicly reachable"),
        ("links", f"{answer.links} only for look-ups"),
        ("stored", f"{render.count(stored.records, 'record')} of other nodes, "
                   f"{render.size(stored.bytes)} of {render.size(stored.limit)}"),
        ("refused", f"requests and records of other nodes: {_codes(answer.refused)}"),
        ("disbelieved", f"replies of other nodes: {_codes(answer.disbelieved)}"),
        ("own", f"{render.count(len(own), 'record')}, {_walk(answer.walk)}"),
    ]  # fmt: skip


def _codes(counts: Mapping[str, int]) -> str:
    """Format how often each code occurred, the most frequent first."""
    listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {render.safe(code, 32)}" for code, count in listed) or "none"


def _network(answer: "DhtFigures") -> str:
    if not answer.contacts:
        return "no other node is known: `shoal doctor` says why; connect with an invitation"
    nodes = round(answer.size)
    return f"about {nodes} {'node that serves' if nodes == 1 else 'nodes that serve'}"


def _walk(walk: "AnnouncementFigures | None") -> str:
    if walk is None:
        return "not announced yet"
    keys, messages = render.count(walk.keys, "key"), render.count(walk.messages, "message")
    ago = render.duration(walk.ended_s)
    return f"last announced {ago} ago: {keys}, {messages}, {walk.took_s:.1f} s"


def bucket_row(bucket: "BucketFigures") -> list[str]:
    """Format the contacts of one bucket (one number of shared bits) as a row of the table."""
    shared = bucket.shared
    return [
        render.count(shared, "bit"),
        str(bucket.contacts),
        str(bucket.reachable),
        str(bucket.waiting),
    ]


def own_row(own: "OwnRecordFigures") -> list[str]:
    """Format one of this node's own records as a row of the table."""
    announced, about = own.announced_s, str(own.about)
    return [
        render.safe(own.kind, 16) + (" (withdrawn)" if own.gone else ""),
        render.short(about) if shortid.is_id(about) else render.safe(about, 60),
        render.count(own.stored, "node"),
        "never" if announced is None else f"{render.duration(announced)} ago",
        "never" if own.due_s is None else f"in {render.duration(max(own.due_s, 0))}",
    ]
