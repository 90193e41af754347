"""An engine with OpenAI's API that does what a test wants: answers, lies, hangs, dies, floods."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from shoal.transport.host.seam import Host

LOCAL = "127.0.0.1"
WORDS = ("One", " two", " three")
EVENTS = "text/event-stream"
Behave = Callable[["Asked"], Awaitable[None]]


def listing(*names: str, owner: str = "llamacpp", **more: Any) -> dict[str, Any]:
    """Return an engine's list of models."""
    data = [{"id": name, "object": "model", "owned_by": owner, **more} for name in names]
    return {"object": "list", "data": data}


def chunk(text: str | None, *, chat: bool = True, end: str | None = None) -> dict[str, Any]:
    """Return the document of one event of an answer."""
    part = {"delta": {} if text is None else {"content": text}} if chat else {"text": text or ""}
    return {"choices": [{"index": 0, "finish_reason": end, **part}]}


@dataclass
class Asked:
    """A request that the engine has read, and the connection on which it answers."""

    stream: trio.SocketStream
    method: str
    path: str
    head: str
    body: dict[str, Any]

    @property
    def chat(self) -> bool:
        return "chat" in self.path

    async def raw(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def respond(
        self, body: bytes, *, status: int = 200, kind: str = "application/json", more: str = ""
    ) -> None:
        """Send a whole response."""
        await self.raw(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"{more}\r\n".encode()
            + body
        )

    async def begin(self, kind: str = EVENTS) -> None:
        """Send the head of a streamed response."""
        await self.raw(
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode()
        )

    async def event(self, document: Any) -> None:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        await self.raw(b"data: " + data + b"\n\n")

    async def words(self, *words: str, pause: float = 0.0) -> None:
        for word in words:
            await self.event(chunk(word, chat=self.chat))
            await trio.sleep(pause)

    async def end(self, reason: str = "stop", prompt: int = 7, tokens: int = 3) -> None:
        """Send the last events of an answer."""
        await self.event(chunk(None, chat=self.chat, end=reason))
        await self.event({"choices": [], "usage": {
            "prompt_tokens": prompt, "completion_tokens": tokens}})  # fmt: skip
        await self.event(b"[DONE]")


async def answer_words(asked: Asked) -> None:
    """Answer with WORDS."""
    await asked.begin()
    await asked.words(*WORDS)
    await asked.end()


@dataclass
class FakeEngine:
    """The engine, as a test controls it. `models` is the document of its list."""

    port: int
    models: Any = field(default_factory=lambda: listing("llama", meta={"n_ctx_train": 4096}))
    behave: Behave = answer_words
    list_models: Behave | None = None
    asked: list[Asked] = field(default_factory=list)
    running: int = 0  # answers that have begun and not ended
    most: int = 0  # of these, at any time

    @property
    def url(self) -> str:
        return f"http://{LOCAL}:{self.port}"

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await self._serve(stream)
            except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                pass  # the client has left

    async def _serve(self, stream: trio.SocketStream) -> None:
        asked = await _read(stream)
        if asked is None:
            return
        if asked.path == "/v1/models":
            if self.list_models is not None:
                await self.list_models(asked)
                return
            await asked.respond(json.dumps(self.models).encode())
            return
        self.asked.append(asked)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_closed, stream, nursery.cancel_scope)
                await self.behave(asked)
                nursery.cancel_scope.cancel()
        finally:
            self.running -= 1

    async def until(self, running: int) -> None:
        """Wait until `running` answers are in progress."""
        with trio.fail_after(20):
            while self.running != running:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def _until_closed(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while await stream.receive_some(1024):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()


async def _read(stream: trio.SocketStream) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await stream.receive_some(65536)
        if not piece:
            return None
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    text = head.decode()
    method, path, _ = text.split("\r\n")[0].split(" ")
    size = 0
    for line in text.lower().split("\r\n"):
        if line.startswith("content-length: "):
            size = int(line.removeprefix("content-length: "))
    while len(rest) < size:
        rest += await stream.receive_some(65536)
    return Asked(stream, method, path, text, json.loads(rest) if rest else {})


async def run(host: Host, engine: FakeEngine, listener: trio.SocketListener) -> None:
    """Serve until cancelled. The listener closes then."""
    async with listener, trio.open_nursery() as nursery:
        while True:
            nursery.start_soon(engine.serve, await listener.accept())


@asynccontextmanager
async def running(host: Host, **more: Any) -> AsyncIterator[FakeEngine]:
    """Run an engine at a free port of this host's loopback during the block."""
    listener = await host.listen(LOCAL, more.pop("port", 0))
    engine = FakeEngine(int(listener.socket.getsockname()[1]), **more)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, host, engine, listener)
        yield engine
        nursery.cancel_scope.cancel()
