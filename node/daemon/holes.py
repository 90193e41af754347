"""Reports a hole in the model that this node serves: layers that no node serves, or shards that do
not fit together.

Only a hole that lasts is reported, because chains are briefly incomplete while nodes start.
"""

import trio

from ...state.directory import Directory
from ...transport.host.seam import Host
from ..control.views import known_models, why_not_served
from ..defaults import HOLE_LOOK, HOLE_TIME
from ..health import Health

CONDITION = "hole"
_HINT = (
    "nodes with spare memory take such layers by themselves; otherwise start one: `shoal node "
    "--model NAME`, with `--memory SIZE` to offer more"
)


async def watch_holes(host: Host, directory: Directory, health: Health) -> None:
    """Report or clear the condition `hole` as the members change, until cancelled."""
    since: float | None = None
    while True:
        while not directory.own().shards and since is None:
            await directory.own_changed()
        version = directory.version
        missing = _missing(directory)
        if missing is None:
            since = None
            health.clear(CONDITION)
        else:
            since = host.now() if since is None else since
            if host.now() - since >= HOLE_TIME:
                health.report(CONDITION, missing, hint=_HINT)
        with trio.move_on_after(HOLE_TIME):
            await directory.changed(version)
        await trio.sleep(HOLE_LOOK)


def _missing(directory: Directory) -> str | None:
    """Return a sentence that says why no chain serves a model of which this node serves layers.
    Returns None if there is no such model."""
    shards = directory.own().shards
    if not shards:
        return None
    members = directory.members()
    named = known_models(members)
    for root in dict.fromkeys(shard.root for shard in shards):
        if root in named and (missing := why_not_served(members, root, named[root].layers)):
            return missing
    return None
