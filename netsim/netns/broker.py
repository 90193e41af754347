"""A process that enters network namespaces, so that no other process has to.

It imports nothing of shoal: it is started by its path, isolated, in 30 ms. It keeps no state and
serves requests from the Unix socket whose descriptor is its argument. A message carries one
request: JSON and the namespace's descriptor. A reply is JSON, with a new descriptor if one was
made. The process ends when the other end of that socket is closed.
"""

import ctypes
import errno
import fcntl
import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MESSAGE = 65536  # bytes
Request = dict[str, Any]  # JSON object, by namespaces.py
HERE = "/proc/thread-self/ns/net"

libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def new() -> int:
    """Return a descriptor of a new, empty namespace, which lives while a descriptor is open or a
    process is in it.
    """
    _checked(libc.unshare(CLONE_NEWNET))
    return os.open(HERE, os.O_RDONLY)


def open_socket(family: int, kind: int, proto: int) -> int:
    return socket.socket(family, kind, proto).detach()


def open_tun(name: str) -> int:
    """Open a TUN device of that name in this namespace: whole IP packets, without a header."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(descriptor, TUNSETIFF, request)
    return descriptor


def sysctls(settings: dict[str, int]) -> None:
    """Write settings by their names (`net.ipv4.ip_forward`), as this namespace has them."""
    for name, value in settings.items():
        Path("/proc/sys", *name.split(".")).write_text(str(value))


def perform(request: Request) -> int | None:
    """Perform a request in the current namespace; return the descriptor that it made, if any."""
    match request:
        case {"op": "new"}:
            return new()
        case {"op": "socket", "family": family, "kind": kind, "proto": proto}:
            return open_socket(family, kind, proto)
        case {"op": "tun", "name": name}:
            return open_tun(name)
        case {"op": "sysctl", "settings": settings}:
            sysctls(settings)
            return None
        case _:
            raise OSError(errno.EINVAL, f"not understood: {request}")


def answer(request: Request, inside: int | None) -> tuple[dict[str, object], list[int]]:
    """Enter the namespace, perform the request, and return the reply and its descriptors."""
    try:
        if inside is not None:
            _checked(libc.setns(inside, CLONE_NEWNET))
        made = perform(request)
    except OSError as error:
        return {"errno": error.errno, "message": str(error)}, []
    return {}, [] if made is None else [made]


def come_back(home: int) -> None:
    """Return to the initial namespace; without the permission to leave it, the process is still
    there.
    """
    if os.stat(HERE).st_ino != os.fstat(home).st_ino:
        _checked(libc.setns(home, CLONE_NEWNET))


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    home = os.open(HERE, os.O_RDONLY)
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, MESSAGE, 1)
        if not data:
            return
        reply, made = answer(json.loads(data), descriptors[0] if descriptors else None)
        come_back(home)
        socket.send_fds(channel, [json.dumps(reply).encode()], made)
        for descriptor in (*descriptors, *made):
            os.close(descriptor)


if __name__ == "__main__":
    main()
