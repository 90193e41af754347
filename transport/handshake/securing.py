"""Securing of byte streams: runs the TLS handshake and authenticates the other end."""

from contextlib import suppress

import trio

from .. import defaults
from ..bytestream import ByteStream
from ..errors import DialFailed, TransportError
from ..identity import PeerId
from .certificate import Certificate
from .secured import PathLost, SecureStream
from .tls import Tls


async def first_bytes(pipe: ByteStream, name: str) -> bytes:
    """Return the first bytes of a byte stream. Raises DialFailed."""
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
    pipe: ByteStream,
    certificate: Certificate,
    expect: PeerId | None,
    name: str,
    *,
    server: bool,
    first: bytes = b"",
) -> SecureStream:
    """Run TLS over a byte stream, and check that the other end is the expected peer. Raises
    DialFailed, after closing the byte stream."""
    secured = SecureStream(
        pipe,
        Tls(certificate, server=server, expect=expect),
        first,
        turn=lambda: Tls(certificate, server=True, expect=expect),
    )
    try:
        await secured.handshake()
    except PathLost:
        secured.close()
        raise DialFailed.unreachable(name, "it hung up during the handshake") from None
    except TransportError as error:
        secured.close()
        raise DialFailed(error.code, f"`{name}`: {error.message}") from None
    except BaseException:
        secured.close()
        raise
    return secured
