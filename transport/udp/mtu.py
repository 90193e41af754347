"""Search for the largest packet size of a path, by probes that carry no data (RFC 8899)."""

from aioquic.quic.packet_builder import QuicDeliveryState

from . import defaults


class PacketSize:
    """Search for the packet size of one path, from the largest size down. It restarts if the path
    changes."""

    def __init__(self) -> None:
        self.bytes = defaults.INITIAL_BYTES
        """Bytes of UDP payload that are known to pass."""
        self._path: object = None
        self._left: list[int] = []  # sizes to try, the next one last
        self._waiting = False

    @property
    def probe(self) -> int:
        """Size of the next probe, in bytes."""
        return self._left[-1]

    def follow(self, path: object, sent: int) -> bool:
        """Return whether to send a probe now on a path on which `sent` bytes have been sent.

        If `path` is not the one of the last call, the search for its largest packet size restarts.
        """
        if path != self._path:
            self._path = path
            self.bytes = defaults.INITIAL_BYTES
            sizes = [size for size in defaults.DATAGRAM_SIZES for _ in range(defaults.SIZE_TRIES)]
            self._left = sizes[::-1]
            self._waiting = False
        return bool(self._left) and not self._waiting and sent >= defaults.SIZE_PROBE_BYTES

    def sent(self) -> None:
        """Record that the probe was sent."""
        self._waiting = True

    def on_delivery(self, delivery: QuicDeliveryState, size: int) -> None:
        """Process the result of a probe: adopt its size if it was delivered, otherwise continue the
        search."""
        if not self._waiting or not self._left or size != self._left[-1]:
            return  # the probe belongs to an earlier path
        self._waiting = False
        if delivery is QuicDeliveryState.ACKED:
            self.bytes = size
            self._left.clear()
        else:
            self._left.pop()

    def shrink(self) -> None:
        """Return to the smallest size, because packets are lost and their size may be the
        reason."""
        self.bytes = defaults.INITIAL_BYTES
        self._left.clear()
