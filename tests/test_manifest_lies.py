"""Models of a hostile process with false manifests: what `shoal model pull` reports for each, and
what remains of it. Real daemons.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pytest

from shoal.dht.defaults import CHUNK, MANIFEST_LIMIT
from shoal.transport.message import pack
from tests.cli.daemons import Daemon, daemons, shoal
from tests.hostile import Hostile, hostile

MILLIONS = 10_000_000
MEMORY = 400 << 20  # maximum growth of a daemon while it refuses a manifest of 64 MiB
AGAIN = 60 << 20  # and its maximum growth while it refuses the same again


@dataclass
class World:
    holder: Daemon
    getter: Daemon
    foe: Hostile
    folder: Path
    root: str  # of the honest model
    honest: bytes

    def publish(self, lies: dict[str, bytes], **more: Any) -> dict[str, str]:
        """Let the foe publish these manifests under names of its own; return the root of each."""
        roots = {name: hashlib.sha256(data).hexdigest() for name, data in lies.items()}
        paths = {}
        for name, data in lies.items():
            path = self.folder / f"{name}.manifest"
            path.write_bytes(data)
            paths[roots[name]] = str(path)
        held = dict.fromkeys(roots.values(), 9)
        chunks = str(self.holder.data / "models" / "chunks")
        self.foe.do("serve", **{"manifests": paths, "held": held, "chunks": chunks, **more})
        self.foe.do("members", names=roots, holds=list(roots.values()))
        self.getter.wait_until(
            lambda _: {each["name"] for each in self.getter.ask("models")["models"]} >= {*roots}
        )
        return roots

    def pull(self, name: str, root: str) -> tuple[int, str, float]:
        began = time.monotonic()
        data = ("--data", str(self.getter.data))
        done = shoal("model", "pull", f"{name}@{root[:16]}", "--json", *data)
        return done.returncode, done.stdout or done.stderr, time.monotonic() - began

    def kept(self) -> list[str]:
        """Return the files in the getter's library, except the list of fetched ones."""
        library = self.getter.data / "models"
        return [
            str(path.relative_to(library))
            for path in library.rglob("*")
            if path.is_file() and path.name != "usage.json"
        ]

    def memory(self, what: str) -> int:
        """Return a memory size in bytes: `VmRSS` for now, or `VmHWM` for the maximum so far."""
        text = Path(f"/proc/{self.getter.process.pid}/status").read_text()
        (line,) = (line for line in text.splitlines() if line.startswith(what))
        return int(line.split()[1]) << 10


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with daemons() as start, hostile() as foe:
        holder = start(tmp_path / "holder", "--no-lan", "--up", "4MB", torch=False)
        holder.wait_until(lambda status: bool(status["models"]))
        more = ("--model", "none", "--bootstrap", holder.address)
        getter = start(tmp_path / "getter", "--no-lan", *more, torch=False)
        getter.wait_until(lambda status: status["peers"] == 1 and bool(status["models"]))
        (model,) = getter.ask("models")["models"]
        foe.do("link", to=getter.address)
        honest = (holder.data / "models" / "manifests" / model["root"]).read_bytes()
        yield World(holder, getter, foe, tmp_path, model["root"], honest)


def changed(honest: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    fields = msgpack.unpackb(honest)
    change(fields)
    return pack(fields)


def overlap(fields: dict[str, Any]) -> None:
    """Make a small tensor whose bytes are the beginning of a large one's."""
    first, second = fields["tensors"][:2]
    second["chunks"] = first["chunks"][:32]


def twice(fields: dict[str, Any]) -> None:
    fields["tensors"][1]["roles"] = fields["tensors"][0]["roles"]


def longer(fields: dict[str, Any]) -> None:
    fields["tensors"][0]["shape"] = [4096, 4096]


def outside(fields: dict[str, Any]) -> None:
    fields["tensors"][0]["shape"] = [2**31]


def no_digest(fields: dict[str, Any]) -> None:
    fields["tensors"][0]["chunks"] = b"../../etc/passwd"


def millions(fields: dict[str, Any]) -> None:
    fields["tensors"][0]["shape"] = [MILLIONS, CHUNK // 2]


def shrunk(fields: dict[str, Any]) -> None:
    """Shrink a file's size: only a node with the chunk can detect that."""
    fields["files"]["tokenizer"]["size"] -= 1


SAID = {
    overlap: "has two sizes",
    twice: "two tensors have the same name",
    longer: "the chunks of lm_head.weight do not add up to its 33554432 bytes",
    outside: "the shape of `lm_head.weight` is out of range",
    no_digest: "a chunk list must consist of 32-byte digests",
    millions: "the chunks of lm_head.weight do not add up to its 10485760000000 bytes",
    shrunk: "has 124029 bytes, expected 124028",
}


@pytest.mark.ci
def test_each_lie_is_refused_with_a_reason_and_leaves_nothing(world: World) -> None:
    lies = {change.__name__: changed(world.honest, change) for change in SAID}
    roots = world.publish(lies)
    for change, words in SAID.items():
        name = change.__name__
        code, said, took = world.pull(name, roots[name])
        error, hint, *_ = said.splitlines()
        assert code == 1 and error.startswith("error: ") and words in error, said
        assert "`shoal find NAME` lists other offers" in hint
        assert took < 50, "at once, not at the timeout"
        assert world.kept() == [], "nothing remains of it"
    code, said, _ = world.pull("tiny", world.root)
    assert code == 0 and json.loads(said)["root"] == world.root, "the rest goes on"


@pytest.mark.long
def test_an_honest_holder_s_copy_is_fetched_beside_a_liar_s(world: World) -> None:
    """The foe also claims to have the model: another manifest under its root, and chunks with a
    flipped bit.
    """
    chunks = world.holder.data / "models" / "chunks"
    false = world.folder / "false.manifest"
    false.write_bytes(changed(world.honest, twice))
    world.foe.do(
        "serve",
        manifests={world.root: str(false)},
        held={world.root: len(list(chunks.glob("[0-9a-f]*")))},
        chunks=str(chunks),
        twist="flip",
    )
    world.foe.do("members", names={"tiny": world.root}, holds=[world.root])
    world.getter.wait_until(lambda _: len(world.getter.ask("models")["models"][0]["vouchers"]) == 2)
    code, said, _ = world.pull("tiny", world.root)
    answer = json.loads(said)
    assert code == 0 and answer["root"] == world.root
    assert answer["liars"] == [world.foe.peer] and answer["peers"] == 1
    stored = world.getter.data / "models" / "manifests" / world.root
    assert stored.read_bytes() == world.honest
    for path in (world.getter.data / "models" / "chunks").glob("[0-9a-f]*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    assert "missing" not in shoal("model", "list", "--data", str(world.getter.data)).stdout


@pytest.mark.long
def test_a_manifest_of_millions_of_chunks_takes_bounded_memory(world: World) -> None:
    """A manifest of 61 MiB, whose tensor has two million chunks too many, is refused repeatedly.
    One that would have 305 MiB is refused before a byte is requested.
    """

    def many(fields: dict[str, Any]) -> None:
        fields["tensors"][0]["chunks"] = bytes(32 * 2_000_000)

    lies = {"many": changed(world.honest, many), "ten-million": world.honest[:-1]}
    roots = {name: hashlib.sha256(data).hexdigest() for name, data in lies.items()}
    world.publish(lies, sizes={roots["ten-million"]: 32 * MILLIONS})
    before, sizes = world.memory("VmRSS"), []
    for _ in range(5):
        code, said, took = world.pull("many", roots["many"])
        assert code == 1 and "do not add up" in said and took < 30
        sizes.append(world.memory("VmRSS"))
    assert world.memory("VmHWM") - before < MEMORY
    assert sizes[-1] - sizes[0] < AGAIN, sizes  # the refused data is released
    assert 32 * MILLIONS > MANIFEST_LIMIT
    code, said, took = world.pull("ten-million", roots["ten-million"])
    assert code == 1 and "1 sent wrong data" in said and took < 90
    assert world.kept() == []


@pytest.mark.long
def test_a_chunk_without_a_provider_ends_in_words(world: World) -> None:
    def nowhere(fields: dict[str, Any]) -> None:
        fields["tensors"][0]["chunks"] = b"\7" * 32

    roots = world.publish({"nowhere": changed(world.honest, nowhere)}, held={})
    code, said, took = world.pull("nowhere", roots["nowhere"])
    assert code == 1 and said.startswith("error: ") and "hint: " in said and took < 90


@pytest.mark.long
def test_a_slow_provider_delays_no_other(world: World) -> None:
    """The foe has the whole model too, but takes minutes to send a chunk."""
    with hostile(seed=2, rate=5_000.0) as foe:
        foe.do("link", to=world.getter.address)
        chunks = world.holder.data / "models" / "chunks"
        held = {world.root: len(list(chunks.glob("[0-9a-f]*")))}
        foe.do("serve", manifests={}, held=held, chunks=str(chunks))
        foe.do("members", names={"tiny": world.root}, holds=[world.root])
        world.getter.wait_until(
            lambda _: len(world.getter.ask("models")["models"][0]["vouchers"]) == 2
        )
        code, said, took = world.pull("tiny", world.root)
        assert code == 0 and json.loads(said)["liars"] == [] and took < 30
        assert foe.do("counts")["chunk"] > 0, "it was asked"
