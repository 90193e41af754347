"""Nodes for the tests of the key space: identities by number, contacts, chance from a seed."""

from collections.abc import Callable
from functools import cache
from random import Random

from shoal.dht.contact import Contact
from shoal.dht.key import KEY_BYTES, SPACE, Key, key_at
from shoal.dht.record import BlobBody, Body, Record, open_record, seal_record
from shoal.transport.address import Address
from shoal.transport.identity import Identity, PeerId, peer_id_of

WALL = 1_800_000_000.0


@cache
def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32))


def entropy(seed: int = 0) -> Callable[[int], bytes]:
    return Random(seed).randbytes


def peer(number: int) -> PeerId:
    """Any 32 bytes are a peer; this one never signs."""
    return peer_id_of(Random(number).randbytes(KEY_BYTES))


def address(number: int) -> Address:
    """Each number has a public network of its own."""
    return Address(f"{50 + number // 65536}.{number // 256 % 256}.{number % 256}.9", 4001)


def contact(number: int, *addresses: Address) -> Contact:
    return Contact(peer(number), addresses or [address(number)])


def contacts(count: int, first: int = 1) -> list[Contact]:
    return [contact(number) for number in range(first, first + count)]


def random_key(random: Random) -> Key:
    return key_at(random.randrange(SPACE))


def sealed(
    body: Body, author: int = 1, *, made: float = WALL, ttl: int = 3600, gone: bool = False
) -> bytes:
    return seal_record(identity(author), body, made=int(made * 1000), ttl=ttl, gone=gone)


def record(
    body: Body, author: int = 1, *, made: float = WALL, ttl: int = 3600, gone: bool = False
) -> Record:
    return open_record(sealed(body, author, made=made, ttl=ttl, gone=gone))


def blob(number: int) -> BlobBody:
    return BlobBody(f"{number:064x}", 2**20, 1)
