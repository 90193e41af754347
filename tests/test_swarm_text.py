"""Text generation from end to end: three nodes with real links, real engine workers and a real
tokenizer give the text that transformers gives. Only the daemon's own wiring is left out.
"""

import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import trio
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from shoal.dht.content.library import Library
from shoal.dht.exchange.exchange import ChunkExchange
from shoal.state.errors import StateError
from shoal.state.listing import Listing
from shoal.state.membership.membership import Membership
from shoal.state.membership.record import Capacity, ModelName
from shoal.state.service import State
from shoal.state.settings import StateSettings
from shoal.tasks.engine.process import EngineProcess
from shoal.tasks.inference.courier import Courier
from shoal.tasks.inference.gateway import (
    Gateway,
    GatewayEvent,
    GenerateRequest,
    Routed,
    Summary,
    TextDelta,
)
from shoal.tasks.inference.models import Models
from shoal.tasks.inference.sources import ModelSources
from shoal.tasks.inference.stage import Stage
from shoal.tasks.placement.demand import Backing
from shoal.tasks.serving.interface import DeviceShare, ServingDevices, ServingSettings
from shoal.tasks.serving.slots import Slots
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity

LAYERS = 4
EOS = 256


class Checkpoint:
    """A small random model saved by transformers, with a byte-level tokenizer."""

    def __init__(self, folder: Path, family: str = "Llama", **more: Any) -> None:
        torch.manual_seed(5)
        config = getattr(transformers, f"{family}Config")(
            vocab_size=EOS + 1,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=600,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=EOS,
            pad_token_id=EOS,
            **more,
        )
        self.model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        self.model.save_pretrained(folder)
        self.tokenizer = _tokenizer()
        self.tokenizer.save(str(folder / "tokenizer.json"))
        template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"eos_token": "</s>", "chat_template": template})
        )

    def greedy(self, text: str, count: int) -> list[int]:
        """Return what transformers generates."""
        torch.set_num_threads(1)  # two wait for each other where the cores are busy
        ids = torch.tensor([self.tokenizer.encode(text).ids])
        with torch.inference_mode():
            out = self.model.generate(ids, do_sample=False, max_new_tokens=count)
        return [int(token) for token in out[0, ids.shape[1] :]]


def _tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Path]:
    folder = tmp_path_factory.mktemp("checkpoint")
    return Checkpoint(folder), folder


@dataclass
class Node:
    """One node's parts, connected as in the daemon."""

    folder: Path
    layers: tuple[int, int] | None
    port: int = 0
    up: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        host = RealHost()
        identity = Identity.generate(host)
        self.endpoint = Endpoint(host, identity, admission=OpenSwarm())
        self.membership = Membership(host, self.endpoint, identity)
        settings = StateSettings(self.folder / "state")
        self.state = State(host, self.endpoint, identity, settings, trouble=_no_trouble)
        self.directory = Listing(host, self.membership, self.state)
        self.library = Library(host, self.folder)
        self.exchange = ChunkExchange(host, self.endpoint, self.library)
        self.engine = EngineProcess(host, threads=1) if self.layers else None
        courier = Courier(self.endpoint)
        self.stage = Stage(host, courier, self.engine)
        sources = ModelSources(self.library, self.exchange, self.directory)
        self.models = Models(host, sources)
        self.gateway = Gateway(host, courier, self.directory, self.models)
        self.serving = Slots(
            host,
            ServingDevices(self.stage, [DeviceShare(self.engine, 0)] if self.engine else []),
            sources,
            ServingSettings(memory=2**28, model="small", layers=self.layers, dtype="float32"),
            backing=Backing,
        )

    async def run(
        self, bootstrap: Sequence[Address], checkpoint: Path | None, *, task_status: Any
    ) -> None:
        await self.library.open()
        async with trio.open_nursery() as nursery:
            self.port = await nursery.start(self.endpoint.run, "127.0.0.1", 0)
            self._publish(Capacity(2, 2**28, self.engine is not None))
            await nursery.start(self.membership.run)
            await nursery.start(self.state.run)
            for address in bootstrap:
                await self.endpoint.dial(address, timeout=5)
            if checkpoint:
                await self._add(checkpoint)
            await nursery.start(self.models.run)
            await nursery.start(self.stage.run)
            await nursery.start(self.serving.run)
            if self.engine:
                nursery.start_soon(self.engine.run)
            task_status.started()

    def _publish(self, capacity: Capacity) -> None:
        address = str(Address("127.0.0.1", self.port, self.endpoint.peer))
        self.directory.publish(addresses=(address,), capacity=capacity)

    async def _add(self, checkpoint: Path) -> None:
        name, manifest = await self.library.add(checkpoint, "small")
        bytes_ = manifest.weight_bytes(True, 0, manifest.layers, True)
        self.directory.publish(
            models=(ModelName(name, manifest.root, manifest.layers, bytes_),),
            stored=(manifest.root,),
        )

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port, self.endpoint.peer)


@asynccontextmanager
async def swarm(
    tmp_path: Path, checkpoint: Path, splits: Sequence[tuple[int, int] | None]
) -> AsyncIterator[list[Node]]:
    """Start nodes that know each other and serve their layers; the first has the model's folder."""
    nodes = [Node(tmp_path / str(number), layers) for number, layers in enumerate(splits)]
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(nodes[0].run, (), checkpoint))
            for node in nodes[1:]:
                await nursery.start(partial(node.run, (nodes[0].address,), None))
            serving = sum(layers is not None for layers in splits)
            for node in nodes:
                await _sees(node, serving)
            yield nodes
            nursery.cancel_scope.cancel()


def _no_trouble(condition: str, error: StateError | None) -> None:
    assert error is None, error


async def _sees(node: Node, serving: int) -> None:
    """Wait until the node knows that many shards and has links to their peers."""
    while True:
        version = node.directory.version
        members = node.directory.members()
        if sum(bool(record.shards) for record in members.values()) == serving:
            return
        await node.directory.changed(version)


class Client:
    def __init__(self) -> None:
        self.text = ""
        self.stages = 0
        self.chains = 0
        self.first = trio.Event()

    async def emit(self, event: GatewayEvent) -> None:
        if isinstance(event, Routed):
            self.stages = len(event.stages)
            self.chains += 1
        if isinstance(event, TextDelta):
            self.text += event.text
            self.first.set()


async def _ask(node: Node, prompt: str, count: int = 24, client: Client | None = None) -> Summary:
    request = GenerateRequest(model="small", prompt=prompt, raw=True, max_tokens=count)
    return await node.gateway.generate(request, (client or Client()).emit)


async def _usage(nodes: Sequence[Node]) -> list[int]:
    return [(await node.engine.usage())["sessions"] for node in nodes if node.engine]


THREE = [(0, 2), (2, 3), (3, 4)]


@pytest.mark.ci
@pytest.mark.trio
async def test_three_nodes_give_the_text_of_transformers(
    tmp_path: Path, checkpoint: tuple[Checkpoint, Path]
) -> None:
    """Several prompts at once do not mix, also from a client without layers. Then a worker is
    killed: its node loads again, the answer continues, and nothing remains of the first session.
    """
    reference, folder = checkpoint
    async with swarm(tmp_path, folder, [*THREE, None]) as nodes:
        await _check_texts(reference, nodes)
        assert await _usage(nodes) == [0, 0, 0]
        for asked, killed in ((nodes[0], nodes[1]), (nodes[2], nodes[2]), (nodes[3], nodes[0])):
            said = await _answer_with_a_killed_worker(asked, killed)
            assert list(said.token_ids) == reference.greedy("Hello", 200)
            assert await _usage(nodes) == [0, 0, 0]
        await _check_texts(reference, nodes)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("family", "more"),
    [("Qwen2", {}), ("Qwen3", {"head_dim": 16}), ("Mistral", {"sliding_window": 9})],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.ci
async def test_the_other_families_generate_the_same_text(
    tmp_path: Path, family: str, more: dict[str, Any]
) -> None:
    folder = tmp_path / "model"
    reference = Checkpoint(folder, family, **more)
    async with swarm(tmp_path, folder, THREE) as nodes:
        summary = await _ask(nodes[0], "Hello there")
        assert list(summary.token_ids) == reference.greedy("Hello there", 24)


async def _check_texts(reference: Checkpoint, nodes: Sequence[Node]) -> None:
    prompts = {"Hello there": nodes[3], "Once upon a time": nodes[0], "x" * 555: nodes[2]}

    async def one(prompt: str, node: Node) -> None:
        client = Client()
        summary = await _ask(node, prompt, client=client)
        expected = reference.greedy(prompt, 24)
        assert list(summary.token_ids) == expected
        text = reference.tokenizer.decode(expected, skip_special_tokens=True)
        assert client.text == summary.text == text
        assert client.stages == 3

    async with trio.open_nursery() as nursery:
        for prompt, node in prompts.items():
            nursery.start_soon(one, prompt, node)


async def _answer_with_a_killed_worker(asked: Node, killed: Node) -> Summary:
    """Generate a text, and kill a node's worker after the first token."""
    summaries: list[Summary] = []
    client = Client()

    async def asking() -> None:
        summaries.append(await _ask(asked, "Hello", 200, client))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking)
        await client.first.wait()
        assert killed.engine is not None and killed.engine.pid is not None
        os.kill(killed.engine.pid, signal.SIGKILL)
    assert client.text == summaries[0].text and client.chains == 2
    return summaries[0]


@pytest.mark.trio
async def test_one_node_generates_it_too_and_a_long_answer_can_be_cancelled(
    tmp_path: Path, checkpoint: tuple[Checkpoint, Path]
) -> None:
    reference, folder = checkpoint
    async with swarm(tmp_path, folder, [(0, LAYERS)]) as nodes:
        summary = await _ask(nodes[0], "Hello there")
        assert list(summary.token_ids) == reference.greedy("Hello there", 24)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                client = Client()
                nursery.start_soon(_ask, nodes[0], "Hello", 500, client)
                await client.first.wait()
                scope.cancel()
        assert await _usage(nodes) == [0]
