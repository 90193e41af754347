"""A scenario's interface to running daemons: their links, the members they know, text.

The daemon is imported when the first one is made: a scenario of the network alone does not need it.
"""

from typing import Any

import trio

from ..host import Host, Program
from .format import actions
from .programs.daemon import DaemonSettings


class DaemonProgram:
    """`Program` that runs a daemon. It has the handle of the current run, and the duration of each
    start.
    """

    def __init__(self, settings: DaemonSettings, bootstrap: list[str]) -> None:
        from ..daemons.daemon import Daemon

        more: dict[str, Any] = {} if settings.links is None else {"links": settings.links}
        self._daemon = Daemon(
            bootstrap=bootstrap, model=settings.model, memory=settings.memory,
            profile=settings.profile, engine=settings.engine, tokens=settings.tokens,  # type: ignore[arg-type]
            port=settings.port, layers=settings.layers, dtype=settings.dtype, relay=settings.relay,
            up=settings.up, down=settings.down, **more,
        )  # fmt: skip
        self.handle: Any = None
        self.boots: list[float] = []  # seconds

    async def run(self, host: Host, *, task_status: trio.TaskStatus[Any]) -> None:
        """Run the daemon until it ends."""
        self.handle = None
        try:
            await self._daemon.run(host, task_status=_Started(self, task_status))
        finally:
            self.handle = None


class _Started:
    """Records the handle before passing it to the task that started the daemon."""

    def __init__(self, program: DaemonProgram, status: "trio.TaskStatus[Any]") -> None:
        self._program = program
        self._status = status
        self._began = trio.current_time()

    def started(self, handle: Any = None) -> None:
        self._program.handle = handle
        self._program.boots.append(trio.current_time() - self._began)
        self._status.started(handle)


def program_of(host: Host) -> DaemonProgram | None:
    """Return the daemon of a host, once it has started."""
    program: Program[object] | None = host.program
    if isinstance(program, DaemonProgram) and program.handle is not None:
        return program
    return None


def peer(host: Host) -> str:
    """Return the peer id of a host's daemon; empty while it starts."""
    program = program_of(host)
    return str(program.handle.peer) if program is not None else ""


def linked(host: Host) -> set[str]:
    """Return the peers to which a host's daemon has a link."""
    program = program_of(host)
    if program is None:
        return set()
    return {str(link.peer) for link in program.handle.node.endpoint.links() if link.connected}


def known(host: Host) -> set[str]:
    """Return the peers that a host's daemon considers alive, itself included."""
    program = program_of(host)
    return set(map(str, program.handle.node.directory.members())) if program is not None else set()


async def generate(host: Host, action: actions.Generate) -> float | None:
    """Let a daemon generate; return the virtual seconds that it took, None if it failed."""
    from ..daemons.asking import answer_time

    program = program_of(host)
    if program is None:
        return None
    took: float | None = await answer_time(
        program.handle, action.prompt, model=action.model, max_tokens=action.tokens
    )
    return took


async def stop(_: Host, handle: Any) -> None:
    """End a daemon with its goodbye."""
    await handle.stop()
