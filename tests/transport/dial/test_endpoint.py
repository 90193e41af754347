"""Endpoints on loopback: dialling, hello refusals, both at once, floods and slow peers."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio.testing

from shoal.transport import defaults
from shoal.transport.address import Address
from shoal.transport.errors import AddressInUse
from shoal.transport.handshake.hello import Invited, OpenSwarm, invitation_ident
from shoal.transport.host.real import RealHost
from shoal.transport.lane.frame import Priority
from shoal.transport.limits import Limits
from tests.transport.fleet import (
    LOOPBACK,
    clock,
    dial_code,
    goodbye,
    hello,
    make_node,
    raw_path,
    running,
    until,
)
from tests.transport.swarmkey import SwarmKey

pytestmark = pytest.mark.trio
KEY = b"k" * 32


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


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


async def test_a_port_in_use_is_an_error_of_its_own() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a):
        with pytest.raises(AddressInUse):
            await b.endpoint.run(LOOPBACK, a.endpoint.port)


async def test_dialling_needs_a_running_endpoint() -> None:
    assert await dial_code(make_node(1), Address(LOOPBACK, 1)) == "not-running"


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
    """A book with one invitation."""

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
async def test_refused_dials_have_the_code(ours: OpenSwarm, theirs: OpenSwarm, code: str) -> None:
    a, b = make_node(1, admission=ours), make_node(2, admission=theirs)
    async with running(a, b):
        assert await dial_code(a, b.address) == code
        assert b.up == []


async def test_an_invitation_admits_only_as_many_peers_as_it_says() -> None:
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
        guest.endpoint.admit_by(SwarmKey(KEY))  # handed over by a call
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


async def test_freed_memory_is_returned_once_traffic_has_ended(virtual_time: object) -> None:
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
