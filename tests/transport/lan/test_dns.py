"""DNS messages: ours, another implementation's, and hostile ones."""

import struct
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.lan import dns
from shoal.transport.lan.dns import DnsMessage, DnsQuestion, DnsRecord, SrvData, Type

NAME = (b"one", b"_shoal", b"_udp", b"local")
HOST = (b"one", b"local")
RECORDS = [
    DnsRecord(NAME[1:], Type.PTR, NAME, 120, shared=True),
    DnsRecord(NAME, Type.SRV, SrvData(4001, HOST), 120),
    DnsRecord(NAME, Type.TXT, (b"v=1", b"", b"p=x"), 120),
    DnsRecord(HOST, Type.A, IPv4Address("192.168.1.2"), 0),
]


def header(*counts: int, flags: int = 0x8400) -> bytes:
    return struct.pack("!HH4H", 0, flags, *counts)


def record(name: bytes, kind: int, data: bytes, *, group: int = 1, length: int = -1) -> bytes:
    return name + struct.pack("!HHIH", kind, group, 120, len(data) if length < 0 else length) + data


def test_what_is_written_is_read() -> None:
    for message in (
        DnsMessage(True, [], RECORDS),
        DnsMessage(False, [DnsQuestion(NAME[1:], Type.PTR)], RECORDS[:1]),
        DnsMessage(False),
    ):
        assert dns.decode(dns.encode(message)) == message


def test_compressed_names() -> None:
    one = b"\x03one\x06_shoal\x04_udp\x05LOCAL\0"  # at 12; _shoal at 16, local at 28
    data = header(0, 2, 0, 0) + record(one, 12, b"\x01x\xc0\x10")
    data += record(b"\xc0\x0c", 33, struct.pack("!HHH", 1, 2, 4001) + b"\x03two\xc0\x1c")
    message = dns.decode(data)
    assert message is not None
    ptr, srv = message.records
    assert ptr.name == NAME == srv.name, "in lower case"
    assert ptr.data == (b"x", b"_shoal", b"_udp", b"local")
    assert srv.data == SrvData(4001, (b"two", b"local"))


def test_other_types_and_classes_are_passed_over() -> None:
    data = header(0, 3, 0, 0)
    data += record(b"\0", 28, bytes(16)) + record(b"\0", 1, bytes(4), group=3)
    data += record(b"\0", 1, b"\x01\x02\x03\x04", group=0x8001)
    message = dns.decode(data)
    assert message is not None
    assert message.records == [DnsRecord((), Type.A, IPv4Address("1.2.3.4"), 120)]


LONG = b"".join(b"\x3f" + bytes(63) for _ in range(4)) + b"\0"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(11),
        bytes(9001),
        header(0, 1, 0, 0),
        header(33, 0, 0, 0, flags=0) + bytes(5 * 33),
        header(0, 65535, 65535, 65535),
        header(0, 0, 0, 0, flags=0x8403),  # an error
        header(0, 0, 0, 0, flags=0x2800),  # another operation
        header(0, 1, 0, 0) + record(b"\xc0\x0c", 12, b"\0"),  # a name that points to itself
        header(0, 1, 0, 0) + record(b"\xc0\x0e\xc0\x0c", 12, b"\0"),  # two that point in a ring
        header(0, 1, 0, 0) + record(b"\x01a\xc0\x0c", 12, b"\0"),  # one that grows
        header(0, 1, 0, 0) + record(b"\xc0\xff", 12, b"\0"),  # forward
        header(0, 1, 0, 0) + record(b"\xc0\x00", 12, b"\0"),  # into the header
        header(0, 1, 0, 0) + record(b"\xc0", 12, b""),
        header(0, 1, 0, 0) + record(b"\x40" + bytes(64) + b"\0", 12, b"\0"),  # a label of 64
        header(0, 1, 0, 0) + record(LONG, 12, b"\0"),  # a name of 257
        header(0, 1, 0, 0) + record(b"\0", 1, bytes(5)),
        header(0, 1, 0, 0) + record(b"\0", 1, bytes(4), length=9),
        header(0, 1, 0, 0) + record(b"\0", 12, b"\x01a\0\0"),
        header(0, 1, 0, 0) + record(b"\0", 33, b"\0\0"),
        header(0, 1, 0, 0) + record(b"\0", 16, b"\x05abc"),
        header(0, 1, 0, 0) + record(b"\0", 16, b"\x01a" * 600),
        header(1, 0, 0, 0) + b"\0",
    ],
)
def test_what_is_refused(data: bytes) -> None:
    assert dns.decode(data) is None


def named_again(times: int) -> bytes:
    """A name of 126 labels, and records that point to it, twice each."""
    long = b"\x01a" * 126 + b"\0"
    data = header(0, 1 + times, 0, 0) + record(long, 12, b"\xc0\x0c")
    return data + record(b"\xc0\x0c", 12, b"\xc0\x0c") * times


def test_names_that_are_named_again_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin reads 32,000 labels from 2 kB."""
    assert dns.decode(named_again(3)) is not None
    assert dns.decode(named_again(4)) is None and dns.decode(named_again(127)) is None
    monkeypatch.setattr(dns, "LABELS", 10**6)
    assert len(named_again(127)) < 2100
    message = dns.decode(named_again(127))
    assert message is not None and sum(len(each.name) for each in message.records) == 128 * 126


@given(st.binary(max_size=400))
def test_anything_is_read_without_harm(data: bytes) -> None:
    dns.decode(data)
    dns.decode(header(1, 2, 1, 0) + data)


labels = st.lists(st.binary(min_size=1, max_size=20).map(bytes.lower), max_size=6).map(tuple)
records = st.one_of(
    st.builds(
        DnsRecord, labels, st.just(Type.PTR), labels, st.integers(0, 2**32 - 1), st.booleans()
    ),
    st.builds(
        DnsRecord,
        labels,
        st.just(Type.SRV),
        st.builds(SrvData, st.integers(0, 65535), labels),
        st.integers(0, 2**32 - 1),
        st.booleans(),
    ),
    st.builds(
        DnsRecord,
        labels,
        st.just(Type.TXT),
        st.lists(st.binary(max_size=99), max_size=9).map(tuple),
        st.integers(0, 2**32 - 1),
        st.booleans(),
    ),
)


@given(st.booleans(), st.lists(records, max_size=9), st.data())
def test_round_trip_and_flipped_bytes(
    response: bool, given_: list[DnsRecord], data: st.DataObject
) -> None:
    message = DnsMessage(response, [], given_)
    encoded = bytearray(dns.encode(message))
    assert dns.decode(bytes(encoded)) == message
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    dns.decode(bytes(encoded))


def test_another_implementation_reads_ours_and_we_read_its() -> None:
    zeroconf = pytest.importorskip("zeroconf")
    theirs = zeroconf.DNSIncoming(dns.encode(DnsMessage(True, [], RECORDS)))
    assert theirs.valid and len(theirs.answers()) == 4
    kinds = {type(each).__name__ for each in theirs.answers()}
    assert kinds == {"DNSPointer", "DNSService", "DNSText", "DNSAddress"}

    out = zeroconf.DNSOutgoing(0x8400)
    domain = "_shoal._udp.local."
    out.add_answer_at_time(zeroconf.DNSPointer(domain, 12, 1, 120, f"one.{domain}"), 0)
    out.add_answer_at_time(
        zeroconf.DNSService(f"one.{domain}", 33, 0x8001, 120, 0, 0, 4001, "one.local."), 0
    )
    (packet,) = out.packets()
    assert b"\xc0" in packet, "it compresses names"
    message = dns.decode(packet)
    assert message is not None and message.response
    assert [each.data for each in message.records] == [NAME, SrvData(4001, HOST)]
