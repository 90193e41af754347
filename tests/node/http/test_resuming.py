"""Streams that a client continues after its connection has dropped."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.node import defaults
from shoal.tasks.errors import SessionError
from shoal.tasks.inference.generation import Emit, GenerateRequest, Summary
from shoal.tasks.text.process import TextDelta

from .serving import CHAT, Endless, Response, Served, read_head, serving, summary

pytestmark = pytest.mark.trio

STREAM = CHAT | {"stream": True, "stream_options": {"resumable": True}}
COUNT = 40


async def slow(request: GenerateRequest, emit: Emit) -> Summary:
    for number in range(COUNT):
        await emit(TextDelta(f"{number} ", False))
        await trio.sleep(0.01)
    return summary("".join(f"{number} " for number in range(COUNT)))


def read(body: bytes) -> tuple[str, str]:
    """Return the text of events that are complete, and the id of the last one."""
    text, last = "", ""
    for event in body.decode().split("\n\n")[:-1]:
        for line in event.split("\n"):
            name, _, value = line.partition(": ")
            if name == "id":
                last = value
            elif value != "[DONE]":
                for choice in json.loads(value)["choices"]:
                    text += choice["delta"].get("content", "")
    return text, last


async def begin(served: Served, body: Any = STREAM) -> tuple[str, str]:
    """Ask, and drop the connection after some text. Return the text and the last id."""
    async with await served.connect() as stream:
        await stream.send_all(served.post(body))
        _, _, data = await read_head(stream)
        while data.count(b"id: ") < 7:
            data += await stream.receive_some(65536)
    pieces = [piece for piece in data.split(b"\r\n") if piece.startswith((b"data", b"id"))]
    whole = b"".join(piece for piece in pieces if piece.endswith(b"\n\n"))
    return read(whole)


async def resume(served: Served, last: str, query: str = "") -> Response:
    return await served.ask(served.head("GET", f"/v1/resume{query}", f"Last-Event-ID: {last}"))


@pytest.mark.parametrize("pause", [0.0, 1.0])
async def test_a_stream_continues_after_the_last_event(tmp_path: Path, pause: float) -> None:
    async with serving(tmp_path, slow) as served:
        text, last = await begin(served)
        await trio.sleep(pause)  # the answer is complete by then, or not
        response = await resume(served, last)
        rest, _ = read(response.body)
        assert response.status == 200 and response.body.endswith(b"data: [DONE]\n\n")
        assert text + rest == "".join(f"{number} " for number in range(COUNT))
        again, _ = read((await resume(served, last)).body)
        assert again == rest


async def test_a_text_that_looks_like_an_event_does_not_get_the_id(tmp_path: Path) -> None:
    texts = ["data: ", "\ndata: x\n\n", "a data: b data: ", "\r\nid: 0.0\r\ndata: [DONE]"]

    async def answers(request: GenerateRequest, emit: Emit) -> Summary:
        for text in texts:
            await emit(TextDelta(text, False))
        await trio.sleep(1)
        return summary("".join(texts))

    async with serving(tmp_path, answers) as served:
        response = await served.ask(served.post(STREAM))
        text, last = read(response.body)
        assert text == "".join(texts) and last.endswith(f".{len(texts)}")


async def test_other_streams_have_no_ids_and_end_with_their_connection(tmp_path: Path) -> None:
    endless = Endless()
    async with serving(tmp_path, endless) as served:
        for body, left in ((CHAT | {"stream": True}, 0), (STREAM, 1)):
            async with await served.connect() as stream:
                await stream.send_all(served.post(body))
                _, _, data = await read_head(stream)
                while b"data: " not in data:
                    data += await stream.receive_some(65536)
            assert (b"id: " in data) is bool(left)
            await served.until_clients(0)
            await endless.until(left)


async def test_an_answer_that_no_client_resumes_is_stopped(tmp_path: Path) -> None:
    endless = Endless()
    async with serving(tmp_path, endless, alone=0.5) as served:
        await begin(served)
        await endless.until(0)


async def test_an_answer_without_a_client_has_its_place_until_it_ends(tmp_path: Path) -> None:
    endless = Endless()
    async with serving(tmp_path, endless, alone=2.0) as served:
        lasts = []
        for number in range(defaults.API_REQUESTS):
            lasts.append((await begin(served, STREAM | {"user": f"user{number}"}))[1])
        assert endless.running == defaults.API_REQUESTS
        for body in (CHAT, STREAM):
            refused = await served.ask(served.post(body))
            assert refused.status == 429 and refused.error["code"] == "rate_limit_exceeded"
        async with await served.connect() as stream:
            line = f"Last-Event-ID: {lasts[0]}"
            await stream.send_all(served.head("GET", "/v1/resume?user=user0", line))
            status, _, _ = await read_head(stream)
            assert status == 200, "its generation has a place already"
        await endless.until(0)
        assert served.api.running == 0
        await begin(served)


async def test_tokens_of_others_and_made_up_ones_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, slow) as served:
        _, last = await begin(served, STREAM | {"user": "alice"})
        token, _, number = last.partition(".")
        for wrong, query in (
            (last, ""),
            (last, "?user=bob"),
            (f"{token[:-1]}.{number}", "?user=alice"),
            (f"{'0' * 64}.0", "?user=alice"),
        ):
            response = await resume(served, wrong, query)
            assert (response.status, response.error["code"]) == (404, "unknown-answer")
        for bad in ("", token, f"{token}.-1", f"{token}.x", f"{token}.{'9' * 20}"):
            assert (await resume(served, bad, "?user=alice")).status == 400
        beyond = await resume(served, f"{token}.999999", "?user=alice")
        assert (beyond.status, beyond.error["code"]) == (400, "bad-request")
        assert (await resume(served, last, "?user=alice")).status == 200


async def test_an_error_before_the_first_text_has_its_own_status(tmp_path: Path) -> None:
    async def fails(request: GenerateRequest, emit: Emit) -> Summary:
        await trio.sleep(0.01)
        raise SessionError("no-memory", "no stage has room")

    async with serving(tmp_path, fails) as served:
        response = await served.ask(served.post(STREAM))
        assert response.status >= 500 and response.error["code"] == "no-memory"
