"""The daemon: builds its parts, starts them in order and ends them cleanly.

`run_node` is the entry point, both for `shoal node` and for the simulator.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import trio
from trio import TaskStatus

from ... import __version__
from ...dht.content.library import Library
from ...dht.content.quota import Quota
from ...dht.content.scrub import Scrub
from ...dht.exchange.exchange import Exchange
from ...dht.exchange.proving import Proving
from ...dht.kv.index import KvIndex
from ...state.errors import StateError, StoreRefused
from ...state.group.sealing import box_of
from ...state.listing import Listing
from ...state.membership.membership import Membership
from ...state.membership.record import Capacity
from ...state.service import State
from ...tasks.engine.errors import EngineUnavailable
from ...tasks.engine.families import check_model
from ...tasks.engine.process import EngineProcess
from ...tasks.inference.courier import Courier
from ...tasks.inference.gateway import Gateway
from ...tasks.inference.models import Models
from ...tasks.inference.sources import Sources
from ...tasks.inference.stage import Stage
from ...tasks.placement.probe import probe
from ...tasks.serving.serving import NO_TORCH, Device, RestartingEngine, Serving, ServingSettings
from ...transport.address import Address
from ...transport.dial.endpoint import Endpoint
from ...transport.host.seam import Host
from ...transport.identity import IDENTITY_FILE, Identity, PeerId, load_or_create_identity
from ...transport.lane.shaper import Shaper
from ...transport.link.link import Link
from ...transport.strategies.dialer import Dialer
from .. import defaults
from ..control.blobs import BlobOperations
from ..control.diagnosis import Diagnosis
from ..control.group import GroupOperations
from ..control.jobs import JobOperations
from ..control.models import ModelOperations
from ..control.operations import Operations
from ..control.removal import Removal
from ..control.server import ControlServer
from ..control.settings import SettingOperations
from ..control.state import StateOperations
from ..folder import disk_error, disk_errors, open_folder, remember_inviter, remembered_inviter
from ..health import Condition, Health
from ..models.consent import backing_of
from ..models.inventory import Holdings
from ..models.names import names_of
from ..models.providers import Providers
from ..settings.applying import caps_of, disk_of, relaying_of
from ..settings.config import NodeConfig
from ..settings.settings import Settings, remember
from ..swarm.bootstrap import Bootstrap, join
from ..swarm.browsers import serve_browsers
from ..swarm.credentials import Credentials
from ..swarm.discovery import Discovery
from ..swarm.grouping import Grouping
from ..swarm.remembering import Remembering
from ..swarm.seeking import Seeking
from .draining import drain
from .embedded import EmbeddedModel
from .fetchprogress import FetchProgress
from .giving import giving_lines
from .holes import watch_holes
from .interest import Keeping, keeps_all
from .jobs import Working
from .journal import keep_journal
from .listening import Listening
from .memory import check_memory
from .mishaps import Mishaps
from .stall import StallGuard


class ManagedEngine(RestartingEngine, Protocol):
    """Engine that runs as a task: the worker process, or the simulator's engine."""

    @property
    def pid(self) -> int | None:
        """Process id of the worker, while it lives."""
        ...

    async def run(self, *, task_status: TaskStatus[None] = ...) -> None: ...


EngineFactory = Callable[[Host, int, int], ManagedEngine | None]  # host, threads, bytes of memory
Say = Callable[[str], None]
ShowFetch = Callable[[tuple[int, int] | None], None]  # bytes done and in total; None: no fetch
NO_ENGINE = "this node has no engine, as its owner chose: it serves no layers"
TORCH_HINT = "`pip install torch==2.13.0`, then start the node again"


def worker_process(host: Host, threads: int, memory: int) -> ManagedEngine:
    """Return the engine for real machines: a worker process of this daemon."""
    return EngineProcess(host, threads=threads, memory_bytes=memory)


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
    """Run one daemon until `Node.stop` or cancellation.

    `nursery.start` returns the node as soon as its sockets answer.

    `options` are settings by key, as a person typed them. They are written to the settings file,
    which is read as well. With None, `config` alone counts. `say` receives lines for a person,
    including the progress of a fetch unless `bar` is given. Raises DataFolderInUse, NodeError,
    HostError, TransportError.
    """
    lock = await open_folder(host, config.folder)
    try:
        settings = Settings()
        if options is not None:
            settings = await host.offload(remember, host, config.folder, options)
        node = await Node.prepare(host, settings.applied(config), say)
        node.settings = settings
        node.keeps_journal = options is not None
        node.show_fetches(bar)
        node.compute(engine_factory)
        await node.run(task_status=task_status)
    finally:
        lock.release()


class Node:
    """One running daemon: the parts that the operations read, and `stop`."""

    def __init__(
        self,
        host: Host,
        config: NodeConfig,
        identity: Identity,
        credentials: Credentials,
        library: Library,
        capacity: Capacity,
        say: Say,
    ) -> None:
        self.host = host
        self.config = config
        self.identity = identity
        self.credentials = credentials
        self.library = library
        self.capacity = capacity
        self.began = host.now()
        self.health = Health(self._tell)
        self.stalls = StallGuard(host, defaults.STALL)
        self.inviter: PeerId | None = None
        """The peer whose invitation this node used last."""
        self.settings = Settings()
        """The settings in force; `config` was made from them."""
        self.say = say
        self.keeps_journal = False  # log peers and answers to `say`
        self._bar: ShowFetch | None = None
        self._stop = trio.Event()
        self._restarts = 0  # of the engine's worker
        self.shaper = Shaper(caps_of(config), host.now())
        self.endpoint = Endpoint(
            host,
            identity,
            admission=credentials.admission(config.invitation),
            shaper=self.shaper,
        )
        guard = self.endpoint.guard
        guard.report = Mishaps(self.health).add
        self.membership = Membership(
            host, self.endpoint, identity, links=config.links, connect=self._connect
        )
        self.dialer = Dialer(
            host,
            self.endpoint,
            strategies=replace(config.strategies, web_port=config.port_443 is None),
            relaying=relaying_of(config),
            key=identity.seed,
            book=lambda peer: self.directory.where(peer) or self.discovery.dht.where(peer),
        )
        self.state = State(
            host,
            self.endpoint,
            identity,
            config.folder.state,
            trouble=self._state_trouble,
            keeps=None if keeps_all(host, config) else (),
        )
        self.directory = Listing(host, self.membership, self.state)
        self.keeping = Keeping(library, self.directory, self.state)
        self.grouping = Grouping(
            self.state, credentials, self.endpoint, self.membership, self.health
        )
        self.discovery = Discovery(host, identity, self.dialer, self.directory, self.health, config)
        self.listening = Listening(host, config, self.endpoint, self.dialer, self.directory, say)
        self.diagnosis = Diagnosis(
            self.dialer, config.listen, host.interfaces, port_443=bool(config.port_443)
        )
        self.providers = Providers(host, self.discovery.dht, self.dialer)
        self.names = names_of(self.discovery.dht, library, self.directory, self.state.views.models)
        self.kv = KvIndex(
            host, self.endpoint, self.discovery.dht, connect=self.providers.connect, guard=guard
        )
        self.exchange = Exchange(
            host, self.endpoint, library, swarm=self.providers.swarm, guard=guard
        )
        self.holdings = Holdings(
            library, self.exchange, self.directory, self.endpoint, self.providers, self.health, say
        )
        self.remembering = Remembering(
            host, config.folder, self.endpoint, self.directory, self.health
        )
        self.exchange.quota = self.quota = Quota(
            host,
            library,
            disk_of(host, config, library),
            claims=self.holdings.claims,
            proof=Proving(
                host, library, self.exchange.provider, connect=self.providers.connect, guard=guard
            ),
            in_use=self.holdings.in_use,
            withdraw=self.holdings.evicted,
        )
        self.scrub = Scrub(
            host,
            library,
            config.folder.scrub,
            repair=self.holdings.repair,
            tell=self.holdings.mended,
            idle=lambda: (
                not (self.gateway.sessions or self.stage.sessions or self.exchange.fetching())
            ),
        )
        self.embedded = EmbeddedModel(host, library, self.directory, self.holdings, self.health)
        self.sources = Sources(
            library,
            self.exchange,
            self.directory,
            restore=self.embedded.restore,
            reserve=self.quota.pass_through,
            names=self.names.resolve,
            guard=guard,
        )
        self.models = Models(
            host,
            self.sources,
            memory=lambda: self.capacity.memory_bytes - self.serving.loaded_bytes,
        )

    @classmethod
    async def prepare(cls, host: Host, config: NodeConfig, say: Say) -> "Node":
        """Load or create the contents of the data folder: identity, keys, library, measurements."""
        with disk_errors(config.folder):
            known = await host.offload(host.files.size, config.data / IDENTITY_FILE)
            identity = await load_or_create_identity(host, config.data)
            credentials = await Credentials.load(
                host, config.folder, identity, private=config.private
            )
            library = Library(host, config.folder.library, check_config=check_model)
            await library.open()
            capacity = await probe(host, config.data, memory=config.memory)
            inviter = await remembered_inviter(host, config.folder)
        node = cls(host, config, identity, credentials, library, capacity, say)
        node.inviter = inviter
        if known is None:
            node.state.hold = 0.0  # a new identity: no other node can have more of its feeds
        return node

    def show_fetches(self, bar: ShowFetch | None) -> None:
        """Send the progress of fetches to `bar` instead of printing lines."""
        self._bar = bar

    def compute(self, factory: EngineFactory | None) -> None:
        """Build the parts that compute: engine, stage, gateway and serving.

        Without a factory, the engine is the worker process, if torch is installed. A factory that
        returns None means that this node has no engine.
        """
        host, config, memory = self.host, self.config, self.capacity.memory_bytes
        courier = Courier(self.endpoint, self._meet)
        threads = config.threads or self.capacity.cores
        make = factory or worker_process
        there = factory is not None or self.capacity.engine
        self.engine = make(host, threads, memory) if there else None
        self.capacity = replace(self.capacity, engine=self.engine is not None)
        self.stage = Stage(host, courier, self.engine)
        seeking = Seeking(
            host,
            self.discovery.dht,
            self.directory,
            self.providers,
            self.keeping.look,
            self.endpoint.guard,
        )
        self.gateway = Gateway(host, courier, self.directory, self.models, seek=seeking.seek)
        settings = ServingSettings(memory, config.model, config.layers, config.dtype)
        device = Device(self.stage, self.engine, NO_TORCH if factory is None else NO_ENGINE)
        self.serving = Serving(
            host, device, self.sources, settings, backing=partial(backing_of, self)
        )
        self.grouping.serving = self.serving
        self.discovery.speed = lambda: self.stage.speed.tokens_per_s
        self.working = Working(self)
        self.keeping.chooses = self.engine is not None and config.model is None
        self.keeping.works = self.working.does_jobs
        self.keeping.look()
        operations = {
            **Operations(self).table(),
            **ModelOperations(self).table(),
            **BlobOperations(self).table(),
            **Removal(self).table(),
            **StateOperations(self).table(),
            **GroupOperations(self).table(),
            **JobOperations(self).table(),
            **SettingOperations(self).table(),
        }
        self.control = ControlServer(host, config.folder, operations, guard=self.endpoint.guard)

    # Life.

    async def run(self, *, task_status: "TaskStatus[Node]") -> None:
        """Start the parts in order of dependency. When stopped, finish running requests first."""
        with self.stalls.watching():
            async with trio.open_nursery() as nursery:
                await self.listening.start(nursery)
                await self._start_parts(nursery)
                task_status.started(self)
                nursery.start_soon(self._enter_swarm, nursery)
                await self._stop.wait()
                await drain(self)
                nursery.cancel_scope.cancel()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Shut down: refuse new requests, give running ones DRAIN_TIME, then close everything."""
        self._stop.set()

    async def _connect(self, peer: PeerId, addresses: Sequence[Address]) -> Link:
        timeout = defaults.CONNECT_TIMEOUT
        return await self.dialer.connect(peer, addresses, timeout=timeout, needed=False)

    async def _meet(self, peer: PeerId) -> None:
        """Link to a live member that a session needs. Do nothing for any other peer."""
        if peer in self.directory.members():
            addresses = self.directory.where(peer)
            await self.dialer.connect(peer, addresses, timeout=defaults.MEET_TIMEOUT)

    async def _start_parts(self, nursery: trio.Nursery) -> None:
        await nursery.start(self.membership.run)
        self.directory.publish(
            addresses=tuple(str(address) for address in self.listening.addresses),
            version=__version__,
            capacity=self.capacity,
        )
        await self.holdings.announce()
        await self.grouping.enter()
        await nursery.start(self.state.run)
        nursery.start_soon(self.grouping.run)
        nursery.start_soon(self.credentials.run)
        nursery.start_soon(self.keeping.run)
        await nursery.start(self.discovery.run)
        await nursery.start(self.kv.run)
        nursery.start_soon(self.holdings.announce_chunks)
        await nursery.start(self.models.run)
        await nursery.start(self.stage.run)
        await nursery.start(self.working.run)
        if self.engine is not None:
            nursery.start_soon(self._run_engine, self.engine)
        page = ""
        if self.config.browsers is not None:
            start = partial(serve_browsers, self.host, self.endpoint, self.config.browsers)
            page = await nursery.start(start)
        await nursery.start(self.control.run)
        self.say(f"shoal {__version__}, peer {self.identity.peer}")
        for address in self.listening.addresses:
            self.say(f"address {address}")
        if page:
            self.say(f"browsers {page}")
        for line in giving_lines(self):
            self.say(line)
        check_memory(self)
        if self.keeps_journal:
            nursery.start_soon(keep_journal, self)

    async def _run_engine(self, engine: ManagedEngine) -> None:
        """Run the engine. If it cannot start, the node stays a member without one."""
        engine.on_restart(self._engine_restarted)
        try:
            await engine.run()
        except EngineUnavailable as error:
            self.health.report("engine", error.message, hint=error.hint or TORCH_HINT)

    def _engine_restarted(self) -> None:
        self._restarts += 1
        times = "once" if self._restarts == 1 else f"{self._restarts} times"
        self.health.report("restarts", f"the engine's worker process ended and restarted {times}")

    async def _enter_swarm(self, nursery: trio.Nursery) -> None:
        config = self.config
        if config.invitation is not None:
            link, handed = await join(
                self.endpoint, config.invitation, box_of(self.identity), before=self.inviter
            )
            before = self.credentials.private
            self.endpoint.admission = await self.credentials.adopt(handed)
            if not before:
                await self.grouping.enter()
            self.inviter = link.peer
            with disk_errors(config.folder):
                await remember_inviter(self.host, config.folder, link.peer)
            self.say(f"joined the swarm of {link.peer}")
        known = await self.remembering.known()
        bootstrap = Bootstrap(self.host, self.dialer, self.health)
        nursery.start_soon(bootstrap.run, config.bootstrap, known)
        nursery.start_soon(self.remembering.run)
        nursery.start_soon(self.quota.run)
        nursery.start_soon(self.scrub.run)
        alone = not config.bootstrap and not known and config.invitation is None
        fresh = alone and config.model in (None, defaults.EMBEDDED_MODEL)
        if self.embedded.is_needed(fresh=fresh):
            await nursery.start(self.embedded.bring)
        if not alone:
            await self._meet_somebody()
        nursery.start_soon(self.serving.run)
        nursery.start_soon(self._watch_serving)
        self.endpoint.guard.start(
            nursery, "members", watch_holes, self.host, self.directory, self.health
        )

    async def _meet_somebody(self) -> None:
        """Wait up to MEETING_TIME for other members, to choose layers with their records known."""
        with trio.move_on_after(defaults.MEETING_TIME):
            while not self.directory.has_met():  # noqa: ASYNC110
                await trio.sleep(defaults.MEETING_LOOK)

    # Messages for the owner.

    def _state_trouble(self, condition: str, error: StateError | None) -> None:
        if error is None:
            self.health.clear(condition)
        elif isinstance(error, StoreRefused):
            trouble = disk_error(self.config.folder, error.error)
            self.health.report(condition, trouble.message, hint=trouble.hint)
        else:
            self.health.report(condition, error.message, hint=error.hint)

    def _tell(self, condition: Condition) -> None:
        self.say(f"warning: {condition.sentence}")
        if condition.hint:
            self.say(f"hint: {condition.hint}")

    async def _watch_serving(self) -> None:
        """Print changes of the serving status, and keep the `serving` condition up to date."""
        said, chosen, progress = "", None, FetchProgress(self.host)
        while True:
            status = self.serving.status()
            if status["why"] != chosen:
                chosen = status["why"]
                self.say(f"chose {chosen}")
            if status["phase"] == "failed":
                self.health.report("serving", status["text"], hint=status["hint"])
            elif status["text"] == NO_TORCH:
                self.health.report("serving", status["text"], hint=TORCH_HINT)
            else:
                if status["phase"] != "choosing":  # it returns to this phase while it fails
                    self.health.clear("serving")
                if status["text"] != said:
                    said = status["text"]
                    self.say(said)
                if self._bar is not None:
                    fetching = status["phase"] == "fetching" and bool(status["total_bytes"])
                    self._bar((status["done_bytes"], status["total_bytes"]) if fetching else None)
                elif line := progress.line(status):
                    self.say(line)
            await self.serving.changed()
            await trio.sleep(defaults.WATCH)
