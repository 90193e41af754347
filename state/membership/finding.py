"""Questions to peers for proofs that members are live. One message asks about many members.

A peer sends each proof as soon as it has the proof, and replies once it has no more to send.
Therefore a member that is slow to sign does not delay the proofs of others. Spec:
docs/spec/liveness.md.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, groupby, islice
from typing import NamedTuple

import trio

from ...transport.dial.endpoint import Endpoint
from ...transport.errors import TransportError
from ...transport.identity import SIGNATURE_BYTES, PeerId
from ...transport.lane.frame import Priority
from ...transport.link.calls import Answer, Call, Refusal, Reply
from ...transport.link.link import Link
from .. import defaults
from ..errors import BadRecord
from .liveness import Liveness
from .messages import encode_find, encode_found, read_find, read_found

Found = Callable[[PeerId, bytes], bool]
"""Called with a member and its signature, which is not verified yet.

Returns whether the signature is valid and this node needed it.
"""


class Finding:
    """The open questions of one node, and its replies to the questions of its peers."""

    def __init__(
        self,
        endpoint: Endpoint,
        liveness: Liveness,
        links: Mapping[PeerId, Link],
        allows: Callable[[PeerId, int, bool], bool],
        follows: Callable[[PeerId, PeerId, PeerId], None],
    ) -> None:
        """Create the questions and their message handlers.

        `allows` returns whether a peer may ask about this number of members now. Its last argument
        says whether the question is the peer's own; the others come from peers of that peer, and
        must not use up what the peer may ask for itself. `follows` is called with a peer, a member
        of which the peer got a proof, and the source of that proof (see `Followers.add`).
        """
        self._endpoint = endpoint
        self._liveness = liveness
        self._links = links
        self._allows = allows
        self._follows = follows
        self._open: dict[int, tuple[PeerId, list[PeerId | None], Found]] = {}
        """By number of a question: (peer that was asked, members in the question, callback). A
        member with an answer is replaced by None."""
        self._idents = count()
        endpoint.handle("live.find", self._on_find)
        endpoint.handle("live.found", self._on_found)

    async def ask_around(
        self, peers: Collection[PeerId], number: bytes, left: Collection[PeerId], found: Found
    ) -> None:
        """Ask the helpers of these members for the members' signatures over `number`.

        Returns once all helpers have been asked. Members that are no longer in `left` need no more
        signatures, so no further helper is asked about them.
        """
        async with trio.open_nursery() as nursery:
            for pace, some in groupby(sorted(peers, key=self._pace), self._pace):
                nursery.start_soon(self._ask_by, pace, list(some), number, left, found)

    def _pace(self, peer: PeerId) -> "_Pace":
        """Return how fast to ask helpers about a member.

        If the member is not in doubt, its helpers are asked one after another, because the first
        one will probably deliver the proof.
        """
        if self._liveness.is_answering(peer):  # its own link will probably deliver the proof
            return _Pace(defaults.LINKED_S, 1, defaults.NEXT_S)
        if self._liveness.is_doubted(peer):
            return _Pace(0.0, defaults.ASKED, defaults.NEXT_S)
        return _Pace(0.0, 1, defaults.NEXT_CALM_S)

    async def _ask_by(
        self,
        pace: "_Pace",
        peers: Sequence[PeerId],
        number: bytes,
        left: Collection[PeerId],
        found: Found,
    ) -> None:
        """Ask the helpers in rounds, with at most one question to each helper in a round.

        A round ends when all its helpers have replied, or after `pace.apart` seconds.
        """
        helpers = {peer: iter(self._liveness.helpers(peer)) for peer in peers}
        await trio.sleep(pace.first)
        async with trio.open_nursery() as nursery:
            while True:
                asked: dict[PeerId, list[PeerId]] = {}
                for peer in filter(left.__contains__, peers):
                    for by in islice(helpers[peer], pace.at_once):
                        asked.setdefault(by, []).append(peer)
                if not asked:
                    return
                all_asked = trio.Event()
                nursery.start_soon(self._ask_each, asked, number, found, all_asked)
                with trio.move_on_after(pace.apart):
                    await all_asked.wait()

    async def _ask_each(
        self, asked: Mapping[PeerId, list[PeerId]], number: bytes, found: Found, done: trio.Event
    ) -> None:
        async with trio.open_nursery() as nursery:
            for by, peers in asked.items():
                ask = partial(self._ask, further=True)
                nursery.start_soon(ask, by, peers, number, found)
        done.set()

    async def _ask(
        self, by: PeerId, peers: Sequence[PeerId], number: bytes, found: Found, *, further: bool
    ) -> None:
        """Ask a peer about members. Return once the peer has no more proofs to send.

        `found` is called with at most one signature of each member. If `further`, the peer asks
        witnesses as well.
        """
        if (link := self._links.get(by)) is None:
            return
        ident = next(self._idents) % 2**32
        self._open[ident] = by, list(peers), found
        question = encode_find(ident, number, further, peers)
        try:
            with suppress(TransportError):
                await link.call("live.find", payload=question, timeout=defaults.CHECK_S)
        finally:
            del self._open[ident]

    def _on_found(self, call: Call) -> Answer:
        """Pass a signature that a peer has found to the question that it answers.

        A signature that this node did not ask for is ignored. Therefore false signatures cost at
        most one verification for each member that the peer was asked about.
        """
        try:
            ident, place, proof = read_found(call.payload)
        except BadRecord as error:
            return blame(self._endpoint.link(call.peer), error)
        by, left, found = self._open.get(ident, _NONE)
        if by == call.peer and place < len(left) and (peer := left[place]) is not None:
            left[place] = None
            if found(peer, proof):
                self._liveness.brought(peer, by)
        return Reply()

    async def _on_find(self, call: Call) -> Answer:
        """Find signatures of members for a peer, over this node's links or through witnesses."""
        asker = self._endpoint.link(call.peer)
        try:
            ident, number, further, peers = read_find(call.payload)
        except BadRecord as error:
            return blame(asker, error)
        if asker is None or not self._allows(call.peer, len(peers), further):
            return Refusal("too-often", "such questions come too often")
        places = {peer: place for place, peer in enumerate(peers)}
        left = set(places)

        def found(by: PeerId | None, peer: PeerId, proof: bytes) -> bool:
            left.discard(peer)
            if further:
                self._follows(call.peer, peer, by or peer)
            body = encode_found(ident, places[peer], proof)
            with suppress(TransportError):  # the link just ended
                # The reply follows the last proof at once, and carries it.
                asker.post("live.found", payload=body, priority=Priority.CONTROL, later=not left)
            return False

        asked: dict[PeerId, list[PeerId]] = {}
        async with trio.open_nursery() as nursery:
            for peer in places:
                if (link := self._links.get(peer)) and self._liveness.is_answering(peer):
                    nursery.start_soon(ask_itself, link, number, partial(found, None))
                elif further and (by := self._liveness.witness(peer, but=call.peer)) is not None:
                    asked.setdefault(by, []).append(peer)
            for by, some in asked.items():
                pass_on = partial(found, by)
                nursery.start_soon(partial(self._ask, further=False), by, some, number, pass_on)
        return Reply()


class _Pace(NamedTuple):
    """How fast to ask helpers.

    `first` is the time in seconds before the first round of questions, `at_once` the number of
    helpers of each member in one round, and `apart` the longest time in seconds from one round to
    the next.
    """

    first: float
    at_once: int
    apart: float


async def ask_itself(link: Link, number: bytes, found: Callable[[PeerId, bytes], object]) -> None:
    """Ask the peer of a link for its signature over `number`, and pass it to `found`."""
    with suppress(TransportError):
        reply = await link.call("live.prove", payload=number, timeout=defaults.PROVE_S)
        if len(reply.payload) == SIGNATURE_BYTES:
            found(link.peer, bytes(reply.payload))


def blame(link: Link | None, error: BadRecord) -> Refusal:
    """Close the link of a peer that broke the protocol.

    Return a refusal as the reply to its call.
    """
    if link is not None:
        link.close(error.code, error.message)
    return Refusal(error.code, error.message)


_NONE: tuple[None, list[PeerId | None], Found] = None, [], lambda peer, proof: False
