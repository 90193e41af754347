"""The secrets in a data folder that decide which peers this node admits: its group and its
invitations."""

import shlex
from pathlib import Path

import trio

from ...state.group.facts import Charter, Role
from ...state.group.group import Group, GroupAdmission, Secrets
from ...transport.handshake.hello import Admission, Invited, OpenSwarm
from ...transport.host.seam import Host
from ...transport.identity import Identity
from .. import defaults
from ..errors import NodeError, OtherSwarm
from ..folder import disk_errors
from ..invite import (
    SECRET,
    Invitation,
    InviteBook,
    decode_book,
    encode,
    fingerprint,
    invitation_key,
)
from ..settings.config import DataFolder
from .handover import Handed, read_handed


class Credentials:
    """The group and the invitations of one data folder. Each of their files has mode 0600."""

    def __init__(
        self,
        host: Host,
        folder: DataFolder,
        identity: Identity,
        handed: Handed | None,
        book: InviteBook,
    ) -> None:
        self._host = host
        self._folder = folder
        self._identity = identity
        self.book = book
        self._saving = trio.Lock()
        self._changed = trio.Event()
        self.group: Group | None = None
        self.alone = False
        """Whether no invitation to this group has been made yet, so that it has no other member."""
        if handed is not None:
            self._take_up(handed)

    @classmethod
    async def load(
        cls, host: Host, folder: DataFolder, identity: Identity, *, private: bool
    ) -> "Credentials":
        """Read the secrets from the data folder. With `private`, create a group if the folder has
        none.

        Raises NodeError if a file is invalid or other users can read it.
        """
        handed = await host.offload(_load_group, host, folder)
        if handed is None and private:
            handed = Handed.founded(identity.peer, host.entropy)
            await host.offload(host.files.write, folder.group, handed.as_file())
        data = await host.offload(_read_invites, host, folder)
        book = InviteBook(host.wall, decode_book(data) if data else ())
        return cls(host, folder, identity, handed, book)

    def _take_up(self, handed: Handed) -> None:
        """Use the group that these credentials describe."""
        self.alone = handed.alone
        charter = Charter(handed.founder, handed.nonce)
        self.group = Group(charter, self._identity, Secrets(handed.keys, self._note_change))

    def _note_change(self) -> None:
        """Wake `run`, because the group's secrets have changed."""
        self._changed.set()

    @property
    def private(self) -> bool:
        """Whether this node admits only members of its group and invited peers."""
        return self.group is not None

    @property
    def handed(self) -> Handed | None:
        """The group credentials to send to a joining node. They are None if there is no group."""
        if self.group is None:
            return None
        charter = self.group.charter
        keys = tuple(self.group.secrets.known())
        return Handed(charter.founder, charter.nonce, keys, alone=self.alone)

    def admission(self, invitation: Invitation | None) -> Admission:
        """Return the admission check of the endpoint.

        With `invitation`, this is the check of a node that is joining: it proves that it knows the
        invitation's secret.
        """
        if invitation is not None:
            swarm = b"" if self.group is None else self.group.charter.ident
            return Invited(invitation_key(invitation.secret), swarm)
        if self.group is None:
            return OpenSwarm(invitations=self.book)
        return GroupAdmission(self.group, self.book)

    async def adopt(self, handed: Handed | None) -> Admission:
        """Store the group credentials that an inviter has sent, and return the admission check to
        use from now on.

        `handed` is None if the inviter's swarm is open. Raises OtherSwarm if the folder belongs to
        another group, whose credentials are never replaced.
        """
        mine = self.group.charter if self.group is not None else None
        if mine is not None and (handed is None or handed.charter != mine):
            raise OtherSwarm(f"`{self._folder.path}` belongs to another private swarm")
        if handed is not None and self.group is None:
            self._take_up(handed)
        elif handed is not None and self.group is not None:
            for number, secret in handed.keys:
                self.group.secrets.add(number, secret)
        if self.group is not None:
            await self.save_group()
        return self.admission(None)

    async def run(self) -> None:
        """Write the group file whenever the group's secrets change, until cancelled. Raises
        NodeError `disk` if that fails."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            await self.save_group()

    async def save_group(self) -> None:
        """Write the group file. Raises NodeError `disk` if that fails."""
        async with self._saving:
            handed = self.handed
            if handed is not None:
                with disk_errors(self._folder):
                    write = self._host.files.write
                    await self._host.offload(write, self._folder.group, handed.as_file())

    async def invite(
        self, public_key: bytes, host: str, port: int, uses: int, role: Role = Role.OPERATOR
    ) -> tuple[str, float]:
        """Make an invitation and return (code, time of its expiry in seconds of the wall clock).

        `host` and `port` are the address of this node that the code contains. Raises NodeError if
        too many invitations are outstanding, and ValueError if `host` is not an IP address.
        """
        if self.alone:  # from now on, other nodes may have copies of the group's records
            self.alone = False
            await self.save_group()
        secret = self._host.entropy(SECRET)
        code = encode(Invitation(host, port, fingerprint(public_key), secret))
        expires = self.book.add(secret, uses, defaults.INVITE_LIFETIME, role)
        await self.save()
        return code, expires

    async def save(self) -> None:
        """Write the invitations that can still be used. Raises NodeError `disk` if that fails."""
        async with self._saving:  # two writes of one file must not overtake each other
            data = self.book.encode()
            with disk_errors(self._folder):
                await self._host.offload(self._host.files.write, self._folder.invites, data)


def _load_group(host: Host, folder: DataFolder) -> Handed | None:
    """Read the group file. Return None if there is none. Raises NodeError if it is invalid or other
    users can read it."""
    if host.files.size(folder.swarm_key) is not None:
        raise NodeError(
            "old-swarm-key",
            f"`{folder.swarm_key}` is of an earlier version: private swarms have members now",
            hint="remove it, create the swarm again with `shoal node --private`, and invite the "
            "others again with `shoal invite`",
        )
    try:
        data = host.files.read(folder.group, limit=defaults.GROUP_FILE_LIMIT)
    except FileNotFoundError:
        return None
    rotate = "`shoal group rotate` if they may have read it"
    _check_mode(host, folder.group, "the group's secrets", rotate)
    handed = read_handed(data)
    if handed is None:
        raise NodeError(
            "bad-file",
            f"`{folder.group}` does not hold a private group",
            hint="restore it from a backup, or remove it and join again with a code",
        )
    return handed


def _read_invites(host: Host, folder: DataFolder) -> bytes | None:
    try:
        data = host.files.read(folder.invites, limit=defaults.INVITE_FILE_LIMIT)
    except FileNotFoundError:
        return None
    uninvite = "remove the file if they may have read it, which revokes all outstanding codes"
    _check_mode(host, folder.invites, "the keys of outstanding invitations", uninvite)
    return data


def _check_mode(host: Host, path: Path, what: str, otherwise: str) -> None:
    """Raise NodeError `open-key` if other users can read the file. `what` names its contents, and
    `otherwise` ends the hint."""
    mode = host.files.mode(path)
    if mode & 0o077:
        raise NodeError(
            "open-key",
            f"other users may read {what} in `{path}` (its mode is {mode:04o})",
            hint=f"`chmod 600 {shlex.quote(str(path))}`, and {otherwise}",
        )
