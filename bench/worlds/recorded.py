"""Simulated chains whose model says recorded texts, at the rates of a large model.

Whole daemons run. Their engines compute numbers in place of tensors, take the time of a model of
8 billion parameters, and the head chooses the next token of the recorded text (teacher forcing).
The drafter sees only delivered tokens. A text's number is the seed of its request.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from shoal.netsim.daemons.compute import Stopwatch, Timed
from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.daemons.engine import SimulatedCore, SimulatedEngine, SimulatedWorker
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.tasks.drafting.sessions import Drafting
from shoal.tasks.engine.families import Architecture
from shoal.tasks.engine.interface import LoadShard, Sampling
from shoal.tasks.engine.scheduling.costs import StepCosts
from shoal.tasks.engine.shard import ChosenToken, Compute, Pick, Piece, Stop
from shoal.tasks.inference.conversation.answer import Answer
from shoal.tasks.inference.conversation.items import Arrived
from shoal.tasks.inference.conversation.talk import Talk
from shoal.tasks.inference.gateway import (
    Gateway,
    GatewayEvent,
    GenerateRequest,
    Model,
    Summary,
)
from shoal.tasks.inference.messages import SampledToken
from shoal.transport.host.seam import Host as Seam

LAYERS: Final = 6
VOCABULARY: Final = 2048
CONTEXT: Final = 16_384
PARAMETERS: Final = 8e9
BYTES: Final = 2.0  # of a parameter
FLOPS: Final = 2.0  # of a parameter and row
_WORD = re.compile(r" ?[A-Za-z]{1,8}|\d{1,3}| ?[^\w\s]{1,2}|\n+ *|\s+|.")


@dataclass(frozen=True)
class Machine:
    """A machine: the bytes that programs read and the operations that they compute in a second,
    and the fixed seconds of a step."""

    bandwidth: float
    flops: float
    step_s: float

    def costs(self, layers: int) -> StepCosts:
        """Return the time of a step of some of the model's layers."""
        part = PARAMETERS * layers / LAYERS
        fixed = self.step_s + part * BYTES / self.bandwidth
        return StepCosts(fixed, part * FLOPS / self.flops, 0.0)


LAPTOP: Final = Machine(89.6e9 * 0.75, 845e9 * 0.7, 200e-6)
"""Ryzen 7 7840U, as in netsim/daemons/profile.py."""
CARD: Final = Machine(504e9 * 0.75, 29.1e12 * 0.7, 300e-6)
"""GeForce RTX 4070, likewise."""


@dataclass(frozen=True)
class Text:
    """Token ids of a prompt and of the answer that is recorded for it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def _ids(text: str, known: dict[str, int]) -> list[int]:
    """Return ids of words and signs. The first two ids are special tokens of the model."""
    words = _WORD.findall(text)
    return [2 + known.setdefault(word, len(known)) % (VOCABULARY - 2) for word in words]


def swe_agent(folder: Path, most: int) -> list[Text]:
    """Return answers of a coding agent, each with all that was said before as its prompt.

    They are the last ones of each of five runs of one task, about as many of each: the user has
    asked for it before, as users of agents do.
    """
    runs = list[list[Text]]()
    known: dict[str, int] = {}
    for path in sorted(folder.glob("*marshmallow*.traj")):
        said, found = list[int](), list[Text]()
        for turn in json.loads(path.read_text())["history"]:
            content = turn["content"]
            parts = [content] if isinstance(content, str) else [each["text"] for each in content]
            ids = _ids("".join(parts), known)
            if turn["role"] == "assistant" and said and len(ids) >= 64:
                found.append(Text(tuple(said), tuple(ids)))
            said += ids
        runs.append(found)
    each = -(-most // len(runs))
    return [text for run in runs for text in run[-each:]][:most]


def gsm8k(file: Path, most: int) -> list[Text]:
    """Return solutions of problems of school mathematics."""
    known: dict[str, int] = {}
    lines = file.read_text().splitlines()[:most]
    return [
        Text(tuple(_ids(each["question"], known)), tuple(_ids(each["answer"], known)))
        for each in map(json.loads, lines)
    ]


class _Recorded(Timed):
    """Takes the time of a large model, and says the recorded text."""

    def __init__(
        self, inner: Compute, watch: Stopwatch, machine: Machine, texts: Sequence[Text]
    ) -> None:
        super().__init__(inner, PROFILES["laptop"], watch)  # whose times are not used
        self._costs = machine.costs(inner.parts.stop - inner.parts.start)
        self._texts = texts

    def costs(self) -> StepCosts:
        return self._costs

    def forward(self, pieces: Sequence[Piece], stop: Stop | None = None) -> Sequence[Any]:
        rows = sum(piece.count for piece in pieces)
        self._watch.spent += self._costs.fixed + rows * self._costs.row
        return self._inner.forward(pieces)

    def choose(self, picks: Sequence[Pick]) -> Sequence[ChosenToken]:
        return [self._said(pick) for pick in picks]

    def _said(self, pick: Pick) -> ChosenToken:
        text = self._texts[pick.sampling.seed]
        at = pick.position - len(text.prompt)
        token = text.answer[at] if at < len(text.answer) else 2
        return ChosenToken(token, -1.0)


class _Core(SimulatedCore):
    machine: Machine
    texts: Sequence[Text]

    def compute(self, arch: Architecture, shard: LoadShard) -> Compute:
        return _Recorded(self.weights(arch, shard), self._watch, self.machine, self.texts)


class _Worker(SimulatedWorker):
    def __init__(
        self, host: SimulatedHost, memory: int, machine: Machine, texts: Sequence[Text]
    ) -> None:
        super().__init__(host, memory, "numbers")
        self._core = _Core(self._emit, host, self._watch, memory)
        self._core.machine, self._core.texts = machine, texts


class _Engine(SimulatedEngine):
    def __init__(
        self, host: SimulatedHost, memory: int, machine: Machine, texts: Sequence[Text]
    ) -> None:
        super().__init__(host, 1, memory, "numbers")
        self._machine, self._texts = machine, texts

    async def _begin(
        self, host: Seam, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[SimulatedWorker, SimulatedWorker]:
        worker = _Worker(self._simulated, self._memory_bytes, self._machine, self._texts)
        self._simulated.start_soon(worker.run)
        self._worker = worker
        await trio.lowlevel.checkpoint()
        return worker, worker


@dataclass(frozen=True)
class Smaller:
    """A smaller model at the daemon that asks. It says the recorded token with the probability
    `right`, and takes `token_s` seconds for each."""

    right: float
    token_s: float

    def guess(self, gateway: Gateway, text: Text, number: int) -> None:
        """Guess the answer with this number at a gateway."""
        guessing: Any = gateway.guessing
        said, chance = (*text.prompt, *text.answer), Random(number)
        wrong = {at for at in range(len(said)) if chance.random() >= self.right}

        async def smaller(talk: Talk, _run: object) -> Model:
            await trio.lowlevel.checkpoint()
            return talk.model

        async def say(talk: Talk) -> None:
            first = len(talk.ids)
            for at in range(first, first + talk.new):
                await trio.sleep(self.token_s)
                token = said[at] if at < len(said) and at not in wrong else 2
                final = at + 1 == first + talk.new
                sampled = SampledToken(bytes(16), 1, at, token, -1.0, final, self.token_s)
                if await talk.answer.add([Arrived(sampled, 0.0)]):
                    return

        guessing._smaller, guessing._say = smaller, say
        guessing.may_guess = lambda talk, _run: isinstance(talk.answer, Answer)


class Chain:
    """Homes that hold the model's layers, and the daemon that asks, at the first of them."""

    def __init__(self, world: World, texts: Sequence[Text], machine: Machine) -> None:
        self.world, self.texts, self.machine = world, texts, machine
        self.client: DaemonHandle
        self.smaller: Smaller | None = None

    async def start(self, hosts: Sequence[Host], bootstrap: Host) -> None:
        """Serve the model over these hosts, in equal parts."""
        known = await bootstrap.start(Daemon(engine=False))
        count, homes = len(hosts), list[DaemonHandle]()
        ends = [round(LAYERS * number / count) for number in range(count + 1)]
        for host, start, stop in zip(hosts, ends, ends[1:], strict=False):
            daemon = Daemon(
                bootstrap=[known],
                model="tiny",
                layers=(start, stop),
                engine=self._engine,
                memory="8GiB",
            )
            homes.append(await host.start(daemon))
        for home in homes:
            await home.serving()
            await home.until(lambda status: status["peers"] == count)
        self.client = homes[0]
        await trio.sleep(30)  # until direct paths are found

    def _engine(self, host: Seam, threads: int, memory: int) -> SimulatedEngine:
        assert isinstance(host, SimulatedHost)
        return _Engine(host, memory, self.machine, self.texts)

    async def answers(self, numbers: Sequence[int], drafting: Drafting) -> list[Summary]:
        """Have texts said, one after the other."""
        gateway = self.client.node.gateway
        windows: Any = gateway.windows
        windows.drafting, models = drafting, self.client.node.compute.models
        found = []
        for number in numbers:
            text = self.texts[number]
            gateway._models = _Prompts(models, text)
            if self.smaller is not None:
                self.smaller.guess(gateway, text, number)
            request = GenerateRequest(
                "tiny",
                "recorded",
                raw=True,
                max_tokens=len(text.answer),
                sampling=Sampling(1.0, seed=number),
            )
            summary: Summary = await self.client.host.run(gateway.generate, request, _ignore)
            assert summary.token_ids == text.answer
            found.append(summary)
        return found


class _Prompts:
    """Models whose text process encodes every prompt as the recorded one."""

    def __init__(self, models: Any, text: Text) -> None:
        self._models, self._text = models, text

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Model]:
        async with self._models.use(name) as model:
            yield replace(model, text=_Encoded(model.text, self._text))

    async def alike(self, model: Model, root: str) -> Model | None:
        found: Model | None = await self._models.alike(model, root)
        return found


class _Encoded:
    def __init__(self, inner: Any, text: Text) -> None:
        self._inner, self._text = inner, text
        self.info = inner.info

    async def encode(self, _text: str) -> list[int]:
        await trio.lowlevel.checkpoint()
        return list(self._text.prompt)

    async def encode_chat(self, _messages: object) -> list[int]:
        return await self.encode("")

    async def detokenizer(self, stop: Sequence[str] = ()) -> Any:
        return await self._inner.detokenizer(stop)


async def _ignore(_event: GatewayEvent) -> None:
    await trio.lowlevel.checkpoint()


def home(delay_s: float, rate: float = 5e6) -> LinkSpec:
    """Return the link of a home: `delay_s` seconds in each direction."""
    return LinkSpec(PipeSpec(delay_s, rate=rate), PipeSpec(delay_s, rate=4 * rate))


def build(
    texts: Sequence[Text], stages: int, apart_s: float, machine: Machine, *, nat: bool = False
) -> tuple[Chain, list[Host], Host]:
    """Return a chain that is not started, its hosts, `apart_s` seconds of round trip apart, and a
    public host to meet at."""
    world = World(1, latency=0.0)  # the homes' links have all of the delay
    link = home(apart_s / 4)
    public = world.host("public", link=home(apart_s / 4, 125e6))
    hosts = []
    for number in range(stages):
        if nat:
            gate = world.gateway(f"home{number}", link=link)
            hosts.append(world.host(f"h{number}", behind=gate))
        else:
            hosts.append(world.host(f"h{number}", link=link))
    return Chain(world, texts, machine), hosts, public


def rate_of(summaries: Sequence[Summary]) -> float:
    """Return the tokens per second of several answers, without the first token of each."""
    seconds = [(each.tokens - 1) / each.tokens_per_s for each in summaries if each.tokens > 1]
    return sum(each.tokens - 1 for each in summaries) / sum(seconds)


def measure(
    chain: Chain, hosts: Sequence[Host], public: Host, sides: Mapping[str, Drafting]
) -> dict[str, tuple[float, list[Summary]]]:
    """Have all texts said once by each side. Return tokens/s and the summaries by side."""

    async def run() -> dict[str, tuple[float, list[Summary]]]:
        await chain.start(hosts, public)
        found = {}
        for name, drafting in sides.items():
            summaries = await chain.answers(range(len(chain.texts)), drafting)
            found[name] = rate_of(summaries), summaries
        return found

    found: dict[str, tuple[float, list[Summary]]] = chain.world.run(run)
    return found


def acceptance(summaries: Sequence[Summary]) -> float:
    """Return the part of the computed guesses that were right."""
    sent = sum(each.drafts.sent for each in summaries)
    return sum(each.drafts.right for each in summaries) / sent if sent else 0.0
