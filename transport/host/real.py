"""The real implementations of `Host` and `Child`, on the operating system of this machine."""

import errno
import gc
import os
import secrets
import socket as stdlib_socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import trio

from ..errors import AddressInUse, HostError
from .allocator import give_back, keep_freed_memory
from .datagrams import Datagrams, datagrams
from .localname import short_name
from .realfiles import RealFiles
from .seam import Interface, MachineFigures, MulticastGroup, T, Ts


class RealChild:
    """Implementation of `Child` with a real process."""

    def __init__(self, process: trio.Process, socket: trio.socket.SocketType) -> None:
        self._process = process
        self._socket = socket

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def socket(self) -> trio.socket.SocketType:
        return self._socket

    def is_stopped(self) -> bool:
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:  # it has ended, or this system does not tell
            return False

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self, grace: float) -> None:
        self._socket.close()
        try:
            with trio.move_on_after(grace):
                await self._process.wait()
        finally:
            with trio.CancelScope(shield=True):
                if self._process.returncode is None:
                    self._process.kill()
                await self._process.wait()


class TrioHost:
    """The part of `Host` that trio implements, both on this machine and on a simulated one."""

    def now(self) -> float:
        return trio.current_time()

    async def resolve(self, name: str) -> list[str]:
        try:
            found = await trio.socket.getaddrinfo(name, None, type=trio.socket.SOCK_STREAM)
        except OSError as error:
            raise HostError(f"cannot resolve `{name}`: {error.strerror or error}") from error
        return list(dict.fromkeys(str(item[4][0]) for item in found))

    async def listen(self, address: str, port: int) -> trio.SocketListener:
        sock = _socket_at(address, trio.socket.SOCK_STREAM)
        try:
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
            if sock.family == trio.socket.AF_INET6:
                sock.setsockopt(trio.socket.IPPROTO_IPV6, trio.socket.IPV6_V6ONLY, 1)
            await _bind_and_listen(sock, address, port)
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEPORT, 1)
        except BaseException:
            sock.close()
            raise
        return trio.SocketListener(sock)

    async def connect(self, address: str, port: int, *, source_port: int = 0) -> trio.SocketStream:
        family = trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET
        sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            if source_port:
                _share_port(sock)
                await sock.bind(("::" if ":" in address else "0.0.0.0", source_port))
            await sock.connect((address, port))
        except BaseException:
            sock.close()
            raise
        return trio.SocketStream(sock)

    async def datagrams(
        self, address: str, port: int, *, group: MulticastGroup | None = None, shared: bool = False
    ) -> Datagrams:
        sock = _socket_at(address, trio.socket.SOCK_DGRAM)
        try:
            if shared:
                _share_port(sock)
            if sock.family == trio.socket.AF_INET6:
                sock.setsockopt(trio.socket.IPPROTO_IPV6, trio.socket.IPV6_V6ONLY, 1)
            _tune(sock)
            await _bind(sock, address, port)
            if group is not None:
                _join(sock, group)
        except BaseException:
            sock.close()
            raise
        return datagrams(sock)


class RealHost(TrioHost):
    """Implementation of `Host` on this machine."""

    def __init__(self) -> None:
        self._files = RealFiles()
        keep_freed_memory()

    @property
    def files(self) -> RealFiles:
        return self._files

    def wall(self) -> float:
        return time.time()

    def entropy(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    def pid(self) -> int:
        return os.getpid()

    def resident(self, pid: int) -> int | None:
        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return None

    def machine(self) -> MachineFigures:
        memory = psutil.virtual_memory()
        uname = os.uname()
        return MachineFigures(
            cores=len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1,
            memory_total=memory.total,
            memory_available=memory.available,
            system=uname.sysname,
            architecture=uname.machine,
        )

    def interfaces(self) -> list[Interface]:
        states = psutil.net_if_stats()
        found = []
        for name, addresses in psutil.net_if_addrs().items():
            if name in states and not states[name].isup:
                continue
            for item in addresses:
                if item.family in (stdlib_socket.AF_INET, stdlib_socket.AF_INET6) and item.netmask:
                    address = item.address.split("%")[0]
                    found.append(Interface(name, address, _prefix_length(item.netmask)))
        return found

    def default_gateways(self) -> list[str]:
        return _default_gateways()

    async def listen_local(self, path: Path) -> trio.SocketListener:
        with suppress(FileNotFoundError):
            os.unlink(path)
        sock = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        try:
            with short_name(path) as name:
                await sock.bind(name)
            os.chmod(path, 0o600)  # the folder is 0700, so no other user can connect before this
            sock.listen(32)
        except BaseException:
            sock.close()
            raise
        return trio.SocketListener(sock)

    @contextmanager
    def watch_loop(self, instrument: trio.abc.Instrument) -> Iterator[None]:
        trio.lowlevel.add_instrument(instrument)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(instrument)

    async def give_back_memory(self) -> None:
        await self.offload(give_back)

    def keep_memory(self) -> None:
        gc.freeze()

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        return await trio.to_thread.run_sync(work, *args)

    async def spawn(self, module: str, args: Sequence[str], env: Mapping[str, str]) -> RealChild:
        ours, theirs = stdlib_socket.socketpair()  # trio's pair would make the child's non-blocking
        try:
            descriptor = theirs.fileno()
            process = await trio.lowlevel.open_process(
                # -P keeps modules in the current folder from being imported.
                [sys.executable, "-P", "-m", module, str(descriptor), *args],
                stdin=subprocess.DEVNULL,
                stdout=2,  # a print must not reach the daemon's own output
                env={**os.environ, **env},
                pass_fds=(descriptor,),
                # Ctrl-C reaches only this process, which ends the child. Linux shares the processor
                # between sessions, so a child in a session of its own can have a lower priority.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return RealChild(process, trio.socket.from_stdlib_socket(ours))


def _share_port(sock: trio.socket.SocketType) -> None:
    sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
    sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEPORT, 1)


def _tune(sock: trio.socket.SocketType) -> None:
    """Enlarge the socket's buffers for bursts, and forbid fragmentation, so that datagrams that are
    too large for the path are noticed. Options that the system does not support are skipped."""
    level, option = _MTU_DISCOVER[sock.family == trio.socket.AF_INET6]
    options = (
        (trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, _UDP_BUFFER_BYTES),
        (trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, _UDP_BUFFER_BYTES),
        (level, option, _PMTUDISC_PROBE),
    )
    for each in options:
        with suppress(OSError):
            sock.setsockopt(*each)


_UDP_BUFFER_BYTES = 2 << 20
# linux/in.h and linux/in6.h; the socket module does not name them.
_MTU_DISCOVER = ((stdlib_socket.IPPROTO_IP, 10), (stdlib_socket.IPPROTO_IPV6, 23))
_PMTUDISC_PROBE = 3


def _join(sock: trio.socket.SocketType, group: MulticastGroup) -> None:
    """Join an IPv4 multicast group. Raises HostError if the system refuses."""
    interface = stdlib_socket.inet_aton(group.interface)
    member = stdlib_socket.inet_aton(group.address) + interface
    try:
        sock.setsockopt(trio.socket.IPPROTO_IP, trio.socket.IP_ADD_MEMBERSHIP, member)
        sock.setsockopt(trio.socket.IPPROTO_IP, trio.socket.IP_MULTICAST_IF, interface)
        sock.setsockopt(trio.socket.IPPROTO_IP, trio.socket.IP_MULTICAST_LOOP, 1)
    except OSError as error:
        raise HostError(
            f"cannot join {group.address} on {group.interface}: {error.strerror}"
        ) from error


def _socket_at(address: str, kind: int) -> trio.socket.SocketType:
    """Return a new socket for the IP version of an address to listen at. Raises HostError if the
    system does not support that IP version."""
    family = trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET
    try:
        return trio.socket.socket(family, kind)
    except OSError as error:
        raise HostError(f"cannot listen on {address}: {error.strerror}") from error


async def _bind_and_listen(sock: trio.socket.SocketType, address: str, port: int) -> None:
    await _bind(sock, address, port, listen=True)


async def _bind(
    sock: trio.socket.SocketType, address: str, port: int, *, listen: bool = False
) -> None:
    try:
        await sock.bind((address, port))
        if listen:
            sock.listen(128)  # fails for the later one of two sockets that bound at the same moment
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"port {port} on {address} is in use") from None
        raise HostError(
            f"cannot listen on {address} port {port}: {error.strerror}",
            hint=_LISTEN_HINTS.get(error.errno or 0),
        ) from error


_LISTEN_HINTS = {
    errno.EADDRNOTAVAIL: "this machine does not have that address; 0.0.0.0 means all of its own",
    errno.EACCES: "ports below 1024 need privileges: use another one, e.g. 4001",
}


def _default_gateways() -> list[str]:
    """Return the default routers from Linux's routing tables in /proc. The list is empty on other
    systems."""
    found = []
    with suppress(OSError), open("/proc/net/route", encoding="ascii") as table:
        for line in list(table)[1:]:
            fields = line.split()
            if fields[1] == "00000000" and int(fields[3], 16) & _RTF_GATEWAY:
                found.append(stdlib_socket.inet_ntoa(int(fields[2], 16).to_bytes(4, sys.byteorder)))
    with suppress(OSError), open("/proc/net/ipv6_route", encoding="ascii") as table:
        for line in table:
            fields = line.split()
            if fields[1] == "00" and int(fields[8], 16) & _RTF_GATEWAY:
                address = bytes.fromhex(fields[4])
                found.append(stdlib_socket.inet_ntop(stdlib_socket.AF_INET6, address))
    return list(dict.fromkeys(found))


_RTF_GATEWAY = 0x2  # linux/route.h


def _prefix_length(netmask: str) -> int:
    family = stdlib_socket.AF_INET6 if ":" in netmask else stdlib_socket.AF_INET
    return int.from_bytes(stdlib_socket.inet_pton(family, netmask)).bit_count()
