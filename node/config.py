"""What one daemon is told: a frozen dataclass, and the files of its data folder.

Settings are merged (flag over environment over default) once, in `cli/`; nothing below reads
the environment.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..dht.errors import ModelError
from ..dht.names import read
from ..state.defaults import MEMBER_LINKS
from ..transport.address import Address
from ..transport.ladder import ALL_RUNGS, Rungs
from . import defaults
from .errors import BadSetting
from .invite import Invitation

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
UNITS |= {f"{unit}i": 1 << (10 * power) for power, unit in enumerate("kmgt", 1)}


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings of one daemon. Paths are absolute."""

    data: Path  # the data folder: mode 0700, one daemon at a time
    listen: str = defaults.LISTEN_ADDRESS  # IP address to listen on
    port: int | None = None  # TCP port; None: the remembered one, else a free one; 0: a free one
    bootstrap: tuple[Address, ...] = ()  # peers to ask for the others
    invitation: Invitation | None = None  # join by it
    model: str | None = None  # serve this one; None: what the swarm needs
    layers: tuple[int, int] | None = None  # start:stop, stop exclusive; None: chosen
    disk: int | Literal["auto"] | None = "auto"  # bytes that models and blobs may take; "auto": by
    # what is free; None: without limit
    memory: int | None = None  # bytes offered for weights and KV; None: measured
    threads: int | None = None  # of the engine; None: one per core
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    links: int = MEMBER_LINKS  # members are dialled while there are fewer
    relay: int | None = None  # bytes per second lent as a relay; None: the default rate, once
    # other nodes are known to reach this one; 0: none
    up: int | None = None  # bytes per second sent at most; None: without limit
    down: int | None = None  # bytes per second received at most; None: without limit
    libp2p_relays: tuple[Address, ...] = ()  # relays that are no shoal nodes, to be reached through
    port_443: bool | None = None  # also listen on TCP 443, for peers behind web-only
    # firewalls; None: while other nodes are known to reach this one
    browsers: tuple[str, int] | None = None  # IP address and port for browsers; None: no browsers
    rungs: Rungs = ALL_RUNGS  # the ways to others that this node takes
    state: Literal["auto", "all", "needed"] = "auto"  # what is kept of the swarm's state
    jobs: bool | None = None  # do others' jobs; None: while this node serves layers
    private: bool = False  # found a group: only its members are let in

    @property
    def folder(self) -> "DataFolder":
        return DataFolder(self.data)


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The names inside a data folder."""

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
    def scrub(self) -> Path:
        return self.path / "scrub.json"

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"


def parse_model(text: str) -> str:
    """A name, NAME@HASH or a root, of a model that need not be known. Raises BadSetting."""
    try:
        read(text)
    except ModelError as error:
        raise BadSetting(error.message, hint=error.hint) from None
    return text


def parse_layers(text: str) -> tuple[int, int]:
    """`A:B`, B exclusive. Raises BadSetting."""
    found = re.fullmatch(r"(\d{1,5}):(\d{1,5})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise BadSetting(
            f"`{text}` is not a layer range", hint="`--layers 0:8` means layers 0 to 7"
        )
    return int(found[1]), int(found[2])


def parse_memory(text: str) -> int:
    """`4GiB`, `512MiB`, `2.5GB`, or bytes. Raises BadSetting."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,6})?)\s*([kmgt]?i?)b?", text.strip().lower())
    if found is None or found[2] not in UNITS:
        raise BadSetting(f"`{text}` is not a size", hint="`--memory 4GiB` or `--memory 512MiB`")
    return int(float(found[1]) * UNITS[found[2]])


def parse_disk(text: str) -> int | Literal["auto"] | None:
    """As `parse_memory`, and at least `DISK_LEAST`; or `auto`, or `none`. Raises BadSetting."""
    if text == "auto":
        return "auto"
    if text == "none":
        return None
    try:
        size = parse_memory(text)
    except BadSetting:
        size = 0
    if size < defaults.DISK_LEAST:
        raise BadSetting(
            f"`{text}` is not a size of at least {defaults.DISK_LEAST // 2**20} MiB",
            hint="`--disk 200GiB`, or `--disk none` for no limit",
        )
    return size


def parse_rate(text: str) -> int:
    """`1MB`, `2.5MiB/s`, `8Mbit/s`, or bytes per second. Raises BadSetting."""
    found = re.fullmatch(
        r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?i?)(b|bit)?(?:/s)?", text.strip().lower()
    )
    hint = "bytes per second, as `1MB`, or bits, as `8Mbit`"
    if found is None or found[2] not in UNITS:
        raise BadSetting(f"`{text}` is not a rate", hint=hint)
    rate = int(float(found[1]) * UNITS[found[2]] / (8 if found[3] == "bit" else 1))
    if rate < defaults.RATE_LEAST:
        raise BadSetting(
            f"`{text}` is too little: at least {defaults.RATE_LEAST // 1000} kB a second", hint=hint
        )
    return rate


def parse_relay(text: str) -> int:
    """As `parse_rate`; `none` and `0` are 0. Raises BadSetting."""
    return 0 if text.strip().lower() in ("none", "0") else parse_rate(text)


def parse_listen(text: str) -> tuple[str, int | None]:
    """`IP:PORT`, `[IPv6]:PORT`, `:PORT`, an IP or a multiaddr; no port means the remembered one.

    Raises BadSetting.
    """
    if found := re.fullmatch(r"/ip[46]/([^/]+)(?:/tcp/(\d+))?", text):
        host, port = found[1], found[2]
    elif (found := re.fullmatch(r"\[([^\]]*)\](?::(\d+))?", text)) or (
        found := re.fullmatch(r"([^:]*)(?::(\d+))?", text)
    ):
        host, port = found[1] or defaults.LISTEN_ADDRESS, found[2]
    else:
        host, port = text, None
    if not _is_ip(host) or (port is not None and int(port) > 65535):
        raise BadSetting(
            f"`{text}` is not an address to listen on",
            hint="`--listen 0.0.0.0:4001` or `--listen 127.0.0.1`",
        )
    return host, None if port is None else int(port)


def parse_browsers(text: str) -> tuple[str, int]:
    """`IP:PORT` or `[IPv6]:PORT`, where browsers are let in. Raises BadSetting."""
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d{1,5})", text)
    host = (found[1] or found[2]) if found is not None else ""
    if found is None or not _is_ip(host) or int(found[3]) > 65535:
        raise BadSetting(
            f"`{text}` is not an address and port for browsers",
            hint="`--browsers 127.0.0.1:8080` lets those of this computer in",
        )
    return host, int(found[3])


def parse_libp2p_relay(text: str) -> Address:
    """The address of a relay, which says whose it is: it speaks for others. Raises BadSetting,
    and TransportError for what is no address."""
    address = Address.parse(text)
    if address.peer is None or address.transport != "tcp" or address.relay is not None:
        raise BadSetting(
            f"`{text}` does not say at which TCP port which relay is",
            hint="`--libp2p-relay /ip4/192.0.2.7/tcp/4001/p2p/12D3…`, as the relay tells it",
        )
    return address


def _is_ip(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
