"""The STUN codec against the vectors of RFC 5769, and against garbage."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.nat.reach import defaults, stun
from shoal.transport.nat.reach.stun import MessageClass, StunMessage, authentic, decode, encode

KEY = b"VOkJxbRl1RmTxUk/WvJxBt"
ID = bytes(range(12))

# RFC 5769, sections 2.1 to 2.3.
REQUEST = bytes.fromhex("""
    000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e74
    002400046e0001ff80290008932ff9b151263b36000600096576746a3a683676592020200008
    00149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a280280004e57a3bcf""")
RESPONSE4 = bytes.fromhex("""
    0101003c2112a442b7e7a701bc34d686fa87dfae8022000b7465737420766563746f7220
    002000080001a147e112a643000800142b91f599fd9e90c38c7489f92af9ba53f06be7d7
    80280004c07d4c96""")
RESPONSE6 = bytes.fromhex("""
    010100482112a442b7e7a701bc34d686fa87dfae8022000b7465737420766563746f7220
    002000140002a1470113a9faa5d3f179bc25f4b5bed2b9d900080014a382954e4be67bf1
    1784c97c8292c275bfe3ed4180280004c8fb0b4c""")


def read(data: bytes) -> StunMessage:
    found = decode(data)
    assert found is not None
    return found


def test_the_request_of_rfc_5769() -> None:
    found = read(REQUEST)
    assert found.kind is MessageClass.REQUEST
    assert found.username == b"evtj:h6vY"
    assert found.priority == 0x6E0001FF
    assert found.controlled == 0x932FF9B151263B36
    assert found.unknown == ()
    assert found.fingerprint
    assert authentic(REQUEST, found, KEY)
    assert not authentic(REQUEST, found, KEY + b"!")


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (RESPONSE4, ("192.0.2.1", 32853)),
        (RESPONSE6, ("2001:db8:1234:5678:11:2233:4455:6677", 32853)),
    ],
)
def test_the_responses_of_rfc_5769(data: bytes, place: tuple[str, int]) -> None:
    found = read(data)
    assert (found.kind, found.mapped) == (MessageClass.SUCCESS, place)
    assert authentic(data, found, KEY)


FULL = StunMessage(
    MessageClass.REQUEST,
    ID,
    mapped=("2001:db8::1", 65535),
    username=b"us",
    nonce=b"n" * 16,
    priority=7,
    use_candidate=True,
    controlled=1,
    controlling=2**64 - 1,
    origin=("1.2.3.4", 1),
    other=("::2", 2),
    error=(487, "Role Conflict"),
    padding=3,
)


@pytest.mark.parametrize("kind", MessageClass)
def test_messages_round_trip(kind: MessageClass) -> None:
    message = replace(FULL, kind=kind)
    assert read(encode(message)) == replace(message, fingerprint=True)


def test_integrity_covers_everything_before_it() -> None:
    data = encode(FULL, KEY)
    assert authentic(data, read(data), KEY)
    for position in range(len(data) - 8):  # the fingerprint comes behind it
        changed = bytearray(data)
        changed[position] ^= 1
        found = decode(bytes(changed))
        assert found is None or not authentic(bytes(changed), found, KEY)


def test_without_integrity_nothing_is_authentic() -> None:
    data = encode(FULL)
    assert not authentic(data, read(data), KEY)
    assert not authentic(data, read(data), b"")


def test_attributes_behind_the_integrity_are_ignored() -> None:
    """An on-path attacker could append them."""
    sealed = encode(StunMessage(MessageClass.REQUEST, ID), KEY)[:-8]  # without the fingerprint
    extra = bytes.fromhex("00250000")  # USE-CANDIDATE
    data = sealed[:2] + (len(sealed) + 4 - 20).to_bytes(2) + sealed[4:] + extra
    found = read(data)
    assert not found.use_candidate
    assert authentic(data, found, KEY)


def test_unknown_attributes_that_matter_are_named_in_the_refusal() -> None:
    plain = encode(StunMessage(MessageClass.REQUEST, ID))[:-8]
    for kind, unknown in (0x7001, (0x7001,)), (0x0003, (3,)), (0xC001, ()):
        extra = kind.to_bytes(2) + bytes(2)
        data = plain[:2] + len(extra).to_bytes(2) + plain[4:] + extra
        request = read(data)
        assert request.unknown == unknown
    refusal = read(encode(stun.refuse_unknown(replace(request, unknown=(0x7001, 3)))))
    assert refusal.error == (420, "Unknown Attribute")
    assert refusal.unknown == (0x7001, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encode(FULL)[:-1],
        encode(FULL) + b"\0",
        b"\x40" + encode(FULL)[1:],  # not the two zero bits
        encode(FULL)[:4] + b"\0" + encode(FULL)[5:],  # not the cookie
        b"\x00\x03" + encode(FULL)[2:],  # not Binding
        encode(FULL)[:-1] + bytes([encode(FULL)[-1] ^ 1]),  # the fingerprint
        bytes.fromhex("000100082112a442") + ID + bytes.fromhex("0020000400010000"),  # half a place
        bytes.fromhex("000100042112a442") + ID + bytes.fromhex("00060008"),  # beyond the end
        bytes.fromhex("000100022112a442") + ID + bytes.fromhex("0006"),
        bytes.fromhex("010100082112a442") + ID + bytes.fromhex("0009000400000200"),  # error 200
    ],
)
def test_malformed(data: bytes) -> None:
    assert decode(data) is None


def test_bounds() -> None:
    most = bytes.fromhex("80000000") * defaults.STUN_ATTRIBUTES
    head = bytes.fromhex("0001") + len(most).to_bytes(2) + bytes.fromhex("2112a442") + ID
    assert decode(head + most) is not None
    more = most + most[:4]
    head = bytes.fromhex("0001") + len(more).to_bytes(2) + bytes.fromhex("2112a442") + ID
    assert decode(head + more) is None
    assert (
        decode(encode(StunMessage(MessageClass.REQUEST, ID, padding=defaults.STUN_BYTES))) is None
    )


@given(st.binary(max_size=200))
def test_garbage_is_none_or_a_message(data: bytes) -> None:
    decode(data)
    head = bytes.fromhex("0101") + len(data).to_bytes(2) + bytes.fromhex("2112a442") + ID
    found = decode(head + data)
    if found is not None:
        authentic(head + data, found, KEY)


def test_checks_have_the_integrity_of_browsers() -> None:
    data = encode(
        StunMessage(MessageClass.REQUEST, ID, username=b"a:b", priority=5), KEY, sha256=False
    )
    found = read(data)  # which checks the fingerprint
    assert found.fingerprint and found.integrity is not None and not found.integrity.sha256
    assert authentic(data, found, KEY) and not authentic(data, found, KEY + b"!")
    for at in range(len(data) - 8):  # the fingerprint stands behind the seal
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        other = decode(changed)
        assert other is None or not authentic(changed, other, KEY)
