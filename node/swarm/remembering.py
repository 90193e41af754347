"""Stores the inviter, and addresses of linked members, in the data folder for the next start."""

import trio

from ...state.directory import Directory
from ...state.membership.reach import dialable
from ...transport.address import Address
from ...transport.dial.endpoint import Endpoint
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.networks import nearness_at
from .. import defaults
from ..folder import (
    disk_error,
    disk_errors,
    remember_inviter,
    remember_peers,
    remembered_inviter,
    remembered_peers,
)
from ..health import Health
from ..settings.config import DataFolder


class Inviter:
    """The peer whose invitation this node used last, stored in the data folder. `peer` is None if
    there is none."""

    def __init__(self, host: Host, folder: DataFolder, peer: PeerId | None = None) -> None:
        self._host = host
        self._folder = folder
        self.peer = peer

    @classmethod
    async def load(cls, host: Host, folder: DataFolder) -> "Inviter":
        """Read the stored inviter from the data folder."""
        return cls(host, folder, await remembered_inviter(host, folder))

    async def remember(self, peer: PeerId) -> None:
        """Store `peer` as the latest inviter. Raises NodeError `disk` if that fails."""
        self.peer = peer
        with disk_errors(self._folder):
            await remember_inviter(self._host, self._folder, peer)


class Remembering:
    """Stores addresses of other members for one node. If the disk fails, this is reported and the
    node continues."""

    def __init__(
        self,
        host: Host,
        folder: DataFolder,
        endpoint: Endpoint,
        directory: Directory,
        health: Health,
    ) -> None:
        self._host = host
        self._folder = folder
        self._endpoint = endpoint
        self._directory = directory
        self._health = health
        self._refused = False  # whether the last write failed
        self._written: list[str] = []  # the addresses of the last write

    async def known(self) -> list[Address]:
        """Return the addresses that the last run stored. Returns none if the file cannot be
        read."""
        try:
            return await remembered_peers(self._host, self._folder)
        except OSError as error:
            self._report(error)
            return []

    async def run(self) -> None:
        """Store addresses of linked members (`write`) whenever the members change, until
        cancelled."""
        version = -1
        while True:
            version = await self._directory.changed(version)
            if await self.write():
                await trio.sleep(defaults.REMEMBER_PAUSE)
                if self._refused:  # retry even without changes
                    version = -1

    async def write(self) -> bool:
        """Store one address of each linked member, and return whether there were any.

        If there are none, the old file stays. Only addresses that are safe to dial are stored,
        because the next start does not know which peer published them.
        """
        known = []
        for peer, record in self._directory.members().items():
            if (link := self._endpoint.link(peer)) is not None:
                with self._endpoint.guard.around(peer):
                    near = nearness_at(link.status.address[0])
                    known += [str(found) for found in dialable(record.addresses, peer, near)[:1]]
        if not known or (known == self._written and not self._refused):
            return bool(known)
        try:
            await remember_peers(self._host, self._folder, known)
        except OSError as error:
            self._report(error)
            self._refused = True
        else:
            self._written = known
            self._health.clear("disk")
            self._refused = False
        return True

    def _report(self, error: OSError) -> None:
        trouble = disk_error(self._folder, error)
        self._health.report("disk", trouble.message, hint=trouble.hint)
