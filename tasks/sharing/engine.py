"""Asks an engine over HTTP: for its models, and for answers, which arrive as server-sent events.

Whatever the engine sends is bounded and typed. It may lie, hang, die, or send rubbish without end.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Annotated

import trio
from msgspec import Meta

from ...transport import naming
from ...transport.decoding import read_json
from ...transport.errors import Undecodable
from ...transport.host.seam import Host
from ...transport.message import Message
from ..text.detokenizer import StopFilter
from . import counting, defaults
from .address import EngineAddress
from .dialects import EngineModel, read_models, request_of
from .errors import EngineFailed
from .events import EventParser
from .http import EngineRequest, EngineResponse, exchange
from .messages import AnswerEnd, Reason, ShareAsk, ShareBody

Emit = Callable[[str], Awaitable[None]]
_DONE = b"[DONE]"
_EVENTS = "text/event-stream"
_JSON = "application/json"
_AT_FAULT = (400, 413, 422)  # statuses of an engine that blame the request
_Tokens = Annotated[int, Meta(ge=0, le=2**40)]
_Text = Annotated[str, Meta(max_length=defaults.EVENT_BYTES)]


class _Usage(Message, frozen=True):
    prompt_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0


class _Delta(Message, frozen=True):
    content: _Text | None = None


class _Choice(Message, frozen=True):
    delta: _Delta | None = None
    text: _Text | None = None
    finish_reason: Annotated[str, Meta(max_length=64)] | None = None


class _StreamedEvent(Message, frozen=True):
    """One event of a streamed answer."""

    choices: Annotated[tuple[_Choice, ...], Meta(max_length=8)] = ()
    usage: _Usage | None = None
    error: object = None


class _Why(Message, frozen=True):
    message: Annotated[str, Meta(max_length=defaults.ERROR_BYTES)] = ""


class _Refusal(Message, frozen=True):
    error: _Why | str = ""


class Tally:
    """Count of one answer's text and tokens, also of one that is cut short."""

    def __init__(self, ask: ShareAsk, body: ShareBody) -> None:
        self._most = ask.max_tokens
        self._prompt = body.text_bytes, max(1, len(body.messages))
        self._usage: _Usage | None = None
        self.pieces = 0
        self.size = 0  # bytes of text
        self.started = False  # whether the engine has begun to answer

    def add(self, text: str) -> None:
        """Count a piece of the text, which stands for at least one token."""
        self.started = True
        self.pieces += 1
        self.size += len(text.encode("utf-8", "replace"))

    def claim(self, usage: _Usage) -> None:
        """Record the engine's own count."""
        self._usage = usage

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, 0 if the engine has not begun."""
        claimed = self._usage.prompt_tokens if self._usage is not None else None
        return counting.prompt_tokens(claimed, *self._prompt) if self.started else 0

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far."""
        claimed = self._usage.completion_tokens if self._usage is not None else None
        return counting.answer_tokens(claimed, self.size, self.pieces, self._most)

    @property
    def full(self) -> bool:
        """Whether the engine has sent all that was asked for, if each piece is one token."""
        return self.pieces >= self._most

    @property
    def overflows(self) -> bool:
        """Whether the text is too long for the tokens that were asked for."""
        return self.size > counting.most_bytes(self._most)


class HttpEngine:
    """One engine, which is asked over HTTP."""

    def __init__(self, host: Host, address: EngineAddress) -> None:
        self._host = host
        self.address = address

    async def models(self) -> tuple[EngineModel, ...]:
        """Return the models that the engine serves now. Raises EngineFailed."""
        with trio.move_on_after(defaults.LIST_TIME):
            async with exchange(self._host, self.address, EngineRequest("/v1/models")) as response:
                if response.status != 200:
                    raise await _refused(response)
                data = await response.body(defaults.LIST_BYTES)
                return read_models(data, response.server)
        raise EngineFailed("engine-silent", "the engine did not list its models in time")

    async def answer(
        self, model: EngineModel, ask: ShareAsk, body: ShareBody, tally: Tally, emit: Emit
    ) -> AnswerEnd:
        """Have the engine answer, and pass its text on as it arrives.

        If this is cancelled, the connection closes and the engine stops. Raises EngineFailed, and
        whatever `emit` raises.
        """
        request = request_of(model, ask, body)
        reply = _AnswerText(body, tally, emit)
        with (
            trio.move_on_after(defaults.ANSWER_TIME),
            trio.move_on_after(defaults.FIRST_TIME) as quiet,
        ):
            async with exchange(self._host, self.address, request) as response:
                await _check_stream(response)
                await reply.read(response, quiet, ask.max_tokens)
            reply.ended = True
        if not reply.ended:
            raise EngineFailed("engine-silent", "the engine said nothing for too long")
        await reply.finish()
        return AnswerEnd(reply.reason, tally.prompt_tokens, tally.tokens)


class _AnswerText:
    """The text of one answer, from the events of an engine."""

    def __init__(self, body: ShareBody, tally: Tally, emit: Emit) -> None:
        self._stop = StopFilter(body.stop)
        self._tally = tally
        self._emit = emit
        self.reason: Reason = "stop"
        self.ended = False  # whether the engine has said that the answer is complete

    async def read(self, response: EngineResponse, quiet: trio.CancelScope, tokens: int) -> None:
        """Read the answer to its end. `quiet` ends if no event arrives in time.

        Raises EngineFailed if the answer is invalid or ends early.
        """
        most = min(tokens * defaults.WIRE_BYTES + defaults.WIRE_EXTRA, defaults.WIRE_MOST)
        events = EventParser()
        while piece := await response.piece(most):
            text, done = "", False
            for data in events.feed(piece):
                more, done = self._take(data)
                text += more
                quiet.deadline = trio.current_time() + self._patience
                if done:
                    break
            await self._pass_on(text, quiet)
            if done:
                return
        if not self.ended:
            raise EngineFailed("engine-lost", "the engine ended its answer early")

    async def finish(self) -> None:
        """Pass on the text that was withheld as a possible beginning of a stop string."""
        if text := self._stop.finish():
            await self._emit(text)

    @property
    def _patience(self) -> float:
        """Seconds to wait for the next event. After the end of the text, only counts follow."""
        return defaults.LAST_TIME if self.ended else defaults.NEXT_TIME

    def _take(self, data: bytes) -> tuple[str, bool]:
        """Return (text of an event, whether the answer ends with it)."""
        if data == _DONE:
            if not self.ended:
                raise EngineFailed("engine-lost", "the engine ended its answer early")
            return "", True
        try:
            chunk = read_json(_StreamedEvent, data, limit=defaults.EVENT_BYTES)
        except Undecodable:
            raise EngineFailed("bad-engine", "the engine sent a malformed event") from None
        if chunk.error is not None:
            raise EngineFailed("engine-failed", "the engine failed during the answer")
        if chunk.usage is not None:
            self._tally.claim(chunk.usage)
        return self._text_of(chunk)

    def _text_of(self, chunk: _StreamedEvent) -> tuple[str, bool]:
        self._tally.started = True
        text, done = "", False
        for choice in chunk.choices[:1]:
            found = choice.delta.content if choice.delta is not None else choice.text
            if found and not self.ended:
                text, done = self._checked(found)
            if choice.finish_reason is not None:
                self.ended = True
                self.reason = "length" if choice.finish_reason == "length" else self.reason
        return text, done

    def _checked(self, found: str) -> tuple[str, bool]:
        """Count a piece of text. Return (the part before any stop string, whether the answer
        ends)."""
        if self._tally.full:  # the engine ignores `max_tokens`
            self.reason = "length"
            return "", True
        self._tally.add(found)
        if self._tally.overflows:
            raise EngineFailed("bad-engine", "the engine sent more text than its tokens can have")
        text = self._stop.push(found)
        return text, self._stop.stopped

    async def _pass_on(self, text: str, quiet: trio.CancelScope) -> None:
        """Pass text on. The time that this takes does not count as the engine's silence."""
        if text:
            quiet.deadline = inf
            await self._emit(text)
            quiet.deadline = trio.current_time() + self._patience


async def _check_stream(response: EngineResponse) -> None:
    """Raise EngineFailed unless the response is a stream of events."""
    if response.status != 200:
        raise await _refused(response)
    if response.content_type != _EVENTS:
        raise EngineFailed(
            "bad-engine", "the engine did not stream its answer, although it was asked to"
        )


async def _refused(response: EngineResponse) -> EngineFailed:
    """Return the error for a status other than 200. The engine's message is passed on only if the
    request is at fault, because others may tell of its machine."""
    if response.status in (401, 403):
        hint = "start the engine without an API key; only this machine can reach it"
        return EngineFailed("engine-locked", "the engine asks for an API key", hint=hint)
    why = f"the engine refused the request (status {response.status})"
    if response.status == 400 and (said := await _message(response)):
        why = f"{why}: {said}"
    return EngineFailed("engine-refused" if response.status in _AT_FAULT else "engine-failed", why)


async def _message(response: EngineResponse) -> str:
    """Return the message of an engine's error, made safe for terminals, or ""."""
    if response.content_type != _JSON:
        return ""
    try:
        data = await response.body(defaults.ERROR_BYTES)
        error = read_json(_Refusal, data, limit=defaults.ERROR_BYTES).error
    except (EngineFailed, Undecodable):
        return ""
    text = error if isinstance(error, str) else error.message
    return naming.escaped(text[: defaults.ERROR_CHARACTERS])
