"""`shoal find`: what the swarm's records say about a peer, a model, a name or a key."""

from pathlib import Path
from typing import Any

import click

from ..transport import shortid
from . import render
from .options import data_option, example, json_option

HEADS = ("KIND", "SAYS", "BY", "AGE", "TOLD BY")
PATH_HEADS = ("ASKED", "PATH", "NEAR", "AFTER", "TOOK", "ANSWER")


@click.command(
    short_help="Find out who holds what.",
    epilog=example("shoal find tiny", "shoal find 12D3KooW…", "shoal find tiny --path"),
)
@click.argument("key")
@click.option("--path", is_flag=True, help="Who was asked, when, and what came of it, as well.")
@data_option
@json_option
def find(key: str, path: bool, data: Path, as_json: bool) -> None:
    """Find out what other nodes say about KEY: where a peer is, who holds a model or a blob.

    KEY is a peer id, a model's name or NAME@HASH, the root of a model or of a blob, or the 64 hex
    digits of a key. Of what this node knows, the beginning of an id or root is enough. A record
    only says where to ask: nothing of it has been tried.
    """
    from .client import request

    answer = request(data, "find", key=key)
    click.echo(render.as_json(answer) if as_json else report(answer, path=path))


def report(answer: dict[str, Any], *, path: bool) -> str:
    """The answer of `find` for a person."""
    parts = [_search(search, path) for search in answer["searches"]]
    return "\n\n".join(parts)


def _search(search: dict[str, Any], path: bool) -> str:
    asked, took = len(search["path"]), search["took_ms"]
    nodes = render.count(asked, "node")
    lines = [f"{render.sentence(search['about'])}: {nodes} asked, {took:.0f} ms"]
    if search["records"]:
        lines.append(render.table(HEADS, [record_row(record) for record in search["records"]]))
    elif asked:
        lines.append("nothing is known")
    else:
        lines.append(
            "nothing is known: no other node is there to be asked; `shoal doctor` says why"
        )
    if path:
        lines.append(f"key {render.safe(search['key'])}")
    if path and search["path"]:
        lines.append(render.table(PATH_HEADS, [step_row(step) for step in search["path"]]))
    return "\n".join(lines)


def record_row(record: dict[str, Any]) -> list[str]:
    """One record as a line of the table."""
    return [
        render.safe(record["kind"], 16),
        render.sentence(says(record)),
        render.short(record["author"]),
        render.duration(record["age_s"]),
        render.short(record["by"] or record["source"]),
    ]


def says(record: dict[str, Any]) -> str:
    """What a record claims, in few words."""
    body = record["says"]
    match record["kind"]:
        case "peer":
            return ", ".join(map(brief_address, body["addresses"][:2])) or "no address"
        case "shard":
            speed = f", {body['speed']:.1f} tokens/s" if body["speed"] else ""
            return f"layers {body['start']}:{body['stop']} ({body['precision']}){speed}"
        case "blob":
            return blob(body)
        case "name":
            root = render.short(body["root"])
            return f"{render.name(body['name'])} is {root}, {body['layers']} layers"
        case "kv":
            start, stop = body["layers"]
            return f"{body['blocks']} blocks, layers {start}:{stop} ({body['precision']})"
        case _:
            return "of a kind that this version does not know"


def brief_address(address: object) -> str:
    """A multiaddr without the peer's own id, and with the beginning of its relay's."""
    ways = str(address).rpartition("/p2p/")[0] or str(address)
    return "/".join(map(shortid.short, ways.split("/")))


def blob(body: dict[str, Any]) -> str:
    """What is held of a blob."""
    if body.get("ranges") is None:
        return f"all {body['chunks']} chunks, {render.size(body['size'])}"
    held = sum(body["ranges"][1::2])  # how many are not held, how many are, and so on
    return f"{held} of {body['chunks']} chunks" if held else "some chunks"


def step_row(step: dict[str, Any]) -> list[str]:
    """One question of a look-up as a line of the table."""
    took = "-" if step["took_ms"] is None else f"{step['took_ms']:.1f} ms"
    return [
        render.short(step["peer"]),
        str(step["path"] + 1),
        render.count(step["shared"], "bit"),
        f"{step['at_ms']:.1f} ms",
        took,
        render.sentence(step["answer"]),
    ]
