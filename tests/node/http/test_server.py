"""The API over HTTP: answers, refusals, and what a client can cost."""

import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from shoal.node import defaults
from shoal.node.errors import ControlError
from shoal.node.http.server import CONDITION
from shoal.node.http.stream import ClientStream
from shoal.tasks.errors import NoRoute, Overloaded, PromptTooLong, SessionError
from shoal.tasks.inference.generation import Emit, GenerateRequest, Summary
from shoal.tasks.text.process import TextDelta

from .serving import (
    CHAT,
    WORDS,
    Endless,
    events,
    read_head,
    read_response,
    serving,
    summary,
    words,
)

pytestmark = pytest.mark.trio

TEXT = "".join(WORDS)
STREAM = CHAT | {"stream": True}


# Answers.


async def test_a_chat(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        response = await served.ask(served.post(CHAT))
    answer = json.loads(response.body)
    assert response.status == 200 and response.headers["content-type"] == "application/json"
    assert answer["object"] == "chat.completion" and answer["model"] == "tiny"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


async def test_the_most_likely_tokens(tmp_path: Path) -> None:
    """A chat lists them; a completion maps texts, of which two may be the same."""
    async with serving(tmp_path) as served:
        chat = await served.ask(served.post(CHAT | {"logprobs": True, "top_logprobs": 3}))
        given = {"model": "tiny", "prompt": "Hi", "logprobs": 3}
        completion = await served.ask(served.post(given, "/v1/completions"))
    content = json.loads(chat.body)["choices"][0]["logprobs"]["content"]
    assert [[each["token"] for each in token["top_logprobs"]] for token in content] == [
        ["x0", "x0", "x1"]
    ] * 3
    first = content[0]["top_logprobs"][0]
    assert first == {"token": "x0", "logprob": -1.0, "bytes": [120, 48]}
    logprobs = json.loads(completion.body)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"x0": -1.0, "x1": -3.0}] * 3


async def test_a_streamed_chat(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        response = await served.ask(
            served.post(STREAM | {"stream_options": {"include_usage": True}, "logprobs": True})
        )
    assert response.headers["content-type"].startswith("text/event-stream")
    first, *pieces, last, usage = events(response.body)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [piece["choices"][0]["delta"]["content"] for piece in pieces] == list(WORDS)
    assert [piece["choices"][0]["logprobs"]["content"] for piece in pieces] == [
        [{"token": word, "logprob": -0.5, "bytes": list(word.encode()), "top_logprobs": []}]
        for word in WORDS
    ]
    assert last["choices"][0] | {"index": 0} == {
        "index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None,
    }  # fmt: skip
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 8
    assert all(piece["usage"] is None for piece in (first, *pieces, last))
    assert len({each["id"] for each in (first, *pieces, last, usage)}) == 1


async def test_the_head_of_an_answer_leaves_with_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece, which wakes the client once."""
    sent, send = list[bytes](), ClientStream.send_all

    async def noted(self: ClientStream, data: bytes) -> None:
        sent.append(bytes(data))
        await send(self, data)

    monkeypatch.setattr(ClientStream, "send_all", noted)
    async with serving(tmp_path) as served:
        await served.ask(served.post(STREAM))
    assert sent[0].startswith(b"HTTP/1.1 200") and WORDS[0].encode() in sent[0]


async def test_a_completion(tmp_path: Path) -> None:
    body = {"model": "tiny", "prompt": "x", "logprobs": 0}
    async with serving(tmp_path) as served:
        response = await served.ask(served.post(body, "/v1/completions"))
        streamed = await served.ask(served.post(body | {"stream": True}, "/v1/completions"))
    (choice,) = json.loads(response.body)["choices"]
    assert choice["text"] == TEXT and choice["logprobs"] == {
        "tokens": list(WORDS), "token_logprobs": [-0.5] * 3, "top_logprobs": None,
        "text_offset": [0, 2, 6],
    }  # fmt: skip
    pieces = [each["choices"][0] for each in events(streamed.body)]
    assert "".join(piece["text"] for piece in pieces) == TEXT
    offsets = [piece["logprobs"]["text_offset"] for piece in pieces[:-1]]
    assert offsets == [[0], [2], [6]] and pieces[-1]["finish_reason"] == "stop"


async def test_models(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        listed = await served.ask(served.head("GET", "/v1/models"))
        known = await served.ask(served.head("GET", "/v1/models/tiny"))
        unknown = await served.ask(served.head("GET", "/v1/models/some/other"))
        twice = await served.ask(served.head("GET", "/v1/models/twice"))
    model = {"id": "tiny", "object": "model", "created": 0, "owned_by": "shoal"}
    assert json.loads(listed.body) == {"object": "list", "data": [model]}
    assert json.loads(known.body) == model
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    assert (twice.status, twice.error["code"]) == (400, "ambiguous-model")


async def test_a_connection_serves_several_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, await served.connect() as stream:
        for body in (CHAT, CHAT | {"n": 2}, STREAM, CHAT):
            await stream.send_all(served.post(body))
            assert (await read_response(stream)).status == (400 if "n" in body else 200)


async def test_an_answer_whose_last_text_is_empty(tmp_path: Path) -> None:
    async def nothing(request: GenerateRequest, emit: Emit) -> Summary:
        await trio.lowlevel.checkpoint()
        return summary("", 1)

    async with serving(tmp_path, nothing) as served:
        response = await served.ask(served.post(STREAM))
    first, last = events(response.body)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0]["finish_reason"] == "stop"


async def test_the_reason_of_the_end(tmp_path: Path) -> None:
    for reason, shown in (("stop", "stop"), ("length", "length"), ("context", "length")):

        async def ends(request: GenerateRequest, emit: Emit, reason: str = reason) -> Summary:
            await trio.lowlevel.checkpoint()
            return summary("x", 1, reason)

        async with serving(tmp_path, ends) as served:
            response = await served.ask(served.post(CHAT))
        assert json.loads(response.body)["choices"][0]["finish_reason"] == shown


# Errors.


def failing(error: Exception, *, after: str = "") -> Any:
    async def fail(request: GenerateRequest, emit: Emit) -> Summary:
        await trio.lowlevel.checkpoint()
        if after:
            await emit(TextDelta(after, False))
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (PromptTooLong(300, 256), 400, "context_length_exceeded"),
        (SessionError("no-memory", "no room"), 503, "no-memory"),
        (Overloaded("busy", 42), 503, "overloaded"),
        (NoRoute("nobody serves layers 3:6"), 503, "no-route"),
        (ControlError("stopping", "the daemon is stopping"), 503, "stopping"),
        (ExceptionGroup("", [NoRoute("nobody")]), 503, "no-route"),
        (KeyError("a bug"), 500, "mishap"),
        (ExceptionGroup("", [KeyError("a bug")]), 500, "mishap"),
    ],
)
async def test_errors_before_the_text_have_a_status(
    tmp_path: Path, error: Exception, status: int, code: str
) -> None:
    async with serving(tmp_path, failing(error)) as served:
        for body in (CHAT, STREAM):
            response = await served.ask(served.post(body))
            assert (response.status, response.error["code"]) == (status, code)
        assert len(served.mishaps) == 2 * (status == 500)
        assert (await served.ask(served.head("GET", "/v1/models"))).status == 200


@pytest.mark.parametrize("error", [NoRoute("nobody serves"), KeyError("a bug")])
async def test_an_error_within_the_text_is_an_event(tmp_path: Path, error: Exception) -> None:
    async with serving(tmp_path, failing(error, after="In")) as served:
        response = await served.ask(served.post(STREAM))
    *_, last = [each for each in response.body.decode().split("\n\n") if each]
    assert response.status == 200 and b"[DONE]" not in response.body
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"


async def test_an_overloaded_swarm_says_when_to_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path, failing(Overloaded("busy", 42))) as served:
        for body in (CHAT, STREAM):
            response = await served.ask(served.post(body))
            assert response.headers["retry-after"] == "42"
            assert "try again in 42 seconds" in response.error["message"]
    async with serving(tmp_path, failing(NoRoute("nobody serves"))) as served:
        assert "retry-after" not in (await served.ask(served.post(CHAT))).headers


async def test_a_hint_about_a_command_is_left_out(tmp_path: Path) -> None:
    for hint, shown in (("try `--raw`", False), ("shorten it", True)):
        error = SessionError("bad-request", "no", hint=hint)
        async with serving(tmp_path, failing(error)) as served:
            response = await served.ask(served.post(CHAT))
        assert (hint in response.error["message"]) == shown


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404), ("GET", "/v1", 404), ("POST", "/v1/moderations", 404),
        ("GET", "/v1/models/", 404), ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405), ("DELETE", "/v1/models", 405),
        ("OPTIONS", "/v1/chat/completions", 405), ("PUT", "/v1/models/tiny", 405),
    ],
)  # fmt: skip
async def test_other_urls_and_methods(tmp_path: Path, method: str, path: str, status: int) -> None:
    async with serving(tmp_path) as served:
        response = await served.ask(served.head(method, path))
    assert response.status == status and response.error["type"] == "invalid_request_error"
    assert not any(name.startswith("access-control") for name in response.headers)
    if status == 405:
        assert response.headers["allow"]


async def test_stopping_refuses(tmp_path: Path) -> None:
    def refuse() -> None:
        raise ControlError("stopping", "the daemon is stopping")

    async with serving(tmp_path, refuse=refuse) as served:
        assert (await served.ask(served.post(CHAT))).status == 503


# The door.


async def test_the_door_comes_first(tmp_path: Path) -> None:
    asked = Endless()
    async with serving(tmp_path, asked) as served:
        good = served.post(CHAT)
        own = f"Host: 127.0.0.1:{served.api.port}".encode()
        for request, status in (
            (good.replace(own, b"Host: evil.example"), 421),
            (good.replace(own, own + b"\r\nOrigin: https://evil.example"), 403),
            (good.replace(served.api.token.encode(), b"wrong"), 401),
            (served.head("GET", "/nothing", token="wrong"), 401),
        ):
            response = await served.ask(request)
            assert response.status == status and response.error["message"]
            assert not any(name.startswith("access-control") for name in response.headers)
        assert response.headers["www-authenticate"] == "Bearer"
    assert not asked.began


async def test_a_preflight_request_gets_no_permission(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        asks = ("Origin: https://evil.example", "Access-Control-Request-Method: POST")
        response = await served.ask(served.head("OPTIONS", "/v1/chat/completions", *asks))
    assert response.status == 403
    assert not any(name.startswith("access-control") for name in response.headers)


async def test_the_token_is_stored_for_the_owner_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        path, first = served.folder.api_token, served.api.token
    assert path.stat().st_mode & 0o777 == 0o600 and len(first) > 64
    async with serving(tmp_path) as served:
        assert served.api.token == first
    path.chmod(0o640)
    async with serving(tmp_path) as served:
        assert served.api.token != first and path.stat().st_mode & 0o777 == 0o600
    path.write_text("short")
    async with serving(tmp_path) as served:
        assert len(served.api.token) > 64


async def test_only_loopback_is_opened(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        with trio.socket.socket() as other:  # another loopback address of this machine
            with pytest.raises(OSError):
                await other.connect(("127.0.0.2", served.api.port))


async def test_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with serving(tmp_path, port=port) as served:
            assert served.api.port not in (0, port)
            (condition,) = served.health.conditions()
            assert (await served.ask(served.post(CHAT))).status == 200
    assert condition.name == CONDITION and condition.hint is not None
    assert str(port) in condition.sentence and str(served.api.port) in condition.sentence


# Bodies.


async def test_a_body_that_is_too_large(tmp_path: Path) -> None:
    large = b'{"model": "' + b"x" * defaults.API_BODY
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [large]) + b"0\r\n\r\n"
    async with serving(tmp_path) as served:
        declared = await served.ask(served.post(large))
        more = ("Content-Type: application/json", "Transfer-Encoding: chunked")
        sent = await served.ask(served.head("POST", "/v1/completions", *more) + chunked)
        await served.until_clients(0)
    assert (declared.status, sent.status) == (413, 413)
    assert declared.error["code"] == sent.error["code"] == "request_too_large"


async def test_a_refused_body_leaves_nothing_behind(tmp_path: Path) -> None:
    """hypercorn's reader waits without end if the application ends before it has read the body."""
    async with serving(tmp_path) as served:
        head = served.head("POST", "/v1/completions", "Content-Length: 9000000", token="wrong")
        for _ in range(3):
            async with await served.connect() as stream:
                await stream.send_all(head + b"x" * 9_000_000)
                assert (await read_response(stream)).status == 401
        await served.until_clients(0)


async def test_an_endless_body_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "API_DISCARD", 1 << 20)
    async with serving(tmp_path) as served, await served.connect() as stream:
        await stream.send_all(served.head("POST", "/", "Content-Length: 1000000000"))
        sent = 0
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(5):
            while sent < 10**9:
                await stream.send_all(b"x" * 65536)
                sent += 65536
        assert sent < 32 << 20  # with the buffers of the sockets


async def test_a_body_of_very_many_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk costs as much as a large one."""
    monkeypatch.setattr(defaults, "API_PIECES", 50)
    chunks = b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n"
    async with serving(tmp_path) as served:
        more = ("Content-Type: application/json", "Transfer-Encoding: chunked")
        for token, status in ((None, 413), ("wrong", 401)):
            head = served.head("POST", "/v1/completions", *more, token=token)
            response = await served.ask(head + chunks)
            assert (response.status, response.headers["connection"]) == (status, "close")
        await served.until_clients(0)


async def test_a_slow_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "API_BODY_TIME", 0.2)
    monkeypatch.setattr(defaults, "API_DISCARD_TIME", 0.1)
    async with serving(tmp_path) as served:
        response = await served.ask(served.post(CHAT)[:-5])
        assert (response.status, response.headers["connection"]) == (408, "close")
        await served.until_clients(0)


async def test_a_slow_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "API_HEAD_TIME", 0.2)
    async with serving(tmp_path) as served, await served.connect() as stream:
        await stream.send_all(b"GET /v1/models HTTP/1.1\r\nHost: local")
        with trio.fail_after(5):
            assert await stream.receive_some(10) == b""
        await served.until_clients(0)


async def test_a_large_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "API_HEAD", 4096)
    async with serving(tmp_path) as served:
        line = "X: " + "x" * 2 * defaults.API_HEAD
        response = await served.ask(served.head("GET", "/v1/models", line))
        assert response.status == 431
        await served.until_clients(0)


async def test_what_is_no_http(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for data in (b"\x16\x03\x01\x02\x00", b"hello\r\n\r\n", b"\x13/multistream/1.0.0\n"):
            async with await served.connect() as stream:
                await stream.send_all(data)
                await stream.send_eof()
                with trio.fail_after(5):
                    while await stream.receive_some(4096):
                        pass
        await served.until_clients(0)
        assert (await served.ask(served.post(CHAT))).status == 200
        assert not served.mishaps


@pytest.mark.parametrize("seed", range(4))
async def test_random_bytes(tmp_path: Path, seed: int) -> None:
    """Requests with random changes get a response or an end, and nothing raises."""
    random = Random(seed)
    async with serving(tmp_path) as served:
        for _ in range(50):
            data = bytearray(served.post(random.choice((CHAT, STREAM))))
            for _ in range(random.randint(1, 12)):
                at = random.randrange(len(data))
                data[at : at + random.randint(0, 3)] = random.randbytes(random.randint(0, 3))
            async with await served.connect() as stream:
                await stream.send_all(data)
                with trio.move_on_after(0.02), suppress(trio.BrokenResourceError):
                    while await stream.receive_some(65536):
                        pass
        await served.until_clients(0)
        assert not served.mishaps
        assert (await served.ask(served.post(CHAT))).status == 200


async def test_other_protocols_are_not_reached(tmp_path: Path) -> None:
    """hypercorn would switch to HTTP/2 or WebSocket."""
    async with serving(tmp_path) as served:
        upgrade = ("Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQAAP__")
        plain = await served.ask(served.head("GET", "/v1/models", *upgrade, "Upgrade: h2c"))
        web_socket = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                   "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")  # fmt: skip
        web = await served.ask(served.head("GET", "/v1/models", *web_socket))
        prior = await served.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (plain.status, web.status, prior.status) == (200, 200, 421)
        assert not served.mishaps


# Clients that go.


Leave = Callable[[trio.SocketStream], Awaitable[None]]


async def close(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def half_close(stream: trio.SocketStream) -> None:
    await stream.send_eof()


@pytest.mark.parametrize("leave", [close, half_close])
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "streamed"])
@pytest.mark.parametrize("behind", [False, True], ids=["", "pipelined"])
async def test_a_client_that_goes_ends_its_answer(
    tmp_path: Path, leave: Leave, body: dict[str, Any], behind: bool
) -> None:
    """Also one that has sent a further request, behind which hypercorn reads no more."""
    answer = Endless(silent=True)
    async with serving(tmp_path, answer) as served, await served.connect() as stream:
        await stream.send_all(served.post(body) * (1 + behind))
        await answer.until(1)
        await leave(stream)
        await answer.until(0)
        await served.until_clients(0)
        assert answer.began == 1


async def test_a_client_that_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "API_SEND_TIME", 0.2)
    answer = Endless("x" * 100_000)
    async with serving(tmp_path, answer) as served, await served.connect() as stream:
        await stream.send_all(served.post(STREAM))
        await answer.until(1)
        await answer.until(0)
        await served.until_clients(0)


async def test_a_client_that_sends_too_much_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "API_BODY_TIME", 0.2)
    answer = Endless(silent=True)
    async with serving(tmp_path, answer) as served, await served.connect() as stream:
        await stream.send_all(served.post(CHAT))
        await answer.until(1)
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(10):
            await stream.send_all(b"x" * (100 * defaults.API_AHEAD))
        await answer.until(0)
        await served.until_clients(0)


async def test_stopping_does_not_wait_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    """hypercorn sends with a shield against cancellation."""
    answer = Endless("x" * 100_000)
    with trio.fail_after(10):
        async with serving(tmp_path, answer) as served:
            stream = await served.connect()
            await stream.send_all(served.post(STREAM))
            await answer.until(1)
            await trio.sleep(0.3)  # until the buffers are full
    await stream.aclose()


async def test_no_response_may_be_kept_guessed_at_or_embedded_by_a_page(tmp_path: Path) -> None:
    """Whole answers, streams, lists, and refusals before and after routing."""
    async with serving(tmp_path) as served:
        requests = [
            (200, served.post(CHAT)),
            (200, served.post(CHAT | {"stream": True})),
            (200, served.head("GET", "/v1/models")),
            (400, served.post(b"{")),
            (401, served.head("GET", "/v1/models", token="x")),
            (404, served.head("GET", "/v1/nothing")),
        ]
        for status, request in requests:
            response = await served.ask(request)
            assert response.status == status
            headers = response.headers
            assert headers["cache-control"] == "no-store"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["x-content-type-options"] == "nosniff"


# Many clients.


async def test_too_many_answers_at_once(tmp_path: Path) -> None:
    answer = Endless(silent=True)
    async with serving(tmp_path, answer) as served:
        streams = [await served.connect() for _ in range(defaults.API_REQUESTS)]
        for stream in streams:
            await stream.send_all(served.post(CHAT))
        await answer.until(defaults.API_REQUESTS)
        response = await served.ask(served.post(CHAT))
        assert response.status == 429 and response.headers["retry-after"] == "1"
        assert response.error["code"] == "rate_limit_exceeded"
        assert (await served.ask(served.head("GET", "/v1/models"))).status == 200
        await streams[0].aclose()
        await answer.until(defaults.API_REQUESTS - 1)
        async with await served.connect() as more:
            await more.send_all(served.post(CHAT))
            await answer.until(defaults.API_REQUESTS)
        for stream in streams:
            await stream.aclose()


async def test_idle_connections_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "API_CONNECTIONS", 4)
    monkeypatch.setattr(defaults, "API_FRESH", 0.0)
    answer = Endless(silent=True)
    async with serving(tmp_path, answer) as served:
        busy = await served.connect()
        await busy.send_all(served.post(CHAT))
        await answer.until(1)
        idle = [await served.connect() for _ in range(8)]
        await served.until_clients(4)
        assert (await served.ask(served.head("GET", "/v1/models"))).status == 200
        assert answer.running == 1
        for stream in (busy, *idle):
            await stream.aclose()


async def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "API_CONNECTIONS", 2)
    answer = Endless(silent=True)
    async with serving(tmp_path, answer) as served:
        busy = [await served.connect() for _ in range(2)]
        for stream in busy:
            await stream.send_all(served.post(CHAT))
        await answer.until(2)
        with trio.fail_after(5):
            response = await served.ask(served.post(CHAT))
        assert response.status == 429
        assert response.error["code"] == "rate_limit_exceeded"
        assert answer.running == 2
        for stream in busy:
            await stream.aclose()


@pytest.mark.parametrize("fresh", [0.0, 5.0])
async def test_of_many_clients_at_once_each_gets_a_response(
    fresh: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even those beyond all limits are disconnected without a word, whether they are turned
    away at once or for later ones."""
    monkeypatch.setattr(defaults, "API_FRESH", fresh)
    monkeypatch.setattr(defaults, "API_AWAY", 30.0)
    statuses: list[int] = []
    async with serving(tmp_path, words) as served:

        async def ask() -> None:
            statuses.append((await served.ask(served.post(CHAT))).status)

        with trio.fail_after(60):
            async with trio.open_nursery() as clients:
                for _ in range(400):
                    clients.start_soon(ask)
    assert len(statuses) == 400
    assert set(statuses) <= {200, 429} and 200 in statuses


async def test_a_client_that_gives_way_to_another_reads_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "API_CONNECTIONS", 1)
    monkeypatch.setattr(defaults, "API_FRESH", 0.0)
    async with serving(tmp_path, words) as served, await served.connect() as first:
        await served.until_clients(1)
        response = await served.ask(served.head("GET", "/v1/models"))
        assert response.status == 200
        assert (await read_response(first)).status == 429


async def test_a_client_that_does_not_read_its_refusal_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "API_CONNECTIONS", 1)
    answer = Endless(silent=True)
    async with serving(tmp_path, answer) as served:
        busy = await served.connect()
        await busy.send_all(served.post(CHAT))
        await answer.until(1)
        silent = [await served.connect() for _ in range(2)]  # they are turned away one by one
        with trio.fail_after(20):
            assert (await served.ask(served.post(CHAT))).status == 429
        for stream in (busy, *silent):
            await stream.aclose()


async def test_a_slow_body_takes_a_place(tmp_path: Path) -> None:
    """The place is taken before the body is read, so that bodies in memory are bounded too."""
    async with serving(tmp_path, words) as served:
        streams = [await served.connect() for _ in range(defaults.API_REQUESTS)]
        for stream in streams:
            await stream.send_all(served.post(CHAT)[:-1])
        with trio.fail_after(5):
            while served.api.running < defaults.API_REQUESTS:  # noqa: ASYNC110
                await trio.sleep(0.005)
        assert (await served.ask(served.post(CHAT))).status == 429
        for stream in streams:
            await stream.aclose()


async def test_the_first_text_is_sent_at_once(tmp_path: Path) -> None:
    go = trio.Event()

    async def waits(request: GenerateRequest, emit: Emit) -> Summary:
        await emit(TextDelta("In", False))
        await go.wait()
        return summary("In", 1)

    async with serving(tmp_path, waits) as served, await served.connect() as stream:
        await stream.send_all(served.post(STREAM))
        status, _, data = await read_head(stream)
        with trio.fail_after(5):
            while b'"content": "In"' not in data:
                data += await stream.receive_some(65536)
        assert status == 200 and not go.is_set()
        go.set()


async def test_the_daemon_s_view_of_running_requests(tmp_path: Path) -> None:
    """A stopping daemon waits for them (node/daemon/daemon.py)."""
    answer = Endless(silent=True)
    async with serving(tmp_path, answer) as served, await served.connect() as stream:
        assert served.api.running == 0
        await stream.send_all(served.post(CHAT))
        await answer.until(1)
        assert served.api.running == 1


async def test_a_request_is_counted_only_if_it_is_authorized(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, await served.connect() as stream:
        head = served.head("POST", "/v1/completions", "Content-Length: 10", token="wrong")
        await stream.send_all(head)
        await trio.sleep(0.05)
        assert served.api.running == 0
