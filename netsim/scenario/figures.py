"""Computation of a run's metrics from the measurements of its hosts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .format.metrics import Metrics, summary
from .programs import Echo, TransferProgram, daemon
from .programs.punch import Punch
from .topology import Topology

if TYPE_CHECKING:
    from .run import ScenarioRun

Samples = dict[str, list[float]]  # the single measurements of each distribution, by metric
Pair = tuple[str, str, bool]  # the kinds of gateway of two hosts, and whether the hosts met


def figures(run: "ScenarioRun") -> tuple[Metrics, Samples]:
    """Compute the metrics of a run from the present state of its hosts.

    Return (metrics, samples). `samples` has the single measurements behind each distribution.
    """
    network = run.world.network
    topology = run.topology
    run.ledger.digest  # noqa: B018  as a side effect, adds pending records to the counters
    metrics: Metrics = {
        "packets.sent": network.sent,
        "packets.delivered": network.delivered,
        "packets.dropped": network.dropped,
        "packets.loss": _share(network.dropped, network.dropped + network.delivered),
        "drops": dict(sorted(run.ledger.drops.items())),
        "hosts.up": sum(member.host.up for member in topology.members.values()),
    }
    samples: Samples = {}
    _echoes(topology, metrics, samples)
    _transfers(topology, metrics, samples)
    _punches(topology, metrics, samples)
    _daemons(run, metrics, samples)
    for name, values in samples.items():
        metrics[name] = summary(values)
    return metrics, samples


def _share(part: float, whole: float) -> float | None:
    """Return `part` divided by `whole`, or None if `whole` is 0."""
    return part / whole if whole else None


def _joined(lists: Sequence[Sequence[float]]) -> list[float]:
    """Concatenate lists."""
    return [value for values in lists for value in values]


def _echoes(topology: Topology, metrics: Metrics, samples: Samples) -> None:
    """Add the metrics of the udp-echo hosts, if there are any."""
    results = [m.program.result for m in topology.of("udp-echo") if isinstance(m.program, Echo)]
    if results:
        metrics["echo.sent"] = sent = sum(result.sent for result in results)
        metrics["echo.answered"] = answered = sum(result.answered for result in results)
        metrics["echo.answered_rate"] = _share(answered, sent)
        samples["rtt"] = _joined([result.rtts for result in results])


def _transfers(topology: Topology, metrics: Metrics, samples: Samples) -> None:
    """Add the metrics of the tcp-transfer hosts, if there are any."""
    found = topology.of("tcp-transfer")
    results = [
        member.program.result for member in found if isinstance(member.program, TransferProgram)
    ]
    if results:
        samples["throughput"] = _joined([result.throughputs for result in results])
        metrics["transfers.finished"] = len(samples["throughput"])
        metrics["transfers.failed"] = sum(result.failed for result in results)


def _punches(topology: Topology, metrics: Metrics, samples: Samples) -> None:
    """Add the metrics of the hosts that punch, if there are any."""
    results = [m.program.result for m in topology.of("punch") if isinstance(m.program, Punch)]
    if results:
        times = [took for result in results for _, took in result.attempts]
        samples["punch.time"] = [took for took in times if took is not None]
        metrics["punch.attempts"] = len(times)
        metrics["punch.success_rate"] = _share(len(samples["punch.time"]), len(times))


def _daemons(run: "ScenarioRun", metrics: Metrics, samples: Samples) -> None:
    """Add the metrics of the daemons, if there are any.

    Counts of links include running daemons only.
    """
    members = run.topology.of("daemon")
    if not members:
        return
    programs = [m.program for m in members if isinstance(m.program, daemon.DaemonProgram)]
    samples["boot"] = _joined([program.boots for program in programs])
    hosts = [member.host for member in run.topology.running("daemon")]
    peers = {daemon.peer(host) for host in hosts}
    pairs = len(hosts) * (len(hosts) - 1)
    ends = sum(len(daemon.linked(host) & peers) for host in hosts)
    known = sum(len(daemon.known(host) & peers) - 1 for host in hosts)
    metrics["links.count"] = ends // 2
    metrics["links.pairs"] = _share(ends, pairs)
    metrics["members.known"] = _share(known, pairs)
    took = [seconds for _, seconds in run.generations]
    samples["generate.latency"] = [seconds for seconds in took if seconds is not None]
    metrics["generate.success_rate"] = _share(len(samples["generate.latency"]), len(took))


def pairs(topology: Topology) -> tuple[str, list[Pair]]:
    """Return (what, pairs): what it means for two hosts to meet in this scenario, and which pairs
    did.

    With daemons, two hosts meet if they are linked. Otherwise, with `punch` hosts, they meet if a
    punch has succeeded. In other scenarios, they meet if an echo was answered.
    """
    if topology.of("daemon"):
        return "linked", _linked_pairs(topology)
    if topology.of("punch"):
        return "punched", _punched_pairs(topology)
    return "answered", _answered_pairs(topology)


def _linked_pairs(topology: Topology) -> list[Pair]:
    """Return each pair of running daemons, and whether the first has a link to the second."""
    members = list(topology.running("daemon"))
    links = [daemon.linked(member.host) for member in members]
    peers = [daemon.peer(member.host) for member in members]
    return [
        (one.kind, members[other].kind, peers[other] in links[number])
        for number, one in enumerate(members)
        for other in range(number + 1, len(members))
    ]


def _punched_pairs(topology: Topology) -> list[Pair]:
    """Return each attempt at hole punching, and whether it succeeded."""
    kinds = {name: member.kind for name, member in topology.members.items()}
    return [
        (member.kind, kinds[partner], took is not None)
        for member in topology.of("punch")
        if isinstance(member.program, Punch)
        for partner, took in member.program.result.attempts
    ]


def _answered_pairs(topology: Topology) -> list[Pair]:
    """Return each udp-echo host with each of its targets, and whether any echo came back."""
    kinds = {name: member.kind for name, member in topology.members.items()}
    return [
        (member.kind, kinds[target], target in member.program.result.last_answer)
        for member in topology.of("udp-echo")
        if isinstance(member.program, Echo)
        for target in member.program.targets
    ]
