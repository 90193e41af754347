"""Reports a hole in the model that this node serves: layers that no node serves, or shards that do
not join. Only a lasting hole is reported, because a chain is briefly missing when nodes start.
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
    """Report and clear the condition, until cancelled."""
    since: float | None = None
    while True:
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
    """Return why no chain answers for a model of which this node serves layers."""
    shards = directory.own().shards
    if not shards:
        return None
    members = directory.members()
    named = known_models(members)
    for root in dict.fromkeys(shard.root for shard in shards):
        if root in named and (missing := why_not_served(members, root, named[root].layers)):
            return missing
    return None
