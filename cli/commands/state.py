"""`shoal state show | log | verify | export`: the swarm's shared state, as this node knows it."""

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from ...transport import shortid
from .. import defaults, render
from ..options import Commands, data_option, example, json_option

FEED_HEADS = ("AUTHOR", "KIND", "ENTRIES", "SIZE", "BEGUN")
PARTS = 16  # of the kind `shards`, by the first hex digit of the model's root
NOT_SINCE = "no recorded changes for this key"

kind_option = click.option(
    "--kind", help="Only feeds of this kind: member, models, shards, jobs, …"
)
author_option = click.option(
    "--author", help="Only feeds of this peer: its id, the beginning of it, or `me`."
)


@click.group(
    cls=Commands,
    epilog=example("shoal state show", "shoal state log tiny --kind models", "shoal state verify"),
)
def state() -> None:
    """Inspect the shared state of the swarm.

    Each node writes its own signed and numbered feeds. The other nodes store copies of them.
    """


@state.command(epilog=example("shoal state show", "shoal state show --author me"))
@kind_option
@author_option
@data_option
@json_option
def show(kind: str | None, author: str | None, data: Path, as_json: bool) -> None:
    """List the feeds; with --author, also their facts. Needs a running daemon."""
    feeds, answer = _feeds("state_show", data, kind, author)
    if as_json:
        click.echo(
            render.as_json({"feeds": feeds, **{k: v for k, v in answer.items() if k != "feeds"}})
        )
        return
    kept = kept_line(answer.get("keeps"), answer.get("alone"))
    if not feeds:
        click.echo(kept or _nothing(kind))
        return
    click.echo(render.table(FEED_HEADS, [feed_row(feed, answer["own"]) for feed in feeds]))
    for feed in feeds:
        for key, value in feed.get("facts", {}).items():
            click.echo(f"{feed['kind']}  {_key(key)}  {_shown(value)}")
    if kept:
        click.echo(kept)


@state.command(epilog=example("shoal state log", "shoal state log tiny --kind models"))
@click.argument("key", required=False)
@kind_option
@author_option
@data_option
@json_option
def log(key: str | None, kind: str | None, author: str | None, data: Path, as_json: bool) -> None:
    """Show the changes of KEY, or all changes, oldest first.

    Each change has its author and time, by the author's clock. An author begins its feed again when
    its node starts, or when most entries are outdated. Facts from before that are marked `or
    earlier`. Needs a running daemon.
    """
    from ..client import request

    said: list[dict[str, Any]] = []
    request(
        data,
        "state_log",
        on_event=said.append,
        wait=True,
        **_asked(key=key, kind=kind, author=author),
    )
    said.sort(key=lambda each: each["made"])
    if as_json:
        click.echo(
            render.as_json([{k: v for k, v in each.items() if k != "event"} for each in said])
        )
        return
    if not said:
        click.echo(NOT_SINCE if key else _nothing(kind))
    for each in said:
        click.echo(_said_line(each))


@state.command(epilog=example("shoal state verify"))
@data_option
@json_option
def verify(data: Path, as_json: bool) -> None:
    """Verify every signature in the store. Damaged feeds are fetched again from other nodes.

    The exit code is 1 if any feed was damaged. Needs a running daemon.
    """
    from ..client import request

    answer = request(data, "state_verify", wait=True)
    if as_json:
        click.echo(render.as_json(answer))
    else:
        whole = answer["feeds"] - len(answer["damaged"])
        entries = "1 entry" if answer["entries"] == 1 else f"{answer['entries']} entries"
        held = render.size(answer["bytes"])
        click.echo(f"{render.count(whole, 'feed')} intact: {entries}, {held}")
        for name in answer["damaged"]:
            click.echo(f"damaged: {name['kind']} of {_author(name['author'])}, fetched again")
    if answer["damaged"]:
        click.get_current_context().exit(1)


@state.command(epilog=example("shoal state export > state.json"))
@kind_option
@author_option
@data_option
@json_option
def export(kind: str | None, author: str | None, data: Path, as_json: bool) -> None:
    """Write all feeds to standard output, as one JSON document.

    The document is indented; with --json, it is one line in ASCII. Needs a running daemon.
    """
    feeds, _ = _feeds("state_export", data, kind, author)
    if as_json:
        click.echo(render.as_json({"feeds": feeds}))
        return
    click.echo(render.as_readable_json({"feeds": feeds}))


def kept_line(keeps: dict[str, list[int]] | None, alone: dict[str, list[int]] | None) -> str:
    """Say what a node stores of others' feeds, if not all, and which part of that no linked peer
    stores, so that it gets no news of it. Empty if there is nothing to say."""
    lines = []
    if keeps is not None:
        lines.append(f"this node stores only what it needs of other nodes: {_plots(keeps)} "
                     "(`--state all` stores everything)")  # fmt: skip
    if alone:
        lines.append(f"no linked node stores {_plots(alone)}")
    return "\n".join(lines)


def _plots(keeps: dict[str, list[int]]) -> str:
    words = []
    for kind, parts in keeps.items():
        some = kind == "shards" and len(parts) < PARTS
        words.append(" ".join([kind, *(f"{part:x}" for part in parts if some)]))
    return ", ".join(words)


def feed_row(feed: dict[str, Any], own: str) -> list[str]:
    """Format a feed as a row of the table."""
    part = f" {feed['part']:x}" if feed["part"] else ""
    who = _author(feed["author"]) + (" (this node)" if feed["author"] == own else "")
    if feed["forked"]:
        return [who, feed["kind"] + part, "forked, empty", "", ""]
    begun = _time(feed["epoch"] / 1000, "minutes")
    return [who, feed["kind"] + part, str(feed["entries"]), render.size(feed["bytes"]), begun]


def _feeds(
    operation: str, data: Path, kind: str | None, author: str | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from ..client import request

    feeds: list[dict[str, Any]] = []

    def take(event: dict[str, Any]) -> None:
        feeds.append({key: value for key, value in event.items() if key != "event"})

    asked = _asked(kind=kind, author=author)
    return feeds, request(data, operation, on_event=take, wait=True, **asked)


def _asked(**asked: str | None) -> dict[str, str]:
    return {key: value for key, value in asked.items() if value is not None}


def _nothing(kind: str | None) -> str:
    if kind is not None:
        return f"nothing of kind `{render.safe(kind)}` is known"
    return "nothing is known yet: a node writes some seconds after its start"


def _said_line(each: dict[str, Any]) -> str:
    """Format a change. A feed's first facts are older than the feed, so their time is a bound."""
    when = _time(each["made"]) + (" or earlier" if each.get("earlier") else "")
    what = "withdrawn" if each["value"] is None else _shown(each["value"])
    return f"{when}  {_author(each['author'])}  {each['kind']}  {_key(each['key'])}  {what}"


def _key(key: str) -> str:
    """Format a key in full, so that it can be copied."""
    return render.name(key, defaults.KEY_WIDTH)


def _author(peer: str) -> str:
    return render.short(peer)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        shown = ", ".join(f"{key} {_brief(item)}" for key, item in value.items())
        return render.safe(shown, defaults.MESSAGE_WIDTH)
    return render.safe(_brief(value), defaults.MESSAGE_WIDTH)


def _brief(value: Any) -> Any:
    """Return the beginning of an id; any other value unchanged."""
    if isinstance(value, list):
        return ", ".join(str(_brief(each)) for each in value)
    return render.short(value) if isinstance(value, str) and shortid.is_id(value) else value


def _time(seconds: float, unit: str = "seconds") -> str:
    """Format a time by another node's clock, which may be out of any range."""
    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", unit)
    except (ValueError, OverflowError, OSError):
        return "at no time"
