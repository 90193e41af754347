"""Real daemons behind real NATs: nodes that cannot be dialled, among many servers and few."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shoal.dht.defaults import SERVERS
from shoal.netsim.netns.backend import KernelWorld
from tests.cli.daemons import shoal

ARGS = ("--no-lan", "--no-port-mapping", "--model", "none")
HOMES = 3  # homes that cannot be dialled, in the swarm with few servers


def dht(world: KernelWorld, name: str) -> dict[str, Any]:
    """Return what `shoal dht --json` shows."""
    done = shoal("dht", "--json", "--data", str(world.hosts[name].data))
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def find(world: KernelWorld, name: str, key: str) -> list[dict[str, Any]]:
    """Return the records of other nodes that `shoal find` shows."""
    done = shoal("find", key, "--json", "--data", str(world.hosts[name].data))
    return [each for search in json.loads(done.stdout)["searches"] for each in search["records"]]


def peer(world: KernelWorld, name: str) -> str:
    return str((world.status(name) or {})["peer"])


def add(world: KernelWorld, name: str, size: int = 300_000) -> tuple[str, bytes]:
    """Share a blob from a host; return its root and its bytes."""
    path, data = world.folder / f"blob-of-{name}", os.urandom(size)
    path.write_bytes(data)
    done = shoal("blob", "add", str(path), "--json", "--data", str(world.hosts[name].data))
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["root"]), data


def get(world: KernelWorld, name: str, root: str) -> bytes:
    out = world.folder / f"got-by-{name}"
    done = shoal("blob", "get", root, str(out), "--data", str(world.hosts[name].data))
    assert done.returncode == 0, done.stderr
    return out.read_bytes()


@contextmanager
def swarm(public: int, homes: int) -> Iterator[tuple[KernelWorld, list[str], list[str]]]:
    """Start `public` nodes that all can reach, and `homes` that none can dial."""
    with KernelWorld() as world:
        servers = [f"s{n}" for n in range(public)]
        clients = [f"c{n}" for n in range(homes)]
        for name in servers:
            world.host(name)
        for name in clients:
            world.gateway(f"home-{name}", "linux-drop")
            world.host(name, behind=f"home-{name}")
        for name in (*servers, *clients):
            relay = ("--relay", "1MB") if name == "s0" else ()
            known = () if name == "s0" else ("--bootstrap", world.where("s0"))
            if name == "c0":
                for server in servers:
                    world.wait(lambda server=server: _serves(world, server), 90)  # type: ignore[misc]
            world.start(name, *ARGS, *relay, *known)
            if name == "s0":
                world.wait(lambda: world.status("s0") is not None)
        count = public + homes - 1
        for name in (*servers, *clients):
            world.wait(lambda name=name: len(world.peers(name)) == count, 90)  # type: ignore[misc]
        yield world, servers, clients


def _serves(world: KernelWorld, name: str) -> bool:
    answer = world.hosts[name].ask("dht")
    return answer is not None and answer["mode"] == "server"


@pytest.mark.ci
def test_a_node_that_cannot_be_dialled_stores_nothing_and_is_a_full_member(kernel: None) -> None:
    with swarm(SERVERS[1], 1) as (world, servers, (alice,)):
        world.wait(lambda: dht(world, alice)["mode"] == "client", 90, "that alice is a client")
        shown = dht(world, alice)
        assert shown["servers"] >= SERVERS[0]
        assert "this node is not publicly reachable" in shown["why"]
        assert all(dht(world, name)["mode"] == "server" for name in servers)

        stored = shown["stored"]["records"]
        root, data = add(world, servers[3])
        mine, my_data = add(world, alice)
        world.wait(lambda: any(r["author"] == peer(world, alice) for r in find(world, "s5", mine)))
        world.wait(
            lambda: any(r["author"] == peer(world, servers[3]) for r in find(world, alice, root))
        )
        # A record of the node itself is patient: it is announced 15 s after its last change.
        world.wait(lambda: find(world, "s7", peer(world, alice)), 90, "that its records are found")
        assert get(world, alice, root) == data, "it gets blobs of others"
        assert get(world, "s9", mine) == my_data, "and provides its blobs through its links"
        world.wait(
            lambda: (
                {each["about"]: each["stored"] for each in dht(world, alice)["own"]}[mine]
                >= SERVERS[0]
            ),
            60,
            "that servers keep its records",
        )
        assert dht(world, alice)["stored"]["records"] <= stored, "it keeps nothing of others"
        steps = [
            step
            for search in json.loads(
                shoal("find", root, "--json", "--data", str(world.hosts["s9"].data)).stdout
            )["searches"]
            for step in search["path"]
        ]
        assert peer(world, alice) not in {step["peer"] for step in steps}, "nobody asks it"


@pytest.mark.ci
def test_all_nodes_serve_if_hardly_any_can_be_dialled(kernel: None) -> None:
    """One node is reachable and relays; the others store records too, and are asked through it."""
    with swarm(1, HOMES) as (world, (server,), homes):
        for name in homes:
            shown = dht(world, name)
            assert shown["mode"] == "fallback" and shown["servers"] < SERVERS[0]
        root, data = add(world, homes[0])
        world.wait(lambda: dht(world, homes[1])["stored"]["records"] >= 3, 60)
        world.wait(
            lambda: (
                {each["about"]: each["stored"] for each in dht(world, homes[0])["own"]}[root]
                == HOMES
            ),
            60,
            "that all the others keep it",
        )
        assert get(world, homes[2], root) == data
        world.hosts[server].crash()  # also without the only node that all can reach
        found = find(world, homes[2], root)
        assert {each["author"] for each in found} >= {peer(world, homes[0])}
