"""Real daemons that are killed, stopped, or come back with another identity: what the
others list.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.cli.daemons import Daemon, daemons

COUNT = 5
LINKS = 2  # dials per node: not all nodes are linked with each other
LISTED_S = 5.0  # maximum of seconds for which a dead member is listed
POLL_S = 1.0  # maximum duration of a check on a busy machine


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[list[Daemon]]:
    with daemons() as start:
        nodes = [start(tmp_path / "n0", "--links", str(LINKS), torch=False)]
        nodes[0].wait_until(lambda status: True)
        for number in range(1, COUNT):
            args = ["--links", str(LINKS), "--bootstrap", nodes[0].address]
            nodes.append(start(tmp_path / f"n{number}", *args, torch=False))
        for node in nodes:
            node.wait_until(lambda status: status["peers"] == COUNT - 1)
        yield nodes


def listed(node: Daemon) -> list[str]:
    return [peer["peer"] for peer in node.ask("peers")["peers"]]


def watch(nodes: list[Daemon], done: Callable[[list[list[str]]], bool], limit: float) -> float:
    """Return the seconds until `done` holds for the lists of all nodes; meanwhile no list has a
    member twice.
    """
    began = time.monotonic()
    while True:
        lists = [listed(node) for node in nodes]
        assert all(len(each) == len(set(each)) for each in lists)
        if done(lists):
            return time.monotonic() - began
        assert time.monotonic() - began < limit, lists
        time.sleep(0.1)


@pytest.mark.ci
def test_a_dead_member_is_listed_for_five_seconds_at_most(swarm: list[Daemon]) -> None:
    *others, killed, stopped = swarm
    gone = {each.ask("status")["peer"] for each in (killed, stopped)}
    back = stopped.ask("status")["peer"]
    os.kill(killed.process.pid, signal.SIGKILL)
    os.kill(stopped.process.pid, signal.SIGSTOP)
    try:
        watch(others, lambda lists: gone.isdisjoint(chain(*lists)), LISTED_S + POLL_S)
        os.kill(stopped.process.pid, signal.SIGCONT)
        watch(others, lambda lists: all(back in each for each in lists), 60)
    finally:
        os.kill(stopped.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("identity", ["the same", "another"])
@pytest.mark.ci
def test_a_member_that_comes_back_at_once_is_listed_once(
    identity: str, swarm: list[Daemon], tmp_path: Path
) -> None:
    """It comes back at the same port. A new identity is never beside the old one for long enough to
    be seen.
    """
    *others, victim = swarm
    old, address = victim.ask("status")["peer"], others[0].address
    victim.kill()
    if identity == "another":
        (victim.data / "identity.key").unlink()
    with daemons() as start:
        args = ["--links", str(LINKS), "--bootstrap", address]
        again = start(victim.data, *args, torch=False)
        again.wait_until(lambda status: True)
        new = again.ask("status")["peer"]
        assert (new == old) == (identity == "the same")
        both: list[list[str]] = []

        def back(lists: list[list[str]]) -> bool:
            both.extend(each for each in lists if {old, new} <= set(each) and old != new)
            gone = identity == "the same" or all(old not in each for each in lists)
            return gone and all(new in each for each in lists)

        watch(others, back, 60)
        assert both == []


@pytest.mark.ci
def test_two_daemons_with_one_identity_are_one_member(swarm: list[Daemon], tmp_path: Path) -> None:
    """The second daemon is a restored copy that runs beside the node itself."""
    *others, victim = swarm
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    key = copy / "identity.key"
    key.write_bytes((victim.data / "identity.key").read_bytes())
    key.chmod(0o600)
    with daemons() as start:
        args = ["--links", str(LINKS), "--bootstrap", others[0].address]
        twin = start(copy, *args, torch=False)
        twin.wait_until(lambda status: status["peers"] >= 1)
        peer = twin.ask("status")["peer"]
        assert peer == victim.ask("status")["peer"]
        began = time.monotonic()
        while time.monotonic() - began < 10:
            for node in others:
                assert listed(node).count(peer) <= 1
                assert len(listed(node)) <= COUNT - 1
            time.sleep(0.2)
