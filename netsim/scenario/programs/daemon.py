"""`daemon`: the unmodified shoal daemon, and its settings.

The code of the daemon is imported only when a scenario creates its first daemon.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import trio

from ...host import Host
from ..format import units
from ..format.actions import MakeText
from ..format.source import Reader, knob

if TYPE_CHECKING:
    from ...daemons.daemon import DaemonHandle

# Names of the machine profiles in `netsim/daemons/profile.py`.
PROFILES = (
    "raspberry", "old-laptop", "laptop", "macbook", "desktop", "gaming", "workstation",
)  # fmt: skip


RATE_LEAST = 10_000
"""Minimum, in bytes per second, that the daemon accepts for `--up`, `--down` and `--relay`."""


def limit(value: object) -> int:
    """Read a rate. Return it in whole bytes per second.

    Raises ValueError if the rate is below the daemon's minimum.
    """
    found = int(units.rate(value))
    if found < RATE_LEAST:
        raise ValueError(f"`{value}`: a daemon's rates are at least {RATE_LEAST // 1000} kB/s")
    return found


def relay(value: object) -> int:
    """Read a relay's rate. Return it in bytes per second, or 0 for `"none"`.

    Raises ValueError if the rate is below the daemon's minimum.
    """
    return 0 if value == "none" else limit(value)


def memory(value: object) -> int:
    """Read a size greater than 0. Return it in bytes. Raises ValueError if it is malformed or 0."""
    found = units.size(value)
    if not found:
        raise ValueError(f"`{value}`: a daemon has to offer some memory")
    return found


def layers(value: object) -> tuple[int, int]:
    """Read a range of layers: `"0:3"` means layers 0, 1 and 2. Return (0, 3).

    Raises ValueError if it is malformed or empty.
    """
    first, colon, stop = units.text(value).partition(":")
    if not (colon and first.isdecimal() and stop.isdecimal() and int(first) < int(stop)):
        raise ValueError(f'`{value}` is not a range of layers; write it as "0:3"')
    return int(first), int(stop)


def word(*known: str) -> Reader[str]:
    """Return a reader that accepts only the words in `known`."""

    def read(value: object) -> str:
        """Return the word, or raise ValueError."""
        if value not in known:
            raise ValueError(f"`{value}` is not one of {', '.join(known)}")
        return str(value)

    return read


Tokens = Literal["numbers", "model"]


def tokens(value: object) -> Tokens:
    """Read the source of the tokens: `"numbers"` or `"model"`."""
    return "model" if word("numbers", "model")(value) == "model" else "numbers"


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """Settings of `daemon`."""

    to: tuple[str, ...] | None = knob(
        units.names_or_none, None, key="bootstrap",
        says="daemons from which it learns of the others (default: the first public one)",
    )  # fmt: skip
    profile: str = knob(units.text, "desktop", says="the machine", known=lambda: PROFILES)
    engine: bool = knob(units.switch, True, says="whether it computes; the engine is simulated")
    tokens: Literal["numbers", "model"] = knob(
        tokens, "numbers",
        says="`numbers`: made up; `model`: computed with the embedded model's weights",
    )  # fmt: skip
    model: str | None = knob(
        units.text, None, says="serve this model (default: the one that is needed)"
    )
    layers: tuple[int, int] | None = knob(layers, None, says='these layers of it: "0:3"')
    memory: int | None = knob(memory, None, says="memory to offer (default: the machine's)")
    dtype: str = knob(word("auto", "float32", "bfloat16"), "auto", says="precision of its layers")
    port: int = knob(units.Count(65_535), 4001, says="TCP port")
    links: int | None = knob(units.positive, None, says="dial members while there are fewer links")
    relay: int | None = knob(
        relay, None,
        says='what it lends as a relay: a rate, or `"none"` (default: the daemon\'s own rate, once '
        "others have reached it)",
    )  # fmt: skip
    up: int | None = knob(limit, None, says="the maximum that it sends (default: no limit)")
    down: int | None = knob(limit, None, says="the maximum that it receives (default: no limit)")


class DaemonProgram:
    """Program that runs a daemon on a host.

    `bootstrap` has the addresses of daemons from which it learns of the others. `handle` controls
    the running daemon, and is None while there is none. `boots` has the seconds that each start
    took.
    """

    def __init__(self, settings: DaemonSettings, bootstrap: list[str]) -> None:
        from ...daemons.daemon import Daemon

        more: dict[str, Any] = {} if settings.links is None else {"links": settings.links}
        self._daemon = Daemon(
            bootstrap=bootstrap, model=settings.model, memory=settings.memory,
            profile=settings.profile, engine=settings.engine, tokens=settings.tokens,
            port=settings.port, layers=settings.layers, dtype=settings.dtype, relay=settings.relay,
            up=settings.up, down=settings.down, **more,
        )  # fmt: skip
        self.handle: DaemonHandle | None = None
        self.boots: list[float] = []  # seconds

    async def run(self, host: Host, *, task_status: "trio.TaskStatus[DaemonHandle]") -> None:
        """Run the daemon until it ends."""
        self.handle = None
        try:
            await self._daemon.run(host, task_status=_Started(self, task_status))
        finally:
            self.handle = None


class _Started(trio.TaskStatus["DaemonHandle"]):
    """Task status that stores the daemon's handle in its program, then passes the handle on to the
    caller of `Host.start`.
    """

    def __init__(self, program: DaemonProgram, status: "trio.TaskStatus[DaemonHandle]") -> None:
        self._program = program
        self._status = status
        self._began = trio.current_time()

    def started(self, handle: "DaemonHandle | None" = None) -> None:
        """Record the daemon's handle and the time that its start took."""
        assert handle is not None
        self._program.handle = handle
        self._program.boots.append(trio.current_time() - self._began)
        self._status.started(handle)


def handle_of(host: Host) -> "DaemonHandle | None":
    """Return the handle of a host's daemon, or None if no daemon is running or it is still
    starting.
    """
    program = host.program
    return program.handle if isinstance(program, DaemonProgram) else None


def peer(host: Host) -> str:
    """Return the peer id of a host's daemon; an empty text unless the daemon is running."""
    handle = handle_of(host)
    return str(handle.peer) if handle is not None else ""


def linked(host: Host) -> set[str]:
    """Return the peer ids of the peers to which a host's daemon has a connected link."""
    handle = handle_of(host)
    if handle is None:
        return set()
    return {str(link.peer) for link in handle.node.endpoint.links() if link.connected}


def known(host: Host) -> set[str]:
    """Return the peer ids of the members that a host's daemon considers alive, including itself."""
    handle = handle_of(host)
    return set(map(str, handle.node.directory.members())) if handle is not None else set()


async def generate(host: Host, action: MakeText) -> float | None:
    """Generate text with a host's daemon.

    Return the virtual seconds that it took; None if it failed.
    """
    handle = handle_of(host)
    if handle is None:
        return None
    return await handle.answer_time(action.prompt, model=action.model, max_tokens=action.tokens)


async def stop(host: Host) -> None:
    """Stop a host's daemon in an orderly way, so that it says goodbye to its peers."""
    handle = handle_of(host)
    if handle is not None:
        await handle.stop()
