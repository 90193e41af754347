"""Links that have lost their path, over real sockets: searched for, quiet, back, or ended."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from shoal.transport.bytestream import PathKind
from shoal.transport.errors import CallRefused, LinkClosed
from shoal.transport.host.real import RealHost
from shoal.transport.limits import Limits
from shoal.transport.link.calls import Reply
from shoal.transport.link.grace import Grace
from shoal.transport.link.link import Link
from tests.transport.fleet import (
    clock,
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


async def test_the_link_to_a_peer_that_stops_listening_ends_at_once(
    virtual_time: trio.testing.MockClock,
) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        link, proxy = await through_a_proxy(a, b, nursery)
        began = trio.current_time()
        proxy.refuse()
        proxy.cut()
        with pytest.raises(LinkClosed) as closed:
            await link.call("echo", timeout=10)
        assert closed.value.code == "peer-gone"
        assert trio.current_time() - began < 1


async def test_the_dialled_side_notices_a_dead_peer_too(
    virtual_time: trio.testing.MockClock,
) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        _, proxy = await through_a_proxy(a, b, nursery, dialable=True)
        began = trio.current_time()
        a.scope.cancel()  # its listener closes, but no goaway gets through
        proxy.freeze()
        await trio.sleep(0.1)
        proxy.cut()
        await until(lambda: b.lost)
        assert b.lost == ["peer-gone"]
        assert trio.current_time() - began < 1


async def test_a_silent_peer_is_noticed_within_five_seconds(
    virtual_time: trio.testing.MockClock,
) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        link, proxy = await through_a_proxy(a, b, nursery)
        await trio.sleep(7.3)
        proxy.freeze()
        frozen = trio.current_time()
        with pytest.raises(CallRefused, match="no reply"):
            await link.call("echo", timeout=10)
        await trio.sleep(12)
        assert a.lost == b.lost == ["silent"]
        for node in (a, b):
            assert 2 < node.quiet_at[0] - frozen < 5
            assert 18 < node.lost_at[0] - frozen < 21


async def test_a_link_with_open_calls_is_held_longer_but_not_forever(
    virtual_time: trio.testing.MockClock,
) -> None:
    limits = replace(Limits(), grace_s=8.0, hold_s=16.0)
    a, b = make_node(1, limits=limits), make_node(2, limits=limits)
    async with running(a, b) as nursery:
        link, proxy = await through_a_proxy(a, b, nursery)
        proxy.freeze()
        frozen = trio.current_time()
        with pytest.raises(LinkClosed) as closed:
            await link.call("echo", timeout=600)
        assert closed.value.code in ("silent", "unreachable")  # the first side to notice hangs up
        assert 15 < trio.current_time() - frozen < 18
        assert b.lost_at[0] - frozen < 10  # that side does not know of the call


async def test_a_lost_link_is_quiet_then_back(virtual_time: trio.testing.MockClock) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        link, proxy = await through_a_proxy(a, b, nursery)
        proxy.freeze()
        answers: list[Reply] = []

        async def ask() -> None:
            answers.append(await link.call("echo", {"n": 7}, timeout=60))

        nursery.start_soon(ask)
        await trio.sleep(10)
        assert a.quiet_at and b.quiet_at
        assert not link.connected and link.alive and link.quiet
        await second_path(a, b, PathKind.DIRECT)
        await until(lambda: answers)
        assert len(a.back) == len(b.back) == 1 and not a.lost and not b.lost
        assert b.calls == ["7"]


async def test_the_finder_is_asked_when_nothing_carries_a_link() -> None:
    a, b = make_node(1), make_node(2)
    asked: list[Link] = []

    async def find(link: Link) -> None:
        asked.append(link)
        await second_path(a, b, PathKind.PUNCHED)

    a.endpoint.rescue.register_finder(find)
    async with running(a, b) as nursery:
        link, proxy = await through_a_proxy(a, b, nursery)
        proxy.freeze()
        proxy.cut()
        await until(lambda: link.path_kind is PathKind.PUNCHED)
        assert asked == [link] and not a.lost and not b.lost


class Searching:
    """A link that finds no path. Records when it is looked at, is reported as quiet, and ends."""

    def __init__(self) -> None:
        self.began = self.heard = trio.current_time()
        self.looks = 0
        self.quiet_after = self.ended_after = 0.0

    @property
    def missing(self) -> bool:
        return True

    silent = True

    @property
    def at_stake(self) -> bool:
        self.looks += 1
        return True

    async def rescue(self) -> str | None:
        await trio.sleep_forever()

    def fell_quiet(self) -> None:
        self.quiet_after = trio.current_time() - self.began

    def close(self, code: str) -> None:
        self.ended_after = trio.current_time() - self.began
        self.scope.cancel()

    scope = trio.CancelScope()


async def test_a_long_search_looks_at_its_end_once_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The times at which the link is quiet and ends are exact all the same."""
    limits, link = Limits(), Searching()
    shared: Any = SimpleNamespace(host=RealHost(), limits=limits)
    with trio.CancelScope() as link.scope:
        await Grace(shared, cast(Any, link), cast(Any, link)).run()
    assert link.quiet_after == pytest.approx(limits.quiet_s)
    assert link.ended_after == pytest.approx(limits.hold_s)
    assert link.looks < 1.1 * (limits.hold_s - limits.grace_s) + 2
