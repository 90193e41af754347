"""Links over real sockets: calls, posts, limits, the end."""

import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import trio
import trio.testing

from shoal.transport import defaults
from shoal.transport.address import Address
from shoal.transport.bytestream import PathKind
from shoal.transport.errors import CallRefused, LinkClosed
from shoal.transport.lane.frame import Priority
from shoal.transport.limits import Limits
from shoal.transport.link.calls import Call, Refusal, Reply
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream
from tests.transport.fleet import (
    LOOPBACK,
    Proxy,
    clock,
    linked,
    make_node,
    running,
    second_path,
    through_a_proxy,
    until,
)

pytestmark = pytest.mark.trio


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


async def test_a_call_carries_header_and_payload_both_ways() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        reply = await link.call("echo", {"n": 1, "b": b"x"}, b"payload", timeout=5)
        assert (reply.header, bytes(reply.payload)) == ({"n": 1, "b": b"x"}, b"payload")
        back = await b.up[0].call("slow", {"n": 2}, timeout=5)
        assert back.header == {"n": 2}
        assert link.peer == b.endpoint.peer and b.up[0].peer == a.endpoint.peer


async def test_large_messages_and_many_at_once() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        big = bytes(range(256)) * 16_384  # 4 MiB
        answers: dict[int, Reply] = {}

        async def ask(number: int) -> None:
            payload = big if number < 4 else b"%d" % number
            priority = Priority.BULK if number < 4 else Priority.CONTROL
            method = "slow" if number % 2 else "echo"
            answers[number] = await link.call(
                method, {"n": number}, payload, priority=priority, timeout=20
            )

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(ask, number)
        assert all(answers[n].header == {"n": n} for n in range(200))
        assert all(answers[n].payload == big for n in range(4))
        assert answers[150].payload == b"150"


async def test_refusals_and_errors_of_handlers_are_codes() -> None:
    a, b = make_node(1), make_node(2)
    b.endpoint.handle("no", lambda call: Refusal("not-now", "later"))

    def careless(call: Call) -> Reply:
        return Reply({"x": cast(Any, call.header["missing"])["deeper"]})

    async def careless_task(call: Call) -> Reply:
        await trio.lowlevel.checkpoint()
        return careless(call)

    b.endpoint.handle("careless", careless)
    b.endpoint.handle("careless-task", careless_task)
    b.endpoint.handle("huge", lambda call: Reply({}, bytes((16 << 20) + 1)))
    async with running(a, b):
        link = await linked(a, b)
        for method, code in {
            "no": "not-now",
            "nobody": "unknown-method",
            "careless": "bad-request",
            "careless-task": "bad-request",
            "huge": "too-large",
        }.items():
            with pytest.raises(CallRefused) as refused:
                await link.call(method, timeout=5)
            assert refused.value.code == code
        with pytest.raises(CallRefused, match="at most"):
            await link.call("echo", {}, bytes((16 << 20) + 1), timeout=5)
        with pytest.raises(CallRefused, match="at most"):
            await link.call("echo", {"x": bytes(40_000)}, timeout=5)
        assert (await link.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}


async def test_handler_tasks_are_bounded() -> None:
    a, b = make_node(1), make_node(2, limits=Limits(calls=3))
    gate = trio.Event()

    async def wait(call: Call) -> Reply:
        await gate.wait()
        return Reply()

    b.endpoint.handle("wait", wait)
    codes: list[str] = []
    async with running(a, b):
        link = await linked(a, b)

        async def ask() -> None:
            try:
                await link.call("wait", timeout=5)
                codes.append("ok")
            except CallRefused as refused:
                codes.append(refused.code)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
            await until(lambda: len(codes) == 2)
            gate.set()
    assert sorted(codes) == ["busy", "busy", "ok", "ok", "ok"]


async def test_posts_arrive_in_order() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        for number in range(500):
            size = 100_000 if number % 100 == 0 else 10
            link.post("echo", {"n": number}, bytes(size), priority=Priority.ACTIVATION)
        link.post("nobody", priority=Priority.ACTIVATION)
        await until(lambda: len(b.calls) == 500)
        assert b.calls == [str(number) for number in range(500)]
        await until(lambda: b.up[0].status.posts_refused == 1)


async def test_posts_of_one_pass_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        await trio.sleep(0.05)
        assert link.paths.used is not None
        secured = link.paths.used.secured
        writes: list[int] = []
        send = secured.send

        def counted(data: bytes) -> None:
            writes.append(len(data))
            send(data)

        monkeypatch.setattr(secured, "send", counted)
        for number in range(100):
            link.post("echo", {"n": number}, b"x", priority=Priority.CONTROL)
        await until(lambda: len(b.calls) == 100)
        assert len(writes) <= 10


async def test_a_post_that_may_leave_later_leaves_with_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "LATER_S", 0.3)
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        await trio.sleep(0.05)
        for _ in range(3):
            link.post("echo", {"n": 1}, priority=Priority.CONTROL, later=True)
        await trio.sleep(0.1)
        assert b.calls == []
        link.post("echo", {"n": 2}, priority=Priority.CONTROL)
        await until(lambda: b.calls == ["1", "1", "1", "2"])
        link.post("echo", {"n": 3}, priority=Priority.CONTROL, later=True)
        await until(lambda: b.calls[-1] == "3")  # alone it leaves in the end


async def test_a_patient_call_leaves_with_something_else() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        link = await linked(a, b)
        await trio.sleep(0.1)

        async def call(number: int, within: float) -> None:
            await link.call("echo", {"n": number}, timeout=90, within=within)

        nursery.start_soon(call, 1, 60)
        nursery.start_soon(call, 2, 60)
        await trio.sleep(0.1)
        assert b.calls == []
        link.post("echo", {"n": 3}, priority=Priority.CONTROL)
        await until(lambda: sorted(b.calls) == ["1", "2", "3"])
        await call(4, 0.05)  # alone it leaves in the end
        nursery.start_soon(call, 5, 60)
        await trio.sleep(0.1)
        nursery.start_soon(call, 6, 0.05)  # the least patient one decides
        await until(lambda: b.calls[-2:] == ["5", "6"])


@pytest.mark.parametrize("slow", [False, True])
async def test_patient_replies_leave_with_something_else(slow: bool) -> None:
    a, b = make_node(1), make_node(2)
    answered: list[str] = []

    def patient(call: Call) -> Reply:
        return Reply(call.header, within=60)

    async def task(call: Call) -> Reply:
        await trio.lowlevel.checkpoint()
        return patient(call)

    b.endpoint.handle("patient", task if slow else patient)
    async with running(a, b) as nursery:
        link = await linked(a, b)
        await trio.sleep(0.1)

        async def call(method: str) -> None:
            await link.call(method, timeout=90)
            answered.append(method)

        nursery.start_soon(call, "patient")
        await trio.sleep(0.1)
        nursery.start_soon(call, "patient")
        await trio.sleep(0.1)
        assert answered == []
        nursery.start_soon(call, "echo")
        await until(lambda: sorted(answered) == ["echo", "patient", "patient"])


def senders(link: Link, monkeypatch: pytest.MonkeyPatch) -> list[trio.lowlevel.Task]:
    """Record the task of each write of a link from now on. Frames soon after another one are to
    wait for it."""
    assert link.paths.used is not None
    secured = link.paths.used.secured
    tasks: list[trio.lowlevel.Task] = []
    send = secured.send

    def noted(data: bytes) -> None:
        tasks.append(trio.lowlevel.current_task())
        send(data)

    monkeypatch.setattr(secured, "send", noted)
    monkeypatch.setattr(defaults, "COALESCE_S", 60.0)
    return tasks


async def test_a_single_call_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        await trio.sleep(0.05)
        tasks = senders(link, monkeypatch)
        for _ in range(5):
            await link.call("echo", timeout=5)
        assert tasks == 5 * [trio.lowlevel.current_task()]


async def test_one_of_several_calls_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        link = await linked(a, b)
        await trio.sleep(0.05)
        tasks = senders(link, monkeypatch)
        for _ in range(20):
            nursery.start_soon(partial(link.call, "slow", timeout=5))
        await until(lambda: len(b.calls) == 20)
        assert len(tasks) <= 3
        await link.call("echo", timeout=5)
        assert trio.lowlevel.current_task() not in tasks


async def test_the_time_encrypted_ahead_is_short() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        for seconds, expected in ((0.001, 512), (0.01, 512), (0.1, 16)):
            assert link.paths.used is not None
            for _ in range(6):
                link.paths.used.writer.set_pace(seconds)
            assert link.paths.used.writer.batch == expected * 1024


async def test_a_flood_of_tiny_frames_does_not_hold_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = make_node(1), make_node(2)
    gc.freeze()  # what earlier tests left behind is not to be looked through in between
    async with running(a, b) as nursery:
        link = await linked(a, b)
        b.endpoint.handle("tiny", lambda call: Reply())
        for _ in range(50_000):
            link.post("tiny", priority=Priority.CONTROL)
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                began = time.thread_time()  # of the processor: the machine has others to serve
                await trio.lowlevel.checkpoint()
                longest = max(longest, time.thread_time() - began)

        nursery.start_soon(watch)
        await link.call("echo", {"n": 1}, priority=Priority.BULK, timeout=30)
    gc.unfreeze()
    assert longest < 0.5  # ten times less


async def test_a_peer_that_takes_nothing_loses_the_link() -> None:
    limits = Limits(backlog_bytes=1 << 20)
    a, b = make_node(1, limits=limits), make_node(2)
    gate = trio.Event()
    async with running(a, b) as nursery:
        proxy = Proxy(b.endpoint.port)
        await nursery.start(proxy.run)
        link = await a.endpoint.dial(Address(LOOPBACK, proxy.port), timeout=5)
        proxy.freeze()
        with pytest.raises(LinkClosed):
            for _ in range(100):
                link.post("echo", {}, bytes(65_536), priority=Priority.BULK)
        assert link.code == "backlog"
    gate.set()


async def test_the_total_of_held_bytes_ends_the_heaviest_link() -> None:
    a, b = make_node(1, limits=Limits(total_bytes=1 << 20)), make_node(2)
    async with running(a, b) as nursery:
        proxy = Proxy(b.endpoint.port)
        await nursery.start(proxy.run)
        link = await a.endpoint.dial(Address(LOOPBACK, proxy.port), timeout=5)
        proxy.freeze()
        with pytest.raises(LinkClosed):
            for _ in range(100):
                link.post("echo", {}, bytes(65_536), priority=Priority.BULK)
        assert link.code == "overloaded"


async def test_an_idle_link_stays(virtual_time: trio.testing.MockClock) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        await trio.sleep(30)
        assert link.alive and link.status.rtt is not None
        assert link.status.bytes_in < 10_000


async def test_a_restarted_peer_ends_the_old_calls() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        link, proxy = await through_a_proxy(a, b, nursery)
        again = make_node(2)
        await nursery.start(again.run)
        proxy._target = again.endpoint.port
        proxy.cut()
        with pytest.raises(LinkClosed) as closed:
            await link.call("slow", timeout=10)
        assert closed.value.code == "peer-restarted"


async def test_closing_tells_the_peer() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        link.close("misbehaved")
        await until(lambda: a.lost and b.lost)
        assert (a.lost, b.lost) == (["misbehaved"], ["misbehaved"])
        with pytest.raises(LinkClosed):
            await link.call("echo", timeout=5)
        with pytest.raises(LinkClosed):
            link.post("echo", priority=Priority.CONTROL)
        with pytest.raises(LinkClosed):
            await link.open_stream("s", {})


async def test_open_calls_and_streams_end_with_the_link() -> None:
    a, b = make_node(1), make_node(2)

    async def hold(incoming: IncomingStream) -> None:
        await incoming.stream.receive(1)

    async def stuck(call: Call) -> Reply:
        await trio.sleep_forever()
        return Reply()

    b.endpoint.handle("stuck", stuck)
    b.endpoint.handle_stream("hold", hold)
    codes: list[str] = []
    async with running(a, b):
        link = await linked(a, b)
        stream = await link.open_stream("hold", {})

        async def expect_end(wait: object) -> None:
            try:
                await (link.call("stuck", timeout=9) if wait == "call" else stream.receive(1))
            except LinkClosed as closed:
                codes.append(closed.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_end, "call")
            nursery.start_soon(expect_end, "stream")
            await trio.sleep(0.05)
            b.scope.cancel()
    assert codes == ["closed", "closed"]


async def test_a_protocol_error_of_the_peer_ends_the_link_on_both_sides() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        assert link.paths.used is not None
        link.paths.used.secured.send(b"\xff" * 100)
        await until(lambda: a.lost and b.lost)
        assert a.lost == b.lost == ["frame-too-large"]
        again = await linked(a, b)  # and the endpoint is as good as before
        assert (await again.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}


async def test_status_shows_who_dialled_each_path() -> None:
    """The peer may add paths to a link that this node dialled."""
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        await until(lambda: b.up)
        await second_path(b, a, PathKind.LAN)
        await until(lambda: len(link.status.paths) == 2)
        assert link.status.dialled
        assert [path.dialled for path in link.status.paths] == [True, False]
        assert [path.dialled for path in b.up[0].status.paths] == [False, True]


async def test_status_shows_the_link() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await linked(a, b)
        await until(lambda: link.status.rtt is not None)
        status = link.status
        assert status.address == (LOOPBACK, b.endpoint.port)
        assert (status.path, status.dialled, b.up[0].status.dialled) == ("loopback", True, False)
        assert status.incarnation == a.endpoint.incarnation
        assert status.peer_incarnation == b.endpoint.incarnation
        assert replace(status, rtt=None).rtt is None


@pytest.mark.parametrize("waited_for", [False, True])
async def test_a_resting_link_is_pinged_rarely_unless_a_component_waits(
    virtual_time: trio.testing.MockClock, waited_for: bool
) -> None:
    async def sent(link: Link) -> int:
        await trio.sleep(3)
        before = link.status.bytes_out
        await trio.sleep(11)
        return link.status.bytes_out - before

    a, b = make_node(1), make_node(2)
    a.endpoint.watch_links(lambda peer: waited_for)
    async with running(a, b):
        link = await linked(a, b)
        other = b.endpoint.links()[0]
        usual = await sent(link)
        for each in (link, other):
            each.rest(12.0)
        assert (await sent(link) > usual / 2) == waited_for
        for each in (link, other):
            each.rest(0.0)
        assert await sent(link) > usual / 2
