"""The configuration of one daemon, and the paths of the files in its data folder.

`settings.py` merges the command-line options and the settings file into it at the start. No module
reads environment variables.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...transport.address import Address
from ...transport.strategies.dialer import ALL_STRATEGIES, Strategies
from .. import defaults
from ..invite import Invitation


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Configuration of one daemon. Paths are absolute."""

    data: Path  # the data folder: mode 0700, one daemon at a time
    listen: str = defaults.LISTEN_ADDRESS  # IP address to listen on
    port: int | None = None  # TCP port; None: the remembered one, else a free one; 0: a free one
    bootstrap: tuple[Address, ...] = ()  # the first peers to link to
    invitation: Invitation | None = None  # join a swarm with this invitation
    model: str | None = None  # serve this model; None: what the swarm needs
    layers: tuple[int, int] | None = None  # start:stop, stop exclusive; None: chosen
    disk: int | Literal["auto"] | None = "auto"  # limit in bytes for models and blobs; "auto":
    # depends on the free space; None: no limit
    memory: int | None = None  # bytes offered for weights and KV; None: measured
    threads: int | None = None  # of the engine; None: one per core
    device: tuple[str, ...] = ("auto",)  # of the engines: `auto`, a kind such as `cpu`, or a name
    # such as `cuda:1`; one engine for each
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    links: int | None = None  # dial further members while there are fewer links; None: as needed
    relay: int | None = None  # bytes per second lent as a relay; None: the default rate, once
    # other nodes can reach this one; 0: does not relay
    up: int | None = None  # upload limit in bytes per second; None: no limit
    down: int | None = None  # download limit in bytes per second; None: no limit
    libp2p_relays: tuple[Address, ...] = ()  # libp2p relays through which peers reach this node
    port_443: bool | None = None  # also listen on TCP 443, for peers behind web-only
    # firewalls; None: while other nodes can reach this one
    browsers: tuple[str, int] | None = None  # IP address and port for browsers; None: no browsers
    strategies: Strategies = ALL_STRATEGIES  # connection strategies that this node uses
    state: Literal["auto", "all", "needed"] = "auto"  # which part of the swarm's state is stored
    jobs: bool | None = None  # run jobs of other nodes; None: while this node serves layers
    api: int | None = None  # port on loopback of the HTTP API; 0: a free one; None: no API
    measure: bool = False  # measure this machine if its speed is unknown
    private: bool = False  # create a private group (if there is none), which admits only members

    @property
    def folder(self) -> "DataFolder":
        return DataFolder(self.data)


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The paths of all files inside a data folder."""

    path: Path

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def pid(self) -> Path:
        return self.path / "pid"

    @property
    def port(self) -> Path:
        return self.path / "port"

    @property
    def peers(self) -> Path:
        return self.path / "peers"

    @property
    def inviter(self) -> Path:
        return self.path / "inviter"

    @property
    def swarm_key(self) -> Path:
        return self.path / "swarm.key"

    @property
    def group(self) -> Path:
        return self.path / "group.json"

    @property
    def invites(self) -> Path:
        return self.path / "invites.json"

    @property
    def dht(self) -> Path:
        return self.path / "dht"

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def results(self) -> Path:
        return self.path / "jobs"

    @property
    def shelf(self) -> Path:
        return self.path / "shelf"

    @property
    def library(self) -> Path:
        return self.path / "models"

    @property
    def pieces(self) -> Path:
        """Folder of the outputs of pieces of jobs that are not done."""
        return self.path / "pieces"

    @property
    def trained(self) -> Path:
        return self.path / "trained"

    @property
    def tunings(self) -> Path:
        return self.path / "tuning"

    @property
    def shares(self) -> Path:
        return self.path / "shares.json"

    @property
    def scrub(self) -> Path:
        return self.path / "scrub.json"

    @property
    def settings(self) -> Path:
        return self.path / "settings.conf"

    @property
    def api_token(self) -> Path:
        return self.path / "api-token"

    @property
    def control_socket(self) -> Path:
        """Path of the Unix socket at which the daemon takes commands."""
        return self.path / "control.sock"
