"""Probes of a NAT's TCP (RFC 5382): ports, unsolicited SYNs, simultaneous open, resets."""

import trio

from ...network.packet import Addr
from .sockets import (
    CONNECT_S,
    SKEWS_S,
    WAIT_S,
    Found,
    Lab,
    Servers,
    accept,
    connect,
    ending,
    listen,
    reset,
)


async def tcp_out(lab: Lab, servers: Servers) -> Found:
    """Connect two inner hosts to the server from the same port. Test whether the NAT preserves,
    translates and shares the port.
    """
    listener = await listen(lab, "server", 3500)
    outcome, client = await connect(lab, "a1", 47000, (lab.addresses["server"], 3500))
    served, seen = await accept(listener)
    found: Found = {
        "tcp.out": outcome,
        "tcp.preserves": seen is not None and seen[1] == 47000,
        "tcp.translates": seen is not None and seen[0] == lab.addresses["gate_a"],
    }
    second, other = await connect(lab, "a2", 47000, (lab.addresses["server"], 3500))
    twin, seen_too = await accept(listener)
    found["tcp.overload.out"] = second
    found["tcp.overload.shares"] = seen_too == seen
    for sock in client, served, other, twin, listener:
        if sock is not None:
            sock.close()
    return found


async def tcp_unsolicited(lab: Lab, servers: Servers) -> Found:
    """Send SYNs from outside to an outer port without a mapping, and to an outer port that has a
    mapping. Return the outcomes of both connections.
    """
    gate = lab.addresses["gate_a"]
    found: Found = {}
    outcome, sock = await connect(lab, "server", 3600, (gate, 47100))
    found["tcp.unsolicited.unmapped"] = outcome
    listener = await listen(lab, "server", 3601)
    _, client = await connect(lab, "a1", 47101, (lab.addresses["server"], 3601))
    served, seen = await accept(listener)
    outcome, other = await connect(lab, "server", 3602, seen or (gate, 47101))
    found["tcp.unsolicited.mapped"] = outcome
    for each in sock, client, served, other, listener:
        if each is not None:
            each.close()
    return found


async def tcp_race(lab: Lab, servers: Servers) -> Found:
    """Test whether a host keeps its outer port towards B if a SYN of B arrives before the host's
    own SYN to B.
    """
    _, early = await connect(lab, "server", 3603, (lab.addresses["gate_a"], 47300), WAIT_S)
    early.close()
    listener = await listen(lab, "server", 3603)
    outcome, client = await connect(lab, "a1", 47300, (lab.addresses["server"], 3603))
    served, seen = await accept(listener)
    for sock in client, served, listener:
        if sock is not None:
            sock.close()
    return {"tcp.race.out": outcome, "tcp.race.port_kept": seen is not None and seen[1] == 47300}


async def tcp_simultaneous(lab: Lab, servers: Servers) -> Found:
    """Test TCP simultaneous open: two peers behind NATs connect to each other at about the same
    time, each from the port to which the other peer connects.
    """
    found: Found = {}
    for number, skew in enumerate(SKEWS_S):
        ports = 48000 + number, 49000 + number
        outcomes = ["", ""]

        async def side(
            index: int,
            host: str,
            delay: float,
            to: Addr,
            outcomes: list[str] = outcomes,
            ports: tuple[int, int] = ports,
        ) -> None:
            await trio.sleep(delay)
            outcomes[index], sock = await connect(lab, host, ports[index], to)
            await trio.sleep(CONNECT_S)
            sock.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(side, 0, "a1", 0.0, (lab.addresses["gate_b"], ports[1]))
            nursery.start_soon(side, 1, "b1", skew, (lab.addresses["gate_a"], ports[0]))
        name = f"tcp.simultaneous.{round(skew * 1000)}ms"
        found |= {f"{name}.a": outcomes[0], f"{name}.b": outcomes[1]}
    return found


async def tcp_reset(lab: Lab, servers: Servers) -> Found:
    """Test whether a reset ends the connection in the gateway too, so that the same inner port can
    connect to the same server again.
    """
    server = lab.addresses["server"], 3700
    found: Found = {}
    outcome, _ = await connect(lab, "a1", 47200, server)
    found["tcp.reset.closed_port"] = outcome
    listener = await listen(lab, "server", 3700)
    outcome, client = await connect(lab, "a1", 47200, server)
    served, seen = await accept(listener)
    found["tcp.reset.after_refusal"] = outcome
    found["tcp.reset.after_refusal_preserves"] = seen is not None and seen[1] == 47200
    if served is not None:
        reset(served)
    found["tcp.reset.heard_inside"] = await ending(client)
    client.close()
    outcome, client = await connect(lab, "a1", 47200, server)
    served, seen = await accept(listener)
    found["tcp.reset.again"] = outcome
    found["tcp.reset.again_preserves"] = seen is not None and seen[1] == 47200
    reset(client)
    found["tcp.reset.heard_outside"] = "none" if served is None else await ending(served)
    for sock in served, listener:
        if sock is not None:
            sock.close()
    return found
