"""Daemon's part of the text child: requests with time limits, restarts, detokenizers.

The child answers in order and has no state but the loaded model. If it dies, all requests except
the one that caused its death are sent again to a new child.
"""

import array
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

import trio

from ...transport.decoding import typed
from ...transport.errors import Undecodable
from ...transport.host.seam import Child, Host
from ...transport.message import Message as Declared
from ..defaults import (
    TEXT_BYTES,
    TEXT_FILE_BYTES,
    TEXT_IN_FLIGHT,
    TEXT_LOAD_TIMEOUT,
    TEXT_MEMORY,
    TEXT_MESSAGES,
    TEXT_REPLY_BYTES,
    TEXT_RETRY,
    TEXT_SETTLED,
    TEXT_TIMEOUT,
    TOKENIZER_BYTES,
)
from ..errors import TextError
from .detokenizer import StopFilter, TextWindow
from .frames import (
    ChildReply,
    ChildRequest,
    Decode,
    Decoded,
    DecodedEach,
    DecodeEach,
    Encode,
    EncodeChat,
    FrameReader,
    Ids,
    LoadFiles,
    TextFiles,
    TextInfo,
    pack_frame,
)
from .special import token_ids

M = TypeVar("M", bound=Declared)
CHILD = "shoal.tasks.text.child"
# One thread and one heap, because RLIMIT_AS counts the 64 MiB that each glibc arena reserves.
ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message of a conversation. Its role is `system`, `user`, `assistant` or another of the
    template."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's text files as its manifest contains them, unparsed. `name` is used in error
    messages."""

    name: str
    tokenizer: bytes
    config: Mapping[str, object] = field(default_factory=dict)  # config.json
    tokenizer_config: bytes | None = None
    special_tokens: bytes | None = None
    generation_config: bytes | None = None
    chat_template: bytes | None = None


@dataclass(frozen=True, slots=True)
class LikelyText:
    """A likely token of an answer: the text that it would have completed, and its logarithmic
    probability by the model's own distribution."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token of an answer: the text that it completed (possibly empty), and its logarithmic
    probability by the model's own distribution. `top` are the most likely tokens at its place."""

    text: str
    logprob: float
    top: tuple[LikelyText, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text, possibly empty. `stopped` tells whether a stop string, which is left out, was
    found.

    `tokens` are those whose text is complete with this delta. It is empty unless the request asked
    for them.
    """

    text: str
    stopped: bool
    tokens: tuple[TokenText, ...] = ()


class _Request:
    """A request to the child. Its time limit of `seconds` begins when the child can start with
    it."""

    def __init__(self, number: int, operation: str, frame: bytes, seconds: float) -> None:
        self.number = number
        self.operation = operation
        self.frame = frame
        self.seconds = seconds
        self.done = trio.Event()
        self.reply: Mapping[str, object] = {}
        self.error: TextError | None = None

    def resolve(self, reply: Mapping[str, object]) -> None:
        """Complete the request with a reply."""
        self.reply = reply
        self.done.set()

    def fail(self, error: TextError) -> None:
        """Complete the request with an error."""
        self.error = error
        self.done.set()


class TextProcess:
    """Converter of text to tokens and back for one model, in a child process. `run` must be
    running.

    Any method may raise TextError; codes: docs/spec/text.md.
    """

    def __init__(self, host: Host, files: ModelFiles) -> None:
        _check_files(files)
        self._host = host
        self._files = files
        self._numbers = itertools.count(1)
        self._queue: deque[_Request] = deque()  # sent or waiting; the child processes the first one
        self._outgoing = bytearray()
        self._writable = trio.Event()
        self._clock = trio.CancelScope()  # time limit of the child's current request
        self._info: TextInfo | None = None
        self.pid: int | None = None  # pid of the child, or None if there is none
        self._status: trio.TaskStatus[TextInfo] = trio.TASK_STATUS_IGNORED
        self._broken: TextError | None = TextError("text-closed", "the text process is not running")

    @property
    def info(self) -> TextInfo:
        """Summary of the text files. Raises TextError `text-closed` before the first load."""
        if self._info is None:
            raise TextError("text-closed", "the text process is not running")
        return self._info

    async def run(
        self, *, task_status: trio.TaskStatus[TextInfo] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run a child with the files loaded, and restart it whenever it dies, until cancelled.

        Reports `started` after the first load. Raises TextError if the files cannot be loaded then.
        If the child dies later, only the request that caused this fails.
        """
        pause, longest = TEXT_RETRY
        self._broken = None
        self._status = task_status
        try:
            while True:
                born = trio.current_time()
                loading = self._request_load()
                await self._run_child(loading)
                if loading.error is not None:
                    if self._info is None:
                        raise loading.error
                    self._break(loading.error)
                if trio.current_time() - born > TEXT_SETTLED:
                    pause = TEXT_RETRY[0]
                await trio.sleep(pause)
                pause = min(2 * pause, longest)
                self._broken = None
        finally:
            self._break(TextError("text-closed", "the text process is not running"))

    async def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the token ids of plain text.

        If `add_special`, these include the special tokens that the tokenizer adds.
        """
        _check_size(text)
        return await self._ids("encode", Encode(text, add_special))

    async def encode_chat(
        self, messages: Sequence[ChatTurn], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the token ids of a conversation, formatted with the model's chat template.

        Raises TextError if the text is too large or the template fails.
        """
        if len(messages) > TEXT_MESSAGES:
            raise TextError("text-too-large", f"{len(messages)} messages, {TEXT_MESSAGES} may be")
        _check_size("".join(message.content + message.role for message in messages))
        turns = tuple({"role": said.role, "content": said.content} for said in messages)
        request = EncodeChat(turns, add_generation_prompt, self._host.wall())
        return await self._ids("encode_chat", request)

    async def detokenizer(self, stop: Sequence[str] = ()) -> "Detokenizer":
        """Create a detokenizer for one generation, which ends at the first of the `stop`
        strings."""
        if self._broken is not None:
            raise self._broken
        return Detokenizer(self, stop)

    async def decode(self, ids: Sequence[int], cut: int) -> tuple[str, str]:
        """Return (text of `ids`, text of `ids[cut:]` alone).

        Raises TextError if the child fails.
        """
        reply = await self._ask(Decoded, "decode", Decode(_packed(ids), cut))
        return reply.window, reply.fresh

    async def decode_each(
        self, ids: Sequence[int], cut: int, last: Sequence[int]
    ) -> list[tuple[str, str]]:
        """Return what `decode` returns for `ids` and each one of `last` after them.

        Raises TextError if the child fails or answers nonsense.
        """
        request = DecodeEach(_packed(ids), cut, _packed(last))
        reply = await self._ask(DecodedEach, "decode_each", request)
        if len(reply.windows) != len(last) or len(reply.fresh) != len(last):
            raise _nonsense()
        return list(zip(reply.windows, reply.fresh, strict=True))

    async def _ids(self, operation: str, message: Declared) -> list[int]:
        reply = await self._ask(Ids, operation, message)
        return array.array("I", reply.ids).tolist()

    async def _ask(self, kind: type[M], operation: str, message: Declared) -> M:
        """Send a request, wait for the reply, and return it as a message of type `kind`."""
        if self._broken is not None:
            raise self._broken
        if len(self._queue) >= TEXT_IN_FLIGHT:
            raise TextError("text-busy", f"{TEXT_IN_FLIGHT} texts are waiting already")
        request = self._new(operation, TEXT_TIMEOUT, message)
        self._queue.append(request)
        if len(self._queue) == 1:
            self._rearm()
        self._send(request.frame)
        await request.done.wait()
        if request.error is not None:
            raise request.error
        return _read(kind, request.reply)

    def _new(self, operation: str, seconds: float, message: Declared) -> _Request:
        """Create a request. Its time limit of `seconds` begins when the child can start with it."""
        number = next(self._numbers)
        head = ChildRequest(number, operation, seconds).fields()
        return _Request(number, operation, pack_frame(head | message.fields()), seconds)

    def _request_load(self) -> _Request:
        """Create the request that loads the model's files."""
        files = self._files
        told = TextFiles(
            files.tokenizer,
            files.tokenizer_config,
            files.special_tokens,
            files.generation_config,
            files.chat_template,
            bos_token_id=tuple(token_ids(files.config.get("bos_token_id"))),
            eos_token_id=tuple(token_ids(files.config.get("eos_token_id"))),
        )
        return self._new("load", TEXT_LOAD_TIMEOUT, LoadFiles(told))

    async def _run_child(self, loading: _Request) -> None:
        """Run one child: load the files, then process the queue until the child ends or is too
        slow.

        The request that caused the end fails.
        """
        child = await self._host.spawn(CHILD, [], ENVIRONMENT)
        self.pid = child.pid
        self._queue.appendleft(loading)
        self._outgoing = bytearray().join(request.frame for request in self._queue)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, child)
                error = await self._read(child)
                nursery.cancel_scope.cancel()
        finally:
            self.pid = None
            await child.stop(0)
        if error is not None and self._queue:
            guilty = self._queue.popleft()
            guilty.fail(self._name(error.code, error.message, guilty.operation))

    async def _read(self, child: Child) -> TextError | None:
        """Process replies until the child ends, breaks the protocol or exceeds a time limit.

        Returns the error for the request that caused this, or None if no request did.
        """
        reader = FrameReader(TEXT_REPLY_BYTES)
        while True:
            with trio.CancelScope() as self._clock:
                self._rearm()
                try:
                    while data := await child.socket.recv(65536):
                        for fields in reader.feed(data):
                            if self._answer(fields).code == "text-memory":
                                return None  # restarts the child, whose heap is almost full
                except TextError as error:
                    return error
                except OSError:
                    pass  # a reset connection is like an end
            if not self._clock.cancelled_caught:
                return TextError("text-crashed", "ended the text process")
            if self._queue and trio.current_time() >= self._clock.deadline:
                return TextError("text-limit", f"took over {self._queue[0].seconds:g} s")
            # A reply arrived exactly at its deadline, and `_answer` has set the next deadline.

    async def _write(self, child: Child) -> None:
        """Send queued frames to the child."""
        try:
            while True:
                while self._outgoing:
                    sent = await child.socket.send(self._outgoing[: 2**20])
                    del self._outgoing[:sent]
                self._writable = trio.Event()
                await self._writable.wait()
        except OSError:
            return  # the reader notices the end too

    def _send(self, frame: bytes) -> None:
        self._outgoing += frame
        self._writable.set()

    def _rearm(self) -> None:
        """Set the deadline for the request that the child processes next."""
        seconds = self._queue[0].seconds if self._queue else inf
        self._clock.deadline = trio.current_time() + seconds

    def _answer(self, fields: Mapping[str, object]) -> ChildReply:
        """Complete the first request of the queue with the child's reply.

        Raises TextError if the reply does not belong to that request, or if the load failed.
        """
        reply = _read(ChildReply, fields)
        if not self._queue or reply.id != self._queue[0].number:
            raise _nonsense()
        code, message = reply.code, reply.message
        if code and self._queue[0].operation == "load":
            raise TextError(code, message)  # a child that breaks the protocol is treated as dead
        request = self._queue.popleft()
        self._rearm()
        if code:
            request.fail(self._name(code, message, request.operation))
            return reply
        if request.operation == "load" and self._info is None:
            self._info = _read(TextInfo, fields)
            self._status.started(self._info)
        request.resolve(fields)
        return reply

    def _name(self, code: str, message: str, operation: str) -> TextError:
        """Return an error for a person, which names the model, the part that failed, and a
        remedy."""
        name = self._files.name
        if code == "text-memory":
            code, message = "text-limit", f"needs over {TEXT_MEMORY // 2**20} MiB"
        if code == "text-limit" and operation == "encode_chat":
            return TextError(
                "template-limit", f"the chat template of `{name}` {message}", hint="try `--raw`"
            )
        if code.startswith("template") or code == "no-template":
            return TextError(code, f"model `{name}`: {message}", hint="try `--raw`")
        if code in ("text-limit", "text-crashed"):
            return TextError(code, f"the tokenizer of `{name}` {message}")
        return TextError(code, f"model `{name}`: {message}")

    def _break(self, error: TextError) -> None:
        """Fail all requests in the queue, and later ones, with this error."""
        self._broken = error
        while self._queue:
            self._queue.popleft().fail(error)


class Detokenizer:
    """Converter of one generation's tokens to text as they arrive."""

    def __init__(self, process: TextProcess, stop: Sequence[str]) -> None:
        self._process = process
        self._window = TextWindow()
        self._filter = StopFilter(stop)
        self.completed = ""  # text that the last `push` completed, also a part of a stop string

    async def push(self, *tokens: int) -> TextDelta:
        """Append tokens, and return the text that they complete.

        If this call is cancelled, the detokenizer must not be used any more.
        """
        if self._filter.stopped or not tokens:
            return TextDelta("", self._filter.stopped)
        ids, cut = self._window.push(tokens)
        self.completed = self._window.advance(*await self._process.decode(ids, cut))
        return TextDelta(self._filter.push(self.completed), self._filter.stopped)

    async def texts(self, tokens: Sequence[int]) -> list[str]:
        """Return the text that each of these tokens would complete as the next one."""
        ids, cut = self._window.push(())
        decoded = await self._process.decode_each(ids, cut, tokens)
        return [self._window.completed(window, fresh) for window, fresh in decoded]

    async def finish(self) -> str:
        """Return the withheld text up to the first stop string, if there is one.

        Must be called once, after the last token.
        """
        text = self._filter.push(self._window.finish())
        return text + self._filter.finish()


def _packed(ids: Sequence[int]) -> bytes:
    """Encode token ids. Raises TextError `bad-token` if one is not a 32-bit number."""
    try:
        return array.array("I", ids).tobytes()
    except OverflowError:
        raise TextError("bad-token", "a token id is not a 32-bit number") from None


def _read(kind: type[M], reply: Mapping[str, object]) -> M:
    """Decode a reply. Raises TextError `text-protocol` if it is malformed."""
    try:
        return typed(kind, reply)
    except Undecodable:
        raise _nonsense() from None


def _nonsense() -> TextError:
    return TextError("text-protocol", "the text process answers nonsense")


def _check_size(text: str) -> None:
    if len(text) > TEXT_BYTES:
        raise TextError("text-too-large", f"the text has over {TEXT_BYTES} characters")


def _check_files(files: ModelFiles) -> None:
    """Raise TextError `bad-tokenizer` if a file exceeds its limit."""
    sizes = {"tokenizer": (files.tokenizer, TOKENIZER_BYTES)}
    for name in ("tokenizer_config", "special_tokens", "generation_config", "chat_template"):
        sizes[name] = (getattr(files, name) or b"", TEXT_FILE_BYTES)
    for name, (data, limit) in sizes.items():
        if len(data) > limit:
            raise TextError("bad-tokenizer", f"model `{files.name}`: {name} has over {limit} bytes")
