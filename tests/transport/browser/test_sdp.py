"""Offers: what is read, what is refused."""

import pytest

from shoal.transport.browser import defaults
from shoal.transport.browser.sdp import BadOffer, SdpOffer, answer, fingerprint_text, parse_offer
from tests.transport.browser.offers import CHROMIUM_OFFER, offer_of

FINGERPRINT = bytes(range(32))


def test_an_offer_of_chromium_s_is_read() -> None:
    offer = parse_offer(CHROMIUM_OFFER)
    assert (offer.ufrag, offer.sctp_port, offer.name) == ("Xy4G", 5000, "0")
    assert offer.fingerprint.hex().upper().startswith("E70FD5F2")


def test_candidates_are_not_read() -> None:
    """Addresses in an offer cannot make the node send anywhere."""
    with_candidate = offer_of(FINGERPRINT) + "a=candidate:1 1 udp 1 203.0.113.7 53 typ host\r\n"
    assert parse_offer(with_candidate) == parse_offer(offer_of(FINGERPRINT))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("v=0", "v=1"),
        ("m=application", "m=audio"),
        ("UDP/DTLS/SCTP", "TCP/DTLS/SCTP"),
        ("a=setup:actpass", "a=setup:passive"),
        ("a=setup:actpass\r\n", ""),
        ("a=ice-ufrag:visi", "a=ice-ufrag:v"),
        ("a=ice-ufrag:visi", "a=ice-ufrag:visi\r\na=ice-ufrag:visi"),
        ("a=ice-ufrag:visi", "a=ice-ufrag:" + "v" * 257),
        ("a=ice-ufrag:visi", "a=ice-ufrag:vi:si"),
        ("a=ice-pwd:" + "p" * 22, "a=ice-pwd:" + "p" * 21),
        ("sha-256", "sha-1"),
        (":00:01:02", ":00:01"),
        ("a=sctp-port:5000", "a=sctp-port:0"),
        ("a=sctp-port:5000", "a=sctp-port:65536"),
        ("a=sctp-port:5000", "a=sctp-port:" + "5" * 5000),
        ("a=sctp-port:5000", "a=sctp-port:５"),
        ("a=mid:0", "a=mid:0 evil"),
        ("a=mid:0", "a=mid:" + "m" * 17),
        ("s=-", "s=" + "x" * defaults.OFFER_BYTES),
        ("s=-", "m=application 9 UDP/DTLS/SCTP webrtc-datachannel"),
    ],
)
def test_what_is_no_offer_for_one_data_channel_is_refused(old: str, new: str) -> None:
    fingerprint = b"\xff" + bytes(range(31))
    text = offer_of(fingerprint)
    assert old in text
    parse_offer(text)
    with pytest.raises(BadOffer):
        parse_offer(text.replace(old, new, 1))


@pytest.mark.parametrize("text", ["", "\n", "v=0", "x" * 1_000_000, "\0" * 100, "a=" * 4000])
def test_rubbish_is_refused(text: str) -> None:
    with pytest.raises(BadOffer):
        parse_offer(text)


def test_the_answer_names_what_a_browser_needs() -> None:
    text = answer(
        SdpOffer("visi", FINGERPRINT, 5000, "data"),
        ufrag="node",
        password="q" * 24,
        fingerprint=FINGERPRINT,
        places=[("192.0.2.1", 4001), ("2001:db8::1", 4001)],
    )
    lines = text.split("\r\n")
    assert "a=ice-lite" in lines and "a=setup:passive" in lines and "a=mid:data" in lines
    assert f"a=fingerprint:sha-256 {fingerprint_text(FINGERPRINT)}" in lines
    first, second = (line for line in lines if line.startswith("a=candidate"))
    assert "192.0.2.1 4001 typ host" in first and "2001:db8::1 4001" in second
    assert int(first.split()[3]) > int(second.split()[3])


def test_nothing_of_an_offer_but_its_name_stands_in_the_answer() -> None:
    tricky = offer_of(FINGERPRINT).replace("a=mid:0", "a=mid:0\na=candidate:1 1 udp 1 203.0.113.7")
    text = answer(
        parse_offer(tricky), ufrag="node", password="q" * 24, fingerprint=FINGERPRINT, places=[]
    )
    assert "203.0.113.7" not in text and "visi" not in text and "candidate:" not in text
