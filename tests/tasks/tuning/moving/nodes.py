"""Nodes that train one fine-tuning after the other: one view of jobs, a shelf for each, and calls
between them. The chain computes true gradients."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import trio

from shoal.dht.errors import ModelError
from shoal.state.feeds.entry import FeedName
from shoal.state.views.jobs import Claim, Job, Jobs, claim_fact, job_fact, job_id, new_claim
from shoal.tasks.engine.adapters import module_shapes
from shoal.tasks.engine.families import Architecture
from shoal.tasks.inference.courier import Courier
from shoal.tasks.jobs.fairness import FairQueue
from shoal.tasks.jobs.models import JobModels
from shoal.tasks.jobs.results import JobOutcome, SavedWork
from shoal.tasks.jobs.spec import BlobPart
from shoal.tasks.tuning.interface import Gradients
from shoal.tasks.tuning.moving.checkpoints import Checkpoints
from shoal.tasks.tuning.moving.places import TrainerPlaces
from shoal.tasks.tuning.moving.runner import FinetuneRunner
from shoal.tasks.tuning.moving.spec import SizedBlob, TuningSpec, pack_tuning
from shoal.tasks.tuning.moving.standby import MoveRequests, TrainerStandby
from shoal.tasks.tuning.moving.state import CheckpointTerms, LoadedCheckpoint, Vault
from shoal.tasks.tuning.trainer.checkpoint import run_digest
from shoal.tasks.tuning.trainer.rows import RowsWriter, TrainingRow
from shoal.transport.errors import CallRefused, LinkClosed
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Handler, Refusal, Reply
from tests.dht.models import FakeHost
from tests.tasks.jobs.fake_state import AUTHOR, ME, OTHER
from tests.tasks.tuning.numpy_chain import ARCH, VOCABULARY, NumpyChain, settings

SHAPES = module_shapes(ARCH)
ROOT = "ab" * 32
KIND = "finetune"


class SlowChain(NumpyChain):
    """A chain whose steps take time."""

    def __init__(self, disturb: Callable[[int], Any] | None, step_s: float) -> None:
        super().__init__(disturb)
        self._step_s = step_s

    async def gradients(self, *args: Any) -> Gradients:
        await trio.sleep(self._step_s)
        return await super().gradients(*args)


class NodeShelf:
    """Blobs of one node, which fetches what it lacks from the others of its world."""

    def __init__(self, world: "World") -> None:
        self.blobs: dict[str, bytes] = {}
        self.fetched = 0
        self.asked: list[str] = []  # roots that were fetched
        self._world = world

    async def put(self, data: bytes, author: str = "", *, announced: bool = True) -> str:
        await trio.lowlevel.checkpoint()
        root = hashlib.sha256(data).hexdigest()
        self.blobs[root] = data
        return root

    async def check_room(self, sizes: Mapping[str, int], author: str) -> None:
        await trio.lowlevel.checkpoint()

    async def pin(self, roots: Iterable[str], author: str, *, for_peer: bool) -> None:
        await trio.lowlevel.checkpoint()

    async def read(self, part: BlobPart, author: str, *, for_peer: bool = False) -> bytes:
        await trio.lowlevel.checkpoint()
        if part.root not in self.blobs:
            self.blobs[part.root] = self._from_others(part.root)
        data = self.blobs[part.root]
        if len(data) != part.size:
            raise ModelError("bad-blob", "it has another size")
        return data[part.start : part.stop]

    def _from_others(self, root: str) -> bytes:
        for node in self._world.nodes.values():
            if node.alive and root in node.shelf.blobs:
                self.asked.append(root)
                self.fetched += len(node.shelf.blobs[root])
                return node.shelf.blobs[root]
        raise ModelError("no-source", "no node has it")

    async def drop(self, root: str) -> None:
        await trio.lowlevel.checkpoint()
        self.blobs.pop(root, None)

    async def get(self, root: str, size: int, *, own: bool = True) -> bytes:
        return await self.read(BlobPart(root, size, 0, size), "")

    async def keep(self, root: str, size: int, author: str) -> None:
        await self.get(root, size)

    async def tidy_kept(self, authors: Callable[[str], bool]) -> None:
        await trio.lowlevel.checkpoint()

    async def tidy(self, wanted: Collection[str]) -> None:
        await trio.lowlevel.checkpoint()


class Node:
    """One node that may be the trainer, and the courier of its calls."""

    def __init__(self, world: "World", peer: PeerId, folder: Path) -> None:
        self.world, self.peer, self.folder = world, peer, folder
        self.host = FakeHost(inline=True)
        self.alive = True
        self.shelf = NodeShelf(world)
        self.handlers: dict[str, Handler] = {}
        self.own = {ROOT}
        models = JobModels(dict, trio.current_time, works_for=lambda root: root in self.own)
        self.vault = Vault(self.host, self.shelf)
        self.checkpoints = Checkpoints(self.vault, self.shelf, world.jobs, models, self._arch_of)
        self.stores = True
        courier = cast(Courier, self)
        standby = TrainerStandby(
            self.host,
            courier,
            world.jobs,
            self.checkpoints,
            heirs=lambda job: [peer for peer in world.nodes if peer != self.peer],
            stores_for=lambda peer: self.stores,
        )
        places = TrainerPlaces(self.host.now, FairQueue())
        self.runner = FinetuneRunner(
            self.host, folder / "trained", self, self.checkpoints, standby, places
        )
        self.moves = MoveRequests(courier, world.jobs, self.runner.stop)
        self.runner.pause = 0.0
        self.disturb: Callable[[int], Any] | None = None
        self.step_s = 0.0
        self.chains: list[NumpyChain] = []

    async def _arch_of(self, root: str) -> Architecture:
        await trio.lowlevel.checkpoint()
        return ARCH

    def chain(self, root: str, arch: Architecture, *, job: str = "") -> NumpyChain:
        self.chains.append(SlowChain(self.disturb, self.step_s))
        return self.chains[-1]

    def handle(self, method: str, handler: Handler) -> None:
        self.handlers[method] = handler

    async def meet(self, peer: PeerId) -> None:
        await trio.lowlevel.checkpoint()

    async def call(
        self, peer: PeerId, method: str, header: Mapping[str, object], *, timeout: float
    ) -> Reply:
        node = self.world.nodes[peer]
        if not node.alive:
            raise LinkClosed("unreachable", "no link")
        answer = await node.hear(self.peer, method, header)
        if isinstance(answer, Refusal):
            raise CallRefused(answer.code, answer.message)
        return answer

    async def hear(
        self, peer: PeerId, method: str, header: Mapping[str, object]
    ) -> Reply | Refusal:
        call: Any = SimpleNamespace(peer=peer, header=dict(header))
        answer: Any = self.handlers[method](call)
        found: Reply | Refusal = answer if not hasattr(answer, "__await__") else await answer
        return found

    async def train(self) -> JobOutcome:
        """Claim the job as a worker does, and train until it is done or moves on."""
        job, attempt = self.world.job, self.world.attempts
        self.world.attempts += 1
        self.claim(new_claim(self.peer, job.id, attempt))

        def report(step: int, saved: bytes = b"") -> None:
            self.claim(new_claim(self.peer, job.id, attempt, step=step, saved=saved))

        return await self.runner.run(job, report)

    def claim(self, claim: Claim) -> None:
        if self.alive:
            self.world.jobs.changed(claim.feed, claim.job, claim_fact(claim))


class World:
    """Two nodes, and one fine-tuning."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.jobs = Jobs()
        self.settings = settings(**changes)
        self.attempts = 1
        self.nodes: dict[PeerId, Node] = {}
        for number, peer in enumerate((ME, OTHER)):
            self.nodes[peer] = Node(self, peer, folder / str(number))
        self.me, self.other = self.nodes[ME], self.nodes[OTHER]

    async def prepare(self) -> "World":
        """Write rows in which each token follows from its predecessor, and submit the job."""
        path = self.folder / "rows"
        self.folder.mkdir(exist_ok=True)
        random = np.random.default_rng(1)
        writer = RowsWriter(FakeHost(inline=True), path, self.settings.length)
        for _ in range(40):
            ids = [int(random.integers(VOCABULARY))]
            for _ in range(int(random.integers(4, 16))):
                ids.append((3 * ids[-1] + 1) % VOCABULARY)
            await writer.add([TrainingRow(ids, 1, None)])
        await writer.finish()
        data = path.read_bytes()
        self.data = hashlib.sha256(data).hexdigest()
        rows = SizedBlob(await self.me.shelf.put(data), len(data))
        self.terms = CheckpointTerms(
            self.settings, SHAPES, run_digest(self.settings, self.data), AUTHOR
        )
        self.submit(TuningSpec(ROOT, self.settings, rows, self.data, "tiny"))
        return self

    def submit(self, spec: TuningSpec) -> None:
        """Put the job into the view."""
        self.spec = spec
        nonce = b"n" * 16
        self.job = Job(job_id(AUTHOR, nonce), AUTHOR, KIND, pack_tuning(spec))
        self.jobs.changed(FeedName(AUTHOR, "jobs", 0), self.job.id, job_fact(self.job, nonce))

    async def last(self, outcome: JobOutcome) -> LoadedCheckpoint:
        """Return the state that an outcome names, as its author reads it."""
        work = SavedWork.read(bytes.fromhex(json.loads(outcome.text)["saved"]), 1 << 20)
        return await self.me.vault.load(work, self.terms)
