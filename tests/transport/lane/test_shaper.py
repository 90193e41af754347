"""The owner's caps: they are kept, shared and lent, and never delay a call."""

from math import inf

import pytest

from shoal.transport.lane.shaper import Cap, Caps, Flow, Shaper, TrafficDirection

UP, DOWN = TrafficDirection.UP, TrafficDirection.DOWN
CONTROL, ACTIVATION, BULK, RELAY = Flow
CAP = 1e6
STEP = 16 * 1024  # what a writer takes at once


class Sender:
    """Sends all it may from `start` to `until`, like the writer of a path."""

    def __init__(
        self,
        flow: Flow,
        *,
        start: float = 0.0,
        until: float = inf,
        over: int = 0,
        direction: TrafficDirection = UP,
    ) -> None:
        self.flow, self.at, self.until = flow, start, until
        self.over = over  # sends so much more than it was told, as a last frame does
        self.direction = direction
        self.sent: list[tuple[float, int]] = []

    def turn(self, shaper: Shaper) -> None:
        now = self.at
        room = shaper.room(self.direction, self.flow, self, now, STEP)
        if room:
            shaper.spend(self.direction, self.flow, room + self.over, now)
            self.sent.append((now, room + self.over))
        self.at = max(now + 1e-5, shaper.next_at(self.direction, self.flow, self, now))
        if self.at >= self.until:
            self.at = inf

    def bytes(self, since: float = 0.0, until: float = inf) -> int:
        return sum(size for at, size in self.sent if since <= at < until)


class Calls(Sender):
    """A call of 200 bytes every 10 ms, with a record of the waiting times."""

    def __init__(self) -> None:
        super().__init__(CONTROL)
        self.due = 0.0
        self.waits: list[float] = []

    def turn(self, shaper: Shaper) -> None:
        if shaper.room(UP, CONTROL, self, self.at, 200):
            shaper.spend(UP, CONTROL, 200, self.at)
            self.waits.append(self.at - self.due)
            self.due += 0.01
            self.at = max(self.at, self.due)
        else:
            self.at = max(self.at + 1e-5, shaper.next_at(UP, CONTROL, self, self.at))


def run(shaper: Shaper, senders: list[Sender], end: float) -> None:
    while (next_one := min(senders, key=lambda sender: sender.at)).at < end:
        next_one.turn(shaper)


@pytest.mark.parametrize("rate", [20e3, 1e6, 125e6])
@pytest.mark.parametrize("flow", list(Flow))
def test_a_node_s_cap_is_used_and_kept(rate: float, flow: Flow) -> None:
    shaper, sender = Shaper(Caps(up=Cap(node=rate)), 0.0), Sender(flow)
    run(shaper, [sender], 2.0)
    assert sender.bytes(0.0, 2.0) == pytest.approx(2 * rate, rel=0.05, abs=0.05 * rate)


def test_overspending_by_a_last_frame_is_owed() -> None:
    shaper, sender = Shaper(Caps(up=Cap(node=CAP)), 0.0), Sender(BULK, over=64 * 1024)
    run(shaper, [sender], 10.0)
    assert sender.bytes() == pytest.approx(10 * CAP, rel=0.05)


def test_after_silence_at_most_50_ms_pass_at_once() -> None:
    shaper, sender = Shaper(Caps(up=Cap(node=CAP)), 0.0), Sender(BULK, start=60.0)
    run(shaper, [sender], 60.001)
    assert sender.bytes() <= 0.05 * CAP


def test_without_caps_no_writer_waits() -> None:
    shaper = Shaper(Caps(), 0.0)
    assert shaper.capped == (False, False)
    for flow in Flow:
        assert shaper.room(UP, flow, "x", 0.0, 1 << 30) == 1 << 30
        shaper.spend(UP, flow, 1 << 40, 0.0)
        assert shaper.next_at(UP, flow, "x", 0.0) == 0.0


def test_directions_are_independent() -> None:
    shaper = Shaper(Caps(up=Cap(node=CAP)), 0.0)
    shaper.spend(UP, BULK, 10**9, 0.0)
    assert shaper.room(UP, BULK, "x", 0.0, STEP) == 0
    assert shaper.room(DOWN, BULK, "x", 0.0, STEP) == STEP
    assert shaper.capped == (True, False)


def test_a_ceiling_of_a_class_holds_it_alone() -> None:
    caps = Caps(up=Cap(node=CAP, relay=0.1 * CAP))
    relay, bulk = Sender(RELAY), Sender(BULK)
    run(Shaper(caps, 0.0), [relay, bulk], 10.0)
    assert relay.bytes() <= 0.105 * 10 * CAP
    assert relay.bytes() + bulk.bytes() == pytest.approx(10 * CAP, rel=0.05)


def test_a_class_held_by_its_ceiling_stops_no_lending() -> None:
    caps = Caps(up=Cap(node=CAP, control=0.1 * CAP))
    control, bulk = Sender(CONTROL), Sender(BULK)
    run(Shaper(caps, 0.0), [control, bulk], 10.0)
    assert control.bytes() == pytest.approx(CAP, rel=0.05)
    assert bulk.bytes() == pytest.approx(9 * CAP, rel=0.06)


def test_a_ceiling_without_a_cap_of_the_node() -> None:
    sender = Sender(BULK)
    run(Shaper(Caps(up=Cap(bulk=CAP)), 0.0), [sender], 10.0)
    assert sender.bytes() == pytest.approx(10 * CAP, rel=0.05)


def test_an_unused_share_is_lent_and_returned() -> None:
    activation, bulk = Sender(ACTIVATION, start=3.0, until=6.0), Sender(BULK)
    run(Shaper(Caps(up=Cap(node=CAP)), 0.0), [activation, bulk], 9.0)
    assert bulk.bytes(0, 3) == pytest.approx(3 * CAP, rel=0.05)
    assert activation.bytes(3, 6) == pytest.approx(0.85 * 3 * CAP, rel=0.05)
    assert bulk.bytes(3, 6) == pytest.approx(0.15 * 3 * CAP, rel=0.1)
    assert bulk.bytes(6.1, 9) == pytest.approx(2.9 * CAP, rel=0.05)


def test_when_all_want_more_the_lowest_still_get_their_share() -> None:
    senders = [Sender(flow) for flow in Flow]
    run(Shaper(Caps(up=Cap(node=CAP)), 0.0), senders, 10.0)
    parts = [sender.bytes() / (10 * CAP) for sender in senders]
    assert sum(parts) == pytest.approx(1, rel=0.05)
    for part, share in zip(parts, (0.3, 0.5, 0.15, 0.05), strict=True):
        assert part >= 0.9 * share


@pytest.mark.parametrize("rate", [125e3, 1e6])
def test_calls_never_wait_behind_bulk(rate: float) -> None:
    calls, bulk = Calls(), Sender(BULK, over=16 * 1024)
    run(Shaper(Caps(up=Cap(node=rate)), 0.0), [bulk, calls], 10.0)
    assert max(calls.waits) < 0.01
    assert bulk.bytes() + 200 * len(calls.waits) == pytest.approx(10 * rate, rel=0.05)


def test_calls_would_wait_if_they_were_bulk() -> None:
    """Twin: in the same class they do wait."""

    class Low(Calls):
        def turn(self, shaper: Shaper) -> None:
            if shaper.room(UP, BULK, self, self.at, 200):
                shaper.spend(UP, BULK, 200, self.at)
                self.waits.append(self.at - self.due)
                self.due += 0.01
                self.at = max(self.at, self.due)
            else:
                self.at = max(self.at + 1e-5, shaper.next_at(UP, BULK, self, self.at))

    calls, bulk = Low(), Sender(BULK, over=16 * 1024)
    run(Shaper(Caps(up=Cap(node=125e3)), 0.0), [bulk, calls], 10.0)
    assert max(calls.waits) > 0.05


def test_writers_of_one_class_take_turns() -> None:
    senders = [Sender(BULK) for _ in range(8)]
    run(Shaper(Caps(up=Cap(node=CAP)), 0.0), senders, 10.0)
    sent = [sender.bytes() for sender in senders]
    assert sum(sent) == pytest.approx(10 * CAP, rel=0.05)
    assert min(sent) > 0.8 * max(sent)


def test_a_writer_that_has_gone_delays_no_other() -> None:
    shaper = Shaper(Caps(up=Cap(node=CAP)), 0.0)
    shaper.spend(UP, BULK, 10**6, 0.0)
    for number in range(100):
        assert shaper.room(UP, BULK, number, 0.0, STEP) == 0
        shaper.next_at(UP, BULK, number, 0.0)
    sender = Sender(BULK, start=0.5)
    run(shaper, [sender], 10.0)
    assert sender.bytes() > 7 * CAP


def test_a_writer_that_leaves_gives_its_place_up() -> None:
    shaper = Shaper(Caps(up=Cap(node=CAP)), 0.0)
    shaper.spend(UP, BULK, int(0.03 * CAP), 0.0)
    for number in range(20):
        shaper.next_at(UP, BULK, number, 0.0)
    behind = shaper.next_at(UP, BULK, "x", 0.0)
    for number in range(20):
        shaper.leave(number)
    assert shaper.next_at(UP, BULK, "x", 0.0) < behind / 4


def test_reading_is_limited_by_waiting_afterwards() -> None:
    """A reader cannot ask in advance: it charges what came, and waits until nothing is owed."""
    shaper = Shaper(Caps(down=Cap(node=CAP)), 0.0)
    now = got = 0.0
    while now < 10.0:
        shaper.spend(DOWN, BULK, 100_000, now)
        got += 100_000
        now = max(now + 1e-4, shaper.next_at(DOWN, BULK, "path", now))
    assert got == pytest.approx(10 * CAP, rel=0.05)


def test_caps_can_be_changed() -> None:
    shaper, sender = Shaper(Caps(up=Cap(node=CAP)), 0.0), Sender(BULK)
    run(shaper, [sender], 1.0)
    shaper.change(Caps(up=Cap(node=CAP / 4)), 1.0)
    run(shaper, [sender], 11.0)
    assert sender.bytes(1.0) == pytest.approx(10 * CAP / 4, rel=0.05)


@pytest.mark.parametrize("rate", [0.0, -1.0, 100.0, inf])
def test_a_cap_that_lets_nothing_through_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="a cap is at least"):
        Cap(node=rate)
    with pytest.raises(ValueError, match="a cap is at least"):
        Cap(relay=rate)


def test_a_clock_that_stands_still_or_goes_back_gives_nothing_away() -> None:
    shaper = Shaper(Caps(up=Cap(node=CAP)), 100.0)
    while room := shaper.room(UP, BULK, "x", 100.0, STEP):
        shaper.spend(UP, BULK, room, 100.0)
    assert shaper.room(UP, BULK, "x", 50.0, STEP) == 0
