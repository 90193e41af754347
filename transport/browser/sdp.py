"""The few lines of SDP that a data channel needs (RFC 8866, 8839, 8841, 8842). No I/O.

Offers are untrusted, so aiortc's parser does not get to see them. This module reads the ICE
credentials, the DTLS fingerprint, the SCTP port, and the name of the media section. It ignores the
browser's candidates. As an ICE-lite agent, this side sends only to addresses that have sent to it,
so an offer cannot make it send to a third party.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from ..host.datagrams import Place
from . import defaults

_UFRAG = re.compile(r"[A-Za-z0-9+/]{4,256}")
_PASSWORD = re.compile(r"[A-Za-z0-9+/]{22,256}")
_FINGERPRINT = re.compile(r"sha-256 ((?:[0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2})", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,10}")
_NAME = re.compile(r"[A-Za-z0-9]{1,16}")
_DATA_SECTION = re.compile(r"m=application [0-9]{1,5} UDP/DTLS/SCTP webrtc-datachannel")
# Highest priority of a host candidate for the first component (RFC 8445, section 5.1.2.1).
_HOST_PRIORITY: Final = 0x7EFFFFFF
_REQUIRED = {"ice-ufrag", "ice-pwd", "fingerprint", "setup", "sctp-port", "mid"}


class BadOffer(ValueError):
    """Raised if an offer is not for exactly one data channel or exceeds a bound. The text names the
    fault."""


@dataclass(frozen=True, slots=True)
class SdpOffer:
    """Parameters of the browser's end of a data channel."""

    ufrag: str
    fingerprint: bytes  # SHA-256 of its DTLS certificate
    sctp_port: int
    name: str  # name of the media section, which the answer must repeat


def parse_offer(text: str) -> SdpOffer:
    """Parse an offer with exactly one media section, which is a data channel. Raises BadOffer if
    the text is anything else."""
    if len(text) > defaults.OFFER_BYTES or not text.isascii():
        raise BadOffer("too long, or not ASCII")
    lines = text.replace("\r\n", "\n").split("\n")
    sections = [line for line in lines if line.startswith("m=")]
    if lines[0] != "v=0" or len(sections) != 1 or not _DATA_SECTION.fullmatch(sections[0]):
        raise BadOffer("not an offer for one data channel")
    found = _attributes(lines)
    if found["setup"] not in ("actpass", "active"):
        raise BadOffer("the browser must be the DTLS client")
    _match(_PASSWORD, found["ice-pwd"])
    return SdpOffer(
        ufrag=_match(_UFRAG, found["ice-ufrag"]),
        fingerprint=_fingerprint(found["fingerprint"]),
        sctp_port=_port(found["sctp-port"]),
        name=_match(_NAME, found["mid"]),
    )


def _attributes(lines: Sequence[str]) -> dict[str, str]:
    """Return the required attributes. Raises BadOffer unless each of them occurs exactly once."""
    found: dict[str, str] = {}
    for line in lines:
        if not line.startswith("a="):
            continue
        key, _, value = line[2:].partition(":")
        if key in _REQUIRED:
            if key in found:
                raise BadOffer(f"`{key}` stands there twice")
            found[key] = value
    if missing := _REQUIRED - found.keys():
        raise BadOffer(f"no `{min(missing)}`")
    return found


def _match(pattern: re.Pattern[str], value: str) -> str:
    if not pattern.fullmatch(value):
        raise BadOffer("an attribute is malformed")
    return value


def _fingerprint(value: str) -> bytes:
    found = _FINGERPRINT.fullmatch(value)
    if found is None:
        raise BadOffer("the fingerprint is not a SHA-256")
    return bytes.fromhex(found[1].replace(":", ""))


def _port(value: str) -> int:
    port = int(_match(_NUMBER, value))
    if not 0 < port < 65536:
        raise BadOffer("no such SCTP port")
    return port


def fingerprint_text(fingerprint: bytes) -> str:
    """Return a fingerprint as pairs of hexadecimal digits with colons between them (RFC 8122,
    section 5)."""
    return fingerprint.hex(":").upper()


def answer(
    offer: SdpOffer, *, ufrag: str, password: str, fingerprint: bytes, places: Sequence[Place]
) -> str:
    """Return the answer to an offer, for this node as the ICE-lite agent and DTLS server. `places`
    are its candidates, best first."""
    lines = [
        "v=0",
        "o=- 1 1 IN IP4 0.0.0.0",
        "s=-",
        "t=0 0",
        "a=ice-lite",
        f"a=group:BUNDLE {offer.name}",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "c=IN IP4 0.0.0.0",
        f"a=mid:{offer.name}",
        f"a=ice-ufrag:{ufrag}",
        f"a=ice-pwd:{password}",
        f"a=fingerprint:sha-256 {fingerprint_text(fingerprint)}",
        "a=setup:passive",
        "a=sctp-port:5000",
        f"a=max-message-size:{defaults.MESSAGE_BYTES}",
        *(_candidate(number, place) for number, place in enumerate(places)),
        "a=end-of-candidates",
    ]
    return "\r\n".join(lines) + "\r\n"


def _candidate(number: int, place: Place) -> str:
    priority = _HOST_PRIORITY - (number << 8)  # lower for each further place, as the best is first
    return f"a=candidate:{number + 1} 1 udp {priority} {ip_address(place[0])} {place[1]} typ host"
