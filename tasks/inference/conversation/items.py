"""Messages of a chain to the gateway of its session, and the queue in which they wait."""

import math
from contextlib import suppress
from dataclasses import dataclass

import trio

from ...errors import SessionError
from ...routing.paths import Hop
from ..messages import SampledToken, SpanProgress


@dataclass(frozen=True, slots=True)
class Arrived:
    """A token that has arrived at the gateway."""

    token: SampledToken
    at: float  # time at which the message arrived, in seconds


@dataclass(frozen=True, slots=True)
class Pooled:
    """The sum of the final states of a span that ends before `position`."""

    position: int
    states: tuple[float, ...]  # one for each hidden value


@dataclass(frozen=True, slots=True)
class Needed:
    """The first stage asks for the tokens from position `start` to before `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Complete:
    """All stages have the state of all positions before the one at which the chain continues."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """All stages have the KV of positions that were sent already, and of those behind them."""


@dataclass(frozen=True, slots=True)
class Faster:
    """A chain that is faster than the session's. Stages that only it has are standbys now."""

    chain: tuple[Hop, ...]


Item = Arrived | Pooled | SpanProgress | Needed | Complete | LeftOut | Faster | SessionError
"""A message of the chain, a faster chain, or the error that ends the session."""


class ItemQueue:
    """The items of one session in order, for one reader. An error is the last item.

    Unbounded, because `GenerationRun` limits what enters: at most the tokens that were asked for,
    and one progress for each position.
    """

    def __init__(self) -> None:
        self._send, self._inbox = trio.open_memory_channel[Item](math.inf)
        self._arrival = trio.Event()
        self._last = trio.Event()  # set by the final token or an error
        self._next_at = 0.0  # earliest time at which `read` returns tokens again
        self.failed = False
        """Whether an error ended the session."""

    @property
    def waiting(self) -> int:
        """Number of items that `read` has not returned yet."""
        return self._inbox.statistics().current_buffer_used

    def put(self, item: Item, *, last: bool = False) -> None:
        """Add an item, unless the session has failed. `last` says that no token follows it."""
        if self.failed:
            return
        self._send.send_nowait(item)
        self._arrival.set()
        self.failed = isinstance(item, SessionError)
        if last or self.failed:
            self._last.set()

    def next_arrival(self) -> trio.Event:
        """Return an event that the next item sets."""
        if self._arrival.is_set():
            self._arrival = trio.Event()
        return self._arrival

    async def read(self, timeout: float, pace: float) -> list[Item]:
        """Return the items that wait, and wait for the first one. Return nothing after `timeout`
        seconds.

        Tokens of a fast model are collected for `pace` seconds, except the first and the last
        token. A person sees no difference, and detokenizing each token alone costs more than
        computing it.
        """
        items: list[Item] = []
        with trio.move_on_after(timeout):
            items.append(await self._inbox.receive())
        if items and isinstance(items[0], Arrived):
            if self._next_at > trio.current_time():
                with trio.move_on_at(self._next_at):
                    await self._last.wait()
            self._next_at = trio.current_time() + pace
        with suppress(trio.WouldBlock):
            while True:
                items.append(self._inbox.receive_nowait())
        return items
