"""What stands where TLS stands: bytes go through, and the session says the rest."""

from typing import cast

import pytest

from shoal.transport.browser.clear import BrowserSession, Clear
from shoal.transport.bytestream import ByteStream
from shoal.transport.errors import TransportError
from shoal.transport.identity import PeerId


def clear() -> Clear:
    return Clear(BrowserSession(cast(ByteStream, None), PeerId("peer"), b"e" * 32))


def test_bytes_go_through_both_ways_in_order() -> None:
    tls = clear()
    assert tls.established and not tls.closed and tls.peer == "peer"
    assert tls.read() == b"" and tls.outgoing() == b""
    for piece in (b"ab", b"", b"c"):
        tls.feed(piece)
        tls.write(memoryview(piece))
    assert tls.read() == b"abc" and tls.outgoing() == b"abc"
    tls.close()
    assert tls.read() == b"" and tls.outgoing() == b""


def test_each_label_exports_other_bytes() -> None:
    tls = clear()
    assert tls.exporter(b"one", 32) == clear().exporter(b"one", 32)
    assert tls.exporter(b"one", 32) != tls.exporter(b"two", 32)
    assert len(tls.exporter(b"one", 16)) == 16
    with pytest.raises(TransportError):
        tls.exporter(b"one", 33)
