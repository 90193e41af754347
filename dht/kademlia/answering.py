"""Server side of the DHT: answers `dht.find` and `dht.store`. Wire format: docs/spec/dht.md."""

from collections import Counter
from collections.abc import Callable

import trio

from ...transport.defaults import PATIENCE_S
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.calls import Answer, Call, Refusal, Reply
from ...transport.link.link import Link
from ...transport.rates import Rate, Rates
from .. import defaults
from ..errors import BadMessage, BadRecord
from ..records.contact import Contact, met_at, read_contact
from ..records.key import Key
from ..records.record import open_record
from .brieflinks import Switchboard
from .messages import Find, FindReply, StoreRequest, encode_codes
from .recordstore import RecordStore
from .table import Table

OnAsker = Callable[[Link, Contact], None]
"""Called with the link and the contact of a peer that sent a request and says that it serves."""


class DhtHandlers:
    """Handlers of DHT requests. Requests are rate-limited, per peer and for all peers together.

    `serves` returns whether this node answers requests. `on_asker` is called for each serving peer.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Switchboard,
        table: Table,
        store: RecordStore,
        *,
        serves: Callable[[], bool],
        on_asker: OnAsker,
    ) -> None:
        self._host = host
        self._link = endpoint.link
        self._table = table
        self._store = store
        self._serves = serves
        self._on_asker = on_asker
        self._turns = _RequestTurns(host)
        self._finds = Rates(Rate(*defaults.FINDS), Rate(*defaults.FINDS_ALL))
        self._places = Rates(Rate(*defaults.PLACES), Rate(*defaults.PLACES_ALL))
        self._stores = Rates(Rate(*defaults.STORES), Rate(*defaults.STORES_ALL))
        self._stored = Rates(Rate(*defaults.STORED), Rate(*defaults.STORED_ALL))
        self.refused: Counter[str] = Counter()
        """Number of requests and records that were refused, by error code."""
        endpoint.handle("dht.find", self.on_find)
        endpoint.handle("dht.store", self.on_store)

    async def on_find(self, call: Call) -> Answer:
        """Answer a `dht.find` request with records, and the contacts nearest to the keys."""
        if not self._finds.take(call.peer, self._host.now()):
            return self._refuse("busy", "too many `dht.find` calls")
        began = await self._turns.take()
        answer = self._find(call, began)
        self._turns.took(began)
        return answer

    def _find(self, call: Call, now: float) -> Answer:
        """Decode and answer a `dht.find` request. `now` is the host's time in seconds."""
        try:
            find = Find.decode(bytes(call.payload))
        except BadMessage as error:
            return self._blame(call.peer, error)
        places = (*find.keys, *find.near)
        if not self._places.take(call.peer, now, len(places)):
            return self._refuse("busy", "too many keys requested")
        if not self._serves():
            return self._refuse("not-serving", "this node does not store records for other nodes")
        self._note(call.peer, find.serves)
        found = FindReply(
            self._store.find(find.keys, now, most=find.most, kinds=find.kinds),
            tuple(self._near(place, call.peer) for place in places),
        )
        return Reply(payload=found.encode())

    def _near(self, place: Key, asker: PeerId) -> tuple[Contact, ...]:
        """Return up to `K` contacts near `place` that have an address, except the asker itself."""
        near = self._table.nearest(place, defaults.K + 1)
        return tuple(x for x in near if x.peer != asker and x.addresses)[: defaults.K]

    async def on_store(self, call: Call) -> Answer:
        """Store the records of a `dht.store` request, and answer with one code per record."""
        if not self._stores.take(call.peer, self._host.now()):
            return self._refuse("busy", "too many `dht.store` calls")
        began = await self._turns.take()
        try:
            store = StoreRequest.decode(bytes(call.payload))
        except BadMessage as error:
            self._turns.took(began)
            self._stores.take(call.peer, self._host.now(), defaults.STORE_FAULT)
            return self._blame(call.peer, error)
        if not self._serves():
            return self._refuse("not-serving", "this node does not store records for other nodes")
        self._note(call.peer, store.serves)
        link = self._link(call.peer)
        source = met_at(link.address[0] if link is not None else "")
        self._turns.took(began)
        codes: list[str] = []
        while len(codes) < len(store.records):
            began = await self._turns.take()
            for aged in store.records[len(codes) :]:
                # After one forged record, the signatures of the others are not checked, because a
                # check takes 0.1 ms.
                if codes and codes[-1] == "bad-signature":
                    codes.append("bad-signature")
                else:
                    codes.append(self._keep(call.peer, source, aged.age, aged.sealed))
                if self._host.now() - began > defaults.TURN:
                    break
            self._turns.took(began)
        self.refused.update(filter(None, codes))
        return Reply(payload=encode_codes(codes), within=PATIENCE_S)

    def _refuse(self, code: str, message: str) -> Refusal:
        """Count a refusal, and return it."""
        self.refused[code] += 1
        return Refusal(code, message)

    def _blame(self, peer: PeerId, error: BadMessage) -> Refusal:
        """Close the link to a peer that sent a malformed message, and return the refusal."""
        if (link := self._link(peer)) is not None:
            link.close(error.code, error.message)
        return self._refuse(error.code, error.message)

    def _keep(self, sender: PeerId, source: str, age: int, sealed: bytes) -> str:
        """Verify and store one record. Return "" if it was stored, else an error code.

        `source` is the network of the sender. `age` is in seconds.
        """
        now = self._host.now()
        if not self._stored.take(sender, now):
            return "busy"
        try:
            record = open_record(sealed)
        except BadRecord as error:
            return error.code
        return self._store.put(
            record, sender=sender, network=source, age=age, now=now, wall=self._host.wall()
        )

    def _note(self, peer: PeerId, packed: bytes | None) -> None:
        """Register or remove the sender of a request as a serving peer.

        `packed` is the contact in the request, or None if the sender does not serve.
        """
        link = self._link(peer)
        serves = None if packed is None else read_contact(packed)
        if serves is None and peer in self._table:
            self._table.forget(peer)  # it has stopped serving
        if serves is not None and serves.peer == peer and link is not None:
            self._on_asker(link, serves)


class _RequestTurns:
    """Scheduler that lets other tasks run after every `ROW` seconds of work on requests."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._row = 0.0  # seconds of work since other tasks last ran
        self._queue = trio.Lock()

    async def take(self) -> float:
        """Wait until work on a request may begin, and return the host's time.

        There is no wait while little work was done since other tasks last ran.
        """
        if self._row >= defaults.ROW or self._queue.locked():
            async with self._queue:  # acquiring it yields, and lets one waiter through at a time
                self._row = 0.0
        return self._host.now()

    def took(self, began: float) -> None:
        """Add the time since `began` to the work done since other tasks last ran."""
        self._row += self._host.now() - began
