"""`dht.store` messages of one walk, with their retries, and the result for each record. No I/O.

A message that is not acknowledged is sent again, unless enough other nodes already store its
records.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from ...transport.identity import PeerId
from ...transport.rates import DialLimiter
from .. import defaults
from ..kademlia.messages import Aged, StoreRequest
from ..lookup.query import Querier
from ..records.contact import Contact
from ..records.key import Key
from ..records.record import Record


@dataclass(frozen=True, slots=True, eq=False)
class StoreQuery:
    """Request to store records at a contact."""

    contact: Contact
    store: StoreRequest
    records: tuple[Record, ...]


@dataclass(slots=True)
class Published:
    """Result of the walk for one record."""

    record: Record
    kept: list[PeerId] = field(default_factory=list)  # nodes that stored it
    refused: dict[PeerId, str] = field(default_factory=dict)  # node -> error code
    failed: list[PeerId] = field(default_factory=list)  # nodes that did not answer
    sent: set[PeerId] = field(default_factory=set)  # all of these, and those with a pending message

    def tried(self, peer: PeerId) -> bool:
        """Return whether a message with this record was sent to a node, or queued."""
        return peer in self.sent

    @property
    def enough(self) -> bool:
        """Whether the record has enough replicas, so that the other nodes can be left out."""
        most, share = defaults.STORE_ENOUGH
        return len(self.kept) >= max(min(most, int(share * len(self.sent))), 1)


@dataclass(slots=True, eq=False)
class _Parcel:
    """A message to one node. `ended` is called once, when it was answered or given up."""

    query: StoreQuery
    ended: Callable[[], None]
    tries: int = 0  # how often it was sent
    due: float = -inf  # when to send it again
    sent: float = -inf  # when it was sent last
    silent: bool = False  # the node did not answer, as opposed to being busy

    def late(self, now: float) -> bool:
        """Return whether the reply to the message is late."""
        return self.sent + defaults.STORE_LATE <= now


class WalkMessages:
    """The `dht.store` messages of one walk, and the choice of when to send each.

    `results` maps the author, key and slot of each record of the walk to its result.

    A background walk has a `limiter`. It stores records at linked nodes at once, and dials others
    only while too few nodes store a record, and only when the limiter allows it.
    """

    def __init__(
        self,
        results: Mapping[tuple[PeerId, Key, str], Published],
        querier: Querier,
        limiter: DialLimiter | None,
    ) -> None:
        self.count = 0
        """Number of messages sent so far."""
        self.silent: set[PeerId] = set()
        """Nodes that did not acknowledge a message."""
        self._results = results
        self._querier = querier
        self._limiter = limiter
        self._ready: deque[_Parcel] = deque()
        self._later: list[_Parcel] = []
        self._held: deque[_Parcel] = deque()  # messages of a background walk that need a dial
        self._sent: dict[StoreQuery, _Parcel] = {}

    @property
    def done(self) -> bool:
        """Whether each message was acknowledged or refused, or was given up."""
        return not (self._ready or self._later or self._held or self._sent)

    @property
    def ready(self) -> int:
        """Number of messages that wait for a free slot."""
        return len(self._ready)

    def put(self, query: StoreQuery, ended: Callable[[], None]) -> None:
        """Queue a message. `ended` is called once, when it was answered or given up."""
        at_hand = self._can_send_now(query.contact)
        (self._ready if at_hand else self._held).append(_Parcel(query, ended))

    def wake_at(self, now: float) -> float:
        """Return the time at which to call `next` even if no reply arrives. Infinity: never."""
        late = (parcel.sent + defaults.STORE_LATE for parcel in self._sent.values())
        dial = self._limiter.at if self._limiter is not None and self._held else inf
        mine = (when for when in (dial, *late) if when > now)
        return min((*(parcel.due for parcel in self._later), *mine), default=inf)

    def next(self, now: float) -> list[StoreQuery]:
        """Return the messages to send now. They count as sent."""
        found: list[StoreQuery] = []
        self._due(now)
        self._release(now)
        late = sum(parcel.late(now) for parcel in self._sent.values())
        most = defaults.WALK_STORES + min(late, defaults.WALK_LATE)
        while self._ready and len(self._sent) < most:
            parcel = self._ready.popleft()
            parcel.tries += 1
            parcel.sent = now
            self.count += 1
            self._sent[parcel.query] = parcel
            found.append(parcel.query)
        return found

    def _due(self, now: float) -> None:
        """Queue the messages whose retry is due, and give up those that are no longer needed."""
        due = [parcel for parcel in self._later if parcel.due <= now]
        self._later = [parcel for parcel in self._later if parcel.due > now]
        for parcel in due:
            if parcel.silent and self._is_redundant(parcel.query):
                self._give_up(parcel)  # enough other nodes have acknowledged meanwhile
            else:
                self._ready.append(parcel)

    def _release(self, now: float) -> None:
        """Queue the next held message of a background walk, if its node may be dialled now.

        Does nothing while an earlier message is unanswered, because its reply may make the dial
        unnecessary.
        """
        while self._held and not self._ready and not self._sent:
            parcel = self._held[0]
            if not self._is_redundant(parcel.query):
                if not self._can_send_now(parcel.query.contact) and not self._may_dial(now):
                    return
                self._ready.append(parcel)
            else:
                self._give_up(parcel)
            self._held.popleft()

    def _may_dial(self, now: float) -> bool:
        """Return whether a dial may begin now. If so, the dial is counted."""
        return self._limiter is None or self._limiter.take(now)

    def _can_send_now(self, contact: Contact) -> bool:
        """Return whether a message to this node needs no permission for a dial."""
        return self._limiter is None or self._querier.linked(contact.peer)

    def drop_late(self, now: float) -> None:
        """Give up the late messages whose records enough nodes already store.

        Does nothing while other messages wait to be sent.
        """
        if self._ready or self._later:
            return
        for query, parcel in list(self._sent.items()):
            if parcel.late(now) and self._is_redundant(query):
                self._give_up(self._sent.pop(query))

    # Replies.

    def stored(self, query: StoreQuery, codes: Sequence[str], now: float) -> None:
        """Process a node's reply to a message.

        `codes` has an error code for each record, "" if stored. The records that the node refused
        as `busy` are sent again later.
        """
        parcel = self._sent.pop(query, None)
        if parcel is None:
            return
        busy = [r for r, code in zip(query.records, codes, strict=True) if code == "busy"]
        for record, code in zip(query.records, codes, strict=True):
            done = self._results[record.place]
            if not code:
                done.kept.append(query.contact.peer)
            elif code != "busy" or parcel.tries >= defaults.STORE_TRIES:
                done.refused[query.contact.peer] = code
        if busy and parcel.tries < defaults.STORE_TRIES:
            again = tuple(Aged(0, record.sealed) for record in busy)
            store = StoreRequest(again, self._querier.serves)
            parcel.query = StoreQuery(query.contact, store, tuple(busy))
            parcel.silent = False
            self._again(parcel, now)
        else:
            parcel.ended()

    def failed(self, query: StoreQuery, now: float) -> None:
        """Record that a node did not acknowledge a message.

        The message is sent again, unless it was sent `STORE_TRIES` times, would need a dial that is
        not allowed, or is no longer needed.
        """
        parcel = self._sent.pop(query, None)
        if parcel is None:
            return
        again = parcel.tries < defaults.STORE_TRIES and self._can_send_now(query.contact)
        if again and not self._is_redundant(query):
            parcel.silent = True
            self._again(parcel, now)
            return
        self.silent.add(query.contact.peer)
        self._give_up(parcel)

    def _give_up(self, parcel: _Parcel) -> None:
        """Count the node of a message as failed for all its records."""
        for record in parcel.query.records:
            self._results[record.place].failed.append(parcel.query.contact.peer)
        parcel.ended()

    def _is_redundant(self, query: StoreQuery) -> bool:
        """Return whether enough nodes already store each record of a message."""
        return all(self._results[record.place].enough for record in query.records)

    def _again(self, parcel: _Parcel, now: float) -> None:
        """Schedule a message to be sent again."""
        parcel.due = now + defaults.STORE_PAUSE
        self._later.append(parcel)
