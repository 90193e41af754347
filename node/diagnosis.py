"""How others reach this node, and by which ways it reaches them: what `shoal doctor` tells.

The measurements are the ladder's; here they become one situation, one verdict and a list of
findings. Nothing is asked of anybody.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from ..transport.defaults import HTTPS_PORT
from ..transport.endpoint import Endpoint
from ..transport.host import Interface
from ..transport.ladder import Ladder
from ..transport.link import Link
from ..transport.pipe import Way
from ..transport.place import way_to
from ..transport.portmap.mapper import PROTOCOLS
from ..transport.portmap.mapping import SILENT
from ..transport.portmap.outcome import TITLES
from ..transport.punch.outcome import Result
from ..transport.reach.findings import Finding, PortMap, Rung, Situation, findings
from ..transport.reach.reachability import Answer
from .health import Condition

_PUNCHED: Final = {"tcp": Rung.TCP_PUNCH, "udp": Rung.UDP_PUNCH, "prediction": Rung.PREDICTION}
_LOST: Final = ("reset", "quic", "symmetric-both")
"""Reasons of a rung that was tried, and did not lead to the peer."""
_SAID_BY_THE_MAPPER: Final = ("mapped", "map-refused", "no-map")


class Diagnosis:
    """Of one node. Made before it runs: it takes note of every path that comes."""

    def __init__(
        self,
        ladder: Ladder,
        listen: str,
        interfaces: Callable[[], list[Interface]],
        *,
        port_443: bool = False,
    ) -> None:
        self._ladder = ladder
        self._interfaces = interfaces
        self._endpoint: Endpoint = ladder.endpoint
        self.local = way_to(listen) is Way.LOOPBACK  # nobody but this computer can come
        self._listen = listen
        self._port_443 = port_443
        self._taken: set[Rung] = set()
        self._endpoint.on_path(self._path_came)

    # What is known.

    def situation(self) -> Situation:
        """All that findings rest on, as it is now."""
        worked, failed = self._rungs()
        relays = self._ladder.relays.known
        return Situation(
            self._ladder.reach.reachability,
            self._endpoint.port,
            self._portmap(),
            worked,
            failed,
            relays=len(relays),
            relays_443=sum(each.everywhere is not None for each in relays),
            linked=len(self._endpoint.links()),
        )

    def _path_came(self, link: Link, way: Way, medium: str) -> None:
        if way is Way.LAN:
            self._taken.add(Rung.LAN)
        elif way is Way.RELAYED:
            self._taken.add(Rung.RELAY)
        elif way is Way.PUNCHED and medium in _PUNCHED:
            self._taken.add(_PUNCHED[medium])

    def _rungs(self) -> tuple[set[Rung], set[Rung]]:
        """Those that made a path since the start, and those that were tried and never did."""
        worked, failed, came = set(self._taken), set[Rung](), set[Rung]()
        for outcome in self._ladder.puncher.outcomes.values():
            for name, rung in outcome.rungs.items():
                if rung.result is Result.WORKED:
                    came.add(_PUNCHED[name])  # or what was dialled was open to everybody
                elif rung.result is Result.NO_ANSWER or rung.reason in _LOST:
                    failed.add(_PUNCHED[name])
        if Rung.PREDICTION in came:
            worked.add(Rung.PREDICTION)
        if any(self._held_by_443()):
            worked.add(Rung.TCP_443)
        return worked, failed - worked - came

    def _held_by_443(self) -> Iterator[bool]:
        for held in self._ladder.relays.relays:
            link = self._endpoint.link(held.relay)
            if link is not None:
                yield any(leg.address[1] == HTTPS_PORT for leg in link.status.legs)

    def _portmap(self) -> PortMap | None:
        """None where nothing was asked, or not everything has been answered yet."""
        outcome = self._ladder.mapper.outcome
        if outcome.mapping is not None:
            return PortMap(TITLES[outcome.mapping.protocol])
        if not self._ladder.rungs.mapping or outcome.note or len(outcome.answers) < len(PROTOCOLS):
            return None
        said = [
            f"{TITLES[name]}: {words}"
            for name, words in outcome.answers.items()
            if words != SILENT.words
        ]
        return PortMap(refused="; ".join(said))

    # What it comes to.

    def verdict(self) -> Finding:
        """Who reaches this node, in one line; the sentence goes on from "can be reached"."""
        reach, held = self._ladder.reach.reachability, len(self._ladder.relays.relays)
        through = f"through {_count(held, 'relay')}" if held else ""
        if self.local:
            return Finding("loopback", f"by this computer alone: it listens on {self._listen} only")
        if self._offline():
            return Finding("offline", "by nobody: this computer is on no network")
        if self._cut_off():
            return Finding("cut-off", "nobody can tell: no linked node answers at the moment")
        if reach.public:
            ways = {item.transport for item in reach.dialled if item.answer is Answer.REACHED}
            named = " and ".join(name.upper() for name in sorted(ways))
            return Finding("public", f"by everybody, over {named}")
        if reach.public is False:
            if held:
                return Finding("relayed", f"{through}, and by hole punching from there on")
            words = "only by those that it calls itself: no relay has a place for it"
            return Finding("unreachable", words)
        if not self._endpoint.links():
            return Finding("alone", "nobody can tell: no other node is linked")
        if reach.measured_at is None:
            return Finding("measuring", "not known yet: it is being measured")
        if held:
            return Finding("relayed", f"{through}; from where else, no linked node could try")
        if self._among_neighbours():
            words = "by the nodes on its own network; from outside nobody has tried"
            return Finding("lan-only", words)
        return Finding("unknown", "not known: no linked node could try it from outside")

    def _offline(self) -> bool:
        """Whether this computer has no address but those that are its own affair."""
        return all(way_to(each.address) is Way.LOOPBACK for each in self._interfaces())

    def _cut_off(self) -> bool:
        """Whether there are links, and all have lost their paths."""
        links = self._endpoint.links()
        return bool(links) and all(link.way is None for link in links)

    def _among_neighbours(self) -> bool:
        """Whether all that are linked are on its own networks."""
        return bool(self._endpoint.links()) and not self._has_company()

    def _has_company(self) -> bool:
        """Whether somebody outside of its own networks is linked."""
        near = (Way.LAN, Way.LOOPBACK, None)
        return any(link.way not in near for link in self._endpoint.links())

    def findings(self) -> list[Finding]:
        """Everything worth saying, the most important first."""
        if self.local:
            words = f"this node listens on {self._listen}, which other computers cannot reach"
            hint = "start it with `--listen default`: it listens on all addresses then"
            return [Finding("loopback", words, hint)]
        if self._offline():
            words = "no network interface of this computer is up and has an address"
            return [Finding("offline", words, "plug it in; the node goes on by itself")]
        general = findings(self.situation())
        rungs = [each for each in general if each.code.startswith("rung-")]
        return [
            *self._own_parts(),
            *self._company(),
            *self._as_the_mapper_says([each for each in general if each not in rungs]),
            *self._relays(),
            *self._switched_off(rungs),
        ]

    def conditions(self) -> list[Condition]:
        """What is not as it should be on this machine itself."""
        return [
            Condition(each.code, each.sentence, each.hint or None) for each in self._own_parts()
        ]

    def _own_parts(self) -> Iterator[Finding]:
        ladder = self._ladder
        if ladder.ports.without_udp:
            yield Finding(
                "no-udp-port",
                f"this node has no UDP port, so it uses TCP only: {ladder.ports.without_udp}",
                "end the other program, or choose another port with `--listen IP:PORT`",
            )
        lan = ladder.neighbourhood.lan
        if lan is not None and lan.condition:
            yield Finding("lan-silent", lan.condition)
        if self._port_443 and (self._listen, HTTPS_PORT) not in self._endpoint.listening:
            yield self._no_443()

    @staticmethod
    def _no_443() -> Finding:
        return Finding(
            "no-443",
            "cannot listen on TCP port 443: another program uses it, or this user may not",
            "on Linux `sudo sysctl net.ipv4.ip_unprivileged_port_start=443` permits every user",
        )

    def _as_the_mapper_says(self, general: list[Finding]) -> Iterator[Finding]:
        """The same, with what the mapper knows of the router in place of the short sentence."""
        said = self._ladder.mapper.outcome.sentences()
        codes = {each.code for each in general}
        for each in general:
            if each.code not in _SAID_BY_THE_MAPPER:
                yield each
                continue
            yield replace(each, sentence=said[0])
            if each.code == "mapped" and "double-nat" not in codes:
                yield from (Finding("double-nat", words) for words in said[1:])
        silent = not codes & set(_SAID_BY_THE_MAPPER)
        if silent and self._ladder.rungs.mapping and not self._ladder.reach.reachability.public:
            yield Finding("port-mapping", said[0])

    def _company(self) -> Iterator[Finding]:
        if self._cut_off():
            yield Finding(
                "cut-off",
                "all linked nodes fell silent at once; ways to them are looked for",
                "look whether this computer still reaches the internet",
            )
        if not self._endpoint.links():
            yield Finding(
                "alone",
                "no other node is linked",
                "`shoal node --bootstrap ADDR` or `shoal join CODE` names one to begin with; where "
                "a network lets out nothing but the web, only nodes that listen on TCP port 443 "
                "can be reached from it",
            )

    def _relays(self) -> Iterator[Finding]:
        ladder = self._ladder
        held = len(ladder.relays.relays)
        if held:
            yield Finding(
                "relays",
                f"{_count(held, 'relay')} will introduce peers that look for this node, and carry "
                "traffic that has no direct path, slowly",
            )
        elif ladder.rungs.relay and not ladder.relays.reachable and self._has_company():
            yield Finding(
                "no-relay",
                "no relay has accepted this node: hole punching begins over a relay, so peers that "
                "this node does not dial itself may not reach it. A swarm has no relays if none of "
                "its nodes can be reached from outside",
                "one node with a public address or a forwarded port is enough; it relays by itself",
            )
        yield from self._lends()

    def _lends(self) -> Iterator[Finding]:
        """Report whether this node relays, or could relay."""
        book, web = self._ladder.relaying.book, self._ladder.web_port
        if book.lends:
            yield Finding(
                "lends",
                f"this node relays for others, {book.limits.rate / 1000:g} kB a second in all: it "
                "introduces peers to each other and carries traffic that has no direct path",
                "`shoal node --relay 1MB` lends more, `--relay none` nothing",
            )
            if web is not None and web.failure:
                yield self._no_443()
        elif self._ladder.reach.reachability.public and not book.limits.rate:
            yield Finding(
                "could-relay",
                "this node could relay for peers behind strict routers, but its owner forbids it",
                "`shoal config unset relay`, then start it again",
            )

    def _switched_off(self, rungs: list[Finding]) -> Iterator[Finding]:
        """What the owner does not want neither works nor fails."""
        allowed, udp = self._ladder.rungs, self._ladder.udp is not None
        off = {
            "rung-lan": (allowed.lan, "--no-lan"),
            "rung-mapped": (allowed.mapping, "--no-port-mapping"),
            "rung-tcp-punch": (allowed.punch_tcp, ""),
            "rung-udp-punch": (allowed.punch_udp and udp, "--no-udp"),
            "rung-prediction": (allowed.punch_udp and udp, "--no-udp"),
            "rung-relay": (allowed.relay, ""),
            "rung-tcp-443": (allowed.relay, ""),
        }
        for each in rungs:
            on, flag = off.get(each.code, (True, ""))
            if on:
                yield each
                continue
            name = each.sentence.partition(":")[0]
            by = f" (`{flag}`)" if flag else ""
            yield replace(each, sentence=f"{name}: switched off by its owner{by}")


def finding_view(finding: Finding) -> dict[str, Any]:
    """For the control socket; `hint` is null where there is nothing to do."""
    return {
        "code": finding.code,
        "sentence": finding.sentence,
        "hint": finding.hint or None,
    }


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
