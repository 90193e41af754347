"""Machines in network namespaces that compute one model together: shoal's daemons, or llama.cpp's
RPC workers.

    with Chain(SHAPES["125M"], stages=4) as chain:
        chain.start_daemons()
        chain.delay(0.020)
        print(chain.ask(tokens=64).tokens_per_s)

Each stage has a machine of its own, and so has the client, which computes nothing: a gateway of
shoal, or llama.cpp with all layers on its workers. All links have the same delay, and no limit of
their rate. Needs root. Everything is removed at the end of the block.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

from shoal.cli.client import converse
from shoal.netsim.netns.backend import KernelWorld, Reply
from shoal.netsim.netns.namespaces import KernelRefused
from shoal.netsim.netns.programs import KernelProgram
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.node.control.messages.encoding import Json

from . import llamarpc
from .randommodel import RandomModel, Shape, prompt

MTU: Final = 9000  # bytes; with small packets, loading the weights would take most of the time
LINKED: Final = 1 << 16  # bytes of the largest file that is copied and not linked
PORT: Final = 50052  # of llama.cpp's workers
CLIENT: Final = "client"
WHOLE: Final = "whole"
READY_S: Final = 300.0
ANSWER_S: Final = 600.0
_DAEMON: Final = ("--threads", "1", "--api", "no", "--no-measure", "--no-lan", "--no-port-mapping",
                  "--dtype", "bfloat16")  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """Figures of one answer. Rates and times are those of the tokens after the first one."""

    text: str
    tokens: int
    tokens_per_s: float
    first_s: float
    hop_ms: float = 0.0  # mean time per token and stage that is not computing


class Chain:
    """A client and the machines of the stages. With `whole`, there is a further machine with the
    whole model, which is no member of the swarm."""

    def __init__(self, shape: Shape, *, stages: int, whole: bool = False) -> None:
        self.shape = shape
        self.world = KernelWorld()
        self.stages = [f"stage{number}" for number in range(stages)]
        self.workers: list[KernelProgram] = []
        self._model = RandomModel(shape)
        self._names = [CLIENT, *self.stages, *([WHOLE] if whole else [])]
        for name in self._names:
            self.world.host(name, link=_link(0.0))

    def __enter__(self) -> Self:
        # SIGTERM would end this process without removing anything.
        self._before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        signal.signal(signal.SIGTERM, self._before)

    def close(self) -> None:
        """Stop everything and remove it."""
        self.world.close()

    def delay(self, round_trip: float) -> None:
        """Set the round trip between any two machines, in seconds."""
        for name in self._names:
            self.world.change(name, _link(round_trip))

    # Shoal's daemons.

    def layers(self) -> list[tuple[int, int]]:
        """Return the layers of each stage, as equal parts as possible; later ones have fewer."""
        count, layers = len(self.stages), self.shape.layers
        ends = [-(-layers * number // count) for number in range(count + 1)]
        return list(pairwise(ends))

    def start_daemons(self, *more: str, memory: str = "") -> None:
        """Start a daemon with its layers on each stage, and one without on the client.

        Waits until the client knows a whole chain. `more` are arguments for all daemons.
        """
        size = memory or f"{self._memory(len(self.stages))}MiB"
        self._add_model()
        first = self.stages[0]
        for name, (start, stop) in zip(self.stages, self.layers(), strict=True):
            known = () if name == first else ("--bootstrap", self.world.where(first))
            self.world.start(name, *_DAEMON, "--model", self.shape.name, "--layers",
                             f"{start}:{stop}", "--memory", size, *known, *more,
                             engine=True)  # fmt: skip
            if name == first:
                self.world.wait(lambda: self.world.status(first), READY_S, "the first daemon")
        known = "--bootstrap", self.world.where(first)
        self.world.start(CLIENT, *_DAEMON, "--model", "none", *known, *more)
        if WHOLE in self._names:
            self.world.start(WHOLE, *_DAEMON, "--model", self.shape.name, "--memory",
                             f"{self._memory(1)}MiB", *more, engine=True)  # fmt: skip
            self.world.wait(lambda: self._knows(WHOLE), READY_S, "that one machine serves all")
        self.world.wait(lambda: self._knows(CLIENT), READY_S, "that all stages serve")

    def ask(
        self, *, tokens: int, words: int = 16, seed: int = 1, gateway: str = CLIENT,
        temperature: float = 1.0,
    ) -> Answer:  # fmt: skip
        """Have a machine's daemon answer a random prompt of `words` tokens with `tokens` more.

        At temperature 0 the text of a random model repeats itself, and drafts guess it.
        """
        text = prompt(self.shape, words, seed)
        return self.say(text, tokens=tokens, gateway=gateway, temperature=temperature)

    def say(
        self, text: str, *, tokens: int, gateway: str = CLIENT, temperature: float = 1.0,
        seed: int | None = None,
    ) -> Answer:  # fmt: skip
        """Have a machine's daemon continue a prompt with `tokens` tokens."""
        asked: dict[str, Json] = {
            "op": "run", "model": self.shape.name, "prompt": text, "raw": True,
            "max_tokens": tokens, "temperature": temperature,
        }  # fmt: skip
        if seed is not None:
            asked["seed"] = seed
        said: Reply = converse(self.world.hosts[gateway].data, asked, wait=True)
        return Answer(said["text"], said["tokens"], said["tokens_per_s"], said["ttft_ms"] / 1e3,
                      said["hop_ms"])  # fmt: skip

    def ask_whole(self, *, tokens: int) -> Answer:
        """Have the machine with the whole model answer."""
        return self.ask(tokens=tokens, gateway=WHOLE)

    def ask_many(self, count: int, *, tokens: int, words: int = 16) -> list[Answer]:
        """Have the client answer several random prompts at once."""
        with ThreadPoolExecutor(count) as pool:
            asked = [
                pool.submit(self.ask, tokens=tokens, words=words, seed=seed)
                for seed in range(count)
            ]
            return [each.result() for each in asked]

    def _memory(self, stages: int) -> int:
        """Return the MiB that one of `stages` stages needs for its weights and KV."""
        shape = self.shape
        layer = shape.hidden * (2 * shape.hidden + 3 * shape.inner + 2 * shape.hidden)
        table = shape.words * shape.hidden
        parts = -(-shape.layers // stages) * layer + 2 * table
        return 2 * parts * 5 // 4 // 2**20 + 128

    def _add_model(self) -> None:
        """Put the model into the data folders of all machines."""
        folder = self.world.folder / "model"
        self._model.write_folder(folder)
        first = self.world.folder / "library"
        add = [sys.executable, "-P", "-m", "shoal.cli.main", "model", "add", str(folder), "--name",
               self.shape.name, "--data", str(first)]  # fmt: skip
        done = subprocess.run(add, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KernelRefused(f"the model was not added: {done.stderr}")
        shutil.rmtree(folder)
        for name in self._names:
            shutil.copytree(first, self.world.hosts[name].data, copy_function=_copy)

    def _knows(self, name: str) -> bool:
        """Return whether a machine knows a chain of all layers."""
        for each in self._names:
            self.world.hosts[each].check_running()
        found = self.world.hosts[name].ask("models")
        models: list[dict[str, Any]] = [] if found is None else found["models"]
        return any(each["name"] == self.shape.name and each["complete"] for each in models)

    # llama.cpp.

    def start_workers(self) -> None:
        """Start a worker of llama.cpp on each stage. They keep what they have received in a cache,
        so that each client after the first one starts soon."""
        self._llama = llamarpc.build()
        self._gguf = self.world.folder / "model.gguf"
        self._model.write_gguf(self._gguf)
        cache = {"LLAMA_CACHE": str(self.world.folder / "llama")}
        program = str(self._llama / llamarpc.WORKER)
        for name in self.stages:
            where = "-H", self.world.hosts[name].address, "-p", str(PORT)
            self.workers.append(
                self.world.run(name, program, *where, "-t", "1", "-c", environment=cache)
            )

    def ask_llama(self, *, tokens: int, alone: bool = False) -> float:
        """Return the tokens per second of llama.cpp's client, which generates `tokens` tokens.

        With `alone`, the client computes the whole model itself.
        """
        return self._bench_llama("-p", "0", "-n", str(tokens), alone=alone)

    def llama_step(self, rows: int, *, depth: int) -> float:
        """Return the seconds of a step of llama.cpp of `rows` rows, behind `depth` positions."""
        if rows == 1:
            return 1 / self._bench_llama("-p", "0", "-n", "32", "-d", str(depth))
        return rows / self._bench_llama("-p", str(rows), "-n", "0", "-d", str(depth), turns=8)

    def _bench_llama(self, *work: str, alone: bool = False, turns: int = 1) -> float:
        """Return the tokens per second of llama.cpp's own bench."""
        where: tuple[str, ...] = ("-ngl", "0")
        if not alone:
            for worker in self.workers:
                worker.check_running()
            hosts = [self.world.hosts[name].address for name in self.stages]
            where = ("--rpc", ",".join(f"{host}:{PORT}" for host in hosts), "-ngl", "99",
                     "-ts", "/".join("1" * len(hosts)))  # fmt: skip
        command = (str(self._llama / llamarpc.BENCH), "-m", str(self._gguf), "-t", "1",
                   *work, "-r", str(turns), "-o", "json", *where)  # fmt: skip
        said = self.world.run(CLIENT, *command).finish(ANSWER_S)
        found = json.loads(said[said.index("[\n") :].rpartition("]")[0] + "]")
        return float(found[0]["avg_ts"])


def _copy(source: str, target: str) -> None:
    """Copy a file, or link it if it is large: chunks are never changed."""
    copy = os.link if os.stat(source).st_size > LINKED else shutil.copy2
    copy(source, target)


def _link(round_trip: float) -> LinkSpec:
    """Return a link that has a quarter of the round trip in each direction."""
    pipe = PipeSpec(delay=round_trip / 4, mtu=MTU)
    return LinkSpec(pipe, pipe)
