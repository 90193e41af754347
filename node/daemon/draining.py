"""Shuts a daemon down: refuses new work, lets running work end and withdraws its records."""

from typing import TYPE_CHECKING

import trio

from .. import defaults

if TYPE_CHECKING:
    from .daemon import Node


async def drain(node: "Node") -> None:
    """Refuse new work, let running work end for at most DRAIN_TIME, then leave the swarm."""
    node.serving.leave()
    node.directory.publish(shards=())
    await node.working.leave()
    with trio.move_on_after(defaults.DRAIN_TIME):
        while node.control.clients or node.gateway.sessions or node.stage.sessions:  # noqa: ASYNC110
            await trio.sleep(defaults.DRAIN_LOOK)
    node.working.write_usage()
    await node.discovery.leave()
    await node.remembering.write()
