"""Bugs that a peer triggers end its connection; other exceptions pass through."""

import errno
from collections.abc import Callable
from itertools import pairwise
from typing import NoReturn

import pytest
import trio
import trio.testing

from shoal.state.errors import StoreRefused
from shoal.transport.errors import MISHAP, DatabaseDamaged, DialFailed, LinkClosed
from shoal.transport.guard import REPEAT_PAUSES, Guard, Mishap, mishap_of

OWN = [
    OSError(errno.ENOSPC, "no space left on device"),
    OSError(errno.EIO, "input/output error"),
    DatabaseDamaged("the database is damaged"),
    trio.TrioInternalError(),
]
MISTAKES = [
    RuntimeError(), KeyError("x"), RecursionError(), MemoryError(), OverflowError(),
    AssertionError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), OSError(errno.EMFILE, "x"),
    LinkClosed("closed", "the link ended"),
]  # fmt: skip


def guarded() -> tuple[Guard, list[Mishap], list[str]]:
    guard, mishaps, ended = Guard(), list[Mishap](), list[str]()
    guard.report, guard.hang_up = mishaps.append, ended.append
    return guard, mishaps, ended


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*args: object) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize("error", MISTAKES, ids=lambda error: type(error).__name__)
def test_a_bug_ends_the_peer_s_connection_and_is_reported(error: Exception) -> None:
    guard, mishaps, ended = guarded()
    with guard.around("peer", lambda: ended.append("byte_stream")):
        raise error
    assert ended == ["byte_stream", "peer"]
    assert [(each.subject, each.error) for each in mishaps] == [("peer", type(error).__name__)]


@pytest.mark.parametrize("error", OWN, ids=lambda error: type(error).__name__)
def test_errors_of_this_machine_are_raised(error: Exception) -> None:
    guard, mishaps, ended = guarded()
    with pytest.raises(type(error)), guard.around("peer"):
        raise error
    assert not mishaps and not ended


def test_store_errors_are_this_machine_s(tmp_path: object) -> None:
    assert StoreRefused.own and not DialFailed.own


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), GeneratorExit()], ids=repr)
def test_the_end_of_the_process_passes(error: BaseException) -> None:
    guard, mishaps, _ = guarded()
    with pytest.raises(type(error)), guard.around("peer"):
        raise error
    assert not mishaps


@pytest.mark.trio
async def test_cancellation_passes() -> None:
    guard, mishaps, _ = guarded()
    with trio.CancelScope() as scope:
        with guard.around("peer"):
            scope.cancel()
            await trio.lowlevel.checkpoint()
        raise AssertionError("not reached")
    assert scope.cancelled_caught and not mishaps


@pytest.mark.trio
async def test_the_rest_of_an_exception_group_is_raised() -> None:
    guard, mishaps, _ = guarded()
    group = BaseExceptionGroup("", [RuntimeError(), ExceptionGroup("", [OWN[0], KeyError()])])
    with pytest.raises(BaseExceptionGroup) as caught, guard.around("peer"):
        raise group
    assert caught.group_contains(OSError) and not caught.group_contains(RuntimeError)
    assert not caught.group_contains(KeyError) and len(mishaps) == 1
    with pytest.raises(BaseExceptionGroup) as ctrl_c, guard.around("peer"):
        raise BaseExceptionGroup("", [RuntimeError(), KeyboardInterrupt()])
    assert ctrl_c.group_contains(KeyboardInterrupt)
    with guard.around("peer"):
        raise ExceptionGroup("", [RuntimeError(), ExceptionGroup("", [KeyError()])])
    assert mishaps[-1].error == "RuntimeError"


@pytest.mark.trio
async def test_a_task_that_fails_ends_none_of_the_others() -> None:
    guard, mishaps, ended = guarded()
    lived = trio.Event()

    async def fail(word: str) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError(word)

    async def live() -> None:
        await trio.testing.wait_all_tasks_blocked()
        lived.set()

    async with trio.open_nursery() as nursery:
        guard.start(nursery, ("192.0.2.1", 4001), fail, "x", end=lambda: ended.append("end"))
        nursery.start_soon(live)
    assert lived.is_set() and ended == ["end", "192.0.2.1 port 4001"]
    assert mishaps[0].place.startswith("?"), "no line of the program's own"


def test_a_task_keeps_its_name() -> None:
    names = list[str]()

    async def note() -> None:
        names.append(trio.lowlevel.current_task().name)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            Guard().start(nursery, "peer", note)
            nursery.start_soon(note)

    trio.run(main)
    assert names[0] == names[1]


def test_a_failing_callback_does_not_stop_the_others() -> None:
    guard, mishaps, ended = guarded()
    heard = list[int]()
    guard.tell("peer", [heard.append, raising(RuntimeError()), heard.append], 7)
    assert heard == [7, 7] and ended == ["peer"] and len(mishaps) == 1


def test_callers_get_the_error_that_they_expect() -> None:
    guard, mishaps, _ = guarded()
    with pytest.raises(DialFailed) as failed, guard.around("a", instead=mishap_of("a")):
        raise RuntimeError
    assert failed.value.code == MISHAP and len(mishaps) == 1
    with pytest.raises(LinkClosed), guard.around("a", instead=mishap_of("a")):
        raise LinkClosed("closed", "coded errors pass")
    assert len(mishaps) == 1


def test_a_failing_end_is_reported_too() -> None:
    guard, mishaps, ended = guarded()
    with guard.around("peer", raising(ValueError())):
        raise RuntimeError
    assert [each.error for each in mishaps] == ["RuntimeError", "ValueError"]
    assert "peer" in ended


def test_without_a_report_nothing_is_hidden() -> None:
    with pytest.raises(RuntimeError), Guard().around("peer"):
        raise RuntimeError


def test_reports_contain_no_text_of_a_peer() -> None:
    guard, mishaps, _ = guarded()
    with guard.around("\x1b[2J\u202e" + "x" * 100):
        raise RuntimeError("a prompt")
    assert "\x1b" not in mishaps[0].subject and len(mishaps[0].subject) <= 64
    assert "prompt" not in str(mishaps[0])


@pytest.mark.trio
async def test_a_loop_begins_again_after_longer_and_longer_pauses(autojump_clock: object) -> None:
    guard, mishaps, _ = guarded()
    began = list[float]()

    async def loop(name: str) -> None:
        assert name == "name"
        began.append(trio.current_time())
        if len(began) == 12:
            await trio.sleep(REPEAT_PAUSES[1] + 1)
        if len(began) < 15:
            raise KeyError

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        guard.start_repeated(nursery, "members", loop, "name")
    pauses = [round(after - before) for before, after in pairwise(began)]
    assert began[0] == start and pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 302, 2, 4]
    assert {(each.subject, each.error) for each in mishaps} == {("members", "KeyError")}
    assert len(mishaps) == 14


@pytest.mark.trio
async def test_a_loop_that_ends_or_is_cancelled_does_not_begin_again(
    autojump_clock: object,
) -> None:
    guard, mishaps, _ = guarded()
    calls = list[int]()

    async def loop(seconds: float) -> None:
        calls.append(1)
        await trio.sleep(seconds)

    await guard.repeat("members", loop, 1)
    with trio.move_on_after(5):
        await guard.repeat("members", loop, 9)
    assert len(calls) == 2 and not mishaps


@pytest.mark.trio
@pytest.mark.parametrize("error", OWN, ids=lambda error: type(error).__name__)
async def test_a_loop_ends_with_errors_of_this_machine(error: Exception) -> None:
    guard, mishaps, _ = guarded()

    async def loop() -> None:
        raise error

    with pytest.raises(type(error)):
        await guard.repeat("members", loop)
    assert not mishaps
