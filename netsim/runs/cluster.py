"""Runs the seeds of a sweep on a Ray cluster. Its nodes must have shoal installed."""

import importlib
import logging
import socket
import warnings
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, cast

from ..errors import CannotSimulate
from ..scenario.format.tables import Scenario
from .execute import versions
from .sweepfile import SeedLine, failed_line
from .worker import run_on_node, task_of

KNOCK_S: Final = 5.0  # timeout of the test whether a cluster listens
CLIENT_PORT: Final = "10001"  # default port of `ray://` addresses


class RemoteFunction(Protocol):
    """A function registered with Ray. Calling `remote` runs it on a node of the cluster."""

    def remote(self, task: object, seed: int) -> object: ...


class RayErrors(Protocol):
    """The part of the module `ray.exceptions` that this package uses."""

    RayError: type[Exception]


class Ray(Protocol):
    """The part of the module `ray` that this package uses."""

    exceptions: RayErrors

    def init(self, *, address: str, logging_level: int, log_to_driver: bool) -> object: ...
    def put(self, value: object) -> object: ...
    def remote(self, function: object) -> RemoteFunction: ...
    def wait(
        self, pending: list[object], *, num_returns: int
    ) -> tuple[list[object], list[object]]: ...
    def get(self, done: object) -> SeedLine: ...
    def shutdown(self) -> None: ...


def on_ray(
    address: str, scenario: Scenario, hosts: int | None, seeds: Sequence[int]
) -> Iterator[SeedLine]:
    """Run these seeds on the Ray cluster at `address`.

    Yield the result line of each run when it ends. `hosts` is the value of `--hosts`. Raises
    CannotSimulate if no cluster answers, or if versions on a node of the cluster differ from those
    here.
    """
    ray = _cluster(address)
    try:
        work = ray.remote(run_on_node)
        task = ray.put(task_of(scenario, hosts))
        pending = {work.remote(task, seed): seed for seed in seeds}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            yield _answer(ray, done, pending.pop(done))
    finally:
        ray.shutdown()


def _cluster(address: str) -> Ray:
    """Connect to a cluster, and return the module `ray`.

    Raises CannotSimulate if Ray is not installed or no cluster answers.
    """
    try:
        ray = cast("Ray", importlib.import_module("ray"))
    except ImportError:
        raise CannotSimulate("ray is not installed", hint="`pip install 'shoal[ray]'`") from None
    try:
        _knock(address)
        with warnings.catch_warnings(action="ignore"):
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise CannotSimulate(
            f"no Ray cluster answers at `{address}`: {error}",
            hint="`ray start --head` starts one here; its address is then `auto`",
        ) from None  # fmt: skip
    return ray


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at an address: Ray itself would try for over a minute."""
    scheme, _, rest = address.rpartition("://")
    host, colon, port = rest.rpartition(":")
    if not colon and scheme == "ray":
        host, port = rest, CLIENT_PORT
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()


def _answer(ray: Ray, done: object, seed: int) -> SeedLine:
    """Return the result line of a seed's run on the cluster.

    If the cluster's node died, the line reports the failure. Raises CannotSimulate if versions on
    the node differ from those here.
    """
    try:
        line = ray.get(done)
    except ray.exceptions.RayError as error:
        why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        return failed_line(seed, f"failed: {why[0]}")
    theirs = line.pop("versions")
    for name, ours in versions().items():
        if theirs.get(name) != ours:
            raise CannotSimulate(
                f"a node of the cluster has {name} {theirs.get(name)}, and this machine {ours}",
                hint="install the same everywhere: other versions may give other packets",
            )
    return line
