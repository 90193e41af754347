"""Broker: a process that enters network namespaces and performs requests there for its parent.

The process is started by the path of this file, in isolated mode, and imports nothing of shoal.
Starting it therefore takes only 30 ms. The process keeps no state. Its argument is the descriptor
of a Unix socket, from which it serves requests. A request is one message of JSON, usually with the
descriptor of the namespace to enter. A reply is one message of JSON, with a new descriptor if the
request has created one. The process ends when the other end of the socket is closed.
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

# Constants of Linux: sched.h and if_tun.h.
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MESSAGE = 65536  # maximum size of a request, in bytes
Request = dict[str, Any]  # a JSON object, made by namespaces.py
HERE = "/proc/thread-self/ns/net"  # the current namespace

libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    """Raise OSError if a C function has returned an error."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def new() -> int:
    """Create an empty namespace, enter it, and return a descriptor of it.

    The namespace exists as long as a descriptor of it is open or a process is in it.
    """
    _checked(libc.unshare(CLONE_NEWNET))
    return os.open(HERE, os.O_RDONLY)


def open_socket(family: int, kind: int, proto: int) -> int:
    """Open a socket in the current namespace, and return its descriptor."""
    return socket.socket(family, kind, proto).detach()


def open_tun(name: str) -> int:
    """Create a TUN device in the current namespace, and return its non-blocking descriptor.

    Each read or write transfers one IP packet, without an additional header.
    """
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(descriptor, TUNSETIFF, request)
    return descriptor


def sysctls(settings: dict[str, int]) -> None:
    """Write kernel settings, given by their dotted names (`net.ipv4.ip_forward`), in this
    namespace.
    """
    for name, value in settings.items():
        Path("/proc/sys", *name.split(".")).write_text(str(value))


def perform(request: Request) -> int | None:
    """Perform a request in the current namespace.

    Return the new descriptor, or None if the request creates none. Raises OSError if the kernel
    refuses, or if the request is unknown.
    """
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
    """Perform a request in the namespace with the descriptor `inside`, or in the current one if
    `inside` is None.

    Return the reply and the descriptors to send with it. A failure is reported in the reply.
    """
    try:
        if inside is not None:
            _checked(libc.setns(inside, CLONE_NEWNET))
        made = perform(request)
    except OSError as error:
        return {"errno": error.errno, "message": str(error)}, []
    return {}, [] if made is None else [made]


def come_back(home: int) -> None:
    """Return to the initial namespace, whose descriptor is `home`.

    Does nothing if the process has not left it, because setns would need a permission that this
    process may lack.
    """
    if os.stat(HERE).st_ino != os.fstat(home).st_ino:
        _checked(libc.setns(home, CLONE_NEWNET))


def main() -> None:
    """Serve requests until the other end closes the socket."""
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
