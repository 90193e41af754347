"""An API in this process with a backend that a test writes, and raw clients of it."""

import json
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from shoal.dht.errors import ModelError
from shoal.node.health import Health
from shoal.node.http.backend import Backend
from shoal.node.http.server import ApiServer
from shoal.node.resumable import ResumableAnswers
from shoal.node.settings.config import DataFolder
from shoal.tasks.inference.embedding import Embeddings, EmbedRequest
from shoal.tasks.inference.generation import Emit, GenerateRequest, Summary
from shoal.tasks.text.process import LikelyText, TextDelta, TokenText
from shoal.transport.guard import Guard, Mishap
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import Host

WORDS = ("In", " the", " beginning")
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
Generate = Callable[[GenerateRequest, Emit], Awaitable[Summary]]


def summary(text: str, tokens: int = 3, reason: Any = "stop") -> Summary:
    return Summary(reason, 5, tokens, 0.01, 100.0, 0.1, text, ())


async def words(request: GenerateRequest, emit: Emit) -> Summary:
    """Answer with WORDS, one token each."""
    for word in WORDS:
        top = tuple(LikelyText(f"x{n // 2}", -1.0 - n) for n in range(request.top))
        tokens = (TokenText(word, -0.5, top),) if request.logprobs else ()
        await emit(TextDelta(word, False, tokens))
    return summary("".join(WORDS), len(WORDS))


async def embed(request: EmbedRequest) -> Embeddings:
    """Return a vector for each input, which has the input's number and 0.5."""
    await trio.lowlevel.checkpoint()
    numbers = range(len(request.inputs))
    return Embeddings(tuple(array("f", [number, 0.5]) for number in numbers), 7)


class Endless:
    """Answer without an end, which counts the generations that run."""

    def __init__(self, word: str = "again ", *, silent: bool = False) -> None:
        self.running = 0
        self.began = 0
        self._word = word
        self._silent = silent

    async def __call__(self, request: GenerateRequest, emit: Emit) -> Summary:
        self.running += 1
        self.began += 1
        try:
            while True:
                if not self._silent:
                    await emit(TextDelta(self._word, False))
                await trio.sleep(0.001)
        finally:
            self.running -= 1

    async def until(self, running: int) -> None:
        with trio.fail_after(5):
            while self.running != running:  # noqa: ASYNC110
                await trio.sleep(0.005)


async def find(name: str) -> object:
    await trio.lowlevel.checkpoint()
    if name == "twice":
        raise ModelError("ambiguous-model", "`twice` matches 2 models")
    if name != "tiny":
        raise ModelError("unknown-model", f"no model `{name}` is known")
    return name


@dataclass
class Served:
    """A running API, and what it reported."""

    api: ApiServer
    health: Health
    folder: DataFolder
    mishaps: list[Mishap] = field(default_factory=list)

    def head(self, method: str, path: str, *lines: str, token: str | None = None) -> bytes:
        """Return the head of a request with a valid Host and token."""
        token = self.api.token if token is None else token
        shown = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.api.port}",
                 f"Authorization: Bearer {token}", *lines]  # fmt: skip
        return "\r\n".join([*shown, "", ""]).encode()

    def post(self, body: Any, path: str = "/v1/chat/completions", *lines: str) -> bytes:
        """Return a POST request with a JSON body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = ("Content-Type: application/json", f"Content-Length: {len(data)}", *lines)
        return self.head("POST", path, *more) + data

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.api.port)

    async def ask(self, request: bytes) -> "Response":
        """Send a request on a new connection, and return the response."""
        async with await self.connect() as stream:
            await stream.send_all(request)
            return await read_response(stream)

    async def until_clients(self, count: int) -> None:
        with trio.fail_after(5):
            while len(self.api.clients) != count:  # noqa: ASYNC110
                await trio.sleep(0.005)


@dataclass
class Response:
    """A response: its status, its headers in lower case, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found


async def read_head(stream: trio.SocketStream) -> tuple[int, dict[str, str], bytes]:
    """Return the status and headers of a response, and the bytes after them."""
    data = b""
    with trio.fail_after(15):
        while b"\r\n\r\n" not in data:
            piece = await stream.receive_some(65536)
            if not piece:
                raise EOFError(data)
            data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    return int(first.split()[1]), {name.lower(): value for name, value in pairs}, rest


async def read_response(stream: trio.SocketStream) -> Response:
    """Return a whole response, chunked or of a fixed length."""
    status, headers, data = await read_head(stream)
    with trio.fail_after(15):
        if "chunked" in headers.get("transfer-encoding", ""):
            while not data.endswith(b"0\r\n\r\n"):
                piece = await stream.receive_some(65536)
                if not piece:
                    raise EOFError(data)
                data += piece
            return Response(status, headers, unchunked(data))
        while len(data) < int(headers["content-length"]):
            data += await stream.receive_some(65536)
    return Response(status, headers, data)


def unchunked(data: bytes) -> bytes:
    """Return a chunked body as one."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return body


def events(body: bytes) -> list[Any]:
    """Return the documents of server-sent events, the last of which must be `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@asynccontextmanager
async def serving(
    folder: Path,
    generate: Generate = words,
    *,
    port: int = 0,
    host: Host | None = None,
    refuse: Callable[[], None] = lambda: None,
    alone: float = 60.0,
) -> AsyncIterator[Served]:
    """Run an API at a free port, or at `port`."""
    mishaps: list[Mishap] = []
    host = host or RealHost()
    guard = Guard(mishaps.append)
    backend = Backend(
        host=host,
        guard=guard,
        resumable=ResumableAnswers(host, guard, alone=alone),
        generate=generate,
        embed=embed,
        names=lambda: ["tiny"],
        find=find,
        refuse_when_stopping=refuse,
    )
    health = Health()
    api = ApiServer(host, DataFolder(folder), port, health, backend)
    async with trio.open_nursery() as nursery:
        await nursery.start(api.run)
        yield Served(api, health, DataFolder(folder), mishaps)
        nursery.cancel_scope.cancel()
