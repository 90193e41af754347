"""Endpoints on loopback: dialling, hello refusals, both at once, floods and slow peers."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
import trio
import trio.testing

from shoal.transport import defaults
from shoal.transport import frame as wire
from shoal.transport.address import Address
from shoal.transport.certificate import Certificate
from shoal.transport.errors import AddressInUse, DialFailed
from shoal.transport.events import Windows
from shoal.transport.frame import Priority
from shoal.transport.hello import Hello, Invited, OpenSwarm, SwarmKey, invitation_ident
from shoal.transport.identity import Identity
from shoal.transport.limits import Limits
from shoal.transport.path import Path
from shoal.transport.pipe import TcpPipe
from shoal.transport.realhost import RealHost
from shoal.transport.tls import Tls
from tests.transport.fleet import LOOPBACK, Node, clock, make_node, running, until

pytestmark = pytest.mark.trio
KEY = b"k" * 32


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


async def dial_code(a: Node, address: Address, timeout: float = 5) -> str:
    with pytest.raises(DialFailed) as failed:
        await a.endpoint.dial(address, timeout=timeout)
    return failed.value.code


# Dialling.


async def test_dial_and_find_the_link_again() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await a.endpoint.dial(b.address, timeout=5)
        assert await a.endpoint.dial(b.address, timeout=5) is link
        without_peer = Address(LOOPBACK, b.endpoint.port)
        assert await a.endpoint.dial(without_peer, timeout=5) is link
        assert a.endpoint.link(b.endpoint.peer) is link
        assert a.endpoint.links() == [link]
        await until(lambda: b.up)
        assert await b.endpoint.dial(a.address, timeout=5) is b.up[0]


async def test_a_name_is_resolved() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        address = Address("localhost", b.endpoint.port, b.endpoint.peer, "dns4")
        assert (await a.endpoint.dial(address, timeout=5)).alive
        assert await dial_code(a, Address("no-such-name.invalid", 1)) == "bad-name"


async def test_what_a_dial_says_when_it_fails() -> None:
    a, b, c = make_node(1), make_node(2), make_node(3)
    async with running(a, b, c):
        wrong = Address(LOOPBACK, b.endpoint.port, c.endpoint.peer)
        assert await dial_code(a, wrong) == "wrong-peer"
        assert await dial_code(a, Address(LOOPBACK, a.endpoint.port)) == "self"
        b.scope.cancel()
        await until(lambda: b.stopped)
        assert await dial_code(a, b.address) == "refused"
        listener = await RealHost().listen(LOOPBACK, 0)
        silent = Address(LOOPBACK, listener.socket.getsockname()[1])
        assert await dial_code(a, silent, timeout=0.05) == "timeout"
        listener.socket.close()


async def test_a_port_in_use_is_an_error_of_its_own() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a):
        with pytest.raises(AddressInUse):
            await b.endpoint.run(LOOPBACK, a.endpoint.port)


async def test_dialling_needs_a_running_endpoint() -> None:
    assert await dial_code(make_node(1), Address(LOOPBACK, 1)) == "not-running"


@pytest.mark.parametrize("seed", range(5))
async def test_both_dial_at_once_and_one_link_stays(seed: int) -> None:
    a, b = make_node(1 + seed), make_node(50 + seed)
    async with running(a, b):
        links = {}

        async def dial(node: Node, other: Node) -> None:
            links[node.endpoint.peer] = await node.endpoint.dial(other.address, timeout=5)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(dial, a, b)
                nursery.start_soon(dial, b, a)
        await trio.sleep(0.02)
        ours, theirs = links[a.endpoint.peer], links[b.endpoint.peer]
        assert ours.alive and theirs.alive
        assert ours.status.dialled != theirs.status.dialled
        assert (len(a.up), len(b.up), a.lost, b.lost) == (1, 1, [], [])
        assert (await ours.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}
        assert (await theirs.call("echo", {"n": 2}, timeout=5)).header == {"n": 2}


@pytest.mark.parametrize("bounded", [True, False])
async def test_an_address_that_says_no_hello_holds_up_others_for_a_moment(
    virtual_time: object, monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """The twin waits for as long as the dial itself."""
    if not bounded:
        monkeypatch.setattr(defaults, "HELLO_S", 60.0)
    a, b = make_node(1), make_node(2)
    certificate = Certificate.generate(Identity.from_seed(bytes([2]) * 32), RealHost())

    async def say_nothing(stream: trio.SocketStream) -> None:
        await Path(TcpPipe(stream), Tls(certificate, server=True, expect=None)).handshake()
        await trio.sleep_forever()

    async with running(a, b) as nursery:
        listener = await RealHost().listen(LOOPBACK, 0)
        nursery.start_soon(trio.serve_listeners, say_nothing, [listener])
        silent = Address(LOOPBACK, listener.socket.getsockname()[1], b.endpoint.peer)
        codes: list[str] = []

        async def dial_silent() -> None:
            codes.append(await dial_code(a, silent, timeout=10))

        nursery.start_soon(dial_silent)
        await until(lambda: a.endpoint._links._proving)
        began = trio.current_time()
        await a.endpoint.dial(b.address, timeout=20)
        assert (trio.current_time() - began < 4) is bounded
        await until(lambda: codes)
        assert codes == ["timeout"]


async def test_many_nodes_become_a_mesh() -> None:
    nodes = [make_node(seed) for seed in range(1, 9)]
    async with running(*nodes):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                for other in nodes:
                    if node is not other:
                        nursery.start_soon(partial(node.endpoint.dial, other.address, timeout=10))
        assert all(len(node.endpoint.links()) == 7 for node in nodes)
        assert not any(node.lost for node in nodes)


async def test_cancelling_a_dial_anywhere_leaves_nothing_behind() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        for delay in (0, 0.0003, 0.001, 0.002, 0.003, 0.004, 0.006):
            with trio.move_on_after(delay):
                await a.endpoint.dial(b.address, timeout=5)
        link = await a.endpoint.dial(b.address, timeout=5)
        assert (await link.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}
        assert a.endpoint.links() == [link] and not a.endpoint._links._proving
        await until(lambda: b.endpoint._half_open.count == 0)


PEER_PROCESS = """
import sys, trio
from tests.transport.fleet import make_node
async def main():
    node = make_node(2)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        print(node.address, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.mark.parametrize("dialled_by_us", [True, False])
async def test_a_killed_process_is_noticed_at_once(dialled_by_us: bool) -> None:
    node = make_node(1)
    async with running(node) as nursery:
        script = PEER_PROCESS
        if not dialled_by_us:
            dial = f"from shoal.transport.address import Address\n{script}".replace(
                "        await trio.sleep_forever()",
                f"        address = Address.parse('{node.address}')\n"
                "        await node.endpoint.dial(address, timeout=5)\n"
                "        await trio.sleep_forever()",
            )
            script = dial
        process = await nursery.start(
            partial(
                trio.run_process,
                [sys.executable, "-c", script],
                stdout=subprocess.PIPE,
                check=False,
            )
        )
        assert process.stdout is not None
        address = Address.parse((await process.stdout.receive_some()).decode().strip())
        if dialled_by_us:
            await node.endpoint.dial(address, timeout=5)
        await until(lambda: node.up)
        began = trio.current_time()
        process.kill()
        await until(lambda: node.lost)
        assert node.lost == ["peer-gone"]
        assert trio.current_time() - began < 1.5


# Admission.


class Book:
    """An invitation book of one."""

    def __init__(self, key: bytes, uses: int = 1) -> None:
        self._key = key
        self.uses = uses

    def find(self, ident: bytes) -> bytes | None:
        return self._key if self.uses and ident == invitation_ident(self._key) else None

    def used(self, ident: bytes) -> None:
        self.uses -= 1


async def test_a_swarm_key_lets_its_members_in() -> None:
    a = make_node(1, admission=SwarmKey(KEY))
    b = make_node(2, admission=SwarmKey(KEY))
    async with running(a, b):
        link = await a.endpoint.dial(b.address, timeout=5)
        assert link.status.admitted.kind == "swarm"


@pytest.mark.parametrize(
    ("ours", "theirs", "code"),
    [
        (OpenSwarm(), SwarmKey(KEY), "wrong-swarm"),
        (SwarmKey(KEY), OpenSwarm(), "wrong-swarm"),
        (SwarmKey(KEY), SwarmKey(b"other" * 8), "wrong-swarm"),
        (OpenSwarm(b"one"), OpenSwarm(b"two"), "wrong-swarm"),
        (Invited(b"0123456789"), SwarmKey(KEY), "not-admitted"),
        (Invited(b"0123456789"), OpenSwarm(), "not-admitted"),
        (Invited(b"0123456789"), Invited(b"0123456789"), "not-admitted"),
    ],
)
async def test_who_is_not_let_in(ours: OpenSwarm, theirs: OpenSwarm, code: str) -> None:
    a, b = make_node(1, admission=ours), make_node(2, admission=theirs)
    async with running(a, b):
        assert await dial_code(a, b.address) == code
        assert b.up == []


async def test_an_invitation_lets_one_in_and_only_as_often_as_it_says() -> None:
    book = Book(b"0123456789")
    inviter = make_node(1, admission=SwarmKey(KEY, book))
    guest = make_node(2, admission=Invited(b"0123456789"))
    late = make_node(3, admission=Invited(b"0123456789"))
    async with running(inviter, guest, late):
        link = await guest.endpoint.dial(inviter.address, timeout=5)
        assert link.status.admitted.kind == "invitation"
        await until(lambda: inviter.up)
        admitted = inviter.up[0].status.admitted
        assert (admitted.kind, admitted.invitation) == (
            "invitation",
            invitation_ident(b"0123456789"),
        )
        assert book.uses == 0
        assert await dial_code(late, inviter.address) == "not-admitted"
        guest.endpoint.admission = SwarmKey(KEY)  # handed over by a call
        member = make_node(4, admission=SwarmKey(KEY))
        async with running(member):
            assert (await guest.endpoint.dial(member.address, timeout=5)).alive


async def test_a_listener_must_prove_the_key_too() -> None:
    """Twin: a dialler that trusted the swarm's name would join an impostor."""
    impostor_admission = OpenSwarm(SwarmKey(KEY).swarm)
    impostor_admission.find = lambda kind, ident: SwarmKey(b"wrong" * 8).secret  # type: ignore[method-assign]
    a = make_node(1, admission=SwarmKey(KEY))
    impostor = make_node(2, admission=impostor_admission)
    async with running(a, impostor):
        assert await dial_code(a, impostor.address) == "not-admitted"
        assert a.up == []


async def test_versions_must_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        monkeypatch.setattr(defaults, "PROTOCOL_VERSIONS", (7, 9))
        raw = await raw_path(b)
        monkeypatch.setattr(defaults, "PROTOCOL_VERSIONS", (1, 1))
        raw.send(hello(versions=(7, 9)))
        assert await goodbye(raw) == "no-common-version"
        raw.close()


async def test_links_are_limited() -> None:
    hub = make_node(1, limits=Limits(links=2))
    others = [make_node(seed) for seed in range(2, 5)]
    async with running(hub, *others):
        await others[0].endpoint.dial(hub.address, timeout=5)
        await others[1].endpoint.dial(hub.address, timeout=5)
        assert await dial_code(others[2], hub.address) == "full"


# A hostile peer at the door.


async def raw_path(node: Node, seed: int = 99) -> Path:
    """A TLS connection to a node, whose hello is still to be said."""
    host = RealHost()
    certificate = Certificate.generate(Identity.from_seed(bytes([seed]) * 32), host)
    stream = await host.connect(LOOPBACK, node.endpoint.port)
    path = Path(TcpPipe(stream), Tls(certificate, server=False, expect=node.endpoint.peer))
    await path.handshake()
    return path


def hello(versions: tuple[int, int] = (1, 1), resume: bytes | None = None) -> bytes:
    said = Hello(versions, bytes(16), Windows(1000, 1000, 4), b"open", resume=resume)
    return wire.encode(wire.HELLO, head=said.encode())


async def goodbye(path: Path) -> str:
    """The code of the goaway that comes."""
    data = b""
    with trio.fail_after(5):
        while (found := wire.first_frame(data, 4096)) is None:
            data += await path.receive()
    assert found[0].kind == wire.GOAWAY
    return wire.decode_code(found[0].head)[0]


BAD_HELLOS = {
    "a call first": (wire.encode(wire.CALL, head=b"\x01m", ident=1), "bad-hello"),
    "an empty hello": (wire.encode(wire.HELLO), "bad-hello"),
    "not a map": (wire.encode(wire.HELLO, head=b"\x93\x01\x02\x03"), "bad-hello"),
    "a bomb": (wire.encode(wire.HELLO, head=b"\x91" * 4000), "bad-hello"),
    "an empty map": (wire.encode(wire.HELLO, head=b"\x80"), "bad-hello"),
    "a hello of 5 kB": (wire.encode(wire.HELLO, head=bytes(5000)), "frame-too-large"),
    "a frame of 4 GB": (b"\xff" * 28, "frame-too-large"),
    "a link never heard of": (hello(resume=bytes(16)), "unknown-link"),
}


@pytest.mark.parametrize("name", BAD_HELLOS)
async def test_a_bad_hello_is_told_its_code(name: str) -> None:
    data, code = BAD_HELLOS[name]
    node = make_node(1)
    async with running(node):
        path = await raw_path(node)
        path.send(data)
        assert await goodbye(path) == code
        path.close()
        assert node.up == []


async def test_garbage_nothing_and_slow_bytes_cost_a_bounded_time(
    virtual_time: trio.testing.MockClock,
) -> None:
    node = make_node(1)
    host = RealHost()
    async with running(node) as nursery:
        began = trio.current_time()

        async def slow_loris() -> None:
            stream = await host.connect(LOOPBACK, node.endpoint.port)
            try:
                for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100):
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(0.5)
            except trio.BrokenResourceError:
                pass
            finally:
                stream.socket.close()

        nursery.start_soon(slow_loris)
        for first in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01garbage", b"\x13"):
            stream = await host.connect(LOOPBACK, node.endpoint.port)
            await stream.send_all(first)
            with trio.fail_after(15):
                with suppress(trio.BrokenResourceError):
                    answer = await stream.receive_some(100)
                    assert answer == b"" or answer[:2] == b"\x15\x03"  # a TLS alert
            stream.socket.close()
        await until(lambda: node.endpoint._half_open.count == 0)
        assert trio.current_time() - began < 2 * defaults.HANDSHAKE_S + 5


async def test_a_hello_that_does_not_come_is_not_awaited_for_ever(
    virtual_time: trio.testing.MockClock,
) -> None:
    node = make_node(1)
    async with running(node):
        path = await raw_path(node)
        began = trio.current_time()
        with trio.fail_after(60):
            assert await path.receive() == b""
        assert trio.current_time() - began == pytest.approx(defaults.HANDSHAKE_S, abs=1)
        path.close()


async def test_half_open_connections_are_bounded_and_links_go_on() -> None:
    limits = Limits(half_open_loopback=20)
    node, friend = make_node(1, limits=limits), make_node(2)
    host = RealHost()
    async with running(node, friend):
        link = await friend.endpoint.dial(node.address, timeout=5)
        streams = [await host.connect(LOOPBACK, node.endpoint.port) for _ in range(100)]
        slowest = 0.0
        for number in range(50):
            began = trio.current_time()
            await link.call("echo", {"n": number}, timeout=5)
            slowest = max(slowest, trio.current_time() - began)
            await trio.sleep(0.01)
        assert node.endpoint._half_open.count == 20
        assert slowest < 1.0
        for stream in streams:
            stream.socket.close()
        await until(lambda: node.endpoint._half_open.count == 0)
        late = make_node(3)
        async with running(late):
            assert (await late.endpoint.dial(node.address, timeout=5)).alive


async def test_libp2p_programs_are_handed_over() -> None:
    node = make_node(1, libp2p=True)
    served: list[bytes] = []

    class Responder:
        async def serve(self, stream: trio.SocketStream, first: bytes) -> None:
            served.append(first)
            stream.socket.close()

    node.endpoint.libp2p = Responder()  # type: ignore[assignment]
    async with running(node):
        stream = await RealHost().connect(LOOPBACK, node.endpoint.port)
        await stream.send_all(b"\x13/multistream/1.0.0\n")
        assert await stream.receive_some(10) == b""
        stream.socket.close()
        assert served == [b"\x13/multistream/1.0.0\n"]


# Bulk and tokens on one link.


async def test_a_bulk_transfer_does_not_delay_a_token() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        link = await a.endpoint.dial(b.address, timeout=5)
        done: list[int] = []

        async def bulk() -> None:
            for _ in range(4):
                await link.call("echo", {}, bytes(8 << 20), priority=Priority.BULK, timeout=30)
            done.append(1)

        nursery.start_soon(bulk)
        waits: list[float] = []
        while not done:
            began = trio.current_time()
            await link.call("echo", {"n": 1}, priority=Priority.ACTIVATION, timeout=30)
            waits.append(trio.current_time() - began)
        waits.sort()
        assert len(waits) > 20  # tokens went round while the bulk was under way
        assert waits[len(waits) // 2] < 0.05


async def test_freed_memory_goes_back_once_traffic_has_ended(virtual_time: object) -> None:
    given: list[float] = []

    class Watched(RealHost):
        async def give_back_memory(self) -> None:
            given.append(trio.current_time())

    a, b = make_node(1, host=Watched()), make_node(2)
    async with running(a, b):
        link = await a.endpoint.dial(b.address, timeout=5)
        await trio.sleep(3 * defaults.GIVE_BACK_S)
        assert not given
        for _ in range(40):
            await link.call("echo", {"n": 1}, bytes(1 << 18), timeout=5)
            await trio.sleep(1)
        assert not given
        await trio.sleep(5 * defaults.GIVE_BACK_S)
        assert len(given) == 1
