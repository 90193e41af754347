"""An engine is asked within bounds: it may answer, lie, hang, die, flood or send rubbish."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import pytest
import trio
from trio.testing import assert_checkpoints

from shoal.tasks.sharing import defaults
from shoal.tasks.sharing.address import parse_address
from shoal.tasks.sharing.dialects import EngineModel
from shoal.tasks.sharing.engine import HttpEngine, Tally
from shoal.tasks.sharing.errors import EngineFailed, EngineGone
from shoal.tasks.sharing.http import EngineResponse
from shoal.tasks.sharing.messages import AnswerEnd, ConversationTurn, ShareAsk, ShareBody
from shoal.transport.host.real import RealHost
from tests.fake_engine import WORDS, Asked, FakeEngine, chunk, listing, running

pytestmark = pytest.mark.trio
HOST = RealHost()
CHAT = ShareBody(messages=(ConversationTurn("user", "Hello"),))


def asking(body: ShareBody = CHAT, **more: Any) -> tuple[ShareAsk, ShareBody]:
    raw = not body.messages
    return ShareAsk(**{"model": "mine", "size": 1, "max_tokens": 16, "raw": raw, **more}), body


async def model_of(fake: FakeEngine) -> tuple[HttpEngine, EngineModel]:
    engine = HttpEngine(HOST, parse_address(fake.url))
    return engine, (await engine.models())[0]


async def answer(fake: FakeEngine, body: ShareBody = CHAT, **more: Any) -> tuple[str, AnswerEnd]:
    engine, model = await model_of(fake)
    ask, body = asking(body, **more)
    texts = list[str]()

    async def take(text: str) -> None:
        await trio.lowlevel.checkpoint()
        texts.append(text)

    with trio.fail_after(10):
        figures = await engine.answer(model, ask, body, Tally(ask, body), take)
    return "".join(texts), figures


async def fails(behave: Callable[[Asked], Awaitable[None]], **more: Any) -> EngineFailed:
    async with running(HOST, behave=behave) as fake:
        with pytest.raises(EngineFailed) as caught:
            await answer(fake, **more)
        await fake.until(0)  # the connection is closed
    return caught.value


async def test_a_chat_goes_to_the_engine_and_comes_back_as_text() -> None:
    async with running(HOST) as fake:
        text, figures = await answer(
            fake, temperature=0.5, top_p=0.9, top_k=7, seed=2**31 + 5, max_tokens=9
        )
        assert text == "".join(WORDS) and figures == AnswerEnd("stop", 7, 3)
        (asked,) = fake.asked
    assert asked.method == "POST" and asked.path == "/v1/chat/completions"
    assert asked.body == {
        "model": "llama", "messages": [{"role": "user", "content": "Hello"}], "stream": True,
        "stream_options": {"include_usage": True}, "max_tokens": 9, "temperature": 0.5,
        "top_p": 0.9, "top_k": 7, "min_p": 0.0, "seed": 5,
    }  # fmt: skip


async def test_a_raw_prompt_is_a_completion_without_the_engines_own_defaults() -> None:
    async with running(HOST) as fake:
        text, _ = await answer(fake, ShareBody(prompt="Once", stop=("END",)))
        (asked,) = fake.asked
    assert text == "".join(WORDS)
    assert asked.path == "/v1/completions" and asked.body["prompt"] == "Once"
    assert asked.body["stop"] == ["END"] and asked.body["top_k"] == 0


async def test_the_list_of_models_names_the_dialect_and_the_context() -> None:
    owners: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("vllm", "vLLM", ("chat", "text", "top-k")),
        ("library", "Ollama", ("chat",)),
        ("organization_owner", "LM Studio", ("chat", "top-k")),
        ("?", "other", ("chat",)),
    )
    for owner, name, takes in owners:
        document = listing("a", "b", owner=owner, max_model_len=512)
        async with running(HOST, models=document) as fake:
            found = await HttpEngine(HOST, parse_address(fake.url)).models()
        assert [(each.name, each.dialect.name, each.context) for each in found] == [
            ("a", name, 512), ("b", name, 512)]  # fmt: skip
        assert found[0].dialect.takes == takes


@pytest.mark.parametrize(
    "document",
    [
        [], {}, {"data": 5}, {"data": [{"id": ""}]}, {"data": [{"id": "x" * 300}]},
        listing(*map(str, range(defaults.MODELS + 1))),
    ],
)  # fmt: skip
async def test_a_list_that_is_malformed_or_too_long_is_refused(document: Any) -> None:
    async with running(HOST, models=document) as fake:
        with pytest.raises(EngineFailed) as caught:
            await model_of(fake)
    assert caught.value.code == "bad-engine"


async def test_a_context_of_a_wrong_type_is_unknown() -> None:
    async with running(HOST, models=listing("a", max_model_len="4096")) as fake:
        assert (await model_of(fake))[1].context == 0


async def test_an_endless_list_of_models_is_cut() -> None:
    async def flood(asked: Asked) -> None:
        await asked.begin("application/json")
        while True:
            await asked.raw(b" " * 65536)

    async with running(HOST, list_models=flood) as fake:
        with pytest.raises(EngineFailed) as caught, trio.fail_after(10):
            await model_of(fake)
    assert caught.value.code == "bad-engine"


async def test_no_engine_is_gone_and_a_hanging_list_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "LIST_TIME", 0.05)
    async with running(HOST) as fake:
        pass
    with pytest.raises(EngineGone):
        await model_of(fake)

    async def hang(asked: Asked) -> None:
        await trio.sleep_forever()

    async with running(HOST, list_models=hang) as fake:
        with pytest.raises(EngineFailed) as caught:
            await model_of(fake)
    assert caught.value.code == "engine-silent"


# Hostile answers.


async def test_a_gigabyte_is_cut_by_the_tokens_that_were_asked_for() -> None:
    sent = 0

    async def flood(asked: Asked) -> None:
        nonlocal sent
        await asked.begin()
        for _ in range(1 << 14):
            await asked.event(chunk("x" * 60_000))
            sent += 60_000

    error = await fails(flood)
    assert error.code == "bad-engine" and sent < 4 << 20
    assert "more text" in error.message


async def test_a_gigabyte_without_text_is_cut() -> None:
    sent = 0

    async def flood(asked: Asked) -> None:
        nonlocal sent
        await asked.begin()
        for _ in range(1 << 14):
            await asked.raw(b": " + b"x" * 60_000 + b"\n\n")
            sent += 60_000

    error = await fails(flood)
    assert error.code == "bad-engine" and sent < 8 << 20


async def test_pieces_that_are_there_already_give_way_to_other_tasks() -> None:
    class Wire:
        async def event(self) -> object:
            return h11.Data(data=b"x")

    head = h11.Response(status_code=200, headers=[])
    response = EngineResponse(head, Wire())  # type: ignore[arg-type]
    with assert_checkpoints():
        assert await response.piece(100) == b"x"


async def test_a_gigabyte_in_one_line_is_cut() -> None:
    sent = 0

    async def flood(asked: Asked) -> None:
        nonlocal sent
        await asked.begin()
        await asked.raw(b"data: ")
        for _ in range(1 << 14):
            await asked.raw(b"x" * 60_000)
            sent += 60_000

    error = await fails(flood)
    assert "event over" in error.message and sent < 8 << 20


async def test_more_tokens_than_asked_for_end_the_answer() -> None:
    async def chatter(asked: Asked) -> None:
        await asked.begin()
        while True:
            await asked.words("again ", pause=0.001)

    async with running(HOST, behave=chatter) as fake:
        text, figures = await answer(fake, max_tokens=5)
        await fake.until(0)
    assert text == "again " * 5 and figures.reason == "length" and figures.tokens == 5


async def test_an_engine_that_ignores_stop_strings_is_stopped() -> None:
    async def chatter(asked: Asked) -> None:
        await asked.begin()
        await asked.words("ab", "cE", "ND", "de")
        await trio.sleep_forever()

    async with running(HOST, behave=chatter) as fake:
        text, figures = await answer(fake, ShareBody(messages=CHAT.messages, stop=("END",)))
        await fake.until(0)
    assert text == "abc" and figures.reason == "stop"


async def test_what_may_begin_a_stop_string_comes_at_the_end() -> None:
    async def part(asked: Asked) -> None:
        await asked.begin()
        await asked.words("abE")
        await asked.end()

    async with running(HOST, behave=part) as fake:
        text, _ = await answer(fake, ShareBody(messages=CHAT.messages, stop=("END",)))
    assert text == "abE"


@pytest.mark.parametrize(
    "data",
    [
        b"{", b"[]", b'{"choices": [{"delta": {"content": NaN}}]}',
        b'{"choices": NaN}', b'{"choices": [{"delta": {"content": 5}}]}',
        b'{"choices": [{"delta": {"content": "\xff\xfe"}}]}',
        b'{"choices": [], "usage": {"prompt_tokens": -1}}',
        b'{"choices": [], "usage": {"prompt_tokens": 1e400}}',
        b"[" * 10_000, b"\x00\x1b[2J",
    ],
)  # fmt: skip
async def test_rubbish_ends_the_answer(data: bytes) -> None:
    async def rubbish(asked: Asked) -> None:
        await asked.begin()
        await asked.words("One")
        await asked.event(data)
        await trio.sleep_forever()

    error = await fails(rubbish)
    assert error.code == "bad-engine" and error.message.isprintable()


async def test_control_characters_and_lone_surrogates_are_text() -> None:
    async def odd(asked: Asked) -> None:
        await asked.begin()
        await asked.event(b'{"choices": [{"delta": {"content": "\\u001b[2J\\u0000"}}]}')
        await asked.end(tokens=1)

    async with running(HOST, behave=odd) as fake:
        text, _ = await answer(fake)
    assert text == "\x1b[2J\0"


async def test_death_in_the_middle_is_no_end() -> None:
    async def die(asked: Asked) -> None:
        await asked.begin()
        await asked.words("One")

    assert (await fails(die)).code == "engine-lost"

    async def done_early(asked: Asked) -> None:
        await asked.begin()
        await asked.words("One")
        await asked.event(b"[DONE]")

    assert (await fails(done_early)).code == "engine-lost"


async def test_a_broken_chunk_is_no_end() -> None:
    async def broken(asked: Asked) -> None:
        await asked.raw(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nfffff\r\ndata: {"
        )

    assert (await fails(broken)).code == "bad-engine"


async def test_silence_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "FIRST_TIME", 0.1)
    monkeypatch.setattr(defaults, "NEXT_TIME", 0.1)

    async def hang(asked: Asked) -> None:
        await trio.sleep_forever()

    async def hang_later(asked: Asked) -> None:
        await asked.begin()
        await asked.words("One")
        await trio.sleep_forever()

    async def drip(asked: Asked) -> None:
        """Send a byte of a comment now and then, which says nothing."""
        await asked.begin()
        while True:
            await asked.raw(b":")
            await trio.sleep(0.02)

    for behave in (hang, hang_later, drip):
        assert (await fails(behave)).code == "engine-silent"


async def test_a_slow_drip_of_words_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "ANSWER_TIME", 0.3)

    async def drip(asked: Asked) -> None:
        await asked.begin()
        while True:
            await asked.words("x", pause=0.05)

    assert (await fails(drip, max_tokens=10_000)).code == "engine-silent"


async def test_missing_counts_delay_a_complete_answer_only_shortly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "LAST_TIME", 0.05)

    async def linger(asked: Asked) -> None:
        await asked.begin()
        await asked.words(*WORDS)
        await asked.event(chunk(None, end="length"))
        await trio.sleep_forever()

    async with running(HOST, behave=linger) as fake:
        text, figures = await answer(fake)
    assert text == "".join(WORDS) and figures == AnswerEnd("length", 2, 3)


async def test_implausible_counts_are_cut() -> None:
    async def lie(asked: Asked) -> None:
        await asked.begin()
        await asked.words(*WORDS)
        await asked.end(prompt=10**9, tokens=10**9)

    async with running(HOST, behave=lie) as fake:
        _, figures = await answer(fake)
    assert figures.tokens == 16  # as many as were asked for
    assert figures.prompt_tokens == 5 + defaults.TURN_TOKENS + defaults.EXTRA_TOKENS


async def test_redirects_are_not_followed() -> None:
    async with running(HOST) as other:

        async def away(asked: Asked) -> None:
            where = f"Location: {other.url}{asked.path}\r\n"
            await asked.respond(b"", status=307, more=where)

        error = await fails(away)
        assert error.code == "bad-engine" and "redirects" in error.message
        assert not other.asked


@pytest.mark.parametrize("kind", ["application/json", "text/html", "text/event-stream-ish", ""])
async def test_a_wrong_content_type_is_refused(kind: str) -> None:
    async def other(asked: Asked) -> None:
        await asked.begin(kind)
        await asked.words(*WORDS)
        await asked.end()

    assert (await fails(other)).code == "bad-engine"


async def test_compressed_answers_are_not_inflated() -> None:
    async def bomb(asked: Asked) -> None:
        assert "accept-encoding: identity" in asked.head.lower()
        await asked.raw(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Content-Encoding: gzip\r\n\r\n" + b"\x1f\x8b" + b"\0" * 1000 + b"\n\n"
        )

    assert (await fails(bomb)).code == "engine-lost"


async def test_huge_headers_and_endless_interim_responses_are_refused() -> None:
    async def headers(asked: Asked) -> None:
        await asked.raw(b"HTTP/1.1 200 OK\r\n")
        while True:
            await asked.raw(b"X: " + b"x" * 4000 + b"\r\n")

    async def interim(asked: Asked) -> None:
        while True:
            await asked.raw(b"HTTP/1.1 102 Processing\r\n\r\n")
            await trio.lowlevel.checkpoint()

    for behave in (headers, interim):
        assert (await fails(behave)).code == "bad-engine"


async def test_a_refusal_says_why_only_if_the_request_is_at_fault() -> None:
    async def refuse(asked: Asked, status: int = 400) -> None:
        error = {"error": {"message": "too long \x1b[31m for \u202e /home/me " + "x" * 500}}
        await asked.respond(json.dumps(error).encode(), status=status)

    error = await fails(refuse)
    assert error.code == "engine-refused" and "too long \\x1b[31m" in error.message
    assert error.message.isprintable() and len(error.message) < 300

    async def fail(asked: Asked) -> None:
        await refuse(asked, 500)

    error = await fails(fail)
    assert error.code == "engine-failed" and "/home" not in error.message

    async def locked(asked: Asked) -> None:
        await refuse(asked, 401)

    assert (await fails(locked)).code == "engine-locked"


async def test_an_error_among_the_events_ends_the_answer() -> None:
    async def fail(asked: Asked) -> None:
        await asked.begin()
        await asked.words("One")
        await asked.event({"error": {"message": "out of memory at 0xdead"}})
        await asked.end()

    error = await fails(fail)
    assert error.code == "engine-failed" and "0xdead" not in error.message


async def test_cancelling_closes_the_connection() -> None:
    async def chatter(asked: Asked) -> None:
        await asked.begin()
        while True:
            await asked.words("x", pause=0.01)

    async with running(HOST, behave=chatter) as fake:
        with trio.move_on_after(0.2):
            await answer(fake, max_tokens=10_000)
        await fake.until(0)
        assert len(fake.asked) == 1


async def test_slow_clients_are_not_the_engines_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "NEXT_TIME", 0.1)
    async with running(HOST) as fake:
        engine, model = await model_of(fake)
        ask, body = asking()

        async def slow(text: str) -> None:
            await trio.sleep(0.2)

        figures = await engine.answer(model, ask, body, Tally(ask, body), slow)
    assert figures.tokens == 3
