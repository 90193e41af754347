"""Offers for tests: a small one, and one as Chromium 156 made it."""

from shoal.transport.browser.sdp import fingerprint_text

CHROMIUM_OFFER = "\r\n".join(
    [
        "v=0",
        "o=- 2890844526000000000 2 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE 0",
        "a=extmap-allow-mixed",
        "a=msid-semantic: WMS",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "c=IN IP4 0.0.0.0",
        "a=ice-ufrag:Xy4G",
        "a=ice-pwd:Xy4GXy4GXy4GXy4GXy4GXy4G",
        "a=ice-options:trickle",
        "a=fingerprint:sha-256 E7:0F:D5:F2:01:02:03:04:05:06:07:08:09:0A:0B:0C:0D:0E:0F:10:11:12:13"
        ":14:15:16:17:18:19:1A:1B:1C",
        "a=setup:actpass",
        "a=mid:0",
        "a=sctp-port:5000",
        "a=max-message-size:262144",
        "",
    ]
)


def offer_of(fingerprint: bytes, ufrag: str = "visi", password: str = "p" * 22) -> str:
    """Return a browser's offer with only the lines that the parser reads."""
    lines = [
        "v=0",
        "o=- 46117317 2 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE 0",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "c=IN IP4 0.0.0.0",
        f"a=ice-ufrag:{ufrag}",
        f"a=ice-pwd:{password}",
        "a=ice-options:trickle",
        f"a=fingerprint:sha-256 {fingerprint_text(fingerprint)}",
        "a=setup:actpass",
        "a=mid:0",
        "a=sctp-port:5000",
        "a=max-message-size:262144",
    ]
    return "\r\n".join(lines) + "\r\n"
