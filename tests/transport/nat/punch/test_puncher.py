"""Two whole punchers over the simulated internet: strategies, failures, hostile peers."""

from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from shoal.netsim.network.packet import TCP, UDP
from shoal.netsim.population.profiles import link
from shoal.transport.bytestream import PathKind
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Call, Refusal, Reply
from shoal.transport.nat.punch import offer as wire
from shoal.transport.nat.punch.candidates import Candidate, CandidateKind, CandidateTransport
from shoal.transport.nat.punch.defaults import PunchLimits
from shoal.transport.nat.punch.outcome import PunchOutcome, StrategyResult
from shoal.transport.nat.punch.predict import NatProfile, PredictionPlan, plan
from shoal.transport.nat.punch.puncher import METHOD
from tests.transport.nat.punch.street import NATS, PORT, Met, Side, Street, meet

HOMES = ("linux-drop", "linux-drop")


async def punch(side: Side) -> PunchOutcome:
    found: PunchOutcome = await side.computer.run(side.puncher.punch, side.link)
    return found


def offers(side: Side, **changed: Any) -> Call:
    """Return an offer such as a peer called `bert` would send."""
    peer = side.endpoint.peer
    header = wire.encode(
        wire.PunchOffer(
            b"12345678", 1, b"k" * 20, NATS["linux-drop"], side.other.own(peer).candidates
        )
    )
    return Call(side.other.endpoint.peer, header | changed, b"")


# Each strategy alone.


def test_udp_alone_connects_two_homes_at_once() -> None:
    met = meet(HOMES, tcp=False)
    assert met.connected and met.seconds is not None and met.seconds < 0.5
    assert met.outcome.strategies["udp"].result is StrategyResult.WORKED
    assert met.outcome.strategies["tcp"].reason == "no-address"
    (a,), (b,) = met.street.a.got, met.street.b.got
    assert (a.client, b.client) == (True, False), "the smaller peer id is the client"
    assert (a.byte_stream.medium, a.path_kind) == ("udp", PathKind.PUNCHED)


def test_tcp_alone_connects_two_homes_at_once() -> None:
    met = meet(HOMES, udp=False)
    assert met.connected and met.seconds is not None and met.seconds < 0.3
    assert met.outcome.strategies["tcp"].result is StrategyResult.WORKED
    assert met.outcome.strategies["udp"].reason == "no-udp"
    assert met.street.a.got[0].byte_stream.medium == "tcp"


def test_without_udp_and_tcp_nothing_works() -> None:
    """Twin of both: with these strategies off nothing connects them."""
    met = meet(HOMES, udp=False, tcp=False)
    assert not met.connected and not met.outcome.worked


@pytest.mark.parametrize("kinds", [("udp-blocked", "public"), ("public", "udp-blocked")])
def test_blocked_udp_is_reported(kinds: tuple[str, str]) -> None:
    met = meet(kinds, tcp=False)
    assert not met.connected
    assert met.outcome.strategies["udp"].reason == "udp-blocked"


def test_the_strategy_that_the_firewall_allows_works() -> None:
    no_udp = frozenset((TCP, port) for port in range(1024, 65536))
    met = meet(HOMES, knobs=({"allow": no_udp}, {}))
    assert met.connected and met.street.a.got[0].byte_stream.medium == "tcp"
    no_tcp = frozenset((UDP, port) for port in range(1024, 65536))
    met = meet(HOMES, knobs=({"allow": no_tcp}, {}))
    assert met.connected and met.street.a.got[0].byte_stream.medium == "udp"


@pytest.mark.parametrize("names", [("anna", "bert"), ("bert", "anna")])
@pytest.mark.parametrize("skew", [0.15, -0.15])
def test_either_side_may_offer_and_be_early(names: tuple[str, str], skew: float) -> None:
    for udp in (True, False):
        met = meet(("public", "linux-drop"), names=names, skew=skew, udp=udp, tcp=not udp)
        assert met.connected
        assert met.street.a.worked[0].client is (names[0] == "anna")


def test_the_second_round_passes_a_router_that_remembers_early_packets() -> None:
    met = meet(("linux-drop", "linux-accept"), skew=0.15, tcp=False)
    assert met.connected and met.outcome.rounds == 2
    one = meet(("linux-drop", "linux-accept"), skew=0.15, tcp=False, limits=PunchLimits(rounds=1))
    assert not one.connected, "the twin: the first round alone fails there"


def test_a_birthday_search_finds_a_symmetric_nat_s_port() -> None:
    met = meet(("linux-random", "linux-drop"), tcp=False)
    assert met.connected and met.outcome.strategies["prediction"].result is StrategyResult.WORKED
    for side in (met.street.a, met.street.b):
        target = met.street.b.gate if side is met.street.a else met.street.a.gate
        assert target is not None
        spent = 1500 - side.puncher.budget.datagrams_left(target.address, 20.0)
        assert 20 < spent <= 1500
    assert len(met.street.a.puncher.tools.extra) == 1, "of 256 sockets the one in use is left"


def test_without_the_search_the_port_is_not_found() -> None:
    street = Street(("linux-random", "linux-drop"), tcp=False)

    async def body(street: Street) -> PunchOutcome:
        street.a.nat = street.b.nat = NATS["linux-drop"]  # they are told so, wrongly
        street.a.observers = street.a.observers[:1]
        return await punch(street.a)

    assert not street.run(body).worked


def test_a_thrifty_attempt_makes_no_search() -> None:
    async def thrifty(street: Street) -> PunchOutcome:
        puncher = street.a.puncher
        spare = partial(puncher.punch, thrifty=True)
        found: PunchOutcome = await street.a.computer.run(spare, street.a.link)
        return found

    for kinds in (("linux-random", "linux-drop"), ("linux-drop", "linux-random")):
        street = Street(kinds, tcp=False)
        outcome = street.run(thrifty)
        assert outcome.strategies["prediction"].reason == "search-spared"
        for side, gate in ((street.a, street.b.gate), (street.b, street.a.gate)):
            assert gate is not None
            assert 1500 - side.puncher.budget.datagrams_left(gate.address, 20.0) < 40
        assert outcome.rounds == 1
    assert Street(HOMES, tcp=False).run(thrifty).worked


def test_two_random_symmetric_nats_get_the_reason() -> None:
    met = meet(("linux-random", "apdm-apdf"))
    assert not met.connected
    strategy = met.outcome.strategies["prediction"]
    assert (strategy.result, strategy.reason) == (StrategyResult.NOT_POSSIBLE, "symmetric-both")


COUNTS = {"ports": "sequential"}


@pytest.mark.parametrize(
    ("kinds", "knobs"),
    [
        (("apdm-apdf", "linux-drop"), (COUNTS, {})),
        (("linux-accept", "apdm-apdf"), ({}, COUNTS)),
        (("apdm-apdf", "apdm-apdf"), (COUNTS, COUNTS)),
    ],
)
def test_a_counting_nat_is_predicted(kinds: tuple[str, str], knobs: Any) -> None:
    """It was not known before that the NAT counts."""

    async def body(street: Street) -> PunchOutcome:
        for side, knob in ((street.a, knobs[0]), (street.b, knobs[1])):
            side.nat = NatProfile() if knob else side.nat
        return await punch(side=street.a)

    outcome = Street(kinds, knobs=knobs, tcp=False).run(body)
    assert outcome.strategies["prediction"].result is StrategyResult.WORKED


def test_an_unknown_symmetric_nat_is_detected_in_time() -> None:
    async def body(street: Street) -> PunchOutcome:
        street.a.nat = street.b.nat = NatProfile()
        return await punch(street.a)

    assert Street(("apdm-apdf", "linux-drop"), tcp=False).run(body).worked


def test_the_local_network_is_preferred() -> None:
    street = Street(("linux-drop", "public"))
    street.b.computer = street.world.host("neighbour", behind=street.a.gate)
    street.a.link.computer = street.b.computer
    for side in (street.a, street.b):
        side.same_site = True

    async def body(street: Street) -> set[PathKind]:
        assert (await punch(street.a)).worked
        await trio.sleep(1)
        return {got.path_kind for got in street.a.worked}

    assert street.run(body) == {PathKind.LAN}


@pytest.mark.parametrize("udp", [True, False])
def test_ipv6_through_two_firewalls(udp: bool) -> None:
    street = Street(("firewall6", "firewall6"), udp=udp, tcp=not udp)
    for side in (street.a, street.b):
        six = {ip for ip in side.computer.addresses() if ":" in ip}
        side.other.vouched = {side.gate.address, *six}  # type: ignore[union-attr]

    async def body(street: Street) -> set[str]:
        assert (await punch(street.a)).worked
        await trio.sleep(1)
        return {got.byte_stream.remote[0] for got in street.a.worked}

    found = street.run(body)
    if udp:
        assert all(":" in ip for ip in found), "IPv6 is preferred: no mapping that may end"
    assert found


# Agreeing.


def test_two_offers_that_cross_are_one_attempt() -> None:
    async def body(street: Street) -> list[PunchOutcome]:
        found: list[PunchOutcome] = []

        async def one(side: Side) -> None:
            found.append(await punch(side))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, street.a)
            nursery.start_soon(one, street.b)
        await trio.sleep(3)
        assert len({got.byte_stream.medium for got in street.a.got}) == len(street.a.got)
        return found

    outcomes = Street(HOMES).run(body)
    assert len(outcomes) == 2 and all(outcome.worked for outcome in outcomes)


def test_a_second_caller_gets_the_same_attempt() -> None:
    async def body(street: Street) -> list[PunchOutcome]:
        found: list[PunchOutcome] = []

        async def one() -> None:
            found.append(await punch(street.a))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one)
        assert street.a.link.calls == 1
        return found

    assert all(outcome.worked for outcome in Street(HOMES).run(body))


def test_both_sides_store_the_outcome() -> None:
    met = meet(HOMES)
    for side in (met.street.a, met.street.b):
        assert side.puncher.outcomes[side.other.endpoint.peer].worked


def test_an_offer_without_a_reply_fails() -> None:
    async def body(street: Street) -> PunchOutcome:
        async def never(call: Call) -> Reply:
            await trio.sleep_forever()
            raise AssertionError

        street.b.endpoint.handlers[METHOD] = never
        outcome = await punch(street.a)
        assert not street.a.puncher._attempts and not street.a.puncher._offered
        return outcome

    outcome = Street(HOMES).run(body)
    assert {(strategy.result, strategy.reason) for strategy in outcome.strategies.values()} == {
        (StrategyResult.REFUSED, "timeout")
    }


def test_attempts_end_in_time_and_leave_nothing_open() -> None:
    async def body(street: Street) -> None:
        began = trio.current_time()
        outcome = await punch(street.a)
        assert not outcome.worked
        assert trio.current_time() - began < 12
        await trio.sleep(10)
        for side in (street.a, street.b):
            assert not side.puncher._attempts and not side.puncher.tools.extra

    Street(("linux-random", "linux-random")).run(body)


def test_concurrent_searches_are_bounded() -> None:
    met = meet(("linux-random", "linux-drop"), tcp=False, limits=PunchLimits(searches=0))
    assert not met.connected
    strategy = met.outcome.strategies["prediction"]
    assert (strategy.result, strategy.reason) == (StrategyResult.NOT_POSSIBLE, "busy")


def test_cancelling_at_any_time_leaves_nothing_open() -> None:
    for tenths in range(0, 30, 3):

        async def body(street: Street, after: float = tenths / 10) -> None:
            with trio.move_on_after(after):
                await punch(street.a)
            await trio.sleep(12)
            assert not street.a.puncher._attempts and not street.a.puncher._offered
            assert len(street.a.puncher.tools.extra) <= 1

        Street(("linux-random", "linux-drop"), tcp=False).run(body)


def test_sockets_of_connections_that_have_ended_are_closed() -> None:
    async def body(street: Street) -> None:
        assert (await punch(street.a)).worked
        await trio.sleep(2)
        assert len(street.a.puncher.tools.extra) == 1
        for got in street.a.got:
            got.byte_stream.close()
        await trio.sleep(120)
        assert not street.a.puncher.tools.extra

    Street(("linux-random", "linux-drop"), tcp=False).run(body)


# Hostile peers.


def refused(kinds: tuple[str, str], *calls: dict[str, Any]) -> list[str | None]:
    """Return the codes of `anna`'s replies to successive offers of `bert`; None: accepted."""

    async def body(street: Street) -> list[str | None]:
        found: list[str | None] = []
        for changed in calls:
            answer = await street.a.computer.run(
                street.a.puncher.offered, offers(street.a, **changed)
            )
            found.append(answer.code if isinstance(answer, Refusal) else None)
        return found

    found: list[str | None] = Street(kinds).run(body)
    return found


def test_malformed_offers_are_refused() -> None:
    assert refused(HOMES, {"c": [["11.0.0.1", 4001, "observed", "udp"]] * 10_000}, {"k": 3}) == [
        "bad-offer",
        "bad-offer",
    ]


def test_offers_out_of_turn_are_refused() -> None:
    codes = refused(
        HOMES, {"r": 2}, {}, {"a": b"another!"}, {}, {"r": 3}, {"r": 2}, {"r": 3}, {"r": 4}
    )
    assert codes == ["no-such-attempt", None, "busy", "busy", "busy", None, None, "busy"]


def test_the_rate_of_offers_is_bounded() -> None:
    async def body(street: Street) -> list[str | None]:
        codes: list[str | None] = []
        for n in range(12):
            call = offers(street.a, a=n.to_bytes(8), c=[])
            answer = await street.a.computer.run(street.a.puncher.offered, call)
            codes.append(answer.code if isinstance(answer, Refusal) else None)
            for attempt in street.a.puncher._attempts.values():
                attempt.give_up()
            await trio.sleep(0.1)
        return codes

    codes = Street(HOMES).run(body)
    assert codes == [None] * 8 + ["too-often"] * 4


def test_concurrent_attempts_are_bounded() -> None:
    async def body(street: Street) -> list[str | None]:
        codes: list[str | None] = []
        for n in range(6):
            call = offers(street.a)
            call = Call(PeerId(f"peer{n}"), call.header, b"")
            answer = await street.a.computer.run(street.a.puncher.offered, call)
            codes.append(answer.code if isinstance(answer, Refusal) else None)
        return codes

    codes = Street(HOMES, limits=PunchLimits(attempts=4)).run(body)
    assert codes == [None] * 4 + ["busy"] * 2


def aimed(
    kinds: tuple[str, str],
    *,
    same_site: bool = False,
    open_: bool = False,
    six: bool = False,
    offered: int = 1,
) -> dict[str, int]:
    """Count the packets that hit a victim, by protocol. `bert` names its address in `offered`
    offers; with `six`, the IPv6 address."""
    hits = {"udp": 0, "tcp": 0}

    async def body(street: Street) -> None:
        victim = street.world.host("victim", ipv6=six)
        ip = next(each for each in victim.addresses() if (":" in each) is six)
        take = victim.take

        def count(packet: Any) -> None:
            hits["udp" if packet.proto == 17 else "tcp"] += 1
            take(packet)

        victim.take = count  # type: ignore[method-assign]
        if open_:
            street.a.vouched = {ip}
        street.a.same_site = same_site
        places = [(ip, PORT + n, "observed", t) for n in range(8) for t in ("udp", "tcp")]
        for n in range(offered):
            call = offers(
                street.a,
                a=n.to_bytes(8),
                c=[[*each] for each in places],
                b=[[ip, 6000]] * 7,
                s=[ip, 5000, 1],
                n=["address-and-port-dependent"] * 2 + [False, False, True],
            )
            answer = await street.a.computer.run(street.a.puncher.offered, call)
            assert isinstance(answer, Reply)
            await trio.sleep(12)
        await trio.sleep(20)

    Street(kinds).run(body)
    return hits


def test_an_address_that_only_the_peer_named_gets_nothing() -> None:
    assert aimed(HOMES) == {"udp": 0, "tcp": 0}
    assert aimed(HOMES, same_site=True) == {"udp": 0, "tcp": 0}


SIX = ("firewall6", "firewall6")


def test_an_ipv6_address_that_only_the_peer_named_gets_a_few_small_datagrams() -> None:
    hits = aimed(SIX, six=True, offered=4)
    at_once, per_s = PunchLimits().unseen
    assert 0 < hits["udp"] <= at_once + 4 * 12 * per_s
    assert hits["tcp"] == 0


def test_an_ipv6_address_that_a_third_node_vouches_for_gets_more() -> None:
    hits = aimed(SIX, six=True, offered=4, open_=True)
    assert hits["udp"] > 100 and hits["tcp"] > 0


def test_a_vouched_address_gets_packets_within_the_budget() -> None:
    hits = aimed(HOMES, open_=True)
    assert 1000 < hits["udp"] <= 1500 and 0 < hits["tcp"] <= 120


def test_packets_are_bounded_over_many_offers() -> None:
    """Offers name the same victim for ten minutes, without exceeding the budget."""
    limits = PunchLimits()

    async def body(street: Street) -> int:
        sent = 0
        victim = ("11.0.0.77", PORT)
        street.a.vouched = {victim[0]}
        send = street.a.udp.send

        def counted(data: bytes, to: Any, socket: Any = None) -> bool:
            nonlocal sent
            sent += to[0] == victim[0]
            return send(data, to, socket)

        street.a.udp.send = counted  # type: ignore[method-assign]
        for n in range(40):
            call = offers(
                street.a,
                a=n.to_bytes(8),
                c=[[*victim, "observed", "udp"]],
                n=["address-and-port-dependent"] * 2 + [False, False, True],
            )
            await street.a.computer.run(street.a.puncher.offered, call)
            await trio.sleep(14)
        return sent

    assert 1300 < Street(HOMES, limits=limits).run(body) <= 1500


def test_a_malformed_reply_ends_the_attempt() -> None:
    for answer in ({}, {"c": "?"}, {"a": b"87654321"}):

        async def body(street: Street, answer: dict[str, Any] = answer) -> PunchOutcome:
            async def lie(call: Call) -> Reply:
                good = offers(street.b).header | {"a": call.header["a"]}
                return Reply(good | answer if answer else {})

            street.b.endpoint.handlers[METHOD] = lie
            return await punch(street.a)

        assert Street(HOMES).run(body).strategies["udp"].reason == "bad-answer"


def test_stun_of_strangers_is_not_taken() -> None:
    async def body(street: Street) -> None:
        puncher = street.a.puncher
        assert not puncher.on_stun(b"\0" * 20, ("11.0.0.9", 1), object())  # type: ignore[arg-type]
        assert not puncher.on_stun(b"garbage", ("11.0.0.9", 1), object())  # type: ignore[arg-type]

    Street(HOMES).run(body)


def test_a_run_is_reproducible() -> None:
    first, second = (meet(("linux-random", "linux-drop"), seed=5) for _ in range(2))
    assert first.seconds == second.seconds and first.outcome == second.outcome


# All kinds of NAT with each other.

TABLE = (
    "public",
    "eim-eif",
    "eim-adf",
    "eim-apdf",
    "linux-drop",
    "linux-accept",
    "adm-apdf",
    "apdm-apdf",
)
HARD = {"adm-apdf", "apdm-apdf"}
STRICT = {"eim-apdf", "linux-drop", "linux-accept"}


def show(met: Met) -> tuple[Any, ...]:
    return met.street.a.gate, met.street.b.gate, met.outcome


@pytest.mark.long
@pytest.mark.parametrize("skew", [0.0, 0.15, -0.15])
def test_the_whole_table_by_udp(skew: float) -> None:
    """60 of 64 pairs become direct, and the other four report the reason."""
    for a in TABLE:
        for b in TABLE:
            met = meet((a, b), skew=skew, tcp=False)
            assert met.connected is not (a in HARD and b in HARD), show(met)
            if not met.connected:
                assert met.outcome.strategies["prediction"].reason == "symmetric-both"


@pytest.mark.long
@pytest.mark.parametrize("skew", [0.0, 0.15, -0.15])
def test_the_whole_table_by_tcp(skew: float) -> None:
    """A hard side is reached only if the other side accepts any port."""
    for a in TABLE:
        for b in TABLE:
            met = meet((a, b), skew=skew, udp=False)
            hopeless = (a in HARD and b in STRICT | HARD) or (b in HARD and a in STRICT | HARD)
            assert met.connected is not hopeless, show(met)


@pytest.mark.long
def test_what_two_symmetric_nats_can_do_is_what_the_plan_says() -> None:
    """Nine hard kinds of mapping and filtering, with each other."""
    kinds = [f"{m}m-{f}f" for m in ("ad", "apd") for f in ("ei", "ad", "apd")]
    for a in kinds:
        for b in kinds:
            expected = plan(NATS[a], NATS[b]) is PredictionPlan.CHECKS
            assert meet((a, b), tcp=False).connected is expected, (a, b)


@pytest.mark.long
def test_punching_works_between_lossy_homes() -> None:
    """At least 99 of 100 possible direct paths are made (birthday searches by their odds)."""
    luck, tried, worked, seconds = Random(7), 0, 0, []
    easy = [kind for kind in NATS if plan(NATS["linux-drop"], NATS[kind]) is PredictionPlan.CHECKS]
    links = ["fibre", "cable", "dsl", "lte", "cable+bad-wifi"]
    for seed in range(400):
        kinds = luck.choice(easy), luck.choice(easy)
        if plan(NATS[kinds[0]], NATS[kinds[1]]) is not PredictionPlan.CHECKS:
            continue
        pair = link(luck.choice(links)), link(luck.choice(links))
        skew = luck.choice([0.0, 0.0, 0.05, -0.05, 0.15, -0.15])
        met = meet(kinds, seed=seed, links=pair, skew=skew)
        tried, worked = tried + 1, worked + met.connected
        seconds.append(met.seconds or 99.0)
    seconds.sort()
    assert tried > 200 and worked >= 0.99 * tried
    assert seconds[tried // 2] < 1.0 and seconds[tried * 95 // 100] < 3.0


@pytest.mark.long
def test_a_birthday_search_succeeds_as_often_as_predicted() -> None:
    met = [meet(("linux-random", "linux-drop"), seed=seed, tcp=False) for seed in range(150)]
    assert sum(each.connected for each in met) >= 147  # of 99.6 %, but for a chance of 2 %


def test_a_row_of_the_table() -> None:
    for kind in TABLE:
        assert meet(("linux-drop", kind)).connected, kind


def test_a_mapped_port_is_a_mapped_candidate() -> None:
    mapped = Candidate(("11.0.0.1", 4001), CandidateKind.MAPPED, CandidateTransport.TCP)
    assert wire.decode(
        wire.encode(wire.PunchOffer(b"12345678", 1, b"k" * 20, NatProfile(), [mapped]))
    )


# Searches in step.


def search(*, busy_s: float, deaf: bool = False) -> tuple[PunchOutcome, int]:
    """Return the outcome and how many datagrams `anna` sent. Two other searches keep `bert` busy
    for the first seconds. If `deaf`, `anna` does not learn that."""

    async def body(street: Street) -> tuple[PunchOutcome, int]:
        searching = street.b.puncher.tools.searching
        searching.update((b"one", b"two"))
        if deaf:
            street.a.link.tamper = lambda header: None
            handler = street.b.endpoint.handlers[METHOD]

            async def forgetful(call: Call) -> Reply | Refusal:
                answer = await handler(call)
                return Reply({k: v for k, v in answer.header.items() if k != "w"})

            street.b.endpoint.handlers[METHOD] = forgetful

        async def free() -> None:
            await trio.sleep(busy_s)
            searching.difference_update((b"one", b"two"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(free)
            outcome = await punch(street.a)
        budget = street.a.puncher.budget
        left = budget.datagrams_left(street.b.gate.address, trio.current_time())  # type: ignore[union-attr]
        return outcome, PunchLimits().target_datagrams - left

    found: tuple[PunchOutcome, int] = Street(("linux-drop", "apdm-apdf"), tcp=False).run(body)
    return found


def test_a_search_waits_until_both_sides_can_make_it() -> None:
    outcome, _ = search(busy_s=1.0)
    assert outcome.strategies["prediction"].result is StrategyResult.WORKED and outcome.rounds == 2


def test_without_waiting_one_side_searches_alone_and_finds_nothing() -> None:
    outcome, sent = search(busy_s=1.0, deaf=True)
    assert not outcome.worked and sent > 1000


def test_no_search_is_wasted_on_a_peer_that_stays_busy() -> None:
    outcome, sent = search(busy_s=60.0)
    assert outcome.strategies["prediction"].reason == "busy" and sent < 100


# Witnesses.


@pytest.mark.parametrize("looks", [True, False])
def test_the_side_that_answers_also_asks_where_others_see_the_peer(looks: bool) -> None:
    async def body(street: Street) -> PunchOutcome:
        street.b.vouched = set()

        async def look(peer: PeerId) -> None:
            await trio.sleep(0.05)
            street.b.vouched = None  # the observers know

        if looks:
            street.b.puncher._look = look
        return await punch(street.a)

    assert Street(HOMES, tcp=False).run(body).worked is looks
