"""Answers what others ask of a node that serves: who is near a key, what is stored there; and
keeps what they bring. Wire: docs/spec/dht.md."""

from collections import Counter
from collections.abc import Callable

import trio

from ..transport.calls import Answer, Call, Refusal, Reply
from ..transport.host import Host
from ..transport.identity import PeerId
from ..transport.link import Link
from ..transport.rates import Rate, Rates
from . import defaults
from .contact import Contact, met_at
from .errors import BadMessage, BadRecord
from .key import Key
from .messages import Find, Found, Store, encode_codes
from .record import open_record
from .recordstore import RecordStore
from .table import Table

OnAsker = Callable[[Link, Contact], None]
"""Told of a peer that asked over this link, and says that it serves."""


class Answering:
    """Bounded in what one peer, and all of them together, may make it do."""

    def __init__(
        self,
        host: Host,
        link: Callable[[PeerId], Link | None],
        table: Table,
        store: RecordStore,
        *,
        serves: Callable[[], bool],
        on_asker: OnAsker,
    ) -> None:
        self._host = host
        self._link = link
        self._table = table
        self._store = store
        self._serves = serves
        self._on_asker = on_asker
        self._turns = _Turns(host)
        self._finds = Rates(Rate(*defaults.FINDS), Rate(*defaults.FINDS_ALL))
        self._places = Rates(Rate(*defaults.PLACES), Rate(*defaults.PLACES_ALL))
        self._stores = Rates(Rate(*defaults.STORES), Rate(*defaults.STORES_ALL))
        self._stored = Rates(Rate(*defaults.STORED), Rate(*defaults.STORED_ALL))
        self.refused: Counter[str] = Counter()
        """How often something that others asked or brought was refused, by code."""

    async def on_find(self, call: Call) -> Answer:
        """`dht.find`."""
        if not self._finds.take(call.peer, self._host.now()):
            return self._refuse("busy", "questions come too often")
        began = await self._turns.take()
        answer = self._find(call, began)
        self._turns.took(began)
        return answer

    def _find(self, call: Call, now: float) -> Answer:
        try:
            find = Find.decode(bytes(call.payload))
        except BadMessage as error:
            return self._blame(call.peer, error)
        places = (*find.keys, *find.near)
        if not self._places.take(call.peer, now, len(places)):
            return self._refuse("busy", "too many keys are asked for")
        if not self._serves():
            return self._refuse("not-serving", "this node keeps no records of others")
        self._note(call.peer, find.serves)
        found = Found(
            self._store.find(find.keys, now, most=find.most, kinds=find.kinds),
            tuple(self._near(place, call.peer) for place in places),
        )
        return Reply(payload=found.encode())

    def _near(self, place: Key, asker: PeerId) -> tuple[Contact, ...]:
        """Others than who asks, which knows itself, and that can be dialled."""
        near = self._table.nearest(place, defaults.K + 1)
        return tuple(x for x in near if x.peer != asker and x.addresses)[: defaults.K]

    async def on_store(self, call: Call) -> Answer:
        """`dht.store`."""
        if not self._stores.take(call.peer, self._host.now()):
            return self._refuse("busy", "stores come too often")
        began = await self._turns.take()
        try:
            store = Store.decode(bytes(call.payload))
        except BadMessage as error:
            self._turns.took(began)
            self._stores.take(call.peer, self._host.now(), defaults.STORE_FAULT)
            return self._blame(call.peer, error)
        if not self._serves():
            return self._refuse("not-serving", "this node keeps no records of others")
        self._note(call.peer, store.serves)
        link = self._link(call.peer)
        source = met_at(link.address[0] if link is not None else "")
        self._turns.took(began)
        codes: list[str] = []
        while len(codes) < len(store.records):
            began = await self._turns.take()
            for age, sealed in store.records[len(codes) :]:
                if codes and codes[-1] == "bad-signature":  # who brings one need bring no more
                    codes.append("bad-signature")
                else:
                    codes.append(self._keep(call.peer, source, age, sealed))
                if self._host.now() - began > defaults.TURN:
                    break
            self._turns.took(began)
        self.refused.update(filter(None, codes))
        return Reply(payload=encode_codes(codes))

    def _refuse(self, code: str, message: str) -> Refusal:
        self.refused[code] += 1
        return Refusal(code, message)

    def _blame(self, peer: PeerId, error: BadMessage) -> Refusal:
        """It sent what is no message: it loses the link."""
        if (link := self._link(peer)) is not None:
            link.close(error.code, error.message)
        return self._refuse(error.code, error.message)

    def _keep(self, sender: PeerId, source: str, age: int, sealed: bytes) -> str:
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

    def _note(self, peer: PeerId, serves: Contact | None) -> None:
        link = self._link(peer)
        if serves is None and peer in self._table:
            self._table.forget(peer)  # it serves no more
        if serves is not None and serves.peer == peer and link is not None:
            self._on_asker(link, serves)


class _Turns:
    """Many are asked for at once: others run after so much has been done in a row."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._row = 0.0  # seconds of work since others ran
        self._queue = trio.Lock()

    async def take(self) -> float:
        """Until it is one's turn, at once while little has been done. The time then."""
        if self._row >= defaults.ROW or self._queue.locked():
            async with self._queue:  # others run, and one alone comes through each time
                self._row = 0.0
        return self._host.now()

    def took(self, began: float) -> None:
        """What was begun then is done."""
        self._row += self._host.now() - began
