"""The API as an ASGI application: its routes, by starlette, and the handling of each request.

Imported only when a client connects.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

import trio
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from ...tasks.inference.generation import Emit, GatewayEvent, GenerateRequest, Summary
from ...tasks.text.process import TextDelta, TokenText
from ...transport.errors import ShoalError
from .. import defaults
from ..control.server import only_shoal_error
from ..errors import ApiRefusal
from ..resumable import Note
from .answers import (
    AnswerForm,
    ChatAnswer,
    CompletionAnswer,
    Heading,
    event_of,
    model_of,
    models_of,
)
from .backend import Backend
from .door import Door, check_body_headers, too_large
from .embeddings import read_embeddings
from .protocol import CLIENT
from .refusals import body_of, headers_of, mishap, refusal_of
from .requests import Asked, read_chat, read_completion
from .stream import ClientStream

JSON: Final = {"Content-Type": "application/json"}
EVENTS: Final = {"Content-Type": "text/event-stream; charset=utf-8"}
_SAFE: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_ID_BYTES: Final = 12
OWNER: Final = "api:"
"""Beginning of the owners of answers: their `user` follows."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of generation: how its requests are read, and the form of its answers."""

    read: Callable[[bytearray], Asked]
    form: type[AnswerForm]


_RANDOM_BITS: Final = 53
"""Bits of a random seed, which clients in JavaScript read exactly."""
_CHAT: Final = _Kind(read_chat, ChatAnswer)
_COMPLETION: Final = _Kind(read_completion, CompletionAnswer)


class ApiApp:
    """The ASGI application of one node."""

    def __init__(self, backend: Backend, door: Door) -> None:
        self._backend = backend
        self._hellos = door
        self.running = 0  # answers that are being generated
        self._resumable = backend.resumable
        self._router = Router(
            [
                Route("/v1/chat/completions", _Endpoint(self._chat), methods=["POST"]),
                Route("/v1/completions", _Endpoint(self._completion), methods=["POST"]),
                Route("/v1/embeddings", _Endpoint(self._embeddings), methods=["POST"]),
                Route("/v1/resume", _Endpoint(self._resume), methods=["GET"]),
                Route("/v1/models", _Endpoint(self._models), methods=["GET"]),
                Route("/v1/models/{name:path}", _Endpoint(self._model), methods=["GET"]),
            ],
            redirect_slashes=False,
            default=_unknown,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Whatever it raises becomes a refusal."""
        exchange = _Exchange(receive, send)
        client: ClientStream = scope["state"][CLIENT]
        try:
            with self._backend.guard.around("a request to the API", instead=mishap):
                self._hellos.check(scope["headers"])
                client.answering = client.asked = True
                await self._route(scope, exchange)
        except ShoalError as error:
            await exchange.refuse(refusal_of(error))
        finally:
            client.answering = False
            client.idle_since = self._backend.host.now()

    async def _route(self, scope: Scope, exchange: "_Exchange") -> None:
        """Run the endpoint of the request. Raises ApiRefusal 404 or 405 if there is none."""
        try:
            # With `app` in the scope, starlette raises an exception for a wrong method.
            await self._router({**scope, "app": self}, exchange.receive, exchange.send)
        except HTTPException as error:
            allow = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
            raise ApiRefusal(
                405, "method_not_allowed", f"expected one of the methods {allow}", allow=allow
            ) from None

    # Endpoints.

    async def _models(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await respond(send, 200, models_of(self._backend.names(), self._backend.owners()), JSON)

    async def _model(self, scope: Scope, _receive: Receive, send: Send) -> None:
        name: str = scope["path_params"]["name"]
        await self._backend.find(name)
        await respond(send, 200, json.dumps(model_of(name, self._backend.owners())).encode(), JSON)

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(_CHAT, scope, receive, send)

    async def _completion(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(_COMPLETION, scope, receive, send)

    async def _embeddings(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the vectors one after the other, so that none of them delays others for long."""
        self._backend.refuse_when_stopping()
        check_body_headers(scope["headers"], defaults.API_BODY)
        with self._place():
            body = read_embeddings(await read_body(receive))
            found = await self._run(self._backend.embed(body.for_gateway()))
            await start(send, 200, JSON)
            for piece in body.document(found):
                await more(send, piece)
            await more(send, b"", last=True)

    async def _generate(self, kind: _Kind, scope: Scope, receive: Receive, send: Send) -> None:
        self._backend.refuse_when_stopping()
        check_body_headers(scope["headers"], defaults.API_BODY)
        with ExitStack() as place:
            place.enter_context(self._place())
            asked = kind.read(await read_body(receive))
            host = self._backend.host
            request = asked.for_gateway(int.from_bytes(host.entropy(8)) >> 64 - _RANDOM_BITS)
            ident = kind.form.ident + host.entropy(_ID_BYTES).hex()
            seed = request.sampling.seed
            form = kind.form(Heading(ident, int(host.wall()), asked.model, seed), asked)
            if asked.stream:
                await self._stream(request, form, send, asked, place)
            else:
                await self._whole(request, form, send)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Count one more answer during the block. Raises ApiRefusal if too many are generated."""
        if self.running >= defaults.API_REQUESTS:
            raise ApiRefusal(
                429,
                "rate_limit_exceeded",
                f"{defaults.API_REQUESTS} answers are being generated already; try again in "
                f"{defaults.API_RETRY} s",
            )
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    async def _whole(self, request: GenerateRequest, form: AnswerForm, send: Send) -> None:
        tokens: list[TokenText] = []

        async def note(event: GatewayEvent) -> None:
            await trio.lowlevel.checkpoint()
            if isinstance(event, TextDelta):
                tokens.extend(event.tokens)

        summary = await self._answer(request, note)
        await respond(send, 200, form.whole(summary, tokens), JSON)

    async def _stream(
        self,
        request: GenerateRequest,
        form: AnswerForm,
        send: Send,
        asked: Asked,
        place: ExitStack,
    ) -> None:
        """Send the answer as it is generated. The response begins with the first text, so that an
        error before it has its own HTTP status. A later error is an event.

        An answer that goes on without its client takes over the request's place.
        """
        taken = ExitStack()

        async def work(note: Note[bytes]) -> bool:
            with taken:
                return await self._events(request, form, note)

        answer = self._resumable.begin(OWNER + asked.user, work) if asked.resumable else None
        if answer is not None:
            taken.enter_context(place.pop_all())
        response = _EventResponse(send, answer.token if answer else "")
        if answer is None:
            await self._events(request, form, response.note)
        else:
            await self._resumable.follow(answer, 0, response.pass_on)
        await more(send, b"", last=True)

    async def _resume(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the events of an answer after the one that `Last-Event-ID` names."""
        last = dict(scope["headers"]).get(b"last-event-id", b"").decode("latin-1")
        token, _, number = last.partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise ApiRefusal(
                400, "bad_event_id", "expected the id of the last event in `Last-Event-ID`"
            )
        (user, *_) = parse_qs(scope["query_string"].decode("latin-1")).get("user", [""])
        answer = self._resumable.find(token, OWNER + user)
        response = _EventResponse(send, token, int(number) + 1)
        await self._resumable.follow(answer, int(number) + 1, response.pass_on)
        await response.begin()
        await more(send, b"", last=True)

    async def _events(self, request: GenerateRequest, form: AnswerForm, note: Note[bytes]) -> bool:
        """Generate an answer as events. Raises ShoalError if it fails before its first text."""
        begun = False
        opening = form.opening()  # made first, since the first event has the seed

        async def tell(event: bytes) -> None:
            nonlocal begun
            if not begun:
                begun = True
                event = opening + event
            await note(event, len(event))

        async def pass_on(event: GatewayEvent) -> None:
            if isinstance(event, TextDelta):
                await tell(form.piece(event.text, event.tokens))

        try:
            await tell(form.closing(await self._answer(request, pass_on)))
        except ShoalError as error:
            if not begun:
                raise
            await tell(event_of(body_of(refusal_of(error))))
        return True

    async def _answer(self, request: GenerateRequest, emit: Emit) -> Summary:
        """Have the gateway answer. Raises ShoalError if it fails."""
        return await self._run(self._backend.generate(request, emit))

    async def _run(self, answering: Awaitable[T]) -> T:
        """Wait for the gateway. Raises ShoalError if it fails, also because of a bug."""
        try:
            with self._backend.guard.around("a request to the API", instead=mishap):
                return await answering
        except BaseExceptionGroup as group:
            raise only_shoal_error(group) from None
        raise AssertionError("a guard with `instead` does not suppress")  # for the type checker


class _Endpoint:
    """A coroutine function as the endpoint of a route, which starlette calls as it is."""

    def __init__(self, run: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send)


class _EventResponse:
    """Response of server-sent events, each with an id from which a client can resume. It begins
    with the first event."""

    def __init__(self, send: Send, token: str, number: int = 0) -> None:
        self._send = send
        self._token = token
        self._number = number
        self._begun = False

    async def begin(self) -> None:
        if not self._begun:
            self._begun = True
            await start(self._send, 200, EVENTS)

    async def note(self, events: bytes, _size: int) -> None:
        await self.pass_on(events)

    async def pass_on(self, events: bytes) -> None:
        """Send events. The last one has the id, so that a client that has it has all of them."""
        await self.begin()
        if self._token:
            # Within JSON, a line break is escaped, so no text of the answer looks like this.
            last = events.rfind(b"\ndata: ") + 1
            ident = f"id: {self._token}.{self._number}\n".encode()
            events = events[:last] + ident + events[last:]
        self._number += 1
        await more(self._send, events)


class _Exchange:
    """One request and its response: notes how far both are."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._received = False  # the whole request
        self._began = False  # the response

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self._received = not message.get("more_body", False)
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self._began = True
        await self._send(message)

    async def refuse(self, refusal: ApiRefusal) -> None:
        """Send a refusal, unless the response has begun; then it ends unfinished.

        Any rest of the request is read first, because closing a connection with unread data resets
        it, and the client might not see the response.
        """
        if self._began:
            return
        left, pieces = defaults.API_DISCARD, defaults.API_PIECES
        with trio.move_on_after(defaults.API_DISCARD_TIME):
            while not self._received and left > 0 and pieces:
                left -= len((await self.receive()).get("body", b""))
                pieces -= 1
        headers = JSON | headers_of(refusal)
        if not self._received:
            headers["Connection"] = "close"
        await respond(self.send, refusal.status, body_of(refusal), headers)


async def read_body(receive: Receive) -> bytearray:
    """Return the body of a request. Raises ApiRefusal if it is too large or too slow."""
    body = bytearray()
    with trio.move_on_after(defaults.API_BODY_TIME):
        for _ in range(defaults.API_PIECES):
            message = await receive()
            if message["type"] != "http.request":
                raise ApiRefusal(400, "disconnected", "the client has disconnected")
            body += message.get("body", b"")
            if len(body) > defaults.API_BODY:
                raise too_large(defaults.API_BODY)
            if not message.get("more_body", False):
                return body
        raise ApiRefusal(
            413, "request_too_large", f"expected a body of at most {defaults.API_PIECES} chunks"
        )
    raise ApiRefusal(
        408, "request_timeout", f"expected the whole body within {defaults.API_BODY_TIME:g} s"
    )


async def respond(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    """Send a complete response."""
    await start(send, status, headers | {"Content-Length": str(len(body))})
    await more(send, body, last=True)


async def start(send: Send, status: int, headers: dict[str, str]) -> None:
    """Send the status and the headers of a response."""
    pairs = [(name.lower().encode(), value.encode()) for name, value in (headers | _SAFE).items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def more(send: Send, body: bytes, *, last: bool = False) -> None:
    """Send the next part of a response's body."""
    await send({"type": "http.response.body", "body": body, "more_body": not last})


async def _unknown(scope: Scope, _receive: Receive, _send: Send) -> None:
    await trio.lowlevel.checkpoint()
    path = ascii(scope["path"][:64])
    raise ApiRefusal(404, "unknown_url", f"{path} is not part of this API")
