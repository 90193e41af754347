"""Diagnoses how peers reach this node, and which strategies it can use to reach them (`shoal
doctor`).

Turns the measurements of the dialer into a situation, a verdict and a list of findings. The
diagnosis itself sends nothing to any peer.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from ...transport.bytestream import PathKind
from ...transport.defaults import HTTPS_PORT
from ...transport.dial.endpoint import Endpoint
from ...transport.host.seam import Interface
from ...transport.link.link import Link
from ...transport.nat.portmap.mapper import PROTOCOLS
from ...transport.nat.portmap.mapping import SILENT
from ...transport.nat.portmap.outcome import TITLES
from ...transport.nat.punch.outcome import StrategyResult
from ...transport.nat.reach.findings import PortMap, ReachFinding, Situation, Strategy, findings
from ...transport.nat.reach.reachability import DialBackResult
from ...transport.networks import path_kind_to
from ...transport.strategies.dialer import Dialer
from ..health import Condition
from .messages.reach import DiagnosisView

_PUNCHED: Final = {
    "tcp": Strategy.TCP_PUNCH,
    "udp": Strategy.UDP_PUNCH,
    "prediction": Strategy.PREDICTION,
}
_LOST: Final = ("reset", "quic", "symmetric-both")
"""Reasons that show that a strategy was tried and did not reach the peer."""
_SAID_BY_THE_MAPPER: Final = ("mapped", "map-refused", "no-map")


class Diagnosis:
    """Diagnosis of one node. It must be created before the node runs, because it records each new
    path.

    `listen` is the IP address on which the node listens. `port_443` says that the owner configured
    the node to listen on TCP port 443 as well.
    """

    def __init__(
        self,
        dialer: Dialer,
        listen: str,
        interfaces: Callable[[], list[Interface]],
        *,
        port_443: bool = False,
    ) -> None:
        self._dialer = dialer
        self._interfaces = interfaces
        self._endpoint: Endpoint = dialer.endpoint
        self.local = path_kind_to(listen) is PathKind.LOOPBACK  # only this computer can connect
        self._listen = listen
        self._port_443 = port_443
        self._taken: set[Strategy] = set()
        self._endpoint.on_path(self._path_came)

    # Facts.

    def situation(self) -> Situation:
        """Return the current measurements from which the findings are derived."""
        worked, failed = self._strategies()
        relays = self._dialer.relays.known
        return Situation(
            self._dialer.reach.reachability,
            self._endpoint.port,
            self._portmap(),
            worked,
            failed,
            relays=len(relays),
            relays_443=sum(each.everywhere is not None for each in relays),
            linked=len(self._endpoint.links()),
        )

    def _path_came(self, link: Link, path_kind: PathKind, medium: str) -> None:
        if path_kind is PathKind.LAN:
            self._taken.add(Strategy.LAN)
        elif path_kind is PathKind.RELAYED:
            self._taken.add(Strategy.RELAY)
        elif path_kind is PathKind.PUNCHED and medium in _PUNCHED:
            self._taken.add(_PUNCHED[medium])

    def _strategies(self) -> tuple[set[Strategy], set[Strategy]]:
        """Return (strategies that have produced a path since the start, strategies that have only
        failed)."""
        worked, failed, came = set(self._taken), set[Strategy](), set[Strategy]()
        for outcome in self._dialer.puncher.outcomes.values():
            for name, strategy in outcome.strategies.items():
                if strategy.result is StrategyResult.WORKED:
                    came.add(_PUNCHED[name])  # or the dialled address was public
                elif strategy.result is StrategyResult.NO_ANSWER or strategy.reason in _LOST:
                    failed.add(_PUNCHED[name])
        if Strategy.PREDICTION in came:
            worked.add(Strategy.PREDICTION)
        if any(self._held_by_443()):
            worked.add(Strategy.TCP_443)
        return worked, failed - worked - came

    def _held_by_443(self) -> Iterator[bool]:
        """Yield for each linked relay of this node whether a path to it uses TCP port 443."""
        for held in self._dialer.relays.relays:
            link = self._endpoint.link(held.relay)
            if link is not None:
                yield any(path.address[1] == HTTPS_PORT for path in link.status.paths)

    def _portmap(self) -> PortMap | None:
        """Return the result of port mapping. Returns None if mapping is switched off or some
        protocols have not answered yet."""
        outcome = self._dialer.mapper.outcome
        if outcome.mapping is not None:
            return PortMap(TITLES[outcome.mapping.protocol])
        if (
            not self._dialer.strategies.mapping
            or outcome.note
            or len(outcome.answers) < len(PROTOCOLS)
        ):
            return None
        said = [
            f"{TITLES[name]}: {words}"
            for name, words in outcome.answers.items()
            if words != SILENT.words
        ]
        return PortMap(refused="; ".join(said))

    # Conclusions.

    def verdict(self) -> ReachFinding:
        """Describe in one sentence from where peers can reach this node.

        The command prints "reachable:" before its sentence.
        """
        reach, held = self._dialer.reach.reachability, len(self._dialer.relays.relays)
        through = f"through {_count(held, 'relay')}" if held else ""
        if self.local:
            return ReachFinding(
                "loopback", f"only by this computer: it listens on {self._listen} only"
            )
        if self._offline():
            return ReachFinding("offline", "by no peer: this computer is on no network")
        if self._cut_off():
            return ReachFinding("cut-off", "unknown: no linked node answers at the moment")
        if reach.public:
            ways = {
                item.transport for item in reach.dialled if item.answer is DialBackResult.REACHED
            }
            named = " and ".join(name.upper() for name in sorted(ways))
            return ReachFinding("public", f"from everywhere, over {named}")
        if reach.public is False:
            if held:
                return ReachFinding("relayed", f"{through}, and then by hole punching")
            words = "only by peers that it dials itself: no relay has accepted it"
            return ReachFinding("unreachable", words)
        if not self._endpoint.links():
            return ReachFinding("alone", "unknown: no connections yet")
        if reach.measured_at is None:
            return ReachFinding("measuring", "not known yet: measuring now")
        if held:
            return ReachFinding("relayed", f"{through}; no linked node could test other paths")
        if self._among_neighbours():
            words = "by the nodes on its own network; not tested from outside"
            return ReachFinding("lan-only", words)
        return ReachFinding("unknown", "unknown: no linked node could test it from outside")

    def _offline(self) -> bool:
        """Whether this computer has only addresses that no other computer can reach."""
        return all(path_kind_to(each.address) is PathKind.LOOPBACK for each in self._interfaces())

    def _cut_off(self) -> bool:
        """Whether this node has links but none of them has a path at the moment."""
        links = self._endpoint.links()
        return bool(links) and all(link.path_kind is None for link in links)

    def _among_neighbours(self) -> bool:
        """Whether all linked peers are on this computer's own networks."""
        return bool(self._endpoint.links()) and not self._has_company()

    def _has_company(self) -> bool:
        """Whether at least one linked peer is outside this computer's own networks."""
        near = (PathKind.LAN, PathKind.LOOPBACK, None)
        return any(link.path_kind not in near for link in self._endpoint.links())

    def findings(self) -> list[ReachFinding]:
        """Return all findings, the most important first."""
        if self.local:
            words = f"this node listens on {self._listen}, which other computers cannot reach"
            hint = "start it with `--listen default` to listen on all addresses"
            return [ReachFinding("loopback", words, hint)]
        if self._offline():
            words = "no network interface of this computer is up and has an address"
            return [ReachFinding("offline", words, "connect it; the node continues by itself")]
        general = findings(self.situation())
        strategies = [each for each in general if each.code.startswith("strategy-")]
        return [
            *self._own_parts(),
            *self._company(),
            *self._as_the_mapper_says([each for each in general if each not in strategies]),
            *self._relays(),
            *self._switched_off(strategies),
        ]

    def conditions(self) -> list[Condition]:
        """Return the problems that this machine itself causes, such as a port in use."""
        return [
            Condition(each.code, each.sentence, each.hint or None) for each in self._own_parts()
        ]

    def _own_parts(self) -> Iterator[ReachFinding]:
        """Yield findings about this machine itself: its UDP port, multicast, and TCP port 443."""
        dialer = self._dialer
        if dialer.ports.without_udp:
            yield ReachFinding(
                "no-udp-port",
                f"this node has no UDP port, so it uses TCP only: {dialer.ports.without_udp}",
                "end the other program, or choose another port with `--listen IP:PORT`",
            )
        lan = dialer.neighbourhood.lan
        if lan is not None and lan.condition:
            yield ReachFinding("lan-silent", lan.condition)
        if self._port_443 and (self._listen, HTTPS_PORT) not in self._endpoint.listening:
            yield self._no_443()

    @staticmethod
    def _no_443() -> ReachFinding:
        return ReachFinding(
            "no-443",
            "cannot listen on TCP port 443: another program uses it, or this user may not",
            "on Linux `sudo sysctl net.ipv4.ip_unprivileged_port_start=443` permits every user",
        )

    def _as_the_mapper_says(self, general: list[ReachFinding]) -> Iterator[ReachFinding]:
        """Yield the findings, with the port mapper's more detailed sentences about the router in
        place of the general ones."""
        said = self._dialer.mapper.outcome.sentences()
        codes = {each.code for each in general}
        for each in general:
            if each.code not in _SAID_BY_THE_MAPPER:
                yield each
                continue
            yield replace(each, sentence=said[0])
            if each.code == "mapped" and "double-nat" not in codes:
                yield from (ReachFinding("double-nat", words) for words in said[1:])
        silent = not codes & set(_SAID_BY_THE_MAPPER)
        if (
            silent
            and self._dialer.strategies.mapping
            and not self._dialer.reach.reachability.public
        ):
            yield ReachFinding("port-mapping", said[0])

    def _company(self) -> Iterator[ReachFinding]:
        """Yield findings about missing or silent links."""
        if self._cut_off():
            yield ReachFinding(
                "cut-off",
                "all linked nodes fell silent at once; this node is looking for other paths",
                "check that this computer still has internet access",
            )
        if not self._endpoint.links():
            yield ReachFinding(
                "alone",
                "no other node is linked",
                "`shoal node --bootstrap ADDR` or `shoal join CODE` names a first one; from a "
                "network that allows nothing but the web, only nodes that listen on TCP port 443 "
                "can be reached",
            )

    def _relays(self) -> Iterator[ReachFinding]:
        """Yield findings about the relays that serve this node, and about its own relaying."""
        dialer = self._dialer
        held = len(dialer.relays.relays)
        if held:
            yield ReachFinding(
                "relays",
                f"{_count(held, 'relay')} will introduce peers that look for this node, and carry "
                "traffic that has no direct path, slowly",
            )
        elif dialer.strategies.relay and not dialer.relays.reachable and self._has_company():
            yield ReachFinding(
                "no-relay",
                "no relay has accepted this node: hole punching starts over a relay, so peers that "
                "this node does not dial itself may not reach it. A swarm has no relays if none of "
                "its nodes can be reached from outside",
                "one node with a public address or a forwarded port is enough; it becomes a relay",
            )
        yield from self._lends()

    def _lends(self) -> Iterator[ReachFinding]:
        """Yield a finding if this node relays for others, or could do so if its owner allowed
        it."""
        book, web = self._dialer.relaying.book, self._dialer.web_port
        if book.lends:
            yield ReachFinding(
                "lends",
                f"this node relays for others, {book.limits.rate / 1000:g} kB a second in all: it "
                "introduces peers to each other and carries traffic that has no direct path",
                "`shoal node --relay 1MB` lends more, `--relay none` nothing",
            )
            if web is not None and web.failure:
                yield self._no_443()
        elif self._dialer.reach.reachability.public and not book.limits.rate:
            yield ReachFinding(
                "could-relay",
                "this node could relay for peers behind strict routers, but its owner forbids it",
                "`shoal config unset relay`, then start it again",
            )

    def _switched_off(self, strategies: list[ReachFinding]) -> Iterator[ReachFinding]:
        """Yield the findings about strategies. For a strategy that the owner has switched off, the
        sentence says so instead of a result."""
        allowed, udp = self._dialer.strategies, self._dialer.udp is not None
        off = {
            "strategy-lan": (allowed.lan, "--no-lan"),
            "strategy-mapped": (allowed.mapping, "--no-port-mapping"),
            "strategy-tcp-punch": (allowed.punch_tcp, ""),
            "strategy-udp-punch": (allowed.punch_udp and udp, "--no-udp"),
            "strategy-prediction": (allowed.punch_udp and udp, "--no-udp"),
            "strategy-relay": (allowed.relay, ""),
            "strategy-tcp-443": (allowed.relay, ""),
        }
        for each in strategies:
            on, flag = off.get(each.code, (True, ""))
            if on:
                yield each
                continue
            name = each.sentence.partition(":")[0]
            by = f" (`{flag}`)" if flag else ""
            yield replace(each, sentence=f"{name}: switched off by its owner{by}")


def finding_view(finding: ReachFinding) -> DiagnosisView:
    """Describe a finding as a control message. Its `hint` is None if the owner has nothing to
    do."""
    return DiagnosisView(finding.code, finding.sentence, finding.hint or None)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
