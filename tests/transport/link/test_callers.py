"""Callers that wait for replies over real sockets: deadlines, cuts, cancellation."""

from typing import cast

import pytest
import trio
import trio.testing

from shoal.transport import defaults
from shoal.transport.errors import CallRefused
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Call, Reply
from tests.transport.fleet import linked, make_node, running, through_a_proxy, until

pytestmark = pytest.mark.trio


async def test_a_timeout_cancels_the_peers_handler() -> None:
    a, b = make_node(1), make_node(2)
    ended: list[str] = []

    async def stuck(call: Call) -> Reply:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")
        return Reply()

    b.endpoint.handle("stuck", stuck)
    async with running(a, b):
        link = await linked(a, b)
        with pytest.raises(CallRefused) as refused:
            await link.call("stuck", timeout=0.05)
        assert refused.value.code == "timeout"
        await until(lambda: ended)
        with trio.move_on_after(0.05):
            await link.call("stuck", timeout=5)
        await until(lambda: len(ended) == 2)


async def test_only_word_of_a_given_up_call_of_control_priority_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for another frame with which it can leave. Other replies may be large."""
    monkeypatch.setattr(defaults, "LATER_S", 30.0)
    a, b = make_node(1), make_node(2)
    ended: list[str] = []

    async def stuck(call: Call) -> Reply:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(str(call.header["n"]))
        return Reply()

    b.endpoint.handle("stuck", stuck)
    async with running(a, b):
        link = await linked(a, b)
        for number, priority in enumerate((Priority.CONTROL, Priority.BULK)):
            with trio.move_on_after(0.8):  # the call has been acknowledged by then
                await link.call("stuck", {"n": number}, priority=priority, timeout=5)
            await trio.sleep(0.2)
            if priority is Priority.CONTROL:
                assert not ended
        await until(lambda: len(ended) == 2)


async def test_calls_survive_cut_connections_and_happen_once() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        link, proxy = await through_a_proxy(a, b, nursery)
        answers: list[int] = []

        async def ask(first: int) -> None:
            for number in range(first, first + 10):
                method = "slow" if number % 2 else "echo"
                reply = await link.call(method, {"n": number}, bytes(100_000), timeout=20)
                answers.append(cast(int, reply.header["n"]))

        async with trio.open_nursery() as asking:
            for first in range(0, 100, 10):
                asking.start_soon(ask, first)
            for _ in range(3):
                await trio.sleep(0.05)
                proxy.cut()
        assert sorted(answers) == list(range(100))
        assert sorted(b.calls, key=int) == [str(n) for n in range(100)]
        assert proxy.connections >= 3
        assert a.lost == b.lost == [] and len(b.up) == 1


async def test_cancelling_a_call_anywhere_leaves_the_link_usable() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        for delay in (0, 0.0001, 0.001, 0.01, 0.049, 0.051):
            with trio.move_on_after(delay):
                await link.call("slow", {"n": 0}, bytes(300_000), timeout=5)
        assert (await link.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}
        assert not link.callers.waiting
