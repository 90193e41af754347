"""Probes of a NAT's UDP, in the terms of RFC 4787 and 5780."""

import trio

from ...network.packet import Addr
from .sockets import SKEWS_S, WAIT_S, Found, Lab, LabDatagrams, Servers, udp


async def mapping(lab: Lab, servers: Servers) -> Found:
    """Test whether the outer port depends on the remote endpoint (RFC 5780, section 4.3)."""
    client = await udp(lab, "a1", 40000)
    seen = [await servers.ask(client, (host, port)) for host in (0, 1) for port in (0, 1)]
    kind = "none" if None in seen else "EIM" if len(set(seen)) == 1 else "APDM"
    if kind == "APDM" and seen[0] == seen[1] and seen[2] == seen[3]:
        kind = "ADM"
    first = seen[0]
    return {
        "udp.mapping": kind,
        "udp.preserves": first is not None and first[1] == 40000,
        "udp.translates": first is not None and first[0] == lab.addresses["gate_a"],
    }


async def filtering(lab: Lab, servers: Servers) -> Found:
    """Test from which remotes a mapping accepts datagrams (RFC 5780, section 4.4)."""
    client = await udp(lab, "a1", 40001)
    seen = await servers.ask(client, (0, 0))
    got = {}
    # Ask the strictest question first: a reply that passes opens nothing for the next one.
    for name, where in ("port", (0, 1)), ("address", (1, 0)):
        if seen is not None:
            await servers[where].send(seen)
        got[name] = await client.expect() is not None
    kind = "EIF" if got["address"] else "ADF" if got["port"] else "APDF"
    return {"udp.filtering": kind if seen is not None else "none"}


async def race(lab: Lab, servers: Servers) -> Found:
    """Test whether a host keeps its outer port towards B if a datagram of B arrives before the
    host's first datagram to B.
    """
    client = await udp(lab, "a1", 40002)
    before = await servers.ask(client, (0, 0))
    if before is None:
        return {"udp.race.delivered": False, "udp.race.port_kept": None}
    await servers[1, 0].send(before)
    delivered = await client.expect() is not None
    after = await servers.seen(client, (1, 0))
    return {"udp.race.delivered": delivered, "udp.race.port_kept": after == before}


async def overload(lab: Lab, servers: Servers) -> Found:
    """Test which outer ports two hosts get that send from the same inner port, to different
    destinations and to the same destination.
    """
    one, two = await udp(lab, "a1", 41000), await udp(lab, "a2", 41000)
    first = await servers.ask(one, (0, 0))
    other = await servers.ask(two, (1, 1))
    same = await servers.ask(two, (0, 0))
    again = await servers.ask(two, (1, 0))
    return {
        "udp.overload.other_destination_shares": other == first,
        "udp.overload.same_destination_shares": same == first,
        "udp.overload.next_follows_latest": again == same,
        "udp.overload.next_follows_first": again == other,
    }


async def remap(lab: Lab, servers: Servers) -> Found:
    """Test whether a flow keeps a port that the NAT has changed, and whether replies to that port
    arrive.
    """
    one, two = await udp(lab, "a1", 41001), await udp(lab, "a2", 41001)
    await servers.ask(one, (0, 0))
    first = await servers.seen(two, (0, 0))
    second = await servers.seen(two, (0, 0))
    if second is not None:
        await servers[0, 0].send(second)
    got = await two.expect() is not None
    return {"udp.remap.stable": first == second, "udp.remap.answered": got}


async def _alive(servers: Servers, client: LabDatagrams, seen: Addr | None) -> bool:
    if seen is None:
        return False
    await servers[0, 0].send(seen)
    return await client.expect() is not None


async def _unreplied(lab: Lab, servers: Servers) -> Found:
    client = await udp(lab, "a1", 42000)
    seen = await servers.seen(client, (0, 0))
    await trio.sleep(3)
    return {"udp.timer.unreplied_3s": await _alive(servers, client, seen)}


async def _unreplied_short(lab: Lab, servers: Servers) -> Found:
    client = await udp(lab, "a1", 42004)
    seen = await servers.seen(client, (0, 0))
    await trio.sleep(1)
    return {"udp.timer.unreplied_1s": await _alive(servers, client, seen)}


async def _burst(lab: Lab, servers: Servers) -> Found:
    client = await udp(lab, "a1", 42001)
    await servers.ask(client, (0, 0))
    seen = await servers.ask(client, (0, 0))
    await trio.sleep(3)
    return {"udp.timer.burst_3s": await _alive(servers, client, seen)}


async def _stream(lab: Lab, servers: Servers, port: int) -> tuple[LabDatagrams, Addr | None]:
    """Create a flow that has lasted longer than two seconds, so that Linux treats it as a stream.
    Return its client socket and its outer endpoint.
    """
    client = await udp(lab, "a1", port)
    for _ in range(2):
        await servers.ask(client, (0, 0))
        await trio.sleep(1.2)
    return client, await servers.ask(client, (0, 0))


async def _long(lab: Lab, servers: Servers) -> Found:
    client, seen = await _stream(lab, servers, 42002)
    await trio.sleep(3)
    found: Found = {"udp.timer.stream_3s": await _alive(servers, client, seen)}
    await trio.sleep(5)
    return found | {"udp.timer.stream_5s": await _alive(servers, client, seen)}


async def _inbound(lab: Lab, servers: Servers) -> Found:
    client, seen = await _stream(lab, servers, 42003)
    heard = 0
    for _ in range(3):
        await trio.sleep(2.5)
        heard += await _alive(servers, client, seen)
    return {"udp.timer.inbound_refreshes_of_3": heard}


async def timers(lab: Lab, servers: Servers) -> Found:
    """Test which mappings survive silences shorter and longer than the gateway's UDP timeouts.

    The tests run one after the other, because they share the servers' sockets.
    """
    found: Found = {}
    for probe in _unreplied, _unreplied_short, _burst, _long, _inbound:
        found |= await probe(lab, servers)
    return found


async def hairpin(lab: Lab, servers: Servers) -> Found:
    """Test hairpinning: send from one inner host to the outer endpoint of another inner host, and
    report which source address the receiver sees (RFC 5780, section 4.5).
    """
    called, caller = await udp(lab, "a1", 43000), await udp(lab, "a2", 43001)
    outer = await servers.ask(called, (0, 0))
    await servers.ask(caller, (0, 0))
    source = None
    if outer is not None:
        await caller.send(outer)
        source = await called.expect()
    if source is None:
        return {"udp.hairpin": "no"}
    return {"udp.hairpin": "external" if source[0] == lab.addresses["gate_a"] else "internal"}


async def punch(lab: Lab, servers: Servers) -> Found:
    """Test UDP hole punching: each of two peers learns its outer endpoint from the server, then
    sends ten datagrams to the other peer's outer endpoint.
    """
    found: Found = {}
    for number, skew in enumerate(SKEWS_S):
        a, b = await udp(lab, "a1", 44000 + number), await udp(lab, "b1", 45000 + number)
        to_a, to_b = await servers.ask(a, (0, 0)), await servers.ask(b, (0, 0))
        heard = [0, 0]
        if to_a is not None and to_b is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_peer, a, to_b, 0.0, heard, 0)
                nursery.start_soon(_peer, b, to_a, skew, heard, 1)
        name = f"udp.punch.{round(skew * 1000)}ms"
        found |= {f"{name}.a_hears": heard[0] > 0, f"{name}.b_hears": heard[1] > 0}
    return found


async def _peer(
    me: LabDatagrams, other: Addr, delay: float, heard: list[int], index: int, rounds: int = 10
) -> None:
    """Send a datagram to a peer every 0.2 s, after `delay` seconds. Send to the source of the last
    datagram received, and count received datagrams in `heard[index]`.
    """
    await trio.sleep(delay)
    for _ in range(rounds):
        await me.send(other)
        with trio.move_on_after(0.2):
            while True:
                source = await me.expect(1)
                if source is not None:
                    heard[index] += 1
                    other = source


async def _heard(sock: trio.socket.SocketType, to: Addr) -> str:
    """Send a datagram, and return the response: "refused" (ICMP port unreachable), "data", or
    "silence".
    """
    await sock.connect(to)
    await sock.send(b"?")
    with trio.move_on_after(WAIT_S):
        try:
            await sock.recv(10)
        except ConnectionRefusedError:
            return "refused"
        return "data"
    return "silence"


async def icmp(lab: Lab, servers: Servers) -> Found:
    """Test whether the NAT forwards ICMP port-unreachable errors, for datagrams sent from inside
    and from outside.
    """
    client = await udp(lab, "a1", 46000)
    outward = await _heard(client.sock, (lab.addresses["server"], 3999))
    closing, server = await udp(lab, "a1", 46001), await udp(lab, "server", 3998)
    await closing.send((lab.addresses["server"], 3998))
    seen = await server.expect()
    closing.sock.close()
    inward = "silence" if seen is None else await _heard(server.sock, seen)
    return {"udp.icmp.outward": outward, "udp.icmp.inward": inward}


async def unsolicited(lab: Lab, servers: Servers) -> Found:
    """Send datagrams to the gateway's outer address, from outside and from inside."""
    to = lab.addresses["gate_a"], 46100
    outside, inside = await udp(lab, "server", 3997), await udp(lab, "a1", 46101)
    return {
        "udp.unsolicited.outside": await _heard(outside.sock, to),
        "udp.unsolicited.inside": await _heard(inside.sock, to),
    }
