"""Process that trains a whole model: `python -m shoal.tasks.tuning.whole.child FD --threads N`.

A blocking loop without network. It has the weights and their derivatives; the trainer in the daemon
has the state of the optimiser. Each request is a frame, and so is its reply (docs/spec/trainer.md).
The process ends when the daemon closes its end of the socket.
"""

import argparse
import importlib.util
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from ....transport.decoding import decode
from ....transport.errors import Undecodable
from ...engine.defaults import EXIT_NO_TORCH, LOAD_DEPTH, LOAD_ITEMS, PAYLOAD_BYTES
from ...engine.errors import EngineError
from ...engine.families import architecture
from ...engine.wire import Buffer, Header, WireClosed, WorkerChannel
from ...engine.worker import FrameInbox, FrameSender, lower_priority, offer_to_the_oom_killer
from .defaults import NICE

if TYPE_CHECKING:
    from .network import WholeNetwork


def main() -> int:
    """Serve the daemon until it closes the socket, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shoal.tasks.tuning.whole.child")
    parser.add_argument("descriptor", type=int, help="a connected Unix socket")
    parser.add_argument("--threads", type=int, default=1, help="threads torch computes with")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon decides when to end
    if importlib.util.find_spec("torch") is None:
        return EXIT_NO_TORCH
    offer_to_the_oom_killer()
    lower_priority(NICE)
    channel = WorkerChannel(arguments.descriptor)
    os.close(arguments.descriptor)
    with suppress(WireClosed):
        _serve(channel, arguments.threads)
    return 0


def _serve(channel: WorkerChannel, threads: int) -> None:
    import torch

    from .network import answer

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    sender, inbox = FrameSender(channel), FrameInbox(channel)
    network: WholeNetwork | None = None
    while True:
        for header, payload in inbox.frames(None):
            try:
                if header[0] == "open":
                    network = _opened(payload)
                    reply, data = _done()
                elif network is None:
                    raise EngineError("no-shard", "no model is open")
                else:
                    reply, data = answer(network, header, payload)
            except EngineError as error:
                reply, data = ("refused", error.code, error.message), b""
            except MemoryError:
                reply, data = ("refused", "no-memory", "the system refused memory"), b""
            sender.send(reply, data)


def _done() -> tuple[Header, Buffer]:
    return ("ok",), b""


def _opened(payload: memoryview) -> "WholeNetwork":
    """Return a network for a config.json. Raises EngineError if this engine cannot train it."""
    from .network import WholeNetwork

    try:
        config = decode(payload, limit=PAYLOAD_BYTES // 4, depth=LOAD_DEPTH, items=LOAD_ITEMS)
    except Undecodable as error:
        raise EngineError("bad-config", f"the config cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise EngineError("bad-config", "the config is malformed")
    return WholeNetwork(architecture(config))


if __name__ == "__main__":
    sys.exit(main())
