"""Worker process: `python -m shoal.tasks.engine.worker FD --threads N [--memory B] [--device D]`.

A single blocking loop without network and without trio. Between steps it checks its socket without
waiting, so requests and cancellations take effect after at most one step of a running span. The
process ends when the daemon closes its end of the socket.
"""

import argparse
import gc
import importlib.util
import math
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from .defaults import EXIT_NO_DEVICE, EXIT_NO_TORCH, NICE, PIECE_SECONDS
from .spans.opening import begins_request
from .wire import Buffer, Header, WireClosed, WorkerChannel

if TYPE_CHECKING:
    from .core import Core

VERSION = 1


def main() -> int:
    """Run the worker until the daemon closes the socket, and return the exit status."""
    arguments = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon decides when to end
    if importlib.util.find_spec("torch") is None:
        return EXIT_NO_TORCH
    offer_to_the_oom_killer()
    lower_priority(NICE)
    channel = WorkerChannel(arguments.descriptor)
    os.close(arguments.descriptor)
    with suppress(WireClosed):
        _run(channel, arguments)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shoal.tasks.engine.worker")
    parser.add_argument("descriptor", type=int, help="a connected Unix socket")
    parser.add_argument("--threads", type=int, default=1, help="threads torch computes with")
    parser.add_argument("--memory", type=int, default=0, help="bytes of weights and KV; 0: any")
    parser.add_argument("--device", default="cpu", help="`cpu`, `cuda:0`, …")
    return parser.parse_args()


def offer_to_the_oom_killer() -> None:
    """Make Linux kill this process rather than the daemon when memory runs out."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def lower_priority(nice: int) -> None:
    """Lower the priority of this process, which is alone in its session, by `nice` (1 to 19).

    The owner's programs come first. Linux compares `nice` only within a session, and compares
    sessions by the priority in `/proc/self/autogroup`.
    """
    os.nice(nice)
    with suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(nice))


def _run(channel: WorkerChannel, arguments: argparse.Namespace) -> None:
    """Send `ready` and serve the daemon. End with EXIT_NO_DEVICE if the device cannot be used."""
    import torch

    from .compute.device import ComputeDevice
    from .compute.torchcompute import computing  # imported before `ready`, not at the first load
    from .devicecore import DeviceCore
    from .errors import EngineError
    from .spans.answers import FrameOutput

    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    try:
        device = ComputeDevice(arguments.device)
    except EngineError as error:
        print(f"engine: {error.message}", file=sys.stderr, flush=True)
        os._exit(EXIT_NO_DEVICE)  # torch takes seconds to unload, and the daemon waits for one
    sender = FrameSender(channel)
    gc.freeze()  # excludes the permanent objects: collecting them takes longer than a step
    sender.send(("ready", VERSION, torch.__version__), b"")
    with computing():
        inbox = FrameInbox(channel)
        core = DeviceCore(
            device,
            FrameOutput(sender.send, sender.queue, sender.settle),
            stop=inbox.urgent,
            memory_bytes=arguments.memory,
        )
        _serve(inbox, core)


class FrameSender:
    """Sends frames to the daemon, several at once where possible.

    Each send wakes the daemon up, which costs 0.07 ms. A tiny model computes a token in 1.6 ms.
    """

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._writable = select.poll()
        self._writable.register(channel, select.POLLOUT)
        self._sent = 0.0
        self._queued = False

    def send(self, header: Header, payload: Buffer) -> None:
        """Send a frame now, after all queued ones."""
        self._channel.put(header, payload)
        self._flush()

    def queue(self, header: Header, payload: Buffer) -> None:
        """Queue a frame, which `send` or `settle` sends."""
        self._channel.put(header, payload)
        self._queued = True

    def settle(self, urgent: bool) -> None:
        """Send the queued frames. Unless `urgent`, they wait if something was sent in the last
        PIECE_SECONDS, because another step follows soon."""
        if self._queued and (urgent or time.perf_counter() - self._sent >= PIECE_SECONDS):
            self._flush()

    def _flush(self) -> None:
        while not self._channel.flush():
            self._writable.poll()
        self._sent = time.perf_counter()
        self._queued = False


class FrameInbox:
    """Frames of the daemon, read between steps, and during those of background sessions."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._readable = select.poll()
        self._readable.register(channel, select.POLLIN)
        self._read: list[tuple[Header, memoryview]] = []

    def frames(self, wait: float | None) -> list[tuple[Header, memoryview]]:
        """Return the frames that have arrived. If there are none, wait for `wait` seconds at most
        (None: without limit)."""
        if not self._read:
            self._receive(None if wait is None else math.ceil(1e3 * wait))
        found, self._read = self._read, []
        return found

    def urgent(self) -> bool:
        """Read what has arrived. Return whether an interactive request is among what was read since
        `frames`."""
        self._receive(0)
        return any(begins_request(header) for header, _ in self._read)

    def _receive(self, milliseconds: int | None) -> None:
        if self._readable.poll(milliseconds):
            self._read += self._channel.receive()


def _serve(inbox: FrameInbox, core: "Core") -> None:
    """Process frames and compute, until the connection closes."""
    while True:
        for header, payload in inbox.frames(core.wait):
            core.handle(header, payload)
        if core.busy:
            core.step()


if __name__ == "__main__":
    sys.exit(main())
