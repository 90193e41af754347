"""A status of a link with given measurements."""

from shoal.transport.handshake.hello import Admitted
from shoal.transport.link.status import LinkStatus


def status(rtt: float | None, path: str, rate: float = 0.0, loss: float = 0.0) -> LinkStatus:
    return LinkStatus(
        rtt, 0, 0, ("", 0), 0.0, path, (), True, b"", b"", Admitted("open"), 0, rate, loss
    )
