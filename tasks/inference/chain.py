"""Opens and closes the stages of a session on behalf of its gateway."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import trio
from msgspec import structs

from ...transport.errors import CallRefused, LinkClosed
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ...transport.link.link import Link
from ..chunks.naming import CHUNK_BLOCKS
from ..defaults import (
    ADAPTER_TIMEOUT,
    ANSWER_SOON,
    CHANGE_TIMEOUT,
    CHUNK_TIMEOUT,
    CLOSE_TIMEOUT,
    MAX_STAGES,
    MAX_STOP_IDS,
    OPEN_TIMEOUT,
    ROUTE_AROUND,
    SPAN_DEADLINE,
    WATCH_ROUND_TRIPS,
)
from ..engine.activations.layout import PACKED_FAMILIES, Activations
from ..engine.interface import NAME_BYTES, Sampling
from ..errors import SessionError
from ..routing.paths import Hop
from .courier import Courier
from .generation import GenerationRun, Model
from .messages import (
    SESSION_BYTES,
    AskState,
    Change,
    Close,
    Open,
    SessionChanged,
    SessionClosed,
    SessionOpened,
    SessionSampling,
    pack_tokens,
    parse_dtype,
    parse_opened,
    stage_code,
)
from .names import PrefixNames
from .serving.recalling import Recall
from .slowlinks import RecentRates


class StageRefused(Exception):
    """Error: the stage `peer` refused to open a session. Another chain may accept the session."""

    def __init__(self, peer: PeerId, error: SessionError) -> None:
        super().__init__(error.message)
        self.peer = peer
        self.error = error


class Chains:
    """Opening and closing of chains of stages for one gateway."""

    def __init__(self, host: Host, courier: Courier) -> None:
        self._host = host
        self._names = PrefixNames(host.entropy(32))
        self._courier = courier
        self._slow = RecentRates[tuple[PeerId, PeerId]]()  # between stages
        self._unopened: dict[PeerId, float] = {}  # time of the last failed open, by stage
        # The cancel scopes of the calls in progress, each with the peer that is called.
        self._asking: dict[trio.CancelScope, PeerId] = {}
        courier.on_link_quiet(self._link_quiet)

    def avoided(self) -> Collection[PeerId]:
        """Return the stages that have failed to open a session in the last ROUTE_AROUND seconds.

        Requests use these stages only as a last resort. Otherwise a stage that refuses everything
        would cost each request one of its attempts.
        """
        since = self._host.now() - ROUTE_AROUND
        self._unopened = {peer: at for peer, at in self._unopened.items() if at > since}
        return self._unopened.keys()

    def names(self, model: Model, ids: Sequence[int]) -> bytes:
        """Return the concatenated names of the full blocks of a prompt."""
        return self._names.of(model.identity, ids)

    def activations(self, model: Model, run: GenerationRun) -> Activations:
        """Return how hidden states travel in a new session: packed if a link between two stages is
        too slow for exact ones, and the model's family has passed the check of what this
        changes."""
        if run.terms.pooled or model.family not in PACKED_FAMILIES:
            return "exact"
        now = self._host.now()
        slow = any(self._slow.rate(link, now) for link in pairwise(run.peers))
        return "int8" if slow else "exact"

    async def open(
        self, run: GenerationRun, model: Model, sampling: Sampling, peers: Collection[PeerId]
    ) -> None:
        """Open, all at once, the stages of a run that are in `peers`.

        Lowers `run.start` to the shortest prefix that these stages have cached.
        Raises StageRefused if a stage refuses or cannot be reached.
        """
        failures: list[StageRefused] = []
        # A sum covers all positions, so a pooled session has no use for a cached prefix. The names
        # of a long prompt take up to 40 ms, so they are computed once for all stages.
        prefix = () if run.terms.pooled else run.ids[: run.prompt]
        names = self._names.of(model.identity, prefix) if peers else b""

        async def open_one(index: int) -> None:
            try:
                began = self._host.now()
                known = names if index <= run.named else b""
                opened = await self._open_stage(run, index, model, sampling, known)
                run.note_answer(run.peers[index], self._host.now() - began)
                run.can_draft &= opened.drafts
                run.held.opened(index, opened)
                if run.continuation is None:
                    run.start = min(run.start, opened.cached)
                else:
                    run.continuation.note(index, opened.cached)
            except StageRefused as refusal:
                failures.append(refusal)
                if refusal.error.code == "unreachable":
                    run.suspects |= {refusal.peer}  # whose close is not waited for
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for index, peer in enumerate(run.peers):
                if peer in peers:
                    nursery.start_soon(open_one, index)
        if failures:
            raise failures[0]

    async def _open_stage(
        self, run: GenerationRun, index: int, model: Model, sampling: Sampling, names: bytes
    ) -> SessionOpened:
        """Open one stage, and return its reply. Raises StageRefused."""
        hop, message = run.chain[index], self._order(run, index, model, sampling)
        await self._courier.meet(hop.peer)
        try:
            call = "session.open", message.header(), names
            # A stage may have to fetch the adapter first, and may fetch KV of the prompt.
            timeout = ADAPTER_TIMEOUT if model.adapter else OPEN_TIMEOUT
            timeout += CHUNK_TIMEOUT if len(names) >= CHUNK_BLOCKS * NAME_BYTES else 0.0
            reply = await self._ask(hop.peer, *call, timeout)
            return parse_opened(reply, message.tokens, message.activations)
        except (CallRefused, LinkClosed, SessionError) as error:
            # A job may be refused only because an interactive request has priority, and a request
            # with an adapter only because of that.
            if not run.terms.job and not model.adapter:
                self._unopened[hop.peer] = self._host.now()
            code = "unreachable" if isinstance(error, LinkClosed) else stage_code(error.code)
            reason = SessionError(code, f"{run.describe(index)}: {error.message}")
            raise StageRefused(hop.peer, reason) from None

    async def stand_by(
        self, run: GenerationRun, place: int, hop: Hop, model: Model, sampling: Sampling
    ) -> bool:
        """Open a standby for the stage at a place. Return whether it is ready.

        Its blocks get no names, because its state is a copy from another stage: no other session
        may use them.
        """
        stages = (*run.peers[:place], hop.peer, *run.peers[place + 1 :])
        order = self._order(run, place, model, sampling)
        changes: dict[str, object] = {"stages": stages, "standby": run.peers[place]}
        changes |= {"resume": 0, "exact": True, "skips": False}
        await self._courier.meet(hop.peer)
        try:
            header = structs.replace(order, **changes).header()
            reply = await self._ask(hop.peer, "session.open", header, b"", OPEN_TIMEOUT)
            opened = parse_opened(reply, order.tokens, order.activations)
        except (CallRefused, LinkClosed, SessionError):
            return False
        return opened.drafts or not run.can_draft

    def _order(self, run: GenerationRun, index: int, model: Model, sampling: Sampling) -> Open:
        """Return the message that opens a stage."""
        hop = run.chain[index]
        return Open(
            session=run.session,
            epoch=run.epoch,
            root=model.root,
            parts=hop.parts,
            dtype=parse_dtype(hop.dtype),
            stages=run.peers,
            index=index,
            tokens=run.prompt + run.new,
            soon=run.prompt + min(run.new, ANSWER_SOON),
            steps=run.new,
            stop_ids=model.text.info.stop_ids[:MAX_STOP_IDS],
            sampling=SessionSampling.of(sampling, run.terms.rules),
            job=run.terms.job,
            pooled=run.terms.pooled,
            top=run.terms.top,
            adapter=model.adapter,
            user=self._names.user_tag(run.terms.user),
            veil=self._names.veil(run.session),
            resume=run.continuation.resume if run.continuation else 0,
            exact=run.terms.exact,
            activations=run.activations,
            skips=run.skips,
        )

    async def change(self, run: GenerationRun, before: GenerationRun) -> None:
        """Give the stages that stay in a session their new neighbours, all at once.

        Raises StageRefused if one does not accept them.
        """
        assert run.continuation is not None
        failures: list[StageRefused] = []

        async def change_one(peer: PeerId) -> None:
            try:
                await self._change_stage(run, before, peer)
            except StageRefused as refusal:
                failures.append(refusal)

        async with trio.open_nursery() as nursery:
            for peer in sorted(run.continuation.kept):
                nursery.start_soon(change_one, peer)
        if failures:
            raise failures[0]

    async def _change_stage(self, run: GenerationRun, before: GenerationRun, peer: PeerId) -> None:
        rest, place = run.continuation, run.places[peer]
        assert rest is not None
        head = place == len(run.chain) - 1
        message = Change(
            session=run.session,
            epoch=run.epoch,
            index=before.place_of(peer),
            place=place,
            stages=run.peers,
            resume=rest.resume,
            steps=run.new if head else 0,
        )
        timeout = max(CHANGE_TIMEOUT, WATCH_ROUND_TRIPS * before.answered.get(peer, 0.0))
        try:
            call = "session.change", message.header(), b"", timeout
            rest.note(place, SessionChanged.parse(await self._ask(peer, *call)).have)
        except (CallRefused, LinkClosed, SessionError) as error:
            code = "unreachable" if isinstance(error, LinkClosed) else stage_code(error.code)
            raise StageRefused(peer, SessionError(code, error.message)) from None
        before.places[peer] = place

    async def recall(self, run: GenerationRun, answer: int) -> None:
        """Tell the head the tokens so far, if it has rules that depend on them. The last `answer`
        tokens of the run's prompt are those of the answer.

        The head learns which tokens the user's prompt has, but not their order, and only for a
        penalty of repetitions. Raises CallRefused, and LinkClosed if it cannot be reached.
        """
        rules = run.terms.rules
        if not rules.penalise:
            return
        before = run.ids[: run.prompt - answer] if rules.repetition != 1.0 else ()
        prompt, place = sorted(set(before)), len(run.chain) - 1
        message = Recall(run.session, run.epoch, place, run.prompt, len(prompt))
        tokens = pack_tokens((*prompt, *run.ids[run.prompt - answer : run.prompt]))
        peer = run.peers[-1]
        await self._ask(peer, "session.recall", message.header(), tokens, OPEN_TIMEOUT)

    async def drop(
        self, run: GenerationRun, peers: Collection[PeerId], epoch: int | None = None
    ) -> None:
        """Close the stages of one epoch of a session, the run's if None, at some peers, without
        waiting for others."""
        header = Close(run.session, run.epoch if epoch is None else epoch).header()
        with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
            for peer in sorted(peers):
                with suppress(CallRefused, LinkClosed):
                    if peer == self._courier.peer:
                        await self._courier.call(
                            peer, "session.close", header, timeout=CLOSE_TIMEOUT
                        )
                    else:
                        self._courier.post(peer, "session.close", header, priority=Priority.CONTROL)

    async def _ask(
        self,
        peer: PeerId,
        method: str,
        header: Mapping[str, object],
        payload: bytes,
        timeout: float,
    ) -> Mapping[str, object]:
        """Call a method of a peer with a payload, and return the header of its reply.

        Raises CallRefused if the peer refuses, and LinkClosed if the peer cannot be reached or is
        quiet now or before it replies.
        """
        if not self._courier.is_quiet(peer):
            with trio.CancelScope() as scope:
                self._asking[scope] = peer
                try:
                    return await self._call(peer, method, header, payload, timeout)
                finally:
                    del self._asking[scope]
        raise LinkClosed("unreachable", f"{peer} is quiet")

    async def _call(
        self,
        peer: PeerId,
        method: str,
        header: Mapping[str, object],
        payload: bytes,
        timeout: float,
    ) -> Mapping[str, object]:
        """Call a method for `_ask`, and give up if the peer falls silent before it replies."""
        if peer == self._courier.peer:  # it can answer questions
            return (await self._courier.call(peer, method, header, payload, timeout=timeout)).header
        failure: CallRefused | LinkClosed = LinkClosed("unreachable", f"{peer} does not answer")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_silent, peer, nursery.cancel_scope)
            try:
                reply = await self._courier.call(peer, method, header, payload, timeout=timeout)
                return reply.header
            except (CallRefused, LinkClosed) as error:
                failure = error
            finally:
                nursery.cancel_scope.cancel()
        raise failure

    async def _until_silent(self, peer: PeerId, call: trio.CancelScope) -> None:
        """Cancel a call when its peer does not even refuse a question for an unknown session."""
        question = AskState(bytes(SESSION_BYTES), 1, 0).header()
        with suppress(LinkClosed):
            while True:
                await trio.sleep(SPAN_DEADLINE)
                try:
                    await self._courier.call(peer, "session.state", question, timeout=SPAN_DEADLINE)
                except CallRefused as error:
                    if error.code == "timeout":
                        break
        call.cancel()

    def _note_slow(self, run: GenerationRun, peer: PeerId, to: PeerId, rate: float) -> None:
        """Remember that a stage has called the link to the next one slow. Other links are
        ignored."""
        if (peer, to) in pairwise(run.peers):
            self._slow.note((peer, to), rate, self._host.now())

    def _link_quiet(self, link: Link) -> None:
        """Cancel all calls that wait for the peer of this link."""
        for scope, peer in self._asking.items():
            if peer == link.peer:
                scope.cancel()

    async def close(self, run: GenerationRun, model: Model) -> None:
        """Close the session on every stage, even while the request is being cancelled.

        Names the prefixes of the prompt with the answer, which the next prompt may begin with. The
        last token is left out: stages may have computed a wrong draft at its position. A stage
        whose state stems from a stage that was replaced gets no names, since that one may have
        lied.

        Quiet stages and standbys are not waited for. They receive the message when they are heard
        again.
        """
        header = Close(run.session, length=len(run.ids) - 1).header()
        names = b"" if run.terms.pooled else self._names.of(model.identity, run.ids[:-1])

        async def close_one(peer: PeerId) -> None:
            # A dead stage has no session to close.
            with suppress(CallRefused, LinkClosed, SessionError):
                known = names if run.places.get(peer, MAX_STAGES) <= run.named else b""
                reply = await self._ask(peer, "session.close", header, known, CLOSE_TIMEOUT)
                for link in SessionClosed.parse(reply).slow:
                    self._note_slow(run, peer, *link)

        late = {peer for peer in run.peers if self._courier.is_quiet(peer)}
        late |= (run.missed | run.suspects) & set(run.peers)
        standbys = {each.hop.peer for each in run.standbys.values()}
        await self.drop(run, standbys | late - {self._courier.peer}, 0)
        with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
            async with trio.open_nursery() as nursery:
                for peer in dict.fromkeys(run.peers):
                    if peer not in late:
                        nursery.start_soon(close_one, peer)
