"""The worker process: `python -m shoal.tasks.engine.worker FD --threads N [--memory BYTES]`.

One plain blocking loop, no network, no trio. Between steps it looks at its socket without
waiting, so requests and cancellations reach a running token loop after one step. It ends when the
daemon's end of the socket closes.
"""

import argparse
import gc
import importlib.util
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from .defaults import EXIT_NO_TORCH, PIECE_SECONDS
from .wire import Buffer, Channel, Header, WireClosed

if TYPE_CHECKING:
    from .core import Core

VERSION = 1


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon decides when to end
    if importlib.util.find_spec("torch") is None:
        return EXIT_NO_TORCH
    _offer_to_the_oom_killer()
    channel = Channel(arguments.descriptor)
    os.close(arguments.descriptor)
    with suppress(WireClosed):
        _run(channel, arguments.threads, arguments.memory)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shoal.tasks.engine.worker")
    parser.add_argument("descriptor", type=int, help="a connected Unix socket")
    parser.add_argument("--threads", type=int, default=1, help="threads torch computes with")
    parser.add_argument("--memory", type=int, default=0, help="bytes of weights and KV; 0: any")
    return parser.parse_args()


def _offer_to_the_oom_killer() -> None:
    """Let Linux kill this process, and not the daemon, when memory runs out."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def _run(channel: Channel, threads: int, memory_bytes: int) -> None:
    import torch

    from .compute import computing  # now, not at the first load
    from .core import Core

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    sender = Sender(channel)
    gc.freeze()  # a full collection over what stays anyway takes longer than a step
    sender.send(("ready", VERSION, torch.__version__), b"")
    with computing():
        _serve(channel, Core(sender.send, sender.send_soon, memory_bytes=memory_bytes))


class Sender:
    """Sends frames to the daemon. A wakeup costs 0.07 ms of a tiny model's 1.6 ms per token."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._writable = select.poll()
        self._writable.register(channel, select.POLLOUT)
        self._sent = 0.0

    def send(self, header: Header, payload: Buffer) -> None:
        """Send a frame and all waiting ones now."""
        self._channel.put(header, payload)
        while not self._channel.flush():
            self._writable.poll()
        self._sent = time.perf_counter()

    def send_soon(self, header: Header, payload: Buffer) -> None:
        """Send a frame with the next one, or now if none was sent for PIECE_SECONDS.

        Another frame must follow soon.
        """
        if time.perf_counter() - self._sent < PIECE_SECONDS:
            self._channel.put(header, payload)
        else:
            self.send(header, payload)


def _serve(channel: Channel, core: "Core") -> None:
    readable = select.poll()
    readable.register(channel, select.POLLIN)
    while True:
        if readable.poll(0 if core.busy else None):
            for header, payload in channel.receive():
                core.handle(header, payload)
        if core.busy:
            core.step()


if __name__ == "__main__":
    sys.exit(main())
