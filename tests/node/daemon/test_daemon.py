"""`run_node` as the simulator uses it: in this process, with another engine."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio import TaskStatus

from shoal.node.daemon.daemon import Node, run_node
from shoal.node.daemon.telling import journal
from shoal.node.errors import DataFolderInUse, NodeError
from shoal.node.invite import decode
from shoal.node.settings.config import NodeConfig
from shoal.tasks.engine.adapters import LoadAdapter
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import (
    DEFAULT_TERMS,
    EngineEvent,
    KvForm,
    KvRange,
    KvSource,
    Loaded,
    LoadShard,
    SessionId,
    SessionTerms,
    Span,
)
from shoal.transport.address import Address
from shoal.transport.errors import AddressInUse
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import Host
from shoal.transport.shortid import short

HOST = RealHost()


class FakeEngine:
    """An engine that loads at once and answers every span with the next token id."""

    pid: int | None = None

    def __init__(self, _host: Host, _threads: int, _memory: int) -> None:
        self.loaded: list[LoadShard] = []
        self.events: dict[SessionId, Callable[[EngineEvent], None]] = {}

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    def on_restart(self, callback: Callable[[], None]) -> None:
        """Do nothing: this engine never crashes."""

    async def load(self, shard: LoadShard, number: int = 0) -> Loaded:
        self.loaded.append(shard)
        return Loaded(1, 1, 0.0, frozenset({"forward"}))

    async def adapt(self, adapter: LoadAdapter, shard: int = 0) -> None:
        await trio.lowlevel.checkpoint()

    async def open(
        self,
        session: SessionId,
        tokens: int,
        on_event: Callable[[EngineEvent], None],
        terms: SessionTerms = DEFAULT_TERMS,
    ) -> int:
        self.events[session] = on_event
        return 0

    async def recall(
        self, session: SessionId, position: int, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        await trio.lowlevel.checkpoint()

    def submit(self, span: Span) -> None:
        """Never answer: a session lasts until it is closed."""

    def hold(self) -> None:
        """Do nothing: there is no background work."""

    def cancel(self, session: SessionId) -> None:
        """Do nothing: nothing runs."""

    async def unload(self, number: int) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self, session: SessionId, names: bytes = b"") -> None:
        self.events.pop(session, None)

    async def export_kv(self, session: SessionId) -> bytes:
        raise EngineError("unsupported", "no export here")

    async def import_kv(self, session: SessionId, state: bytes) -> int:
        raise EngineError("unsupported", "no import here")

    async def read_kv(self, source: KvSource, part: KvRange, form: KvForm = "exact") -> bytes:
        raise EngineError("unsupported", "no parts here")

    async def write_kv(self, session: SessionId, part: bytes, *, doubted: bool = False) -> int:
        raise EngineError("unsupported", "no parts here")

    def expect_kv(self, session: SessionId, expected: bool) -> None:
        """Do nothing: there are no parts."""

    async def bring_kv(
        self, session: SessionId, part: bytes, start: int, stop: int, *, doubted: bool = False
    ) -> int:
        raise EngineError("unsupported", "no parts here")

    async def fork(self, session: SessionId, into: SessionId) -> None:
        raise EngineError("unsupported", "no fork here")

    async def usage(self) -> dict[str, int]:
        return {}


class Running:
    """A node under test, the lines it printed, and its control socket."""

    def __init__(self, node: Node, said: list[str]) -> None:
        self.node = node
        self.said = said

    async def stream(self, op: str, **more: Any) -> trio.SocketStream:
        stream = await trio.open_unix_socket(str(self.node.config.folder.control_socket))
        await stream.send_all(json.dumps({"op": op, **more}).encode() + b"\n")
        return stream

    async def ask(self, op: str, **more: Any) -> dict[str, Any]:
        async with await self.stream(op, **more) as stream:
            data = b""
            while piece := await stream.receive_some(65536):
                data += piece
        answer: dict[str, Any] = json.loads(data.splitlines()[-1])
        return answer

    async def until(self, true: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        while True:
            status: dict[str, Any] = (await self.ask("status"))["ok"]
            if true(status):
                return status
            await trio.sleep(0.02)


def config(data: Path, **more: Any) -> NodeConfig:
    return NodeConfig(data=data, listen="127.0.0.1", memory=1 << 30, **more)


@asynccontextmanager
async def running(
    settings: NodeConfig, options: dict[str, str] | None = None
) -> AsyncIterator[Running]:
    said: list[str] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            start = partial(
                run_node, HOST, settings, options=options, engine_factory=FakeEngine,
                say=said.append,
            )  # fmt: skip
            node = await nursery.start(start)
            yield Running(node, said)
            node.stop()


@pytest.mark.trio
async def test_a_first_node_serves_the_embedded_model(tmp_path: Path) -> None:
    async with running(config(tmp_path)) as node:
        status = await node.until(lambda status: status["serving"]["phase"] == "serving")
        assert status["serving"]["shard"]["model"] == "tiny"
        assert status["models"][0]["complete"] and status["models"][0]["local"]
        assert status["health"] == [] and status["capacity"]["engine"]
        assert [str(node.node.identity.peer)] == [a.split("/")[-1] for a in status["addresses"]]
        shown = (await node.ask("model_show", name="tiny"))["ok"]
        assert shown["config"]["vocab_size"] and shown["providers"][0]["layers"] == "0:6"
        told = (await node.ask("models"))["ok"]["models"]
        assert told == [model | {"lacks": 0} for model in status["models"]]
        assert (await node.ask("ping"))["ok"]["pid"]
    assert node.said[0].startswith("shoal ") and any("address /ip4" in line for line in node.said)
    assert not tmp_path.joinpath("control.sock").exists()


@pytest.mark.trio
async def test_identity_and_port_are_stable(tmp_path: Path) -> None:
    addresses = []
    for _ in range(2):
        async with running(config(tmp_path)) as node:
            addresses.append((await node.ask("status"))["ok"]["addresses"])
    assert addresses[0] == addresses[1]


@pytest.mark.trio
async def test_two_nodes_link_and_remember_each_other(tmp_path: Path) -> None:
    async with running(config(tmp_path / "a")) as first:
        bootstrap = (Address.parse((await first.ask("status"))["ok"]["addresses"][0]),)
        async with running(config(tmp_path / "b", bootstrap=bootstrap)) as second:
            await second.until(lambda status: status["peers"] == 1)
            await first.until(lambda status: status["peers"] == 1)
            status = await second.until(lambda status: status["serving"]["phase"] == "serving")
            assert status["serving"]["shard"]["model"] == "tiny", "fetched from the first"
            (peer,) = (await second.ask("peers"))["ok"]["peers"]
            assert peer["peer"] == first.node.identity.peer and peer["bytes_in"] > 0
        async with running(config(tmp_path / "b")) as again:
            await again.until(lambda status: status["peers"] == 1)


@pytest.mark.trio
async def test_start_prints_what_is_offered_and_the_settings(tmp_path: Path) -> None:
    options = {"memory": "120MiB", "up": "4Mbit", "relay": "none", "port-mapping": "no"}
    async with running(config(tmp_path), options) as node:
        pass
    said = "\n".join(node.said)
    for line in (
        "memory     120 MiB for layers and answers (--memory), and about 400 MiB for the programs",
        "device     cpu",
        "disk       at most ",
        "bandwidth  up 500 kB/s (--up), down no limit (--down)",
        "jobs       of any node of the swarm, while no other request waits (--no-jobs)",
        "relaying   none (--relay)",
        "router     not asked to open a port (--port-mapping)",
        "settings   memory 120MiB (option), up 4Mbit (option), relay none (option), "
        "port-mapping no (option); `shoal config` changes them",
        "warning: 120 MiB of memory is less than one layer",
    ):
        assert f"\n{line}" in said, said
    async with running(config(tmp_path), {"jobs": "no"}) as node:
        pass
    assert any(line.startswith("jobs       none of other nodes (--jobs)") for line in node.said)
    assert any("up 4Mbit (file)" in line and "jobs no (option)" in line for line in node.said)


@pytest.mark.trio
async def test_settings_change_while_a_daemon_runs(tmp_path: Path) -> None:
    async with running(config(tmp_path), {"up": "4Mbit"}) as node:
        part = node.node
        assert (await node.ask("config_set", key="up", text="1MB"))["ok"]["applied"]
        assert part.endpoint.shaper is not None and part.endpoint.shaper.caps.up.node == 10**6
        await node.ask("config_set", key="up", text=None)
        await node.ask("config_set", key="down", text="2MB")
        caps = part.endpoint.shaper.caps
        assert (caps.up.node, caps.down.node) == (None, 2 * 10**6)
        await node.ask("config_set", key="disk", text="300MiB")
        assert part.content.quota.allowance.limit == part.library.store.limit == 300 << 20
        await node.ask("config_set", key="links", text="20")
        assert part.membership.most_links == 20
        later = (await node.ask("config_set", key="memory", text="2GiB"))["ok"]
        assert later == {"key": "memory", "text": "2GiB", "applied": False}
        shown = {each["key"]: each for each in (await node.ask("config"))["ok"]["settings"]}
        assert (shown["links"]["text"], shown["links"]["origin"]) == ("20", "command")
        assert (shown["memory"]["text"], shown["memory"]["next"]) == (None, "2GiB")
        assert (shown["up"]["text"], shown["up"]["next"]) == (None, None)
        for key, text in (("memory", "4"), ("memroy", "4GiB"), ("lan", "perhaps"), ("", "x")):
            assert "error" in await node.ask("config_set", key=key, text=text)
        assert "error" in await node.ask("config_set", key="memory", text=["4GiB"])
    text = (tmp_path / "settings.conf").read_text()
    assert text.endswith("down = 2MB\ndisk = 300MiB\nlinks = 20\nmemory = 2GiB\n")


@pytest.mark.trio
async def test_log_reports_peers_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "JOURNAL_PAUSE", 0.02)
    async with running(config(tmp_path / "a"), {}) as first:
        bootstrap = (Address.parse((await first.ask("status"))["ok"]["addresses"][0]),)
        async with running(config(tmp_path / "b", bootstrap=bootstrap)) as second:
            await second.until(lambda status: status["serving"]["phase"] == "serving")
            await first.until(lambda status: status["serving"]["phase"] == "serving")
            stream = await first.stream("run", model="tiny", prompt="x", raw=True)
            status = await first.until(lambda status: len(status["memory"]["processes"]) == 2)
            await stream.aclose()
            first.node.gateway.answers, first.node.gateway.answer_tokens = 1, 3
            peer = short(second.node.identity.peer)
        await first.until(lambda status: f"lost: {peer}; 0 other nodes now" in first.said)
    assert f"joined: {peer}; 1 other node now" in first.said
    assert "answered 1 prompt, 3 tokens" in first.said
    assert not any(line.startswith("joined: ") for line in second.said), "it keeps no log"
    names = [each["name"] for each in status["memory"]["processes"]]
    assert names == ["daemon", "text of tiny"]
    assert all(each["resident_bytes"] > 2**20 for each in status["memory"]["processes"])


@pytest.mark.trio
async def test_second_daemon_on_the_folder_is_refused(tmp_path: Path) -> None:
    async with running(config(tmp_path)):
        with pytest.raises(DataFolderInUse):
            await run_node(HOST, config(tmp_path), engine_factory=FakeEngine)


@pytest.mark.trio
async def test_configured_port_in_use_is_an_error(tmp_path: Path) -> None:
    async with running(config(tmp_path / "a")) as first:
        port = first.node.endpoint.port
        with pytest.raises((NodeError, ExceptionGroup)) as raised:
            await run_node(HOST, config(tmp_path / "b", port=port), engine_factory=FakeEngine)
        error = raised.value
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, NodeError) and error.code == "port-in-use"
        assert not isinstance(error, AddressInUse)
        (tmp_path / "c").mkdir(mode=0o700)
        (tmp_path / "c" / "port").write_text(str(port))
        async with running(config(tmp_path / "c")) as third:
            assert third.node.endpoint.port != port
            assert any("in use" in line for line in third.said)


@pytest.mark.trio
async def test_stopping_node_finishes_running_requests(tmp_path: Path) -> None:
    async with running(config(tmp_path)) as node:
        await node.until(lambda status: status["serving"]["phase"] == "serving")
        stream = await node.stream("run", model="tiny", prompt="x", raw=True)
        await node.until(lambda status: status["sessions"]["gateway"] == 1)
        assert "pid" in (await node.ask("stop"))["ok"]
        refused = await node.ask("run", model="tiny", prompt="x")
        assert refused["error"]["code"] == "stopping"
        assert (await node.ask("status"))["ok"]["sessions"]["gateway"] == 1
        await stream.aclose()  # a disconnected client frees its session, so the node can end
    assert not tmp_path.joinpath("control.sock").exists()


@pytest.mark.trio
async def test_cancelling_a_node_ends_it(tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            start = partial(run_node, HOST, config(tmp_path), engine_factory=FakeEngine)
            await nursery.start(start)
            nursery.cancel_scope.cancel()
    async with running(config(tmp_path)):
        pass


BAD: list[tuple[str, dict[str, Any]]] = [
    ("run", {}),
    ("run", {"model": "tiny"}),
    ("run", {"model": 1, "prompt": "x"}),
    ("run", {"model": "", "prompt": "x"}),
    ("run", {"model": "m" * 300, "prompt": "x"}),
    ("run", {"model": "tiny", "prompt": ["x"]}),
    ("run", {"model": "tiny", "prompt": "x", "max_tokens": 0}),
    ("run", {"model": "tiny", "prompt": "x", "max_tokens": True}),
    ("run", {"model": "tiny", "prompt": "x", "max_tokens": 1.5}),
    ("run", {"model": "tiny", "prompt": "x", "temperature": -1}),
    ("run", {"model": "tiny", "prompt": "x", "temperature": "hot"}),
    ("run", {"model": "tiny", "prompt": "x", "temperature": float("nan")}),
    ("run", {"model": "tiny", "prompt": "x", "top_p": 2}),
    ("run", {"model": "tiny", "prompt": "x", "top_k": -1}),
    ("run", {"model": "tiny", "prompt": "x", "seed": 2**64}),
    ("run", {"model": "tiny", "prompt": "x", "stop": "end"}),
    ("run", {"model": "tiny", "prompt": "x", "stop": [1]}),
    ("run", {"model": "tiny", "prompt": "x", "stop": ["a"] * 100}),
    ("model_add", {}),
    ("model_add", {"path": 3}),
    ("model_show", {"name": None}),
    ("invite", {"uses": 0}),
    ("invite", {"uses": "many"}),
    ("invite", {"address": "nowhere"}),
    ("invite", {"address": "example.org:80"}),
]


@pytest.mark.trio
async def test_bad_requests(tmp_path: Path) -> None:
    async with running(config(tmp_path)) as node:
        for op, fields in BAD:
            answer = await node.ask(op, **fields)
            assert answer["error"]["code"] == "bad-request", (op, fields, answer)
        assert (await node.ask("model_show", name="nothing"))["error"]["code"] == "unknown-model"
        missing = await node.ask("model_add", path=str(tmp_path / "nothing"))
        assert "error" in missing
        invited = (await node.ask("invite", uses=3, address="192.0.2.7:4001"))["ok"]
        assert decode(invited["code"]).host == "192.0.2.7" and invited["uses"] == 3
        for address, near in (("5.5.5.5:4001", "public"), ("192.168.1.5:4001", "private")):
            invited = (await node.ask("invite", address=address))["ok"]
            assert (invited["address"], invited["near"]) == (address, near)
        assert (await node.ask("invite"))["ok"]["near"] == "loopback"
