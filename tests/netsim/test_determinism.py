"""Equal seeds give equal packets, whatever the machine does; and each check can fail.

Every run is a process of its own. Each check has a twin: a workload (workload.py) that exposes a
property of the machine, which the check must detect.
"""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shoal.netsim.errors import NotSimulated
from shoal.netsim.trace.file import first_difference
from shoal.netsim.world import World

ROOT = Path(__file__).parents[2]
WORKLOAD = "tests.netsim.workload"
DAEMONS = pytest.param("daemons", marks=pytest.mark.ci)
WORKLOADS = pytest.mark.parametrize("name", ["echo", DAEMONS])
CI_SEEDS, LONG_SEEDS = range(3, 5), range(5, 15)


@cache
def run(
    name: str,
    *options: str,
    seed: int = 1,
    hash_seed: str = "0",
    python: tuple[str, ...] = (),
    attempt: int = 0,
) -> Any:
    """Return the output of the workload; `attempt` distinguishes equal runs."""
    command = [sys.executable, *python, "-m", WORKLOAD, name, str(seed), *options]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


@contextmanager
def burner() -> Iterator[None]:
    """Run a process that occupies every core."""
    code = "import os\nfor _ in range(os.cpu_count()): os.fork() or [0 for _ in iter(int, 1)]"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def profiled(folder: Path) -> tuple[str, ...]:
    return ("-m", "cProfile", "-o", str(folder / "profile"))


@WORKLOADS
def test_the_same_seed_twice(name: str) -> None:
    assert run(name) == run(name, attempt=1)
    assert run(name)["count"] > 1000


@WORKLOADS
def test_another_seed_differs(name: str) -> None:
    assert run(name)["digest"] != run(name, seed=2)["digest"]


@WORKLOADS
@pytest.mark.parametrize("hash_seed", ["1", pytest.param("2", marks=pytest.mark.ci)])
def test_hash_seeds(name: str, hash_seed: str) -> None:
    assert run(name, hash_seed=hash_seed) == run(name)


@pytest.mark.ci
@pytest.mark.parametrize("seed", [1, 2])
def test_hash_seeds_of_a_chain_with_jobs(seed: int) -> None:
    """A stage is replaced, so that the gateway tells those that stay in an order of its own."""
    runs = [run("serving", seed=seed, hash_seed=str(each)) for each in range(4)]
    assert runs[1:] == runs[:1] * 3
    assert runs[0]["count"] > 10_000


@WORKLOADS
def test_under_a_profiler(name: str, tmp_path: Path) -> None:
    assert run(name, python=profiled(tmp_path)) == run(name)


@WORKLOADS
@pytest.mark.ci
def test_under_load(name: str) -> None:
    with burner():
        assert run(name, attempt=2) == run(name)


@pytest.mark.ci
@WORKLOADS
def test_with_and_without_address_randomisation(name: str) -> None:
    assert run(name, "--exact") == run(name)


@WORKLOADS
def test_an_idle_host_changes_no_other_records(name: str) -> None:
    alone, accompanied = run(name)["hosts"], run(name, "--idle")["hosts"]
    assert {host: accompanied.get(host) for host in alone} == alone


# The twins: the leak that each check has to detect.


@pytest.mark.ci
@WORKLOADS
def test_the_same_seed_twice_shows_a_leak_of_entropy(name: str) -> None:
    leak = "--leak", "entropy"
    assert run(name, *leak) != run(name, *leak, attempt=1)


@pytest.mark.ci
@WORKLOADS
def test_a_slow_machine_shows_a_leak_of_time(name: str, tmp_path: Path) -> None:
    leak = "--leak", "time"
    assert run(name, *leak, python=profiled(tmp_path)) != run(name, *leak)


@WORKLOADS
@pytest.mark.ci
def test_a_burner_shows_a_leak_of_load(name: str) -> None:
    leak = "--leak", "load"
    with burner():
        assert run(name, *leak, attempt=2) != run(name, *leak)


@pytest.mark.ci
@WORKLOADS
def test_hash_seeds_show_the_order_of_a_set(name: str) -> None:
    """Two runs with the same hash seed do not show it."""
    leak = "--leak", "hash"
    same = [run(name, *leak, hash_seed="1", attempt=attempt) for attempt in range(2)]
    assert same[0] == same[1] != run(name, *leak, hash_seed="2")


@pytest.mark.ci
@WORKLOADS
def test_address_randomisation_shows_an_order_of_addresses(name: str) -> None:
    """Two runs without randomisation do not show it."""
    if sys.platform != "linux":
        pytest.skip("only Linux is known to fix addresses")
    leak = "--leak", "address"
    fixed = [run(name, *leak, "--exact", attempt=attempt) for attempt in range(2)]
    assert fixed[0] == fixed[1] != run(name, *leak)


@pytest.mark.ci
@WORKLOADS
def test_an_idle_host_shows_a_stream_that_is_shared(name: str) -> None:
    leak = "--leak", "idle"
    alone, accompanied = run(name, *leak)["hosts"], run(name, *leak, "--idle")["hosts"]
    assert {host: accompanied.get(host) for host in alone} != alone


@WORKLOADS
def test_the_task_that_made_the_difference_is_named(name: str, tmp_path: Path) -> None:
    files = tmp_path / "a", tmp_path / "b"
    for number, file in enumerate(files):
        run(name, "--leak", "entropy", "--trace", str(file), attempt=number)
    with files[0].open("rb") as a, files[1].open("rb") as b:
        found = first_difference(a, b)
    assert found is not None
    assert all(re.match(r"[hn]\d+:", cause) for cause in found.causes), found.causes


@pytest.mark.parametrize(
    ("reach", "what"),
    [
        (lambda: time.sleep(0), "`time.sleep`"),
        (lambda: threading.Thread(target=print).start(), "a thread"),
        (lambda: subprocess.Popen(["true"]), "a child process"),
        (lambda: socket.socket(), "a real socket"),
    ],
)
def test_a_tripwire_names_the_daemon_s_host(reach: Callable[[], Any], what: str) -> None:
    """The task is one of the daemon's own: the one that puts its engine into service."""

    async def main() -> None:
        await world.host("alice").start(engine=False)
        await world.host("bob").start(engine=lambda *_: reach())
        raise AssertionError("nothing was raised")

    world = World()
    with pytest.raises(BaseExceptionGroup) as raised:
        world.run(main)
    error: BaseException = raised.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, NotSimulated)
    assert str(error).startswith(f"bob: {what}")


@pytest.mark.parametrize(
    "seed",
    [
        *(pytest.param(seed, marks=pytest.mark.ci) for seed in CI_SEEDS),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in LONG_SEEDS),
    ],
)
def test_other_seeds_of_daemons(seed: int) -> None:
    """Other topologies: each with another hash seed and another place in memory."""
    first = run("daemons", seed=seed, hash_seed="1")
    assert first == run("daemons", seed=seed, hash_seed="2") == run("daemons", "--exact", seed=seed)
    alone, accompanied = first["hosts"], run("daemons", "--idle", seed=seed)["hosts"]
    assert {host: accompanied.get(host) for host in alone} == alone
