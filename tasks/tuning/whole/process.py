"""Daemon's part of the process that trains a whole model: starts it, and asks it."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

import numpy as np
import trio
from numpy.typing import NDArray

from ....transport.errors import HostError
from ....transport.host.seam import Child, Host
from ....transport.message import pack
from ...engine.connection.starting import WaitingChannel, environment
from ...engine.defaults import THREAD_BYTES
from ...engine.wire import Buffer, Header, SharedPayload, WireClosed, WireError
from ...errors import SessionError
from ..interface import Batch
from .defaults import ANSWER_S, LEAST_SPEED, START_S, STOP_GRACE, WATCH_S

CHILD: Final = f"{__package__}.child"
Array = NDArray[np.float32]


class NetworkProcess:
    """A process with one network. `open` starts it, and a failure ends it."""

    def __init__(self, host: Host, threads: int) -> None:
        self._host = host
        self._threads = threads
        self.child: Child | None = None
        self._channel: WaitingChannel | None = None
        self._sizes: dict[str, int] = {}  # of the weights that were set, as counts of values

    @property
    def is_open(self) -> bool:
        """Whether the process runs, with a network."""
        return self._channel is not None

    async def open(self, config: Mapping[str, object]) -> None:
        """Start the process, with the network of a config.json. Its weights are zero.

        Raises SessionError if it does not start or refuses the config.
        """
        await self.aclose()
        arguments = ["--threads", str(self._threads)]
        try:
            child = await self._host.spawn(CHILD, arguments, environment(self._threads))
        except (OSError, HostError) as error:
            raise SessionError("worker-crashed", f"the process did not start: {error}") from None
        self.child, self._channel = child, WaitingChannel(child.socket.fileno())
        self._sizes.clear()
        with trio.move_on_after(START_S) as started:
            await self._ask(("open",), pack(dict(config)))
        if started.cancelled_caught:
            raise SessionError("worker-crashed", f"the process did not start in {START_S:.0f} s")

    async def set(self, role: str, values: Array) -> None:
        """Replace a weight."""
        data = np.ascontiguousarray(values, "<f4").data.cast("B")
        self._sizes[role] = values.size
        await self._ask(("set", role), data)

    async def compute(self, batch: Batch, *, back: bool) -> tuple[float, int]:
        """Return the loss of a batch, as a sum in nats, and the number of counted positions. If
        `back`, also compute the derivatives."""
        rows, length = batch.tokens.shape
        parts = (batch.tokens, batch.targets)
        data = b"".join(np.ascontiguousarray(each, "<i4").tobytes() for each in parts)
        # Forward and backward: six operations for each weight and position (Kaplan et al., 2020).
        operations = 6 * rows * length * sum(self._sizes.values())
        match await self._ask(("compute", rows, length, back), data, operations / LEAST_SPEED):
            case (("ok", float(loss), int(counted)), _):
                return loss, counted
        raise await self._broken("its reply is malformed")

    async def gradient(self, role: str, shape: tuple[int, ...]) -> Array:
        """Return the derivative of the last loss by a weight."""
        _, payload = await self._ask(("gradient", role), b"")
        if len(payload) != 4 * int(np.prod(shape)):
            raise await self._broken("its reply has another size")
        return np.frombuffer(payload, "<f4").reshape(shape)

    async def aclose(self) -> None:
        """End the process."""
        child, channel = self.child, self._channel
        self.child = self._channel = None
        if channel is not None:
            channel.close()
        if child is not None:
            await child.stop(STOP_GRACE)

    async def _ask(
        self, header: Header, data: Buffer, seconds: float = 0.0
    ) -> tuple[Header, memoryview]:
        """Return the reply to a request that may take `seconds` beside ANSWER_S.

        Raises SessionError if it is refused, or the process ends, is stopped or does not answer.

        Whatever goes wrong, the process is ended: a late reply would be taken for that to the next
        request.
        """
        answered = False
        try:
            if self._channel is None:
                raise SessionError("worker-crashed", "the process that trains has ended")
            reply = await self._exchanged(self._channel, header, data, ANSWER_S + seconds)
            answered = True
        except trio.TooSlowError:
            raise await self._broken("it does not answer") from None
        except (WireClosed, WireError):
            raise await self._broken("it closed the connection") from None
        finally:
            if not answered:
                with trio.CancelScope(shield=True):
                    await self.aclose()
        match reply[0]:
            case ("ok", *_):
                return reply
            case ("refused", str(code), str(message)):
                raise SessionError(code, message)
        raise await self._broken("its reply is malformed")

    async def _exchanged(
        self, channel: WaitingChannel, header: Header, data: Buffer, seconds: float
    ) -> tuple[Header, memoryview]:
        until = self._host.now() + seconds
        await self._host.offload(channel.put, header, data)
        while not channel.flush():
            await self._waited(channel.wait_writable, until)
        while True:
            await self._waited(channel.wait_readable, until)
            for found, payload in channel.arrived(THREAD_BYTES):
                if isinstance(payload, SharedPayload):
                    try:
                        return found, await self._host.offload(payload.read)
                    finally:
                        payload.close()
                return found, payload

    async def _waited(self, ready: Callable[[], Awaitable[None]], until: float) -> None:
        """Await `ready()`. Raises TooSlowError after `until`, or once the process is stopped for
        WATCH_S, because it would then keep its memory and never answer."""
        was_stopped = False
        while True:
            with trio.move_on_after(WATCH_S):
                await ready()
                return
            stopped = self.child is not None and self.child.is_stopped()
            if (stopped and was_stopped) or self._host.now() >= until:
                raise trio.TooSlowError
            was_stopped = stopped

    async def _broken(self, why: str) -> SessionError:
        """End the process, and return the error for it."""
        status, child = "", self.child
        if child is not None:
            with trio.move_on_after(STOP_GRACE, shield=True), suppress(OSError):
                status = f" (status {await child.wait()})"
            with trio.CancelScope(shield=True):
                await self.aclose()
        return SessionError(
            "worker-crashed",
            f"the process that trains the model failed{status}: {why}",
            hint="the memory of this machine may not suffice; it is started again",
        )
