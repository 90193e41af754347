"""Describes at a node's start what it offers to others, with the option that changes each."""

from typing import TYPE_CHECKING

from ..defaults import PROGRAMS_MEMORY

if TYPE_CHECKING:
    from .daemon import Node


def shown_size(count: int) -> str:
    """Return a byte count for a person: `300 B`, `120 MiB`, `4.0 GiB`."""
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count} B"


def shown_rate(count: int) -> str:
    """Return bytes per second for a person: `64 kB/s`, `1.5 MB/s`."""
    return f"{count / 10**6:.1f} MB/s" if count >= 10**6 else f"{count / 1000:.0f} kB/s"


def giving_lines(node: "Node") -> list[str]:
    """Return one line for each resource on offer, and one for the stored settings."""
    rows = {
        "memory": _memory(node),
        "cores": _cores(node),
        "disk": _disk(node),
        "bandwidth": _bandwidth(node),
        "jobs": _jobs(node),
        "relaying": _relaying(node),
        "router": _router(node),
    }
    lines = [f"{name:<10} {words}" for name, words in rows.items()]
    kept = [f"{s.key.name} {s.text} ({s.origin})" for s in node.settings.given.values()]
    if kept:
        lines.append(f"{'settings':<10} {', '.join(kept)}; `shoal config` changes them")
    return lines


def _memory(node: "Node") -> str:
    if node.engine is None:
        return "none for layers: this node has no engine"
    size = shown_size(node.capacity.memory_bytes)
    programs = shown_size(PROGRAMS_MEMORY)
    return f"{size} for layers and answers (--memory), and about {programs} for the programs"


def _cores(node: "Node") -> str:
    cores = node.capacity.cores
    return f"{node.config.threads or cores} of {cores} (--threads)"


def _disk(node: "Node") -> str:
    limit = node.quota.allowance.limit
    most = "no limit" if limit is None else f"at most {shown_size(limit)}"
    return f"{most} for models and blobs (--disk)"


def _bandwidth(node: "Node") -> str:
    config = node.config
    up, down = (
        "no limit" if rate is None else shown_rate(rate) for rate in (config.up, config.down)
    )
    return f"up {up} (--up), down {down} (--down)"


def _jobs(node: "Node") -> str:
    if not node.working.does_jobs:
        return "none of other nodes (--jobs)"
    whose = "members of the group" if node.credentials.private else "any node of the swarm"
    return f"of {whose}, while no other request waits (--no-jobs)"


def _relaying(node: "Node") -> str:
    limits = node.dialer.relaying.book.limits
    if not limits.rate:
        return "none (--relay)"
    when = "" if limits.volunteer else " while others can reach this node"
    return f"up to {shown_rate(limits.rate)} for other nodes{when} (--relay)"


def _router(node: "Node") -> str:
    asks = "asked to open a port (--no-port-mapping)"
    return asks if node.config.strategies.mapping else "not asked to open a port (--port-mapping)"
