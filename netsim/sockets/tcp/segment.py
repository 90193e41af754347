"""A TCP segment as a simulated wire carries it."""

from typing import Final

NO_STAMP: Final = -1.0
# of the option, without its blocks (RFC 2018, section 3; includes two of padding)
SACK_BYTES: Final = 4
BLOCK_BYTES: Final = 8


class Segment:
    """Segment with ACK set and no other flag, which nearly all segments are.

    Sequence numbers are ints that never wrap. `window` is in bytes, already scaled. `stamp` and
    `echo` are the timestamps of RFC 7323, in seconds. `sack` holds (first, end) pairs.
    """

    __slots__ = ("acked", "data", "echo", "sack", "seq", "stamp", "window")

    syn: bool = False
    ack: bool = True
    fin: bool = False
    rst: bool = False
    mss: int = 0

    def __init__(
        self,
        seq: int,
        acked: int,
        window: int,
        data: bytes,
        sack: tuple[tuple[int, int], ...],
        stamp: float,
        echo: float,
    ) -> None:
        self.seq = seq
        self.acked = acked
        self.window = window
        self.data = data
        self.sack = sack
        self.stamp = stamp
        self.echo = echo

    @property
    def end(self) -> int:
        """The first sequence number after it; SYN and FIN count one each."""
        return self.seq + len(self.data) + self.syn + self.fin

    def __repr__(self) -> str:
        flags = "S" * self.syn + "A" * self.ack + "F" * self.fin + "R" * self.rst
        return f"<{flags} {self.seq}+{len(self.data)} ack {self.acked} window {self.window}>"


class Control(Segment):
    """Segment with SYN, FIN or RST. `mss` is the option of a SYN, in bytes of payload."""

    __slots__ = ("ack", "fin", "mss", "rst", "syn")

    def __init__(
        self,
        seq: int,
        acked: int,
        window: int,
        data: bytes = b"",
        sack: tuple[tuple[int, int], ...] = (),
        stamp: float = NO_STAMP,
        echo: float = NO_STAMP,
        *,
        syn: bool = False,
        ack: bool = False,
        fin: bool = False,
        rst: bool = False,
        mss: int = 0,
    ) -> None:
        super().__init__(seq, acked, window, data, sack, stamp, echo)
        self.syn = syn
        self.ack = ack
        self.fin = fin
        self.rst = rst
        self.mss = mss


def refusal(segment: Segment) -> Control | None:
    """Return the RST that answers an unexpected segment; None for a RST (RFC 9293, 3.10.7.1)."""
    if segment.rst:
        return None
    if segment.ack:
        return Control(segment.acked, 0, 0, rst=True)
    return Control(0, segment.end, 0, rst=True, ack=True)
