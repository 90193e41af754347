"""`shoal state show | log | verify | export`: shows the shared state of the swarm, as this node
knows it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from ...transport import shortid
from .. import defaults, render
from ..options import Commands, data_option, example, json_option

if TYPE_CHECKING:
    from ...node.control.messages import state as messages
    from ...node.control.messages.encoding import Json, Object

T = TypeVar("T")
FEED_HEADS = ("AUTHOR", "KIND", "ENTRIES", "SIZE", "BEGUN")
PARTS = 16  # parts of the kind `shards`: one for each first hex digit of a model's root
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
    from ...node.control.messages.encoding import encode
    from ...node.control.messages.state import ShowState

    feeds, answer = _feeds(data, ShowState(kind=kind, author=author))
    if as_json:
        click.echo(render.as_json(encode(answer) | {"feeds": _without_event(feeds)}))
        return
    kept = kept_line(answer.keeps, answer.alone)
    if not feeds:
        click.echo(kept or _nothing(kind))
        return
    click.echo(render.table(FEED_HEADS, [feed_row(feed, answer.own) for feed in feeds]))
    for feed in feeds:
        for key, value in (feed.facts or {}).items():
            click.echo(f"{feed.kind}  {_key(key)}  {_shown(value)}")
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
    from ...node.control.messages.state import FactChange, LogState
    from ..client import request

    said: list[FactChange] = []
    ask = LogState(key=key, kind=kind, author=author)
    request(data, ask, on_event=said.append, wait=True)
    said.sort(key=lambda each: each.made)
    if as_json:
        click.echo(render.as_json(_without_event(said)))
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
    from ...node.control.messages.state import VerifyState
    from ..client import request

    answer = request(data, VerifyState(), wait=True)
    if as_json:
        click.echo(render.as_json(answer))
    else:
        whole = answer.feeds - len(answer.damaged)
        entries = "1 entry" if answer.entries == 1 else f"{answer.entries} entries"
        held = render.size(answer.bytes)
        click.echo(f"{render.count(whole, 'feed')} intact: {entries}, {held}")
        for name in answer.damaged:
            click.echo(f"damaged: {name.kind} of {_author(name.author)}, fetched again")
    if answer.damaged:
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
    from ...node.control.messages.state import ExportState

    feeds, _ = _feeds(data, ExportState(kind=kind, author=author))
    shown = {"feeds": _without_event(feeds)}
    click.echo(render.as_json(shown) if as_json else render.as_readable_json(shown))


def kept_line(keeps: "messages.Parts | None", alone: "messages.Parts | None") -> str:
    """Describe which parts of other nodes' feeds this node stores, unless it stores all, and which
    of those parts no linked peer stores.

    This node receives no updates for the latter. The text is empty if there is nothing to say.
    """
    lines = []
    if keeps is not None:
        lines.append(f"this node stores only what it needs of other nodes: {_plots(keeps)} "
                     "(`--state all` stores everything)")  # fmt: skip
    if alone:
        lines.append(f"no linked node stores {_plots(alone)}")
    return "\n".join(lines)


def _plots(keeps: "messages.Parts") -> str:
    words = []
    for kind, parts in keeps.items():
        some = kind == "shards" and len(parts) < PARTS
        words.append(" ".join([kind, *(f"{part:x}" for part in parts if some)]))
    return ", ".join(words)


def feed_row(feed: "messages.FeedState", own: str) -> list[str]:
    """Format a feed as a row of the table."""
    part = f" {feed.part:x}" if feed.part else ""
    who = _author(feed.author) + (" (this node)" if feed.author == own else "")
    if feed.forked:
        return [who, feed.kind + part, "forked, empty", "", ""]
    begun = _time(feed.epoch / 1000, "minutes")
    return [who, feed.kind + part, str(feed.entries), render.size(feed.bytes), begun]


def _feeds(
    data: Path, ask: "messages.AskForFeeds[T, messages.FeedState]"
) -> "tuple[list[messages.FeedState], T]":
    """Send a request about feeds. Return (the feeds, the reply)."""
    from ..client import request

    feeds: list[messages.FeedState] = []
    return feeds, request(data, ask, on_event=feeds.append, wait=True)


def _without_event(events: "Sequence[messages.FeedState | messages.FactChange]") -> "list[Object]":
    """Encode events without the field `event`, which names the kind of event."""
    from ...node.control.messages.encoding import encode

    encoded = map(encode, events)
    return [{key: each[key] for key in each if key != "event"} for each in encoded]


def _nothing(kind: str | None) -> str:
    if kind is not None:
        return f"nothing of kind `{render.safe(kind)}` is known"
    return "nothing is known yet: a node writes some seconds after its start"


def _said_line(each: "messages.FactChange") -> str:
    """Format a change as one line.

    The first facts of a feed may have been made before the feed began; their time is then the
    latest time at which they can have been made.
    """
    when = _time(each.made) + (" or earlier" if each.earlier else "")
    what = "withdrawn" if each.value is None else _shown(each.value)
    return f"{when}  {_author(each.author)}  {each.kind}  {_key(each.key)}  {what}"


def _key(key: str) -> str:
    """Format a key at full length, so that it can be copied."""
    return render.name(key, defaults.KEY_WIDTH)


def _author(peer: str) -> str:
    return render.short(peer)


def _shown(value: "Json") -> str:
    if isinstance(value, Mapping):
        shown = ", ".join(f"{key} {_brief(item)}" for key, item in value.items())
        return render.safe(shown, defaults.MESSAGE_WIDTH)
    return render.safe(_brief(value), defaults.MESSAGE_WIDTH)


def _brief(value: "Json") -> str:
    """Format a value. Ids and fractions are shortened, and other values are shown in full."""
    if isinstance(value, list):
        return ", ".join(map(_brief, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return render.short(value) if isinstance(value, str) and shortid.is_id(value) else str(value)


def _time(seconds: float, unit: str = "seconds") -> str:
    """Format a time that another node's clock gave, in seconds since 1970. It may lie outside the
    range of dates."""
    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", unit)
    except (ValueError, OverflowError, OSError):
        return "at no time"
