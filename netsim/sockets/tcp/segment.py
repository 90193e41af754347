"""TCP segments, in the form in which the simulated network carries them."""

from dataclasses import KW_ONLY, dataclass
from typing import Final

NO_STAMP: Final = -1.0
# Bytes of the SACK option without its blocks, with two of padding (RFC 2018, section 3).
SACK_BYTES: Final = 4
BLOCK_BYTES: Final = 8


@dataclass(slots=True, eq=False, repr=False)
class TcpSegment:
    """Segment that has ACK set and no other flag, as nearly all segments do.

    Sequence numbers are ints that never wrap. `window` is in bytes, after scaling. `stamp` and
    `echo` are the timestamps of RFC 7323, in seconds. `sack` holds (first, end) pairs of sequence
    numbers.
    """

    seq: int
    acked: int
    window: int
    data: bytes
    sack: tuple[tuple[int, int], ...]
    stamp: float
    echo: float

    # Not annotated, so that these are dataclass fields only in `ControlSegment`.
    syn = False
    ack = True
    fin = False
    rst = False
    mss = 0

    @property
    def end(self) -> int:
        """The first sequence number after the segment. SYN and FIN count one each."""
        return self.seq + len(self.data) + self.syn + self.fin

    def __repr__(self) -> str:
        flags = "S" * self.syn + "A" * self.ack + "F" * self.fin + "R" * self.rst
        return f"<{flags} {self.seq}+{len(self.data)} ack {self.acked} window {self.window}>"


@dataclass(slots=True, eq=False, repr=False)
class ControlSegment(TcpSegment):
    """Segment with SYN, FIN or RST. `mss` is the MSS option of a SYN, in bytes of payload."""

    data: bytes = b""
    sack: tuple[tuple[int, int], ...] = ()
    stamp: float = NO_STAMP
    echo: float = NO_STAMP
    _: KW_ONLY
    syn: bool = False
    ack: bool = False
    fin: bool = False
    rst: bool = False
    mss: int = 0


def refusal(segment: TcpSegment) -> ControlSegment | None:
    """Return the RST that answers an unexpected segment, or None if the segment is a RST itself
    (RFC 9293, section 3.10.7.1).
    """
    if segment.rst:
        return None
    if segment.ack:
        return ControlSegment(segment.acked, 0, 0, rst=True)
    return ControlSegment(0, segment.end, 0, rst=True, ack=True)
