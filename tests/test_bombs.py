"""All decoders of network and disk input are run on the bombs, alone and inside their own
formats.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgpack
import pytest

from shoal.dht.content.manifest import Manifest
from shoal.dht.errors import DhtError, ModelError
from shoal.dht.kademlia.messages import Find, FindReply, StoreRequest, decode_codes
from shoal.dht.kademlia.table import Table
from shoal.dht.persistence import opened
from shoal.dht.records import record as dht_record
from shoal.dht.records.contact import read_contact
from shoal.node.swarm.handover import open_handed
from shoal.state.errors import StateError
from shoal.state.feeds import entry
from shoal.state.inspection import readable
from shoal.state.membership import messages as membermessages
from shoal.state.membership import record
from shoal.state.replication import gossip
from shoal.state.replication.vouches import read_vouches
from shoal.state.views.fields import read_fields
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.messages import parse_load
from shoal.tasks.engine.wire import WireError, parse_header
from shoal.tasks.errors import TextError
from shoal.tasks.text.frames import unpack_body
from shoal.transport.errors import TransportError
from shoal.transport.handshake.hello import Hello
from shoal.transport.identity import Identity
from shoal.transport.lane.frame import Fault, decode_header, decode_request
from shoal.transport.libp2p import calls
from shoal.transport.signed import seal, unseal

from .bombs import DECODER_BOMBS

ALICE = Identity.from_seed(b"a" * 32)
ERRORS = (
    Fault,
    TransportError,
    StateError,
    DhtError,
    ModelError,
    EngineError,
    TextError,
    WireError,
)


def sealed_entry(header: bytes) -> bytes:
    return seal(ALICE, entry.DOMAIN, min(len(header), 2**16 - 1).to_bytes(2) + header)


DECODERS: dict[str, Callable[[bytes], object]] = {
    "frame header": decode_header,
    "request": lambda data: decode_request(b"\x01m" + data),
    "hello": Hello.decode,
    "envelope": lambda data: unseal("domain", data, limit=2**20),
    "libp2p request": calls.decode_request,
    "libp2p method": lambda data: calls.decode_request(b"\x81\xa6method" + data),
    "libp2p payload": lambda data: calls.decode_request(b"\x81\xa7payload" + data),
    "libp2p header": lambda data: calls.decode_request(b"\x81\xa6header" + data),
    "records": membermessages.read_told,
    "links": membermessages.read_links,
    "question": membermessages.read_find,
    "question for many": membermessages.read_gather,
    "answer for many": membermessages.read_gathered,
    "member record": lambda data: record.open_record(seal(ALICE, record.DOMAIN, data)),
    "member record, peeked": lambda data: record.peek(seal(ALICE, record.DOMAIN, data)),
    "member record, no envelope": record.peek,
    "entry": lambda data: entry.open_entry(sealed_entry(data)),
    "entry, parsed": lambda data: entry.parse_entry(sealed_entry(data)),
    "fact": read_fields,
    "fact for people": readable,
    "vouches": read_vouches,
    "heads": gossip.decode_heads,
    "compare": gossip.Compare.decode,
    "compared": gossip.Compared.decode,
    "ask": gossip.HeadsQuestion.decode,
    "answered heads": gossip.HeadsReply.decode,
    "pulled": gossip.Pulled.decode,
    "dht question": Find.decode,
    "dht answer": lambda data: FindReply.decode(data, Find(())),
    "dht store": StoreRequest.decode,
    "dht codes": lambda data: decode_codes(data, 1),
    "dht record": lambda data: dht_record.open_record(seal(ALICE, dht_record.DOMAIN, data)),
    "contact": read_contact,
    "manifest": Manifest.decode,
    "contacts on disk": Table.load,
    "records on disk": opened,
    "group secrets": open_handed,
    "text frame": unpack_body,
    "engine frame": parse_header,
    "engine shard": lambda data: parse_load(memoryview(data)),
}
LONG = ("records on disk", "text frame", "engine shard")
"""They may have tens of thousands of elements: their bound is that the elements exist and
are flat.
"""
INSIDE: dict[str, Callable[[bytes], bytes]] = {
    "alone": lambda bomb: bomb,
    "in a list": lambda bomb: b"\x93\xc3" + bomb + b"\xc0",
    "under an unknown name": lambda bomb: b"\x81\xa1x" + bomb,
    "under a known name": lambda bomb: b"\x83\xa4keys" + bomb + b"\xa3seq\x01\xa7records" + bomb,
}


def shapes() -> Iterator[bytes]:
    for bomb in DECODER_BOMBS.values():
        if len(bomb) < 2**16:
            yield from (wrapped(bomb) for wrapped in INSIDE.values())


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Turn collections off: one walks what all earlier tests have left, and that time is not the
    decoder's.
    """
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", DECODERS)
def test_a_bomb_is_refused_before_anything_is_built(name: str, uncollected: None) -> None:
    decoder = DECODERS[name]
    for data in shapes():
        began = time.thread_time()
        with suppress(*ERRORS):
            decoder(data)
        assert time.thread_time() - began < (0.2 if name in LONG else 0.02)
        tracemalloc.start()
        with suppress(*ERRORS):
            decoder(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < (80 if name in LONG else 8) * len(data) + 2**19


def test_the_same_by_msgpack_alone() -> None:
    """Twin: limits on the length of each list did not limit all lists together."""
    dear = 0
    for data in shapes():
        tracemalloc.start()
        with suppress(ValueError):
            msgpack.unpackb(data, max_array_len=2**15, max_map_len=2**14, max_ext_len=0)
        dear += tracemalloc.get_traced_memory()[1] > 100 * len(data)
        tracemalloc.stop()
    assert dear >= 5


def test_deep_values_are_not_read_even_if_complete() -> None:
    """Code that recurses over a value, such as its display, never meets a deep one."""
    value: Any = 1
    for _ in range(300):
        value = {"a": [value]}
    data = msgpack.packb(value)
    assert readable(data) == data.hex()
    with pytest.raises(StateError):
        read_fields(data)
