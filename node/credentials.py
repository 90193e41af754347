"""Who is let in: the swarm's key, the invitations given out, and the call that hands the key on."""

import trio

from ..transport.calls import Call, Refusal, Reply
from ..transport.endpoint import Endpoint
from ..transport.hello import INVITATION, Admission, Invited, OpenSwarm, SwarmKey
from ..transport.host import Host
from . import defaults
from .config import DataFolder
from .errors import NodeError
from .folder import disk_errors
from .invite import SECRET, Invitation, InviteBook, decode_book, encode, fingerprint, invitation_key


class Credentials:
    """The secrets of one data folder. Each file has mode 0600."""

    def __init__(self, host: Host, folder: DataFolder, key: bytes | None, book: InviteBook) -> None:
        self._host = host
        self._folder = folder
        self._key = key
        self._book = book
        self._saving = trio.Lock()

    @classmethod
    async def load(cls, host: Host, folder: DataFolder, *, private: bool) -> "Credentials":
        """Read them; `private` makes a swarm key where there is none. Raises NodeError."""
        key = await host.offload(_load_key, host, folder)
        if key is None and private:
            key = host.entropy(defaults.SWARM_KEY_SIZE)
            await host.offload(host.files.write, folder.swarm_key, key)
        data = await host.offload(_read_invites, host, folder)
        return cls(host, folder, key, InviteBook(host.wall, decode_book(data) if data else ()))

    @property
    def private(self) -> bool:
        """Whether only who proves the swarm's key, or an invitation, is let in."""
        return self._key is not None

    def admission(self, invitation: Invitation | None) -> Admission:
        """What the endpoint checks; before a joiner knows the swarm, what it proves."""
        if invitation is not None:
            return Invited(invitation_key(invitation.secret))
        if self._key is None:
            return OpenSwarm(invitations=self._book)
        return SwarmKey(self._key, self._book)

    async def adopt(self, key: bytes | None) -> Admission:
        """Keep the key that an inviter handed over; returns the admission from now on.

        Raises NodeError where the folder holds another swarm's key: it is never replaced.
        """
        if self._key is not None and key != self._key:
            raise NodeError(
                "other-swarm",
                f"`{self._folder.path}` belongs to another private swarm",
                hint="join with another folder: `shoal join CODE --data DIR`",
            )
        if key is not None:
            with disk_errors(self._folder):
                await self._host.offload(self._host.files.write, self._folder.swarm_key, key)
        self._key = key
        return self.admission(None)

    async def invite(self, public_key: bytes, host: str, port: int, uses: int) -> tuple[str, float]:
        """A fresh code and its end (wall seconds). Raises NodeError where there are too many."""
        secret = self._host.entropy(SECRET)
        code = encode(Invitation(host, port, fingerprint(public_key), secret))
        expires = self._book.add(secret, uses, defaults.INVITE_LIFETIME)
        await self.save()
        return code, expires

    async def save(self) -> None:
        """Write the invitations that still let somebody in. Raises NodeError `disk`."""
        async with self._saving:  # two writes of one file must not overtake each other
            data = self._book.encode()
            with disk_errors(self._folder):
                await self._host.offload(self._host.files.write, self._folder.invites, data)

    def answer_swarm_key(self, endpoint: Endpoint) -> None:
        """Hand the key to peers that an invitation admitted, and to nobody else."""

        async def on_swarm_key(call: Call) -> Reply | Refusal:
            link = endpoint.link(call.peer)
            if link is None or link.status.admitted.kind != INVITATION:
                return Refusal("not-invited", "the key goes to invited nodes only")
            await self.save()  # a join was taken off when the hello was accepted
            return Reply({"private": self.private}, self._key or b"")

        endpoint.handle("swarm.key", on_swarm_key)


def _load_key(host: Host, folder: DataFolder) -> bytes | None:
    try:
        key = host.files.read(folder.swarm_key, limit=defaults.SMALL_FILE_LIMIT)
    except FileNotFoundError:
        return None
    if host.files.mode(folder.swarm_key) & 0o077:
        raise NodeError(
            "open-key",
            f"other users may read the swarm's key `{folder.swarm_key}`",
            hint=f"`chmod 600 {folder.swarm_key}`, and make a new swarm if somebody may have",
        )
    if len(key) != defaults.SWARM_KEY_SIZE:
        raise NodeError(
            "bad-file",
            f"`{folder.swarm_key}` is no swarm key: it has {len(key)} bytes",
            hint="restore it from a copy, or remove it and join again by a code",
        )
    return key


def _read_invites(host: Host, folder: DataFolder) -> bytes | None:
    try:
        return host.files.read(folder.invites, limit=defaults.INVITE_FILE_LIMIT)
    except FileNotFoundError:
        return None
