"""The file in which a node's shares survive restarts."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ...transport.decoding import read_json
from ...transport.errors import HostError, Undecodable
from ...transport.host.seam import Host
from ...transport.message import Message
from . import defaults
from .address import EngineAddress, parse_address
from .errors import ShareError


@dataclass(frozen=True, slots=True)
class OwnShare:
    """A model that this node's owner shares: the engine's address, its name there (`model`), its
    name in the swarm, and how many requests the engine answers at once."""

    url: str
    model: str
    name: str
    at_once: int = defaults.AT_ONCE

    @property
    def address(self) -> EngineAddress:
        """The address of the engine. Raises ShareError if the URL is invalid."""
        return parse_address(self.url)


class _Saved(Message, frozen=True):
    url: Annotated[str, Meta(min_length=1, max_length=256)]
    model: Annotated[str, Meta(min_length=1, max_length=defaults.MODEL_CHARACTERS)]
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    at_once: Annotated[int, Meta(ge=1, le=defaults.AT_ONCE_MOST)] = defaults.AT_ONCE


class _StoredShares(Message, frozen=True):
    shares: Annotated[tuple[_Saved, ...], Meta(max_length=defaults.SHARES)] = ()


async def load(host: Host, path: Path) -> list[OwnShare]:
    """Return the stored shares. Raises ShareError `damaged-file` if the file is not valid."""
    try:
        data = await host.offload(lambda: host.files.read(path, limit=defaults.FILE_BYTES))
        found = read_json(_StoredShares, data, limit=defaults.FILE_BYTES).shares
        shares = [OwnShare(each.url, each.model, each.name, each.at_once) for each in found]
        for share in shares:
            parse_address(share.url)
    except FileNotFoundError:
        return []
    except (OSError, HostError, Undecodable, ShareError) as error:
        raise ShareError(
            "damaged-file",
            f"the list of shared models in `{path}` is unreadable, so none is shared: {error}",
            hint="share them again with `shoal share URL`, which replaces the file",
        ) from None
    return shares


async def save(host: Host, path: Path, shares: Iterable[OwnShare]) -> None:
    """Store the shares. Raises OSError if the disk fails."""
    data = json.dumps({"shares": [asdict(share) for share in shares]}, indent=1).encode()
    await host.offload(host.files.write, path, data)
