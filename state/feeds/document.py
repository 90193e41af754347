"""The document of a feed: one pycrdt `Doc` with one root map of facts, written by one author.

Only this module passes updates to pycrdt, and only after `scan.read_update` has accepted them and
they fit into the limits of the feed's kind.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import defaults
from ..errors import BadUpdate
from .kinds import FeedKind
from .scan import ROOT, Changes, DocumentFacts, fact_bytes, read_update, write_update

if TYPE_CHECKING:
    from pycrdt import Doc, Map


class Document:
    """The document of one epoch of a feed.

    `client` is the CRDT client id of the epoch, from `entry.client_of`.
    """

    def __init__(self, kind: FeedKind, client: int) -> None:
        self.kind = kind
        self._ledger = DocumentFacts(client, kind.keys)
        self._doc, self._map = _new_doc(client)
        self._update_bytes = 0

    def apply(self, update: bytes) -> Changes:
        """Apply an update.

        Return the new value of each key that it changes, or None for a deleted key.

        Raises BadUpdate with code `bad-update` if no honest author would write the update, and with
        code `too-large` if the facts would exceed a limit of the kind. Then the document is
        unchanged.
        """
        changes = read_update(self._ledger, update)
        if self._live_bytes_with(changes) > self.kind.live_bytes:
            raise BadUpdate("too-large", "the facts would exceed the size limit of the feed's kind")
        if self.named + sum(key not in self._ledger.last for key in changes) > self.kind.keys:
            raise BadUpdate("too-large", "the facts would exceed the key limit of the feed's kind")
        self._doc.apply_update(update)
        self._ledger.record(changes)
        self._update_bytes += len(update)
        return changes

    def write(self, changes: Mapping[str, bytes | None]) -> bytes:
        """Return the update that makes these changes, without applying it.

        The value None deletes a key.

        Call `apply` once the update is stored. Raises BadUpdate with code `bad-update` if a change
        deletes a key that has no value, and with code `too-large` if a key or a value is too large.
        """
        return write_update(self._ledger, changes)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None if it has none."""
        value = self._map.get(key)
        return None if value is None else bytes(value)

    def facts(self) -> dict[str, bytes]:
        """Return all keys that have a value, with their values, sorted by key."""
        held = self._map.to_py() or {}
        return {key: bytes(held[key]) for key in sorted(held)}

    @property
    def named(self) -> int:
        """The number of different keys that have ever been set in the epoch."""
        return len(self._ledger.last)

    @property
    def live_bytes(self) -> int:
        """An upper bound of the size in bytes of a snapshot of the present facts."""
        return self._ledger.live_bytes

    @property
    def shown_memory(self) -> int:
        """Approximate memory in bytes that the facts take in the views."""
        ledger = self._ledger
        return (
            defaults.FACT_MEMORY * len(ledger.live) + defaults.FACT_MEMORY_TIMES * ledger.live_bytes
        )

    @property
    def memory(self) -> int:
        """Approximate memory in bytes that the document takes, for the limit on documents in
        memory."""
        items = defaults.DOCUMENT_ITEM_BYTES * self._ledger.clock
        return self._update_bytes + items + defaults.DOCUMENT_KEY_BYTES * (self.named + 1)

    def _live_bytes_with(self, changes: Changes) -> int:
        trial = self._ledger.live_bytes
        for key, value in changes.items():
            trial -= self._ledger.live.get(key, 0)
            trial += 0 if value is None else fact_bytes(key, value)
        return trial


def snapshot(kind: FeedKind, client: int, facts: Mapping[str, bytes]) -> bytes:
    """Return the update that begins an epoch with these facts.

    Raises BadUpdate with code `too-large` if they exceed a limit of the kind.
    """
    update = write_update(DocumentFacts(client, kind.keys), facts)
    if len(update) > kind.live_bytes or len(facts) > kind.keys:
        raise BadUpdate("too-large", f"these facts do not fit into one `{kind.name}` feed")
    return update


def _new_doc(client: int) -> "tuple[Doc[Map[bytes]], Map[bytes]]":
    from pycrdt import Doc, Map  # the import takes 60 ms of CPU, which commands without state save

    doc: Doc[Map[bytes]] = Doc(client_id=client)
    return doc, doc.get(ROOT, type=Map)
