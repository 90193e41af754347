"""The same seed gives the same packets, whatever the machine does; and each gate can fail.

Every run is a process of its own. A workload (workload.py) that lets something of the machine
show is the twin of each gate: the gate must see it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shoal.netsim.tracefile import first_difference

WORKLOAD = Path(__file__).parent / "workload.py"
WORKLOADS = ["echo"]
# Whole daemons join here: their name in workload.WORKLOADS, as long tests.


@cache
def run(
    name: str,
    *options: str,
    seed: int = 1,
    hash_seed: str = "random",
    python: tuple[str, ...] = (),
    attempt: int = 0,
) -> Any:
    """What the workload prints; `attempt` tells equal runs apart."""
    command = [sys.executable, *python, str(WORKLOAD), name, str(seed), *options]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


@contextmanager
def burner() -> Iterator[None]:
    """A process that wants every core for itself."""
    code = "import os\nfor _ in range(os.cpu_count()): os.fork() or [0 for _ in iter(int, 1)]"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def profiled(folder: Path) -> tuple[str, ...]:
    return ("-m", "cProfile", "-o", str(folder / "profile"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_twice(name: str) -> None:
    assert run(name) == run(name, attempt=1)
    assert run(name)["count"] > 1000


@pytest.mark.parametrize("name", WORKLOADS)
def test_another_seed_differs(name: str) -> None:
    assert run(name)["digest"] != run(name, seed=2)["digest"]


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_hash_seeds(name: str, hash_seed: str) -> None:
    assert run(name, hash_seed=hash_seed) == run(name)


@pytest.mark.parametrize("name", WORKLOADS)
def test_under_a_profiler(name: str, tmp_path: Path) -> None:
    assert run(name, python=profiled(tmp_path)) == run(name)


@pytest.mark.parametrize("name", WORKLOADS)
def test_under_load(name: str) -> None:
    with burner():
        assert run(name, attempt=2) == run(name)


@pytest.mark.parametrize("name", WORKLOADS)
def test_with_and_without_address_randomisation(name: str) -> None:
    assert run(name, "--exact") == run(name)


@pytest.mark.parametrize("name", WORKLOADS)
def test_an_idle_host_changes_nobody_s_records(name: str) -> None:
    alone, accompanied = run(name)["hosts"], run(name, "--idle")["hosts"]
    assert {host: accompanied.get(host) for host in alone} == alone


# The twins.


@pytest.mark.parametrize(
    "name", ["leaks-time", "leaks-entropy", "leaks-hash", "leaks-address", "leaks-idle"]
)
def test_a_leak_is_seen(name: str) -> None:
    if name == "leaks-idle":
        alone, accompanied = run(name)["hosts"], run(name, "--idle")["hosts"]
        assert {host: accompanied.get(host) for host in alone} != alone
    else:
        assert run(name) != run(name, attempt=1)


def test_a_slow_machine_shows_a_leak_of_time(tmp_path: Path) -> None:
    assert run("leaks-time", python=profiled(tmp_path)) != run("leaks-time")


@pytest.mark.parametrize("name", ["leaks-hash", "leaks-address"])
def test_fixed_hashes_and_addresses_hide_orders(name: str) -> None:
    """What strict scenarios ask for: not even the orders of sets differ."""
    if sys.platform != "linux":
        pytest.skip("only Linux is known to fix addresses")
    assert run(name, "--exact") == run(name, "--exact", attempt=1)


def test_the_task_that_made_the_difference_is_named(tmp_path: Path) -> None:
    files = tmp_path / "a", tmp_path / "b"
    for number, file in enumerate(files):
        run("leaks-entropy", "--trace", str(file), attempt=number)
    with files[0].open("rb") as a, files[1].open("rb") as b:
        found = first_difference(a, b)
    assert found is not None
    assert any("node" in cause for cause in found.causes)
