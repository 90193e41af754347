"""Fine-tunings that average, on simulated computers: real links, feeds and transfers, and a model
in numpy."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host as Machine
from shoal.state.service import State
from shoal.state.settings import StateSettings
from shoal.tasks.engine.families import Architecture
from shoal.tasks.text.frames import TextInfo
from shoal.tasks.text.process import ChatTurn
from shoal.tasks.tuning.averaging.averager import AveragingNode
from shoal.tasks.tuning.averaging.parcels import Parcels
from shoal.tasks.tuning.interface import Gradients
from shoal.tasks.tuning.trainer.accepting import Request, Tunable
from shoal.tasks.tuning.trainer.running import Tuning
from shoal.tasks.tuning.trainer.settings import Wishes
from shoal.tasks.tuning.trainer.surroundings import Surroundings
from shoal.tasks.tuning.trainer.tunings import Tunings
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import DialFailed
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.identity import Identity
from shoal.transport.link.link import Link
from tests.tasks.tuning.bigram import Bigrams
from tests.tasks.tuning.numpy_chain import ARCH, VOCABULARY, NumpyChain

PORT = 4001
ROOT = "ab" * 32
STEP_S = 0.5  # of one call of a chain


class Numbers:
    """An encoder of texts that are numbers: each is a token."""

    info = TextInfo(VOCABULARY, None, 1, (1,), False)

    async def encode(self, text: str) -> list[int]:
        await trio.lowlevel.checkpoint()
        return [int(word) for word in text.split()]

    async def encode_chat(
        self, messages: Sequence[ChatTurn], *, add_generation_prompt: bool = True
    ) -> list[int]:
        raise AssertionError


MODEL = Tunable(ROOT, ARCH, 64, Numbers())


def lines(seed: int, count: int) -> list[str]:
    """Return rows of numbers. Each follows from its predecessor by one rule for all seeds."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        ids = [int(random.integers(VOCABULARY))]
        for _ in range(int(random.integers(4, 16))):
            ids.append((3 * ids[-1] + 1) % VOCABULARY)
        found.append(" ".join(map(str, ids)))
    return found


def turned(found: Gradients) -> Gradients:
    """Return gradients that raise the loss."""
    return replace(found, tensors={name: -each for name, each in found.tensors.items()})


class SlowChain(NumpyChain):
    """Takes simulated time for each step, and can spoil what it returns."""

    def __init__(self, spoil: Callable[[Gradients], Gradients] | None, step_s: float) -> None:
        super().__init__(lambda _number: spoil)
        self._step_s = step_s

    async def gradients(self, *args: Any, **more: Any) -> Gradients:
        await trio.sleep(self._step_s)
        return await super().gradients(*args, **more)


class Trainer:
    """Program for a simulated computer: the fine-tunings of one daemon, and what they need."""

    def __init__(self, machine: Machine, number: int, rows: int) -> None:
        self.machine = machine
        self.number = number  # seed of its rows
        self.rows = rows
        self.identity = Identity.from_seed(number.to_bytes(32))
        self.others: Sequence[Address] = ()
        self.spoil: Callable[[Gradients], Gradients] | None = None
        self.step_s = STEP_S
        self.published: list[dict[Any, Any]] = []
        self.whole = Bigrams()
        self.lives = 0

    @property
    def address(self) -> Address:
        return Address(self.machine.addresses()[0], PORT, self.identity.peer)

    def chain(self, root: str, arch: Architecture) -> SlowChain:
        assert root == ROOT and arch is ARCH
        return SlowChain(self.spoil, self.step_s)

    async def run(self, machine: Machine, *, task_status: "trio.TaskStatus[Any]") -> None:
        async with trio.open_nursery() as nursery:
            host = SimulatedHost(machine, PROFILES["desktop"], nursery, self.lives)
            self.lives += 1
            self.host = host
            self.endpoint = Endpoint(host, self.identity, admission=OpenSwarm())
            settings = StateSettings(Path("/data"), hold=0.0)
            state = State(host, self.endpoint, self.identity, settings, trouble=lambda *_: None)
            self.parcels = Parcels(host, self.endpoint, self._connect)
            await nursery.start(self.endpoint.run, "0.0.0.0", PORT)
            await nursery.start(state.run)
            for address in self.others:
                (await self.endpoint.dial(address, timeout=10)).keep()
            self.node = AveragingNode(host, state, self.identity.peer, self.parcels)
            self.whole.step_s = self.step_s
            self.around = Surroundings(
                self, self._arch_of, self._publish, self._named, self.node, whole=self.whole
            )
            self.tunings = Tunings(host, Path("/tuning"), self.around)
            await nursery.start(self.tunings.run)
            task_status.started(self)
            await trio.sleep_forever()

    async def begin(self, **wishes: Any) -> Tuning:
        """Begin a fine-tuning with rows of this node's own."""
        given = {"modules": ("q_proj",), "rank": 4, "batch": 4, "rate": 0.02, "seed": self.number,
                 "steps": 40, "every": 10, "held_out": 0.2, "together": "ours"}  # fmt: skip
        path = Path("/data.jsonl")
        text = "".join(json.dumps({"text": each}) + "\n" for each in lines(self.number, self.rows))
        self.host.files.write(path, text.encode())
        wished = Wishes(**{**given, **wishes})
        return await self.tunings.begin(Request("tiny", path, wished), MODEL, lambda *_: None)

    async def _arch_of(self, _root: str) -> Architecture:
        await trio.lowlevel.checkpoint()
        return ARCH

    async def _named(self) -> set[str]:
        await trio.lowlevel.checkpoint()
        return set()

    async def _publish(self, folder: Path, _name: str, _base: str) -> str:
        await trio.lowlevel.checkpoint()
        self.published.append({"bytes": self.host.files.read(
            folder / "adapter_model.safetensors", limit=1 << 24)})  # fmt: skip
        return "cd" * 32

    async def _connect(self, peer: str) -> Link:
        known = self.endpoint.link(peer)  # type: ignore[arg-type]
        if known is None:
            raise DialFailed.unreachable(peer, "there is no link")
        return known
