"""The tokens on which the rules of a session at its head depend. Spec: docs/spec/session.md."""

from array import array
from typing import Annotated

from msgspec import Meta

from ....transport.link.calls import Call, Refusal, Reply
from ...defaults import MAX_POSITIONS, MAX_STAGES
from ...engine.errors import EngineError
from ...errors import SessionError
from ..messages import EpochMessage, unpack_tokens
from .endings import StageParts


class Recall(EpochMessage, frozen=True):
    """`session.recall`: the gateway tells the head the tokens before `position`.

    The payload has the `prompt` different tokens of the prompt, in ascending order, and then all
    tokens of the answer so far.
    """

    index: Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
    position: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
    prompt: Annotated[int, Meta(ge=0, le=MAX_POSITIONS)] = 0


class StageRecalls:
    """Handler of `session.recall` for all sessions of one node."""

    def __init__(self, parts: StageParts) -> None:
        self._parts = parts

    def listen(self) -> None:
        """Register the handler."""
        self._parts.courier.handle("session.recall", self._on_recall)

    async def _on_recall(self, call: Call) -> Reply | Refusal:
        try:
            message = Recall.parse(call.header)
            session = self._parts.sessions.find(call.peer, message, message.index)
            if not (session.open.sampling and session.open.sampling.rules.penalise):
                raise SessionError("bad-message", "the session needs no tokens of the past")
            count = len(call.payload) // 4
            if message.position > session.open.tokens or count > message.position:
                raise SessionError("bad-message", "these are more tokens than the session has")
            # Compact, as it is held until the engine replies, for many calls at once.
            tokens = array("I", unpack_tokens(call.payload, count))
            if tokens and max(tokens) >= session.served.shard.vocabulary:
                raise SessionError("bad-message", "a token id exceeds the vocabulary")
            session.heard = self._parts.host.now()
            place, past = message.position, message.prompt
            engine, name = self._parts.engine, session.engine_id
            await engine.recall(name, place, tokens[:past], tokens[past:])
            return Reply()
        except (SessionError, EngineError) as error:
            return Refusal(error.code, error.message)
