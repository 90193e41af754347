"""Answers that are kept for clients that come back."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import pytest
import trio
import trio.testing

from shoal.node import defaults
from shoal.node.errors import ControlError
from shoal.node.resumable import Note, ResumableAnswer, ResumableAnswers
from shoal.transport.guard import Guard
from tests.tasks.fake_swarm import FakeHost

Answers = ResumableAnswers[str, str]


@asynccontextmanager
async def answers(**more: Any) -> AsyncIterator[Answers]:
    mishaps: list[Any] = []
    kept = Answers(FakeHost(), Guard(mishaps.append), weigh=len, **more)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await nursery.start(kept.run)
        yield kept
        nursery.cancel_scope.cancel()


def counting(
    count: int, pause: float = 1.0, size: int = 10
) -> Callable[[Note[str]], Awaitable[str]]:
    async def work(note: Note[str]) -> str:
        for number in range(count):
            await trio.sleep(pause)
            await note(str(number), size)
        return "done"

    return work


def begun(
    kept: Answers, owner: str, work: Callable[[Note[str]], Awaitable[str]]
) -> ResumableAnswer[str, str]:
    answer = kept.begin(owner, work)
    assert answer is not None
    return answer


class Client:
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def emit(self, event: str) -> None:
        await trio.lowlevel.checkpoint()
        self.heard.append(event)


@pytest.mark.trio
async def test_a_client_that_comes_back_hears_each_event_once(autojump_clock: object) -> None:
    async with answers() as kept:
        answer, client = begun(kept, "me", counting(20)), Client()
        with trio.move_on_after(5.5):
            await kept.follow(answer, 0, client.emit)
        assert client.heard == ["0", "1", "2", "3", "4"]
        await trio.sleep(7)
        again = kept.find(answer.token, "me")
        assert await kept.follow(again, len(client.heard), client.emit) == "done"
        assert client.heard == [str(number) for number in range(20)]
        assert trio.current_time() < 21


@pytest.mark.trio
async def test_a_complete_answer_is_kept_and_then_forgotten(autojump_clock: object) -> None:
    async with answers() as kept:
        answer, client = begun(kept, "me", counting(3)), Client()
        await trio.sleep(defaults.KEPT_TIME - 5)
        assert await kept.follow(kept.find(answer.token, "me"), 0, client.emit) == "done"
        await trio.sleep(defaults.KEPT_TIME + 5)
        with pytest.raises(ControlError, match="no such answer"):
            kept.find(answer.token, "me")
        assert len(kept) == kept.bytes == 0


@pytest.mark.trio
async def test_an_answer_without_a_client_is_stopped(autojump_clock: object) -> None:
    stopped = trio.Event()

    async def work(note: Note[str]) -> str:
        try:
            await trio.sleep_forever()
        finally:
            stopped.set()
        raise AssertionError

    async with answers(alone=5.0) as kept:
        answer = begun(kept, "me", work)
        await stopped.wait()
        assert 5 < trio.current_time() < 7
        with pytest.raises(ControlError, match="no client was left"):
            await kept.follow(answer, 0, Client().emit)


@pytest.mark.trio
async def test_tokens_are_secret_and_of_one_owner(autojump_clock: object) -> None:
    async with answers() as kept:
        answer = begun(kept, "me", counting(3))
        assert len(answer.token) == 2 * defaults.KEPT_TOKEN_BYTES
        for token, owner in ((answer.token, "you"), (answer.token, ""), ("00" * 32, "me")):
            with pytest.raises(ControlError) as caught:
                kept.find(token, owner)
            assert caught.value.code == "unknown-answer"
        assert kept.find(answer.token, "me") is answer


@pytest.mark.trio
async def test_answers_and_their_bytes_are_limited(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "KEPT_BYTES", 1000)
    monkeypatch.setattr(defaults, "KEPT_BYTES_IN_ALL", 5000)
    async with answers() as kept:
        long = begun(kept, "me", counting(200, 0.01))
        await trio.sleep(3)
        assert long.size <= 1000 and long.first == 100
        with pytest.raises(ControlError, match="not kept any more"):
            await kept.follow(long, 99, Client().emit)
        client = Client()
        await kept.follow(long, 100, client.emit)
        assert client.heard == [str(number) for number in range(100, 200)]
        for _ in range(20):
            begun(kept, "me", counting(100, 0.001))
            await trio.sleep(1)
        assert kept.bytes <= 5000 + 100
        for _ in range(200):
            kept.begin("me", counting(1, 100))
        assert len(kept) <= defaults.KEPT_OF_ONE
        for number in range(200):
            kept.begin(f"user {number}", counting(1, 100))
        assert len(kept) <= defaults.KEPT_ANSWERS


@pytest.mark.trio
async def test_where_all_answers_have_clients_no_other_is_kept(autojump_clock: object) -> None:
    async with answers() as kept, trio.open_nursery() as nursery:
        for _ in range(defaults.KEPT_OF_ONE):
            answer = begun(kept, "me", counting(1, 50))
            nursery.start_soon(kept.follow, answer, 0, Client().emit)
        await trio.sleep(1)
        assert kept.begin("me", counting(1)) is None
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_an_error_is_kept_too(autojump_clock: object) -> None:
    async def work(note: Note[str]) -> str:
        await note("a", 1)
        raise ControlError("stage-lost", "a stage is lost")

    async with answers() as kept:
        answer, client = begun(kept, "me", work), Client()
        await trio.sleep(5)
        with pytest.raises(ControlError, match="a stage is lost"):
            await kept.follow(answer, 0, client.emit)
        assert client.heard == ["a"]
        with pytest.raises(ControlError, match="no 7 events"):
            await kept.follow(answer, 7, client.emit)


@pytest.mark.trio
async def test_a_forgotten_answer_is_stopped(autojump_clock: object) -> None:
    async with answers() as kept:
        answer = begun(kept, "me", counting(10))
        await trio.sleep(2.5)
        kept.forget(answer)
        await trio.sleep(20)
        assert answer.done and len(answer.events) == 2 and len(kept) == 0


@pytest.mark.trio
async def test_an_answer_waits_for_a_slow_client(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "KEPT_BYTES", 1000)
    heard = []

    async def slowly(event: str) -> None:
        await trio.sleep(0.1)
        heard.append(event)

    async with answers() as kept:
        answer = begun(kept, "me", counting(1000, 0.001))
        assert await kept.follow(answer, 0, slowly) == "done"
        assert len(heard) == 1000


@pytest.mark.trio
async def test_no_timer_runs_while_there_is_no_answer(autojump_clock: object) -> None:
    def next_timer() -> float:
        return trio.lowlevel.current_statistics().seconds_to_next_deadline

    async with answers() as kept:
        await trio.testing.wait_all_tasks_blocked()
        assert next_timer() == inf
        begun(kept, "me", counting(3))
        await trio.testing.wait_all_tasks_blocked()
        assert next_timer() < inf
        await trio.sleep(2 * defaults.KEPT_TIME)
        assert len(kept) == 0
        await trio.testing.wait_all_tasks_blocked()
        assert next_timer() == inf
