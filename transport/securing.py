"""From a pipe to a path, whose other end has proven who it is."""

from contextlib import suppress

import trio

from . import defaults
from .certificate import Certificate
from .errors import DialFailed, TransportError
from .identity import PeerId
from .path import Path, PathLost
from .pipe import Pipe
from .tls import Tls


async def first_bytes(pipe: Pipe, name: str) -> bytes:
    """The first bytes of a pipe. Raises DialFailed."""
    try:
        while True:
            await pipe.wait_readable()
            with suppress(BlockingIOError):
                return pipe.read_ready(defaults.SMALL_READ_BYTES)
    except (OSError, trio.ClosedResourceError):
        pipe.close()
        raise DialFailed.unreachable(name, "it hung up") from None
    except BaseException:
        pipe.close()
        raise


async def secure(
    pipe: Pipe,
    certificate: Certificate,
    expect: PeerId | None,
    name: str,
    *,
    server: bool,
    first: bytes = b"",
) -> Path:
    """TLS over a pipe: who is there is proven, and is who was expected. Raises DialFailed; the
    pipe is closed then."""
    path = Path(
        pipe,
        Tls(certificate, server=server, expect=expect),
        first,
        turn=lambda: Tls(certificate, server=True, expect=expect),
    )
    try:
        await path.handshake()
    except PathLost:
        path.close()
        raise DialFailed.unreachable(name, "it hung up during the handshake") from None
    except TransportError as error:
        path.close()
        raise DialFailed(error.code, f"`{name}`: {error.message}") from None
    except BaseException:
        path.close()
        raise
    return path
