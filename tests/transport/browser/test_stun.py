"""Checks sealed as browsers seal them; the reader is `reach/stun.py`."""

from shoal.transport.browser import stun
from shoal.transport.reach.stun import Kind, Message, authentic, decode

# RFC 5769, 2.1: a request of ICE, its password, HMAC-SHA1 and fingerprint.
SAMPLE = bytes.fromhex(
    "000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e74002400046e00"
    "01ff80290008932ff9b151263b36000600096576746a3a68367659202020000800149aeaa70cbfd8cb56781ef2b5"
    "b2d3f249c1b571a280280004e57a3bcf"
)
PASSWORD = "VOkJxbRl1RmTxUk/WvJxBt"


def test_the_sample_of_the_rfc_is_read() -> None:
    message = decode(SAMPLE)
    assert message is not None and message.username == b"evtj:h6vY"
    assert authentic(SAMPLE, message, PASSWORD.encode())
    assert not authentic(SAMPLE, message, b"another")


def test_what_is_sealed_is_authentic_and_whole() -> None:
    data = stun.sealed(Message(Kind.REQUEST, bytes(12), username=b"a:b", priority=5), "secret")
    message = decode(data)  # which checks the fingerprint
    assert message is not None and message.fingerprint and message.integrity is not None
    assert not message.integrity.sha256
    assert authentic(data, message, b"secret") and not authentic(data, message, b"Secret")
    for at in range(len(data) - 8):  # the fingerprint stands behind the mac
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        other = decode(changed)
        assert other is None or not authentic(changed, other, b"secret")


def test_the_answer_tells_where_the_check_came_from() -> None:
    for place in (("192.0.2.9", 4242), ("2001:db8::9", 7)):
        message = decode(stun.success(b"t" * 12, place, "secret"))
        assert message is not None and message.kind == Kind.SUCCESS
        assert (message.transaction, message.mapped) == (b"t" * 12, place)
