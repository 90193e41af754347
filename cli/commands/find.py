"""`shoal find`: shows the swarm's records about a peer, a model, a name or a key."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...transport import shortid
from .. import render
from ..options import data_option, example, json_option

if TYPE_CHECKING:
    from ...node.control.messages.dht import BlobSays, RecordView, Searches, SearchView, StepView

HEADS = ("KIND", "SAYS", "BY", "AGE", "TOLD BY")
PATH_HEADS = ("ASKED", "PATH", "NEAR", "AFTER", "TOOK", "ANSWER")


@click.command(
    short_help="Find peers and providers.",
    epilog=example("shoal find tiny", "shoal find 12D3KooW…", "shoal find tiny --path"),
)
@click.argument("key")
@click.option("--path", is_flag=True, help="Also show each node that was asked, and its reply.")
@data_option
@json_option
def find(key: str, path: bool, data: Path, as_json: bool) -> None:
    """Find a peer's addresses, or the providers of a model or a blob.

    KEY is a peer id, a model's name or NAME@HASH, the root of a model or of a blob, or the 64 hex
    digits of a key. The beginning of an id or root is enough if this node knows it. Records are
    claims that nothing has verified; they only say where to ask.
    """
    from ...node.control.messages.dht import LookUp
    from ..client import request

    answer = request(data, LookUp(key=key))
    click.echo(render.as_json(answer) if as_json else report(answer, path=path))


def report(answer: "Searches", *, path: bool) -> str:
    """Format the reply of `find` as tables. With `path`, the requests of each look-up are shown as
    well."""
    parts = [_search(search, path) for search in answer.searches]
    return "\n\n".join(parts)


def _search(search: "SearchView", path: bool) -> str:
    asked, took = len(search.path), search.took_ms
    nodes = render.count(asked, "node")
    lines = [f"{render.sentence(search.about)}: {nodes} asked, {took:.0f} ms"]
    if search.records:
        lines.append(render.table(HEADS, [record_row(record) for record in search.records]))
    elif asked:
        lines.append("no records found")
    else:
        lines.append("no records found: there is no other node to ask; `shoal doctor` says why")
    if path:
        lines.append(f"key {render.safe(search.key)}")
    if path and search.path:
        lines.append(render.table(PATH_HEADS, [step_row(step) for step in search.path]))
    return "\n".join(lines)


def record_row(record: "RecordView") -> list[str]:
    """Format a record as a row of the table."""
    return [
        render.safe(record.kind, 16),
        render.sentence(says(record)),
        render.short(record.author),
        render.duration(record.age_s),
        render.short(record.by or record.source),
    ]


def says(record: "RecordView") -> str:
    """Describe the content of a record in a few words."""
    from ...node.control.messages.dht import BlobSays, KvSays, NameSays, PeerSays, ShardSays
    from ...node.control.messages.encoding import decode

    match record.kind:
        case "peer":
            peer = decode(PeerSays, record.says)
            return ", ".join(map(brief_address, peer.addresses[:2])) or "no address"
        case "shard":
            shard = decode(ShardSays, record.says)
            speed = f", {shard.speed:.1f} tokens/s" if shard.speed else ""
            return f"layers {shard.start}:{shard.stop} ({shard.precision}){speed}"
        case "blob":
            return blob(decode(BlobSays, record.says))
        case "name":
            name = decode(NameSays, record.says)
            root = render.short(name.root)
            return f"{render.name(name.name)} is {root}, {name.layers} layers"
        case "kv":
            kv = decode(KvSays, record.says)
            start, stop = kv.layers
            return f"{kv.blocks} blocks, layers {start}:{stop} ({kv.precision})"
        case _:
            return "a record of a kind that this version does not know"


def brief_address(address: object) -> str:
    """Return a multiaddr without the peer's own id. The id of a relay in it is shortened."""
    ways = str(address).rpartition("/p2p/")[0] or str(address)
    return "/".join(map(shortid.short, ways.split("/")))


def blob(body: "BlobSays") -> str:
    """Describe in a few words which chunks of a blob a provider has."""
    if body.ranges is None:
        return f"all {body.chunks} chunks, {render.size(body.size)}"
    held = sum(body.ranges[1::2])  # lengths of runs: missing, held, missing, held, …
    return f"{held} of {body.chunks} chunks" if held else "some chunks"


def step_row(step: "StepView") -> list[str]:
    """Format one request of a look-up as a row of the table."""
    took = "-" if step.took_ms is None else f"{step.took_ms:.1f} ms"
    return [
        render.short(step.peer),
        str(step.path + 1),
        render.count(step.shared, "bit"),
        f"{step.at_ms:.1f} ms",
        took,
        render.sentence(step.answer),
    ]
