"""answering: how a serving node treats requests, and to which network their records count."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from trio.testing import MockClock

from shoal.dht.kademlia import answering
from shoal.dht.kademlia.answering import DhtHandlers
from shoal.dht.kademlia.messages import Aged, StoreRequest, decode_codes
from shoal.dht.kademlia.recordstore import RecordStore
from shoal.dht.kademlia.table import Table
from shoal.transport.host.real import RealHost
from shoal.transport.link.calls import Call, Refusal, Reply
from tests.bombs import DECODER_BOMBS
from tests.dht.nodes import WALL, blob, contact, entropy, identity, record


class Wall(RealHost):
    def wall(self) -> float:
        return WALL


def serving(ip: str, store: RecordStore, closed: Callable[..., None] = print) -> DhtHandlers:
    """Return a server that sees this address for each peer; `closed` is called on closed links."""
    own = contact(0)
    endpoint = SimpleNamespace(
        handle=lambda method, handler: None,
        link=lambda peer: SimpleNamespace(address=(ip, 1), peer=peer, close=closed),
    )
    return DhtHandlers(
        cast(Any, Wall()),
        cast(Any, endpoint),
        Table(own.key, entropy()),
        store,
        serves=lambda: True,
        on_asker=lambda link, contact: None,
    )


async def bring(ip: str, authors: int, store: RecordStore) -> None:
    served = serving(ip, store)
    for author in range(1, authors + 1):
        listed = tuple(Aged(0, record(blob(n), author).sealed) for n in range(30))
        await served.on_store(Call(identity(author).peer, {}, StoreRequest(listed).encode()))


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_peers_behind_relays_share_one_networks_quota(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """All relayed peers count as one network. Twin: counted as local, they fill the store."""
    if not defended:
        monkeypatch.setattr(answering, "met_at", lambda ip: "")
    store = RecordStore(contact(0).key, entropy(), limit=200_000)
    await bring("", 12, store)
    assert (store.bytes <= 50_000) is defended
    assert store.shares["relayed" if defended else ""] == store.bytes


@pytest.mark.trio
async def test_refused_records_are_counted_by_code(autojump_clock: MockClock) -> None:
    served, sender = serving("1.2.3.4", RecordStore(contact(0).key, entropy())), identity(1).peer
    good = record(blob(1), 1).sealed
    listed = tuple(Aged(0, each) for each in (good, b"junk", good))
    reply = await served.on_store(Call(sender, {}, StoreRequest(listed).encode()))
    assert isinstance(reply, Reply)
    assert decode_codes(bytes(reply.payload), 3) == ("", "bad-signature", "bad-signature")
    assert served.refused == {"bad-signature": 2}


@pytest.mark.parametrize("name", ["nothing", "no msgpack", *DECODER_BOMBS])
@pytest.mark.trio
async def test_a_malformed_message_closes_the_link(name: str, autojump_clock: MockClock) -> None:
    codes: list[str] = []
    store = RecordStore(contact(0).key, entropy())
    served = serving("1.2.3.4", store, lambda code, message: codes.append(code))
    payload = {"nothing": b"", "no msgpack": b"\xc1", **DECODER_BOMBS}[name]
    for handler in (served.on_store, served.on_find):
        assert isinstance(await handler(Call(identity(1).peer, {}, payload)), Refusal)
    assert codes == ["bad-request"] * 2 and served.refused == {"bad-request": 2}
