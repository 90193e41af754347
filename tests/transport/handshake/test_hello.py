"""Hellos and admission: bounded, typed, and bound to one connection."""

from dataclasses import replace
from itertools import product
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.defaults import HELLO_BYTES
from shoal.transport.handshake.hello import (
    FURTHER,
    Admission,
    Admitted,
    Binding,
    Hello,
    HelloToken,
    Invited,
    OpenSwarm,
    Secret,
    admit,
    common_version,
    confirm,
    invitation_ident,
)
from shoal.transport.identity import PeerId
from shoal.transport.lane.events import GrantedLimits
from shoal.transport.lane.frame import Fault
from tests.transport.swarmkey import SwarmKey

HELLO = Hello((1, 3), b"i" * 16, GrantedLimits(1, 2, 3), b"open", ("a", "b"), b"r" * 16, 4001)
BINDING = Binding(b"e" * 32, PeerId("12D3dialler"), PeerId("12D3listener"))
KEY = b"k" * 32


def test_hellos_round_trip() -> None:
    assert Hello.decode(HELLO.encode()) == HELLO
    with_token = replace(HELLO, token=HelloToken("swarm", b"", b"m" * 32))
    assert Hello.decode(with_token.encode()) == with_token
    several = replace(with_token, further=(HelloToken("swarm", b"old", b"o" * 32),))
    assert Hello.decode(several.encode()) == several
    assert msgpack.unpackb(several.encode()).keys() - msgpack.unpackb(HELLO.encode()).keys() == {
        "k"
    }


def test_the_largest_hello_fits() -> None:
    most = replace(
        HELLO,
        features=("f" * 32,) * 32,
        swarm=bytes(32),
        token=HelloToken("invitation", bytes(32), bytes(32)),
        further=(HelloToken("invitation", bytes(32), bytes(32)),) * FURTHER,
        windows=GrantedLimits(1 << 40, 1 << 40, 1 << 40),
    )
    assert len(most.encode()) < HELLO_BYTES
    assert Hello.decode(most.encode()) == most


def test_unknown_keys_are_skipped() -> None:
    fields = msgpack.unpackb(HELLO.encode()) | {"new": [1, 2]}
    assert Hello.decode(msgpack.packb(fields)) == HELLO


BAD: dict[str, list[Any]] = {
    "v": [None, 1, [1], [1, 2, 3], [-1, 1], [1, 1 << 20], ["1", 1], [True, 1], [1.0, 1]],
    "i": [None, b"", b"i" * 15, b"i" * 17, "i" * 16],
    "w": [None, [1, 2], [1, 2, -3], [1 << 63, 1, 1]],
    "s": [None, b"s" * 33, "open"],
    "f": [None, ["f" * 33], ["\n"], [1], ["f"] * 33, "f"],
    "r": [b"", b"r" * 17, 0],
    "p": [None, -1, 65536, "1"],
    "t": [[], ["swarm", b""], ["swarm", b"", b"m" * 31], [1, b"", b"m" * 32], "token"],
    "k": [1, {}, [[]], [["swarm", b"", b"m" * 31]], [["swarm", b"", b"m" * 32]] * 9],
}


@pytest.mark.parametrize(("key", "number"), [(k, n) for k in BAD for n in range(len(BAD[k]))])
def test_wrong_fields_are_a_bad_hello(key: str, number: int) -> None:
    fields = msgpack.unpackb(HELLO.encode()) | {key: BAD[key][number]}
    with pytest.raises(Fault) as fault:
        Hello.decode(msgpack.packb(fields))
    assert fault.value.code == "bad-hello"


@given(st.binary(max_size=300))
def test_garbage_is_a_bad_hello(data: bytes) -> None:
    with pytest.raises(Fault):
        Hello.decode(data)


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [((1, 1), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 2), (1, 1), None), ((1, 2), (3, 4), None)],
)
def test_the_highest_common_version(
    ours: tuple[int, int], theirs: tuple[int, int], common: int | None
) -> None:
    assert common_version(ours, theirs) == common_version(theirs, ours) == common


# Admission.


class Book:
    def __init__(self, key: bytes) -> None:
        self.key = key
        self.taken: list[bytes] = []

    def find(self, ident: bytes) -> bytes | None:
        return self.key if ident == invitation_ident(self.key) else None

    def used(self, ident: bytes) -> None:
        self.taken.append(ident)


def hello_of(admission: Admission, binding: Binding = BINDING) -> Hello:
    secret = admission.secret
    token = secret.prove("dialler", binding) if secret else None
    return replace(HELLO, swarm=admission.swarm, token=token)


def test_members_and_guests_are_admitted() -> None:
    swarm = SwarmKey(KEY, Book(b"0123456789"))
    assert admit(swarm, hello_of(SwarmKey(KEY)), BINDING) == (Admitted("swarm"), swarm.secret)
    admitted = admit(swarm, hello_of(Invited(b"0123456789")), BINDING)
    assert not isinstance(admitted, str) and admitted[0].kind == "invitation"
    assert admit(OpenSwarm(), hello_of(OpenSwarm()), BINDING) == (Admitted("open"), None)


OTHERS = (
    replace(BINDING, exporter=b"x" * 32),
    replace(BINDING, dialler=PeerId("12D3mallory")),
    replace(BINDING, listener=PeerId("12D3mallory")),
    replace(BINDING, dialler=BINDING.listener, listener=BINDING.dialler),
)


@pytest.mark.parametrize(
    ("binding", "admission"), [*product(OTHERS, (SwarmKey(KEY), Invited(b"0123456789")))]
)
def test_a_proof_is_worthless_elsewhere(binding: Binding, admission: Admission) -> None:
    swarm = SwarmKey(KEY, Book(b"0123456789"))
    assert admit(swarm, hello_of(admission, binding), BINDING) == "not-admitted"


def test_roles_and_kinds_are_part_of_a_proof() -> None:
    secret = SwarmKey(KEY).secret
    assert not secret.proven_by(secret.prove("dialler", BINDING), "listener", BINDING)
    other = Secret("invitation", b"", KEY)
    assert not secret.proven_by(other.prove("dialler", BINDING), "dialler", BINDING)


@pytest.mark.parametrize("kind", ["swarm", "invitation", "open", "x"])
def test_made_up_tokens_are_refused(kind: str) -> None:
    for ident in (b"", b"12345678"):
        hello = replace(HELLO, swarm=b"", token=HelloToken(kind, ident, bytes(32)))
        assert admit(SwarmKey(KEY, Book(KEY)), hello, BINDING) == "not-admitted"
        assert admit(OpenSwarm(), hello, BINDING) == "not-admitted"
        assert admit(Invited(KEY), hello, BINDING) == "not-admitted"


def test_without_a_token_only_a_named_open_swarm_admits() -> None:
    assert (
        admit(SwarmKey(KEY), replace(HELLO, swarm=SwarmKey(KEY).swarm), BINDING) == "not-admitted"
    )
    assert admit(OpenSwarm(), replace(HELLO, swarm=b""), BINDING) == "not-admitted"
    assert admit(OpenSwarm(), replace(HELLO, swarm=b"other"), BINDING) == "wrong-swarm"


def test_the_dialler_checks_the_listener_by_the_same_secret() -> None:
    swarm, guest = SwarmKey(KEY), Invited(b"0123456789")
    proof = swarm.secret.prove("listener", BINDING)
    answer = replace(HELLO, swarm=swarm.swarm, token=proof)
    assert confirm(swarm, answer, BINDING) == Admitted("swarm")
    assert confirm(swarm, replace(answer, token=None), BINDING) == "not-admitted"
    echo = replace(answer, token=swarm.secret.prove("dialler", BINDING))
    assert confirm(swarm, echo, BINDING) == "not-admitted"
    assert confirm(swarm, replace(answer, swarm=b"other"), BINDING) == "wrong-swarm"
    assert confirm(guest, answer, BINDING) == "not-admitted"
    assert confirm(OpenSwarm(), replace(HELLO, swarm=b"open"), BINDING) == Admitted("open")


def test_short_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="10 bytes"):
        Invited(b"short")
