"""Our TLS over any two ends of a byte stream, as links run it."""

import trio

from shoal.transport.bytestream import ByteStream
from shoal.transport.handshake.certificate import Certificate
from shoal.transport.handshake.secured import SecureStream
from shoal.transport.handshake.tls import Tls
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity

A, B = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)


async def secured(
    near: ByteStream, far: ByteStream, host: Host
) -> tuple[SecureStream, SecureStream]:
    """TLS as links run it: the dialler is the client, and both prove their peer ids."""
    client = SecureStream(near, Tls(Certificate.generate(A, host), server=False, expect=B.peer))
    server = SecureStream(far, Tls(Certificate.generate(B, host), server=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.handshake)
        nursery.start_soon(server.handshake)
    assert (client.tls.peer, server.tls.peer) == (B.peer, A.peer)
    return client, server


async def exchange(client: SecureStream, server: SecureStream, size: int) -> None:
    """So many bytes there, and some back."""

    async def send() -> None:
        client.send(bytes(size))
        await client.drain()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        got = 0
        while got < size:
            got += len(await server.receive())
    server.send(b"thanks")
    await server.drain()
    assert await client.receive() == b"thanks"
