"""NAT-PMP and PCP: a gateway's replies to valid, odd and invalid datagrams."""

import struct
from random import Random

import pytest

from shoal.netsim.nat.portmap.leases import Leases
from shoal.netsim.nat.portmap.pcp import PortControlServer, ResultCode
from shoal.netsim.network.packet import TCP, UDP, Addr
from tests.netsim.nat.wire import GATE, INSIDE, OTHER, A, Wire

NONCE = bytes(range(12))


class Bench:
    """A gateway's responder, and its table."""

    def __init__(self, *, pmp: bool = True, pcp: bool = True, longest: float = 7200.0) -> None:
        self.wire = Wire("linux-drop")
        self.leases = Leases(self.wire.gate, longest=longest, works=True)
        self.control = PortControlServer(self.leases, pmp=pmp, pcp=pcp, external=None)

    def ask(self, data: bytes, source: Addr = INSIDE) -> bytes:
        answer = self.control.answer(data, source)
        assert answer is not None
        return answer


def mapped(address: str) -> bytes:
    return bytes(10) + b"\xff\xff" + bytes(map(int, address.split(".")))


def request(opcode: int, seconds: int, body: bytes = b"", client: str = INSIDE[0]) -> bytes:
    return struct.pack("!BBHI16s", 2, opcode, 0, seconds, mapped(client)) + body


def map_body(
    inside: int = 4001, outside: int = 0, *, proto: int = UDP, nonce: bytes = NONCE
) -> bytes:
    return nonce + struct.pack("!B3xHH16s", proto, inside, outside, mapped("0.0.0.0"))


def result(answer: bytes) -> ResultCode:
    assert answer[0] == 2 and answer[1] & 0x80
    return ResultCode(answer[3])


def granted(answer: bytes) -> tuple[int, int, str]:
    """Return lifetime, outer port and outer address of a MAP response."""
    assert result(answer) is ResultCode.SUCCESS and len(answer) == 60
    port, address = struct.unpack_from("!H16s", answer, 42)
    return struct.unpack_from("!I", answer, 4)[0], port, ".".join(map(str, address[12:]))


# NAT-PMP.


def test_pmp_tells_the_outer_address() -> None:
    bench = Bench()
    bench.wire.at(7.5)
    assert bench.ask(b"\0\0") == b"\0\x80\0\0" + struct.pack("!I", 7) + bytes((198, 51, 100, 1))


def test_pmp_maps_renews_and_deletes() -> None:
    bench = Bench()
    answer = bench.ask(struct.pack("!BBHHHI", 0, 1, 0, 4001, 9000, 600))
    assert struct.unpack("!BBHIHHI", answer) == (0, 129, 0, 0, 4001, 9000, 600)
    assert bench.wire.back(A, (GATE, 9000)) == INSIDE
    answer = bench.ask(struct.pack("!BBHHHI", 0, 1, 0, 4001, 9999, 10**6))
    assert struct.unpack("!BBHIHHI", answer)[5:] == (9000, 7200)
    answer = bench.ask(struct.pack("!BBHHHI", 0, 1, 0, 4001, 0, 0))
    assert struct.unpack("!BBHIHHI", answer) == (0, 129, 0, 0, 4001, 0, 0)
    assert len(bench.leases) == 0


def test_pmp_deletes_all_leases_of_one_protocol_and_client() -> None:
    bench = Bench()
    for opcode, port in (1, 1), (1, 2), (2, 3):
        bench.ask(struct.pack("!BBHHHI", 0, opcode, 0, port, 9000 + port, 600))
    bench.ask(struct.pack("!BBHHHI", 0, 1, 0, 1, 9004, 600), OTHER)
    bench.ask(struct.pack("!BBHHHI", 0, 1, 0, 0, 0, 0))
    assert [(lease.proto, lease.port) for lease in bench.leases] == [(TCP, 9003), (UDP, 9004)]


def test_pmp_gives_another_port_where_the_wish_is_taken() -> None:
    bench = Bench()
    bench.ask(struct.pack("!BBHHHI", 0, 1, 0, 4001, 9000, 600), OTHER)
    answer = bench.ask(struct.pack("!BBHHHI", 0, 1, 0, 4001, 9000, 600))
    assert struct.unpack("!BBHIHHI", answer)[5] not in (0, 9000)


def test_pmp_errors() -> None:
    bench = Bench(pcp=False)
    assert bench.ask(b"\0\x05\0\0")[:4] == b"\0\x85\0\x05"  # unsupported opcode
    # version: the cue to use PCP
    assert bench.ask(request(1, 600, map_body()))[:4] == b"\0\x81\0\x01"
    assert bench.control.answer(b"\0\x01\0", INSIDE) is None


# PCP.


def test_map_opens_a_port_to_all_senders() -> None:
    bench = Bench()
    assert granted(bench.ask(request(1, 600, map_body(outside=9000)))) == (600, 9000, GATE)
    assert bench.wire.back(A, (GATE, 9000)) == INSIDE


@pytest.mark.parametrize(("asked", "given"), [(1, 120), (600, 600), (10**6, 7200)])
def test_lifetime_is_bounded(asked: int, given: int) -> None:
    assert granted(Bench().ask(request(1, asked, map_body())))[0] == given


def test_same_endpoint_keeps_its_port() -> None:
    bench = Bench()
    first = granted(bench.ask(request(1, 600, map_body(outside=9000))))
    assert granted(bench.ask(request(1, 700, map_body(outside=9999)))) == (700, *first[1:])


def test_only_a_client_with_the_nonce_may_change_a_mapping() -> None:
    bench = Bench()
    bench.ask(request(1, 600, map_body()))
    for seconds in 0, 600:
        answer = bench.ask(request(1, seconds, map_body(nonce=bytes(12))))
        assert result(answer) is ResultCode.NOT_AUTHORIZED
    assert result(bench.ask(request(1, 0, map_body()))) is ResultCode.SUCCESS
    assert len(bench.leases) == 0


def test_delete_all_takes_ones_own_only() -> None:
    bench = Bench()
    for port in 1, 2:
        bench.ask(request(1, 600, map_body(port)))
    bench.ask(request(1, 600, map_body(3, nonce=bytes(12))))
    bench.ask(request(1, 600, map_body(1), client=OTHER[0]), OTHER)
    bench.ask(request(1, 0, map_body(0, proto=0)))
    assert sorted(lease.inner for lease in bench.leases) == [(INSIDE[0], 3), (OTHER[0], 1)]


def test_prefer_failure_wants_that_port_or_none() -> None:
    bench = Bench()
    option = struct.pack("!BxH", 2, 0)
    bench.ask(request(1, 600, map_body(outside=9000), client=OTHER[0]), OTHER)
    answer = bench.ask(request(1, 600, map_body(outside=9000) + option))
    assert result(answer) is ResultCode.CANNOT_PROVIDE_EXTERNAL
    assert granted(bench.ask(request(1, 600, map_body(outside=9001) + option)))[1] == 9001


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (request(1, 600, map_body(), client=OTHER[0]), ResultCode.ADDRESS_MISMATCH),
        (request(1, 600, map_body())[:-4], ResultCode.MALFORMED_REQUEST),
        (request(1, 600, map_body()) + b"\x02", ResultCode.MALFORMED_REQUEST),
        (request(1, 600, map_body() + bytes(1100)), ResultCode.MALFORMED_REQUEST),
        (request(1, 600, map_body(4001, proto=0)), ResultCode.MALFORMED_REQUEST),
        (request(1, 600, map_body(proto=132)), ResultCode.UNSUPP_PROTOCOL),
        (request(2, 600, bytes(56)), ResultCode.UNSUPP_OPCODE),  # PEER
        (request(1, 600, map_body() + b"\x01\0\0\x10" + bytes(16)), ResultCode.UNSUPP_OPTION),
        (request(1, 600, map_body() + b"\x03\0\0\x14" + bytes(20)), ResultCode.UNSUPP_OPTION),
        (request(1, 600, map_body() + b"\x02\0\0\x10"), ResultCode.MALFORMED_OPTION),
        (b"\x01" + request(1, 600, map_body())[1:], ResultCode.UNSUPP_VERSION),
    ],
)
def test_bad_request_gets_its_result(data: bytes, expected: ResultCode) -> None:
    bench = Bench()
    answer = bench.ask(data)
    assert result(answer) is expected and len(answer) <= 1100 and len(answer) % 4 == 0
    assert len(bench.leases) == 0


def test_optional_option_is_passed_over() -> None:
    body = map_body() + b"\x80\0\0\x02ab\0\0"
    assert result(Bench().ask(request(1, 600, body))) is ResultCode.SUCCESS


def test_announce_tells_the_epoch() -> None:
    bench = Bench()
    bench.wire.at(9.0)
    answer = bench.ask(request(0, 0))
    assert result(answer) is ResultCode.SUCCESS and struct.unpack_from("!I", answer, 8) == (9,)


def test_version_0_meets_pcp_where_nat_pmp_is_off() -> None:
    assert result(Bench(pmp=False).ask(b"\0\0")) is ResultCode.UNSUPP_VERSION


def test_announcements_are_of_the_protocols_served() -> None:
    both, one = Bench().control.announcements(), Bench(pmp=False).control.announcements()
    assert [data[0] for data in both] == [0, 2] and [data[0] for data in one] == [2]


def test_answers_and_noise_are_met_with_silence_or_an_answer() -> None:
    bench = Bench()
    assert bench.control.answer(b"", INSIDE) is None
    assert bench.control.answer(b"\x02\x81" + bytes(58), INSIDE) is None
    random = Random(1)
    for _ in range(2000):
        data = bytearray(request(1, 600, map_body()))
        for _ in range(random.randrange(6)):
            data[random.randrange(len(data))] = random.randrange(256)
        bench.control.answer(bytes(data[: random.randrange(len(data) + 1)]), INSIDE)
    assert len(bench.leases) <= 128
