"""`shoal status` and `shoal peers`: show the state of this node, and the nodes that it knows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import defaults, render
from ..options import data_option, example, json_option
from .share import offer_line, share_line

if TYPE_CHECKING:
    from ...node.control.messages.machine import (
        CapacityView,
        DeviceView,
        DiskView,
        MachineView,
        Memory,
    )
    from ...node.control.messages.models import ModelEntry
    from ...node.control.messages.node import Status, WorkView
    from ...node.control.messages.reach import HeldRelay, LinkView, PeerView, Relaying
    from ...node.control.messages.serving import AnswersView, ServingView, ShardView


@click.command(
    short_help="Show the state of this node.",
    epilog=example("shoal status", "shoal status --links", "shoal status --json"),
)
@data_option
@click.option("--links", is_flag=True, help="Also show each link: its path, round trip, rates over "
              "a second, and why it is not direct.")  # fmt: skip
@json_option
def status(data: Path, links: bool, as_json: bool) -> None:
    """Show this node's identity, what it stores and serves, and any problems."""
    from ...node.control.messages.encoding import encode
    from ...node.control.messages.node import GetStatus
    from ...node.control.messages.reach import GetLinks
    from ..client import request

    answer = request(data, GetStatus())
    linked = request(data, GetLinks()) if links else None
    if as_json:
        click.echo(render.as_json(encode(answer) | (encode(linked) if linked else {})))
        return
    click.echo(render.fields(status_rows(answer)))
    if linked:
        click.echo("\n" + links_text(linked.links))


def status_rows(answer: "Status") -> list[tuple[str, str]]:
    """Format the reply of `status` as pairs of a name and a value."""
    safe = render.safe
    swarm = swarm_line(answer)
    rows = [
        ("peer", safe(answer.peer)),
        ("version", f"{safe(answer.version)}, up {render.duration(answer.uptime_s)}"),
        ("data", safe(answer.data, 200)),
        *(("address", safe(address, defaults.ADDRESS_WIDTH)) for address in answer.addresses),
        ("reachable", render.sentence(answer.reach.sentence)),
        *(("relays", _place_line(held)) for held in answer.relays),
        ("relaying", relaying_line(answer.relaying)),
        ("swarm", f"{swarm}, {answer.peers} other {_plural('node', answer.peers)}"),
        ("serving", serving_line(answer.serving)),
        *speed_rows(answer.serving),
        *answers_rows(answer.answers),
        *work_rows(answer.work),
        *(("chosen", render.sentence(why)) for why in [answer.serving.why] if why),
        *(("beside it", serving_line(beside)) for beside in answer.beside),
        *(("models", model_line(model)) for model in answer.models),
        *(("shared", offer_line(offer)) for offer in answer.shared if not offer.here),
        *(("sharing", share_line(each)) for each in answer.shares),
        *(("shared with", safe(answer.audience)) for _ in answer.shares[:1]),
        *memory_rows(answer.memory),
        ("disk", disk_line(answer.disk)),
        ("machine", _machine_line(answer.capacity)),
        *(
            (_head(device), device_line(device, answer.machine))
            for device in answer.machine.devices
        ),
    ]
    conditions = answer.health
    if not conditions:
        rows.append(("health", "ok"))
    for item in conditions:
        hint = f" ({render.sentence(item.hint)})" if item.hint else ""
        rows.append(("health", render.sentence(item.sentence) + hint))
    return rows


def swarm_line(answer: "Status") -> str:
    """Describe the swarm: open, or private with this node's role in it."""
    if not answer.private:
        return "open"
    place = answer.group
    if place is None or place.role is None:
        return "private, not a member"
    return f"private, {place.role}, {render.count(place.members, 'member')}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _place_line(held: "HeldRelay") -> str:
    return f"reservation at {render.short(held.peer)} ({held.rtt_ms:.1f} ms)"


def relaying_line(relaying: "Relaying") -> str:
    """Describe how much this node relays for others, and its rate limit. If it does not relay, say
    why."""
    if not relaying.on:
        if not relaying.allowed:
            return "off, as its owner chose (`--relay none`)"
        return "off: no other node is known to reach this one, so it cannot serve as a relay"
    places, circuits = relaying.places, relaying.circuits
    return (
        f"{places} {_plural('reservation', places)}, {circuits} {_plural('circuit', circuits)}, "
        f"{render.size(relaying.bytes)} carried, up to {rate(relaying.rate)}"
    )


def rate(count: float | None) -> str:
    """Format a rate in bytes per second: `0 B/s`, `1.0 MB/s`. An unknown rate (None) is `-`."""
    if count is None:
        return "-"
    for unit in ("B/s", "kB/s", "MB/s"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B/s" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB/s"


NO_PATH = "none"  # shown as the path of a link that has lost all its paths
LINK_HEADS = ("PEER", "PATH", "RTT", "IN", "OUT", "UP FOR")


def links_text(links: "Sequence[LinkView]") -> str:
    """Format links as a table. Lines below it explain why links are relayed or have no path."""
    if not links:
        return "there are no links"
    peers = [link.peer for link in links]
    lines = [render.table(LINK_HEADS, [link_row(link, peers) for link in links])]
    for link in links:
        peer = render.short(link.peer, peers)
        if link.path == NO_PATH:
            lines += render.wrapped(f"{peer} cannot be reached now; the node keeps trying")
        elif link.why_relayed:
            lines += render.wrapped(f"{peer} is not direct: {render.sentence(link.why_relayed)}")
    return "\n".join(lines)


def link_row(link: "LinkView", peers: Sequence[str] = ()) -> list[str]:
    """Format a link as a row of the table."""
    path = render.safe(link.path, 16)
    if link.medium:
        path += f" {render.safe(link.medium, 16)}"
    return [
        render.short(link.peer, peers),
        path,
        _rtt(link.rtt_ms),
        rate(link.rate_in),
        rate(link.rate_out),
        render.duration(link.linked_s),
    ]


def _rtt(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.1f} ms"


def serving_line(serving: "ServingView") -> str:
    """Describe what the node serves, or its progress until it serves."""
    if serving.phase == "serving" and serving.shard is not None:
        shard = serving.shard
        room = serving.room_tokens
        now = "" if room is None else f", {room:,} now"
        further = "".join(
            f", {render.safe(each.layers, 16)} on another device" for each in serving.further
        )
        most = min(each.kv_tokens_free for each in (shard, *serving.further))
        return f"{shard_line(shard)}{further}, room for {render.tokens(most)}{now}"
    line = render.sentence(serving.state)
    if serving.phase == "fetching" and serving.total_bytes:
        line += f" ({100 * serving.done_bytes // serving.total_bytes} %)"
    return line


def speed_rows(serving: "ServingView") -> list[tuple[str, str]]:
    """Format the predicted speed of what the node serves, and how far predictions were wrong."""
    known = serving.predicted
    if known is None:
        return []
    wrong = (
        f"predictions {100 * known.error:.0f} % off, over {render.count(known.samples, 'step')}"
        if known.samples
        else "not compared with any steps yet"
    )
    rate = render.number(known.tokens_per_s)
    return [("speed", f"{rate} tokens/s of one request in these layers; {wrong}")]


def answers_rows(known: "AnswersView") -> list[tuple[str, str]]:
    """Format how far predictions about this node's answers were wrong."""
    if not known.first_samples:
        return []
    line = f"predicted time to the first token {100 * known.first_error:.0f} % off"
    if known.token_samples:
        line += f", of a further token {100 * known.token_error:.0f} % off"
    return [("answers", f"{line}, over {render.count(known.first_samples, 'answer')}")]


def work_rows(work: "WorkView") -> list[tuple[str, str]]:
    """Describe the jobs and fine-tunings that run here, and those that were submitted here."""
    safe, count = render.safe, render.count
    rows = [
        (
            "doing",
            f"job {safe(job.job[:8])} ({safe(job.kind, 32)}) of {render.short(job.author)}, "
            f"{count(job.pieces, 'piece')}",
        )
        for job in work.doing
    ]
    if work.jobs:
        rows.append(
            ("jobs", f"{count(work.jobs, 'own job')}, {work.rows_done} of {work.rows} rows done")
        )
    rows += [
        (
            "tuning",
            f"{render.name(each.name)}: {safe(each.state, 16)}, step {each.step} of {each.steps}",
        )
        for each in work.tunings
    ]
    if work.tuned_for:
        fine_tunings = count(work.tuned_for, "fine-tuning")
        rows.append(("tuning", f"the layers here are open for {fine_tunings}"))
    return rows


def shard_line(shard: "ShardView") -> str:
    """Format a shard in the form `tiny layers 0:2 (float32)`."""
    return (
        f"{render.name(shard.model)} layers {render.safe(shard.layers, 16)} "
        f"({render.safe(shard.dtype, 16)})"
    )


def memory_rows(memory: "Memory") -> list[tuple[str, str]]:
    """Format the resident memory of all processes, and how much of the offered memory is in use."""
    shown = [(each.name, each.resident_bytes) for each in memory.processes]
    each_one = ", ".join(f"{render.safe(name)} {render.size(size)}" for name, size in shown)
    loaded, offered = render.size(memory.loaded_bytes), render.size(memory.offered_bytes)
    return [
        ("memory", f"{render.size(sum(size for _, size in shown))} resident: {each_one}"),
        ("offered", f"{loaded} reserved for layers and KV caches, of {offered} (`--memory`)"),
    ]


def disk_line(disk: "DiskView") -> str:
    """Format the disk use of models and blobs, and its limit."""
    if disk.limit_bytes is None:
        limit = "no limit"
    else:
        limit = f"of at most {render.size(disk.limit_bytes)}"
        limit += "" if disk.set else ", depending on the free space (`--disk` sets it)"
    return f"{render.size(disk.used_bytes)} by models and blobs, {limit}"


def model_line(model: "ModelEntry") -> str:
    """Describe a model: its name, its number of layers, and what is missing to serve it."""
    state = "complete" if model.complete else render.sentence(model.missing or "")
    if model.room_tokens is not None:
        state += f", room for {render.tokens(model.room_tokens)} of prompt and answer"
    return f"{render.name(model.name)}: {model.layers} layers, {state}"


def _machine_line(capacity: "CapacityView") -> str:
    engine = "engine" if capacity.engine else "no engine"
    disk = f"disk reads {rate(capacity.load_rate)}, " if capacity.load_rate else ""
    return f"{capacity.cores} cores, {render.size(capacity.memory_bytes)} offered, {disk}{engine}"


def _head(device: "DeviceView") -> str:
    return "device" if device.used else "unused"


def device_line(device: "DeviceView", machine: "MachineView") -> str:
    """Describe a device: its name, and its speed or why it is not used."""
    named = device_name(device)
    if device.unused:
        return f"{named}: {render.sentence(device.unused)}"
    return f"{named}: {speed_words(device, machine)}{not_chosen(device)}"


def device_name(device: "DeviceView") -> str:
    """Return the name of a device with the product's name and the instruction set."""
    more = ", ".join(filter(None, (device.label, device.instructions)))
    if device.name is None:
        return render.safe(more, 200)
    return render.safe(f"{device.name} ({more})" if more else device.name, 200)


def speed_words(device: "DeviceView", machine: "MachineView") -> str:
    """Describe the speed of a device, or why it is not known."""
    speed = device.speed
    if speed is None:
        return NO_SPEED.get(machine.progress, "its speed is not known")
    return (
        f"{speed.float32 / 1e9:.0f} Gflop/s in float32, {speed.bfloat16 / 1e9:.0f} in bfloat16, "
        f"memory {rate(speed.bandwidth)}, up to {speed.batch} rows in the time of one"
    )


def not_chosen(device: "DeviceView") -> str:
    """Say that a device is free if the engine computes on another one."""
    return "" if device.used else f"; not in use (`--device {render.safe(device.name or '')}`)"


NO_SPEED = {
    "measuring": "its speed is being measured",
    "failed": "its speed could not be measured",
    "off": "its speed was not measured (`--measure`)",
}
"""Maps the progress of the measurement to the words that are shown in place of a speed."""


@click.command(
    short_help="List the nodes that this one knows.",
    epilog=example("shoal peers", "shoal peers --json"),
)
@data_option
@json_option
def peers(data: Path, as_json: bool) -> None:
    """List the nodes that this one knows, the layers that they serve and their free token capacity.

    ROOM is the number of tokens, of prompts and answers together, for which a node has memory.
    A request needs that much at each node of a chain over all layers. Running requests reduce it.
    """
    from ...node.control.messages.reach import GetPeers
    from ..client import request

    answer = request(data, GetPeers())
    if as_json:
        click.echo(render.as_json(answer))
    elif not answer.peers:
        click.echo(f"no other node is known; {NEXT[answer.may_invite]}")
    else:
        known = [peer.peer for peer in answer.peers]
        rows = [peer_row(peer, known) for peer in answer.peers]
        click.echo(render.table(PEER_HEADS, rows))


NEXT = {
    True: "`shoal invite` prints a code for another node to join with",
    False: "`shoal status` shows this node's role in its group, and any problems",
}
"""Maps whether this node may invite to the hint that is shown if it knows no other node."""
PEER_HEADS = ("PEER", "SERVES", "ROOM", "PATH", "RTT", "ADDRESS")
SHARDS_SHOWN = 4  # most shards of one node in the table


def peer_row(peer: "PeerView", peers: Sequence[str] = ()) -> list[str]:
    """Format a node as a row of the table."""
    shards = peer.shards[:SHARDS_SHOWN]
    served = [f"{render.name(each.model)} {render.safe(each.layers, 16)}" for each in shards]
    return [
        render.short(peer.peer, peers),
        ", ".join(served) or "-",
        ", ".join(str(each.kv_tokens_free) for each in shards) or "-",
        render.safe(peer.path or "-", 16),
        _rtt(peer.rtt_ms),
        render.safe(peer.address or "-"),
    ]
