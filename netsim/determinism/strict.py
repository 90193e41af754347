"""Isolation of a simulation from the real machine during a run.

Code of a host gets the host's own clock and randomness. Operations that are not simulated (a real
socket, a thread, a process, `time.sleep`) raise NotSimulated with the host's name. Code outside
every host (the test, the report) gets the real clocks and randomness. Each replacement therefore
checks for which host it is called. Scheduling and garbage collection depend only on the program.

`datetime.now` is compiled code that calls the operating system directly. The `datetime` type is
immutable, so the entry in the type's dictionary is replaced. A subclass of `datetime` would not
work: compiled libraries create and check for the original type, and modules that imported the name
earlier would keep the original.

A function is replaced in every imported module that binds it as an attribute. Two things are not
replaced: a clock in a default argument or a class attribute, and randomness that compiled code
draws for itself. OpenSSL, for example, draws keys and nonces itself; therefore the trace hashes the
lengths of packets, not their bytes.
"""

import _thread
import ctypes
import datetime
import gc
import os
import random
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from ipaddress import ip_address
from types import ModuleType
from typing import Any, NoReturn, Protocol, Self

from trio import _socket as trio_socket
from trio import _subprocess as trio_subprocess
from trio import _threads as trio_threads
from trio._core import _run
from trio._core import _thread_cache as trio_thread_cache

from ..clock import without_descriptors
from ..errors import NotSimulated
from ..host import CURRENT, Host
from .memory import Collector, deterministic_collection
from .schedule import Replacement, scheduling
from .watchdog import watchdog

Shim = Callable[..., object]

_armed = False  # whether a run is in progress, so that `_audit` must check
_FORBIDDEN = {
    "socket.__new__": "a real socket",
    "subprocess.Popen": "a child process",
    "os.posix_spawn": "a child process",
    "os.fork": "a child process (`os.fork`)",
    "os.forkpty": "a child process (`os.forkpty`)",
    "os.exec": "another program (`os.exec`)",
    "os.system": "a child process (`os.system`)",
    "_thread.start_new_thread": "a thread",
    "os.kill": "a signal to a process",
    "os.killpg": "a signal to a process",
    "socket.gethostbyname": "the machine's resolver",
    "socket.gethostbyaddr": "the machine's resolver",
    "sqlite3.connect": "a real file",
}
"""Descriptions, for the error message, of the interpreter's audit events that hosts must not cause.
An audit event reports a call regardless of the name by which the function was called.
"""

# Audit events of calls that change the real disk.
_CHANGES = frozenset(
    f"os.{call}"
    for call in ("chmod", "chown", "link", "mkdir", "remove", "rename", "rmdir", "symlink",
                 "truncate", "utime")
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def refuse(what: str) -> NoReturn:
    """Raise NotSimulated, naming the current host in the message."""
    host = CURRENT.get(None)
    name = host.name if host is not None else "outside every host"
    raise NotSimulated(f"{name}: {what} is not simulated")


def _audit(event: str, args: tuple[object, ...]) -> None:
    """Handle an audit event. During a run, raises NotSimulated if a host tries a forbidden
    operation or writes to the real disk.
    """
    if not _armed:
        return
    if event in _FORBIDDEN:
        if CURRENT.get(None) is not None:
            refuse(_FORBIDDEN[event])
    elif event == "open" and isinstance(args[0], int):
        return  # a descriptor that was checked when its file was opened by name
    elif event in _CHANGES or (event == "open" and _writes(args[2])):
        if CURRENT.get(None) is None or _imports(args):
            return
        refuse(f"writing to the real disk (`{args[0]}`)")


def _writes(flags: object) -> bool:
    """Return whether the flags of `open` allow writing."""
    return isinstance(flags, int) and bool(flags & _WRITING)


def _imports(args: tuple[object, ...]) -> bool:
    """Return whether Python itself causes the event by writing the compiled code of an imported
    module. No host is responsible for that.
    """
    return any(isinstance(arg, str) and "__pycache__" in arg for arg in args)


def _tripwire(real: Shim, what: str, *, everywhere: bool = False) -> Shim:
    """Return a wrapper of `real` that raises NotSimulated when a host calls it or, if `everywhere`
    is True, when any code calls it.
    """

    def forbidden(*args: object, **kwargs: object) -> object:
        if everywhere or CURRENT.get(None) is not None:
            refuse(what)
        return real(*args, **kwargs)

    return forbidden


def _by_host(real: Shim, simulated: Shim) -> Shim:
    """Return a function that calls `simulated(host, …)` inside a host, and `real(…)` outside every
    host.
    """

    def shim(*args: object, **kwargs: object) -> object:
        host = CURRENT.get(None)
        if host is None:
            return real(*args, **kwargs)
        return simulated(host, *args, **kwargs)

    return shim


# Clocks.


def _now(host: Host) -> float:
    return host.events.now


def _nanoseconds(clock: Callable[[Host], float]) -> Shim:
    """Return a clock in nanoseconds for a clock in seconds."""
    return lambda host: round(clock(host) * 1e9)


def _clock_gettime(host: Host, clock: int) -> float:
    return host.wall() if clock == time.CLOCK_REALTIME else host.events.now


def _broken_down(real: Shim, host: Host, seconds: float | None = None) -> object:
    """Call `localtime`, `gmtime` or `ctime`, whose argument (Unix time, seconds) defaults to the
    host's present.
    """
    return real(host.wall() if seconds is None else seconds)


def _written(real: Shim, host: Host, *args: object) -> object:
    """Call `strftime` or `asctime`, whose last argument (a time tuple) defaults to the host's
    present.
    """
    if args and isinstance(args[-1], tuple):
        return real(*args)
    return real(*args, _LOCALTIME(host.wall()))


_LOCALTIME = time.localtime


def _clocks() -> Iterator[tuple[Shim, Shim]]:
    """Yield (real function, replacement) for each function that reads a clock."""
    for real, clock in (
        (time.time, Host.wall),
        (time.monotonic, _now),
        (time.perf_counter, _now),
        (time.process_time, _now),  # computing takes no time here
        (time.thread_time, _now),
    ):
        yield real, _by_host(real, clock)
        exact = getattr(time, f"{real.__name__}_ns")
        yield exact, _by_host(exact, _nanoseconds(clock))
    yield time.clock_gettime, _by_host(time.clock_gettime, _clock_gettime)
    exact = time.clock_gettime_ns
    yield exact, _by_host(exact, lambda host, clock: round(_clock_gettime(host, clock) * 1e9))
    told: tuple[Shim, ...] = (time.localtime, time.gmtime, time.ctime)
    for function in told:
        yield function, _by_host(function, partial(_broken_down, function))
    written: tuple[Shim, ...] = (time.strftime, time.asctime)
    for function in written:
        yield function, _by_host(function, partial(_written, function))


@contextmanager
def _simulated_datetime() -> Iterator[None]:
    """Replace `datetime.now` and `datetime.utcnow` for the duration of the context."""
    kind: Any = datetime.datetime
    entries = gc.get_referents(kind.__dict__)[0]
    now, utcnow = entries["now"], entries["utcnow"]
    real_now, real_utcnow = kind.now, kind.utcnow

    def simulated_now(cls: Any, tz: datetime.tzinfo | None = None) -> Any:
        host = CURRENT.get(None)
        if host is not None:
            return cls.fromtimestamp(host.wall(), tz)
        return now.__get__(None, cls)(tz) if cls is not kind else real_now(tz)

    def simulated_utcnow(cls: Any) -> Any:
        host = CURRENT.get(None)
        if host is not None:
            return cls.fromtimestamp(host.wall(), datetime.UTC).replace(tzinfo=None)
        return utcnow.__get__(None, cls)() if cls is not kind else real_utcnow()

    entries["now"], entries["utcnow"] = classmethod(simulated_now), classmethod(simulated_utcnow)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    try:
        yield
    finally:
        entries["now"], entries["utcnow"] = now, utcnow
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


# Randomness.


def entropy(host: Host, size: int, flags: int = 0) -> bytes:
    """Return `size` pseudo-random bytes from the host's seeded generator. `flags` is ignored."""
    return host.streams.get(host.name, "entropy").randbytes(size)


def _drawn(name: str, host: Host, *args: object, **kwargs: object) -> object:
    """Call the function `name` of the `random` module on the host's seeded generator."""
    return getattr(host.streams.get(host.name, "random"), name)(*args, **kwargs)


def _randomness() -> Iterator[tuple[Shim, Shim]]:
    """Yield (real function, replacement) for each function that draws random numbers or identifies
    the machine.
    """
    yield os.urandom, _by_host(os.urandom, entropy)
    if hasattr(os, "getrandom"):
        yield os.getrandom, _by_host(os.getrandom, entropy)
    shared = getattr(random.random, "__self__")  # noqa: B009 (bound method of a C type)
    for name in random.__all__:
        function = getattr(random, name)
        if getattr(function, "__self__", None) is shared:
            yield function, _by_host(function, partial(_drawn, name))
    # These return the network card's address and the real time.
    yield uuid.uuid1, _tripwire(uuid.uuid1, "`uuid.uuid1`")
    yield uuid.getnode, _tripwire(uuid.getnode, "`uuid.getnode`")


_SEED = random.Random.seed
Seed = int | float | str | bytes | bytearray | None


def _seed(self: random.Random, a: Seed = None, version: int = 2) -> None:
    """Seed a `random.Random`, in place of its `seed` method. Inside a host, a generator without a
    seed is seeded from the host's generator and not from the machine.
    """
    host = CURRENT.get(None)
    if a is None and host is not None:
        a = int.from_bytes(entropy(host, 32), "big")
    _SEED(self, a, version)


class PrivateKey(Protocol):
    """Class of private keys that consist of 32 random bytes."""

    @classmethod
    def generate(cls) -> Self: ...

    @classmethod
    def from_private_bytes(cls, data: bytes) -> Self: ...


def _seeded_key(kind: type[PrivateKey]) -> Callable[[type[PrivateKey]], PrivateKey]:
    """Return a replacement of `kind.generate` that draws the key from the host's seeded
    generator.
    """
    real = kind.generate

    def generate(cls: type[PrivateKey]) -> PrivateKey:
        host = CURRENT.get(None)
        return real() if host is None else cls.from_private_bytes(entropy(host, 32))

    return generate


# Operations that hosts do not have.


_GETADDRINFO = socket.getaddrinfo


def _resolve(_: Host, name: str, *args: Any, **kwargs: Any) -> object:
    """Call `getaddrinfo` for a numeric address. Raises NotSimulated for a name, because only trio's
    resolver is simulated.
    """
    flags = kwargs.get("flags", args[4] if len(args) > 4 else 0)
    try:
        if not flags & socket.AI_NUMERICHOST:
            ip_address(name)
    except ValueError:
        refuse("the machine's resolver")
    return _GETADDRINFO(name, *args, **kwargs)


def _missing() -> Iterator[tuple[Shim, Shim]]:
    """Yield (real function, replacement) for each function that hosts cannot use or that identifies
    the machine.
    """
    yield _GETADDRINFO, _by_host(_GETADDRINFO, _resolve)
    yield socket.gethostname, _by_host(socket.gethostname, lambda host: host.name)
    yield time.sleep, _tripwire(time.sleep, "`time.sleep`")
    yield socket.socketpair, _tripwire(socket.socketpair, "a real socket pair")
    yield _thread.start_new_thread, _tripwire(_thread.start_new_thread, "a thread")
    for real, what in (
        (trio_threads.to_thread_run_sync, "a thread (`trio.to_thread.run_sync`)"),
        (trio_thread_cache.start_thread_soon, "a thread"),
        (trio_subprocess._open_process, "a child process"),
        (trio_socket.from_stdlib_socket, "a real socket (`from_stdlib_socket`)"),
        (trio_socket.fromfd, "a real socket (`fromfd`)"),
        (trio_socket.socketpair, "a real socket pair"),
    ):
        # Forbidden outside hosts too, because virtual time would not wait for the operation.
        yield real, _tripwire(real, what, everywhere=True)


# Installation of the replacements.


class _Bindings:
    """All attributes of imported modules that refer to a function which must be replaced."""

    def __init__(self, shims: dict[int, tuple[Shim, Shim]]) -> None:
        # By id of the real function: (real function, replacement). The reference to the real
        # function keeps its id valid.
        self._shims = shims
        self._seen: set[tuple[str, int]] = set()  # (name, id) of each module searched so far
        self._found: list[tuple[ModuleType, str, Shim, Shim]] = []

    def replace(self) -> Callable[[], None]:
        """Install the replacements in all modules that are imported by now. Return a function that
        restores the real ones.
        """
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and (name, id(module)) not in self._seen:
                self._seen.add((name, id(module)))
                self._search(module)
        for module, attribute, _, shim in self._found:
            setattr(module, attribute, shim)
        return self._restore

    def _search(self, module: ModuleType) -> None:
        """Find the attributes of a module to replace."""
        if module.__name__ == __name__:
            return
        for name, value in list(vars(module).items()):
            pair = self._shims.get(id(value))
            if pair is not None:
                self._found.append((module, name, *pair))

    def _restore(self) -> None:
        for module, name, real, _ in self._found:
            setattr(module, name, real)


_bindings: _Bindings | None = None


def _bind() -> _Bindings:
    """Return the object that replaces functions in the modules of this process. The first call
    creates it and installs the audit hook.
    """
    global _bindings
    if _bindings is None:
        pairs = [*_clocks(), *_randomness(), *_missing()]
        _bindings = _Bindings({id(real): (real, shim) for real, shim in pairs})
        sys.addaudithook(_audit)
    return _bindings


@contextmanager
def _attribute(owner: object, name: str, value: object) -> Iterator[None]:
    """Set an attribute for the duration of the context."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _tripwires() -> Iterator[None]:
    """Activate the audit hook for the duration of the context."""
    global _armed
    before, _armed = _armed, True
    try:
        yield
    finally:
        _armed = before


def _spawn_in_context(
    runner: _run.Runner, function: Shim, *args: object, **settings: object
) -> object:
    """Start a system task of trio, in place of `Runner.spawn_system_task`. If a host requests it,
    the task runs in the caller's context and ends with the host's program.

    Trio itself would start the task without the caller's context, so that the task would belong to
    no host.
    """
    host = CURRENT.get(None)
    if host is None or settings.get("context") is not None:
        return _SPAWN(runner, function, *args, **settings)
    settings["context"] = copy_context()
    if settings.get("name") is None:
        settings["name"] = f"{host.name}:{getattr(function, '__qualname__', function)}"
    return _SPAWN(runner, host.as_its_own, function, *args, **settings)


_SPAWN: Shim = _run.Runner.spawn_system_task
_MANAGER: Any = vars(_run)["TheIOManager"]  # of this platform
_GET_EVENTS: Any = without_descriptors(_MANAGER.get_events)


@contextmanager
def strict(*, shuffle: random.Random | None = None, patience: float = 30.0) -> Iterator[Collector]:
    """Make a run depend on nothing but the program and its seed, for the duration of the context.

    Tasks that could run at the same instant run in order of age or, if `shuffle` is given, in
    random order, which finds programs that depend on the order. A task that runs for `patience`
    seconds of real time without a checkpoint gets Stuck; a `patience` of 0 means no limit. Yields
    the garbage collector, which the clock must call after every instant.
    """
    from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

    from .signatures import shared_checks

    with ExitStack() as stack:
        replacements: list[Replacement] = [
            *scheduling(shuffle),
            (_run.Runner, "spawn_system_task", _spawn_in_context),
            (_MANAGER, "get_events", _GET_EVENTS),
            (random.Random, "seed", _seed),
            (ed25519.Ed25519PublicKey, "from_public_bytes", shared_checks()),
        ]
        for kind in (ed25519.Ed25519PrivateKey, x25519.X25519PrivateKey):
            replacements.append((kind, "generate", classmethod(_seeded_key(kind))))
        for owner, name, value in replacements:
            stack.enter_context(_attribute(owner, name, value))
        stack.callback(_bind().replace())
        stack.enter_context(_simulated_datetime())
        collector = stack.enter_context(deterministic_collection())
        stack.enter_context(watchdog(patience))
        stack.enter_context(_tripwires())
        yield collector
