"""Runs a daemon in this process until it is stopped.

The daemon is stopped by Ctrl-C, SIGTERM, SIGHUP (which a closed terminal sends), or the end
of its parent process.
"""

import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio
from trio import TaskStatus

from ..node.daemon.daemon import Node, run_node
from ..transport.host.real import RealHost
from . import render
from .endings import heeded
from .lifecycle import STAY
from .progress import Bar

if TYPE_CHECKING:
    from ..node.settings.config import NodeConfig

FILES = 8192  # most open files that a daemon may need


def run_foreground(config: "NodeConfig", options: Mapping[str, str], parent_fd: int | None) -> None:
    """Run the daemon until it has stopped. Raises the error with which it fails.

    `options` are the settings that the user gave. `parent_fd` is the end of a pipe whose closing
    stops the daemon, or None.
    """
    allow_sockets()
    trio.run(_Foreground(config, options, parent_fd).run)


def allow_sockets() -> None:
    """Raise the limit of open files as far as the system allows, up to FILES.

    Two searches for the port of a symmetric NAT use 512 sockets, and each link up to three, but the
    usual limit is 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def say(line: str) -> None:
    """Print a line of the daemon and flush it, so that a reader of a pipe gets it at once."""
    print(render.sentence(line), flush=True)


class FetchBar:
    """Progress bar on the terminal, shown while the daemon fetches the layers that it will
    serve."""

    def __init__(self) -> None:
        self._bar: Bar | None = None

    def show(self, progress: tuple[int, int] | None) -> None:
        """Show the bytes done and in total. If `progress` is None, remove the bar."""
        if progress is None:
            if self._bar is not None:
                self._bar.close()
                self._bar = None
            return
        if self._bar is None:
            self._bar = Bar("fetching")
            self._bar.open()
        self._bar.show(*progress)


class _Foreground:
    """One daemon in this process, and the tasks that stop it."""

    def __init__(
        self, config: "NodeConfig", options: Mapping[str, str], parent_fd: int | None
    ) -> None:
        self._config = config
        self._options = options
        self._parent_fd = parent_fd
        self._node: Node | None = None
        self._bar = FetchBar()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self._bar.show(None)
        say("stopped")

    async def _run(self) -> None:
        with trio.open_signal_receiver(*heeded()) as signals:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._watch_signals, signals)
                if self._parent_fd is not None:
                    nursery.start_soon(self._watch_parent, self._parent_fd)
                await nursery.start(self._run_node)

    async def _run_node(self, *, task_status: TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            bar = self._bar.show if sys.stderr.isatty() else None
            start = partial(
                run_node, RealHost(), self._config, options=self._options, say=say, bar=bar
            )
            self._node = await nursery.start(start)
            task_status.started()
        self._scope.cancel()

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            repeated = self._node is not None and self._node.stopping
            if number != signal.SIGHUP or not repeated:  # a closed terminal sends it several times
                self._stop()

    def _stop(self) -> None:
        """Drain the node on the first call and cancel it on the second. If the node is not running
        yet, cancel on the first call."""
        if self._node is None or self._node.stopping:
            self._scope.cancel()
        else:
            say("stopping")
            self._node.stop()

    async def _watch_parent(self, descriptor: int) -> None:
        """Stop the node when the parent's end of the pipe closes, unless the parent has written
        STAY."""
        async with trio.lowlevel.FdStream(os.dup(descriptor)) as pipe:
            os.close(descriptor)
            if await pipe.receive_some(1) != STAY:
                self._stop()
