"""Has a smaller model on this node guess what a larger one in a chain of other nodes says next.

The smaller model is any that this node serves whole, with the tokenizer of the larger one. It
answers as it would for a client: over a chain, which is this node alone. No other node reads the
text for it. Its tokens are guesses, which the larger model's chain verifies (`windows.py`).
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import trio

from ....state.directory import Directory
from ....state.membership.record import MemberRecord
from ....transport.errors import ShoalError
from ....transport.identity import PeerId
from ...drafting.defaults import SAID_SPEED
from ...drafting.modelguesses import ModelGuesses
from ..choice import Choice
from ..courier import Courier
from ..generation import Apart, GenerateRequest, GenerationRun, Model
from .saidtokens import SaidTokens
from .talk import Talk
from .windows import Windows

Alike = Callable[[Model, str], Awaitable[Model | None]]
"""(model, root): returns the model with this root if it has the tokenizer of the first one."""


class _NoHurry:
    """A turn without an end. Requests with a turn have no node load a model, and need no place in
    the line of those that wait for room."""

    def is_over(self) -> bool:
        return False

    async def come(self) -> None:
        await trio.lowlevel.checkpoint()


class Guessing:
    """The smaller models of one gateway. `alike` finds them, and `say` holds a conversation with
    one over a chain, until its answer has ended."""

    def __init__(
        self,
        courier: Courier,
        directory: Directory,
        choice: Choice,
        windows: Windows,
        alike: Alike,
        say: Callable[[Talk], Awaitable[None]],
    ) -> None:
        self._courier = courier
        self._directory = directory
        self._choice = choice
        self._windows = windows
        self._alike = alike
        self._say = say

    def may_guess(self, talk: Talk, run: GenerationRun) -> bool:
        """Return whether a smaller model of this node may guess for a session. Guesses on the
        device that verifies them would only delay it."""
        return (
            self._windows.may_draft(talk, run)
            and any(peer != self._courier.peer for peer in run.peers)
            and any(root != talk.model.root for root in self._roots())
        )

    async def keep(self, talk: Talk, run: GenerationRun) -> None:
        """Have a smaller model guess for a session, until cancelled or until it is no use."""
        said = run.said
        with suppress(ShoalError):  # the session goes on without its guesses
            small = await self._smaller(talk, run)
            while small is not None and said is not None and said.useful:
                await self._guess(talk, run, small, said, await said.wanted())

    def _here(self) -> dict[PeerId, MemberRecord]:
        """Return this node's record, with the shards that it serves now."""
        own, members = self._courier.peer, self._directory.members()
        return {own: members[own]} if own in members else {}

    def _roots(self) -> Iterable[str]:
        shards = (shard for record in self._here().values() for shard in record.shards)
        return dict.fromkeys(shard.root for shard in shards)

    async def _smaller(self, talk: Talk, run: GenerationRun) -> Model | None:
        """Return the slowest model, so probably the best one, that guesses fast enough."""
        here, found = self._here(), list[tuple[float, Model]]()
        for root in self._roots():
            if root == talk.model.root or (model := await self._alike(talk.model, root)) is None:
                continue
            chain = self._choice.replaced(model, run.session, here, len(talk.ids), 1)
            seconds = self._choice.token_s(chain, model) if chain else 0.0
            if chain and SAID_SPEED * seconds <= self._choice.token_s(run.chain, talk.model):
                found.append((seconds, model))
        return max(found, key=lambda each: each[0])[1] if found else None

    async def _guess(
        self, talk: Talk, run: GenerationRun, small: Model, said: ModelGuesses, most: int
    ) -> None:
        """Have the smaller model continue the text by `most` tokens."""
        others = frozenset(self._directory.members()) - {self._courier.peer}
        asked = talk.request
        with trio.CancelScope() as scope:
            ids = said.begin(scope.cancel)
            most = min(most, small.context - len(ids), run.prompt + run.new - len(ids))
            if most < 1:
                await trio.sleep_forever()
            request = GenerateRequest(
                small.root,
                sampling=asked.sampling,
                rules=asked.rules,
                turn=_NoHurry(),
                user=asked.user,
                apart=Apart(others),
            )
            stop_ids = small.text.info.stop_ids
            answer = SaidTokens(
                said, stop_ids, talk.model.vocabulary, lambda: self._windows.send(run)
            )
            await self._say(Talk(small, request, ids, most, answer))
