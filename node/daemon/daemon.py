"""The daemon: creates its parts, starts them in order, and shuts them down.

`run_node` is the entry point for `shoal node` and for the simulator.
"""

from collections.abc import Callable, Mapping
from functools import partial

import trio
from trio import TaskStatus

from ... import __version__
from ...state.group.sealing import box_of
from ...tasks.engine.errors import EngineUnavailable
from ...tasks.serving.interface import NO_TORCH
from ...transport.host.seam import Host
from .. import defaults
from ..control.adapters import AdapterOperations
from ..control.answers import AnswerOperations, new_answers
from ..control.api import ApiOperations
from ..control.blobs import BlobOperations
from ..control.dht import Lookups
from ..control.group import GroupOperations
from ..control.models import ModelOperations
from ..control.operations import Operations
from ..control.plans import PlanOperations
from ..control.removal import Removal
from ..control.server import ControlServer, Operation
from ..control.settings import SettingOperations
from ..control.sharing import SharingOperations
from ..control.state import StateOperations
from ..control.work.jobs import JobOperations
from ..control.work.ownjobs import OwnJobOperations
from ..control.work.tuning import TuningOperations
from ..folder import open_folder
from ..invite import Invitation
from ..settings.applying import LiveParts, LiveSettings
from ..settings.config import NodeConfig
from ..settings.settings import Settings, remember
from ..swarm.bootstrap import Bootstrap, join
from ..swarm.browsers import serve_browsers
from .api import new_api
from .base import Base, EngineFactory, ManagedEngine, Say, prepare
from .compute import ComputeParts
from .content import ContentParts
from .holes import watch_holes
from .measuring import measure_machine
from .memory import check_memory
from .network import NetworkParts
from .telling.fetchprogress import FetchProgress
from .telling.giving import giving_lines
from .telling.jobdisk import watch_job_disk
from .telling.journal import keep_journal
from .work.tuning import TuningParts

__all__ = ["EngineFactory", "ManagedEngine", "Node", "run_node"]

ShowFetch = Callable[[tuple[int, int] | None], None]  # bytes done and in total; None: no fetch
TORCH_HINT = "`pip install torch==2.13.0`, then start the node again"


async def run_node(
    host: Host,
    config: NodeConfig,
    *,
    options: Mapping[str, str] | None = None,
    engine_factory: EngineFactory | None = None,
    say: Say = lambda line: None,
    bar: ShowFetch | None = None,
    task_status: "TaskStatus[Node]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run one daemon until `Node.stop` is called or the task is cancelled.

    `nursery.start` returns the node as soon as its sockets accept connections.

    `options` maps the key of each setting that the owner gave to its text. They are stored in the
    settings file, and all settings of that file apply. The node also logs its peers and answers. If
    `options` is None, only `config` applies and nothing is logged.

    `say` receives lines for the owner. Among them is the progress of fetches, unless `bar` is given
    to display it.

    Raises DataFolderInUse if another daemon runs, and NodeError, HostError or TransportError if
    this one cannot start.
    """
    lock = await open_folder(host, config.folder)
    try:
        given = Settings()
        if options is not None:
            given = await host.offload(remember, host, config.folder, options)
        base = await prepare(host, LiveSettings(config, given), engine_factory, say)
        node = Node(base, bar, logs=options is not None)
        await node.run(task_status=task_status)
    finally:
        lock.release()


class Node:
    """One running daemon. Its parts form four groups, each of which is built from the groups before
    it."""

    def __init__(self, base: Base, bar: ShowFetch | None = None, *, logs: bool = False) -> None:
        """`bar` displays the progress of fetches; without it, the progress is printed as lines.
        `logs` says whether to log peers and answers."""
        self.base = base
        self.network = network = NetworkParts(base)
        self.content = content = ContentParts(base, network)
        self.compute = compute = ComputeParts(base, network, content)
        # Parts that are used by programs which embed the daemon, such as the simulator.
        self.host, self.identity, self.library = base.host, base.identity, base.library
        self.engines, self.health, self.inviter = base.engines, base.health, base.inviter
        self.endpoint, self.dialer, self.listening = (
            network.endpoint, network.dialer, network.listening,
        )  # fmt: skip
        self.state, self.directory = network.state, network.directory
        self.membership, self.discovery = network.membership, network.discovery
        self.names, self.providers, self.exchange = (
            content.names, content.providers, content.exchange,
        )  # fmt: skip
        self.inventory, self.kv = content.inventory, content.kv
        self.gateway, self.stage = compute.gateway, compute.stage
        self.serving, self.working = compute.serving, compute.working
        self.tuning = TuningParts(base, network, content, compute)
        self.api = new_api(base, network, content, compute)
        self.answers = new_answers(base.host, network.endpoint.guard)
        self._bar = bar
        self._logs = logs
        self._restarts = 0  # of the engine's worker process
        self.control = ControlServer(
            base.host, base.config.folder, self._operations(), guard=self.network.endpoint.guard
        )

    def _operations(self) -> Mapping[str, Operation]:
        base, network, content, compute = self.base, self.network, self.content, self.compute
        host, state, directory = base.host, network.state, network.directory
        dht, endpoint = network.discovery.dht, network.endpoint
        live = LiveParts(host, base.library, network.membership, content.quota, network.shaper)
        removal = Removal(content, directory, compute.serving)
        return {
            **Operations(base, network, content, compute, self.tuning).table(),
            **AnswerOperations(base, compute, self.answers).table(),
            **Lookups(dht, content.names, base.library.blobs, directory, endpoint).table(),
            **ModelOperations(host, content, directory, compute.sharing).table(),
            **PlanOperations(host, content, directory, self.gateway.choice.slower).table(),
            **BlobOperations(host, content).table(),
            **removal.table(),
            **AdapterOperations(host, content, removal).table(),
            **StateOperations(state, base.identity.peer).table(),
            **GroupOperations(state, directory, base.credentials).table(),
            **JobOperations(base, state, directory, compute.working).table(),
            **OwnJobOperations(base, state, content, compute.working).table(),
            **SettingOperations(host, base.settings, live).table(),
            **ApiOperations(self.api).table(),
            **SharingOperations(base, compute.sharing).table(),
            **TuningOperations(base, self.tuning).table(),
        }

    @property
    def config(self) -> NodeConfig:
        """The configuration in force."""
        return self.base.config

    # Life.

    async def run(self, *, task_status: "TaskStatus[Node]") -> None:
        """Start the parts in the order of their dependencies, and run until `stop` is called. Then
        wait up to DRAIN_TIME seconds for running requests."""
        with self.base.stalls.watching():
            async with trio.open_nursery() as nursery:
                await self.listening.start(nursery)
                await self._start_parts(nursery)
                task_status.started(self)
                nursery.start_soon(self._enter_swarm, nursery)
                await self.base.stopped.wait()
                await self._drain()
                nursery.cancel_scope.cancel()

    @property
    def stopping(self) -> bool:
        return self.base.stopped.is_set()

    def stop(self) -> None:
        """Begin to shut down: refuse new requests, wait up to DRAIN_TIME seconds for running ones,
        then close everything."""
        self.base.stopped.set()

    async def _drain(self) -> None:
        """Refuse new work, wait up to DRAIN_TIME seconds for running work, then leave the swarm."""
        self.serving.leave()
        self.compute.sharing.sharing.leave()
        self.directory.publish(shards=())
        await self.working.leave()
        await self.tuning.tunings.leave()
        self.compute.tuning_stage.leave()
        with trio.move_on_after(defaults.DRAIN_TIME):
            while self._is_busy():  # noqa: ASYNC110
                await trio.sleep(defaults.DRAIN_LOOK)
        self.working.write_usage()
        await self.discovery.leave()
        await self.network.remembering.write()

    def _is_busy(self) -> bool:
        """Return whether a request of a command, a client of the API or a peer is in progress."""
        running = self.api.running if self.api is not None else 0
        sessions = self.gateway.sessions + self.stage.sessions + self.compute.sharing.running
        sessions += self.compute.tuning_stage.passes
        return bool(self.control.clients or running or sessions)

    async def _start_parts(self, nursery: trio.Nursery) -> None:
        base, compute = self.base, self.compute
        await nursery.start(self.membership.run)
        self.directory.publish(
            addresses=tuple(str(address) for address in self.listening.addresses),
            version=__version__,
            capacity=base.capacity,
        )
        await self.inventory.announce()
        await compute.grouping.enter()
        await nursery.start(self.state.run)
        nursery.start_soon(compute.grouping.run)
        nursery.start_soon(base.credentials.run)
        nursery.start_soon(compute.interest.run)
        await nursery.start(self.discovery.run)
        await nursery.start(self.kv.run)
        nursery.start_soon(self.inventory.announce_chunks)
        await nursery.start(compute.models.run)
        await nursery.start(self.stage.run)
        await nursery.start(self.compute.tuning_stage.run)
        await nursery.start(self.working.run)
        await nursery.start(self.compute.sharing.run)
        for engine in base.engines:
            nursery.start_soon(self._run_engine, engine)
        page = ""
        if self.config.browsers is not None:
            start = partial(serve_browsers, self.host, self.endpoint, self.config.browsers)
            page = await nursery.start(start)
        await nursery.start(self.tuning.tunings.run)
        await nursery.start(self.answers.run)
        await nursery.start(self.control.run)
        api = "" if self.api is None else await nursery.start(self.api.run)
        self._greet(page, api)
        nursery.start_soon(measure_machine, base, self.directory)
        check_memory(base)
        if self._logs:
            counts = self.gateway, self.stage
            repeat = self.endpoint.guard.start_repeated
            repeat(nursery, "members", keep_journal, base.say, self.directory, *counts)

    def _greet(self, page: str, api: str) -> None:
        """Print the node's version, identity and addresses, and the resources that it offers.

        `page` and `api` are URLs, or "".
        """
        base = self.base
        base.say(f"shoal {__version__}, peer {self.identity.peer}")
        for address in self.listening.addresses:
            base.say(f"address {address}")
        if page:
            base.say(f"browsers {page}")
        if api:
            base.say(f"API {api}")
        relaying = self.dialer.relaying.book.limits
        allowance, works = self.content.quota.allowance, self.working.tools.rules.does_jobs
        for line in giving_lines(base, allowance, relaying, works=works):
            base.say(line)

    async def _run_engine(self, engine: ManagedEngine) -> None:
        """Run the engine as soon as the machine has been measured, so that both measure it alone.

        If the engine cannot start, report that; the node stays a member without an engine.
        """
        engine.on_restart(self._engine_restarted)
        await self.base.hardware.settled.wait()
        try:
            await engine.run()
        except EngineUnavailable as error:
            self.health.report("engine", error.message, hint=error.hint or TORCH_HINT)

    def _engine_restarted(self) -> None:
        self._restarts += 1
        times = "once" if self._restarts == 1 else f"{self._restarts} times"
        self.health.report("restarts", f"the engine's worker process ended and restarted {times}")

    async def _enter_swarm(self, nursery: trio.Nursery) -> None:
        """Join or rejoin the swarm, start the tasks that need it, and begin to serve layers."""
        config, remembering = self.config, self.network.remembering
        if config.invitation is not None:
            await self._join(config.invitation)
        known = await remembering.known()
        bootstrap = Bootstrap(self.host, self.dialer, self.health)
        nursery.start_soon(bootstrap.run, config.bootstrap, known)
        self.endpoint.guard.start_repeated(nursery, "members to remember", remembering.run)
        nursery.start_soon(self.content.quota.run)
        nursery.start_soon(self.compute.scrub.run)
        alone = not config.bootstrap and not known and config.invitation is None
        fresh = alone and config.model in (None, defaults.EMBEDDED_MODEL)
        if self.content.embedded.is_needed(fresh=fresh):
            await nursery.start(self.content.embedded.bring)
        if not alone:
            await self._meet_members()
        nursery.start_soon(self.serving.run)
        nursery.start_soon(self._watch_serving)
        self.endpoint.guard.start_repeated(
            nursery, "members", watch_holes, self.host, self.directory, self.health
        )
        self.endpoint.guard.start_repeated(
            nursery, "disk for jobs", watch_job_disk,
            self.content.quota.shortage, lambda: self.working.tools.rules.does_jobs, self.health,
        )  # fmt: skip

    async def _join(self, invitation: Invitation) -> None:
        """Use an invitation, and enter the group of the inviter if it has one."""
        credentials, inviter = self.base.credentials, self.inviter
        box = box_of(self.identity)
        link, handed = await join(self.endpoint, invitation, box, before=inviter.peer)
        before = credentials.private
        self.endpoint.admit_by(await credentials.adopt(handed))
        if not before:
            await self.compute.grouping.enter()
        await inviter.remember(link.peer)
        self.base.say(f"joined the swarm of {link.peer}")

    async def _meet_members(self) -> None:
        """Wait up to MEETING_TIME seconds until this node knows other members and the layers that
        they serve. Its own choice of layers depends on them."""
        with trio.move_on_after(defaults.MEETING_TIME):
            while not self.directory.has_met():  # noqa: ASYNC110
                await trio.sleep(defaults.MEETING_LOOK)

    async def _watch_serving(self) -> None:
        """Print each change of the serving status, and report failures as the condition
        `serving`."""
        said, chosen, progress = "", None, FetchProgress(self.host)
        beside: list[str] = []
        while True:
            status = self.serving.status()
            if status.why != chosen:
                chosen = status.why
                self.base.say(f"chose {chosen}")
            if status.phase == "failed":
                self.health.report("serving", status.text, hint=status.hint)
            elif status.text == NO_TORCH:
                self.health.report("serving", status.text, hint=TORCH_HINT)
            else:
                if status.phase != "choosing":  # it returns to this phase while it fails
                    self.health.clear("serving")
                if status.text != said:
                    said = status.text
                    self.base.say(said)
                if self._bar is not None:
                    fetching = status.phase == "fetching" and bool(status.total_bytes)
                    self._bar((status.done_bytes, status.total_bytes) if fetching else None)
                elif line := progress.line(status):
                    self.base.say(line)
            before, beside = beside, [each.text for each in self.serving.beside()]
            for text in beside:
                if text not in before:
                    self.base.say(f"beside it: {text}")
            await self.serving.changed()
            await trio.sleep(defaults.WATCH)
