"""Which stages a gateway asks, and which chain it takes."""

from collections import Counter

from shoal.tasks.engine.interface import Parts
from shoal.tasks.routing.affinity import NO_PREFIX, Prefix
from shoal.tasks.routing.beliefs import Load, Observed, Shard, Times
from shoal.tasks.routing.defaults import LATE_ANSWERS, PROBES_OF_REQUEST
from shoal.tasks.routing.paths import Hop
from shoal.tasks.routing.router import GatewayView, Router, Want
from shoal.transport.identity import PeerId
from tests.tasks.routing.test_affinity import prefix_of

ROOT = "ab" * 32
LAYERS = 12
FAST = Times(1e-3, 0.02)


def hop(name: str, start: int = 0, stop: int = LAYERS) -> Hop:
    return Hop(PeerId(name), Parts(start == 0, start, stop, stop == LAYERS), "float32")


REPLICAS = [hop(f"r{number}") for number in range(8)]


def view(claims: dict[str, Times] | None = None) -> GatewayView:
    return GatewayView(None, lambda hop: (claims or {}).get(hop.peer, FAST), lambda peer: 0.02)


def want(prefix: Prefix = NO_PREFIX, rows: int = 2000, session: bytes = b"s" * 16) -> Want:
    return Want(ROOT, LAYERS, rows, prefix, 100, session)


def shard(hop: Hop) -> Shard:
    return Shard(hop.peer, ROOT, hop.parts)


def tell(router: Router, hop: Hop, wait: float) -> None:
    router.beliefs.told(shard(hop), Load(wait, 0), 0.0)


def replies(router: Router, *said: tuple[float, int], at: float = 0.0) -> dict[Shard, Load]:
    """Return the replies of the first replicas to the probes of a request."""
    found = {shard(hop): Load(*each) for hop, each in zip(REPLICAS, said, strict=False)}
    for each, load in found.items():
        router.beliefs.told(each, load, at)
    return found


def names(hops: list[Hop]) -> set[str]:
    return {hop.peer for hop in hops}


def chosen(router: Router, request: Want, hops: list[Hop] = REPLICAS, at: float = 0.0) -> str:
    plan = router.plan(view(), request, hops, at)
    assert plan is not None
    return "".join(each.peer for each in plan.chain)


def test_four_replicas_at_most_are_asked_and_none_without_a_choice() -> None:
    router = Router()
    assert len(router.questions(view(), want(), REPLICAS, 0.0)) == PROBES_OF_REQUEST
    assert router.questions(view(), want(), REPLICAS[:1], 0.0) == []
    assert router.questions(view(), want(), [hop("a", 0, 6)], 0.0) == []


def test_two_replicas_of_each_of_two_stages_are_asked() -> None:
    hops = [hop(f"a{n}", 0, 6) for n in range(3)] + [hop(f"b{n}", 6, 12) for n in range(3)]
    asked = Router().questions(view(), want(), hops, 0.0)
    assert Counter(each.parts.start for each in asked) == {0: 2, 6: 2}
    longer = [hop(f"{s}{n}", s, s + 3) for s in (0, 3, 6, 9) for n in range(3)]
    assert len(Router().questions(view(), want(), longer, 0.0)) == PROBES_OF_REQUEST


def test_a_silent_stage_is_not_asked_and_not_taken() -> None:
    router = Router()
    for replica in REPLICAS[:7]:
        router.beliefs.missed(shard(replica), 0.0)
    assert router.questions(view(), want(), REPLICAS, 0.0) == [REPLICAS[7]]
    assert chosen(router, want()) == "r7"


def test_the_least_wait_wins_and_stages_that_were_not_asked_seem_busier() -> None:
    router = Router()
    for replica, wait in zip(REPLICAS, (3.0, 1.0, 2.0), strict=False):
        tell(router, replica, wait)
    assert chosen(router, want()) == "r1"


def test_what_a_stage_said_long_ago_is_not_believed() -> None:
    router = Router()
    tell(router, REPLICAS[0], 0.0)
    tell(router, REPLICAS[1], 2.0)
    assert chosen(router, want(), REPLICAS[:2]) == "r0"
    both = {chosen(router, want(session=bytes(16 * [n])), REPLICAS[:2], 60.0) for n in range(20)}
    assert both == {"r0", "r1"}


def test_a_prompt_goes_where_it_is_cached_unless_the_queue_there_costs_more() -> None:
    """2,000 rows take 2 s. 1,792 of them are cached at r0."""
    for wait, where in ((1.0, "r0"), (3.0, "r1")):
        router = Router()
        said = replies(router, (wait, 1792), (0.0, 0))
        plan = router.plan(view(), want(), REPLICAS[:2], 0.0, said)
        assert plan is not None and plan.chain[0].peer == where


def slow(router: Router, *said: tuple[float, int, float]) -> str:
    """Return the replica that is taken of three, of which the first ones say their wait, what is
    cached, and the seconds of a row."""
    found = {
        shard(hop): Load(wait, cached, row_s=row)
        for hop, (wait, cached, row) in zip(REPLICAS, said, strict=False)
    }
    for each, load in found.items():
        router.beliefs.told(each, load, 0.0)
    plan = router.plan(view(), want(), REPLICAS[:3], 0.0, found)
    assert plan is not None
    return plan.chain[0].peer


def test_rows_count_for_as_long_as_stages_say_that_they_take() -> None:
    """Beside texts, rows take longer than alone, so the cached ones save more: 2,000 rows take 2 s
    as claimed, and 4 s as the stages say. 1,792 of them are cached at r0."""
    assert slow(Router(), (2.5, 1792, 0.0), (0.0, 0, 0.0)) == "r1"
    assert slow(Router(), (2.5, 1792, 0.002), (0.0, 0, 0.002)) == "r0"


def test_a_stage_that_says_it_needs_less_for_a_row_gains_nothing() -> None:
    assert slow(Router(), (1.0, 0, 1e-9), (0.0, 0, 0.0), (0.5, 0, 0.0)) == "r1"
    # However slow the others say they are, they count as three times as slow as they claim.
    assert slow(Router(), (3.0, 0, 0.001), (0.0, 0, 1e6), (6.0, 0, 0.001)) == "r0"
    assert slow(Router(), (0.0, 0, 1e6), (5.0, 0, 0.001), (5.0, 0, 0.001)) == "r0"


def test_a_stage_that_was_not_asked_counts_as_slow_as_those_that_were() -> None:
    assert slow(Router(), (0.0, 0, 0.003), (0.1, 0, 0.003)) == "r0"


def test_a_reply_about_another_prompt_says_nothing_of_this_one() -> None:
    router = Router()
    router.beliefs.told(shard(REPLICAS[0]), Load(0.5, 1792), 0.0)
    router.beliefs.told(shard(REPLICAS[1]), Load(0.0, 0), 0.0)
    assert chosen(router, want(), REPLICAS[:2]) == "r1"


def test_the_replica_that_computed_a_prefix_is_asked() -> None:
    router, prefix = Router(), prefix_of(1, 2, 3, 4)
    plan = router.plan(view(), want(prefix), REPLICAS[5:6], 0.0)
    assert plan is not None
    router.take(plan, prefix, 0.0)
    for number in range(20):
        asked = router.questions(view(), want(prefix, session=bytes(16 * [number])), REPLICAS, 0.0)
        assert asked[0] == REPLICAS[5]


def test_a_replica_that_computed_only_a_common_beginning_is_not_asked_for_it() -> None:
    """Requests begin with the same system prompt. The replica that had the last one of them has
    nothing else of the next one, whose hash chooses replicas."""
    router = Router()
    for number in range(64):
        plan = router.plan(view(), want(), REPLICAS[number % 8 :][:1], 0.0)
        assert plan is not None
        router.take(plan, prefix_of(1, 100 + number), 0.0)
    new = prefix_of(1, 500)
    asked = [names(router.questions(view(), want(new), REPLICAS, 0.0))]
    for replica in REPLICAS:
        plan = router.plan(view(), want(), [replica], 0.0)
        assert plan is not None
        router.take(plan, prefix_of(1, 600), 0.0)
        asked.append(names(router.questions(view(), want(new), REPLICAS, 0.0)))
    assert all(each == asked[0] for each in asked)


def test_gateways_without_a_common_memory_ask_the_same_replicas_for_a_prefix() -> None:
    prefix = prefix_of(7, 8, 9)
    asked = [
        names(Router().questions(view(), want(prefix, session=bytes(16 * [n])), REPLICAS, 0.0))
        for n in range(10)
    ]
    assert len(set.intersection(*asked)) >= 2


def test_a_chain_of_several_stages_is_taken_again_for_a_prefix() -> None:
    """The cache of the second stage serves only chains with the same first stage."""
    hops = [hop(f"a{n}", 0, 6) for n in range(3)] + [hop(f"b{n}", 6, 12) for n in range(3)]
    router, prefix = Router(), prefix_of(1, 2, 3, 4, 5, 6, 7)
    plan = router.plan(view(), want(prefix), [hops[2], hops[4]], 0.0)
    assert plan is not None
    router.take(plan, prefix, 0.0)
    for number in range(20):
        assert chosen(router, want(prefix, session=bytes(16 * [number])), hops) == "a2b1"


def test_a_replica_that_was_not_asked_for_this_prompt_is_not_taken() -> None:
    router = Router()
    tell(router, REPLICAS[1], 0.0)
    said = replies(router, (1.0, 0))
    plan = router.plan(view(), want(), REPLICAS[:2], 0.0, said)
    assert plan is not None and plan.chain[0].peer == "r0"


def test_replies_of_a_minute_ago_are_not_used_to_replace_a_chain() -> None:
    router = Router()
    said = replies(router, (0.0, 0), (5.0, 0))
    chains = set()
    for number in range(20):
        plan = router.plan(view(), want(session=bytes(16 * [number])), REPLICAS[:2], 60.0, said)
        assert plan is not None
        chains.add(plan.chain[0].peer)
    assert chains == {"r0", "r1"}


def test_prompts_that_were_just_sent_count_as_load() -> None:
    router = Router()
    for replica in REPLICAS[:2]:
        tell(router, replica, 0.0)
    taken = []
    for number in range(6):
        plan = router.plan(view(), want(session=bytes(16 * [number])), REPLICAS[:2], 0.0)
        assert plan is not None
        router.take(plan, NO_PREFIX, 0.0)
        taken.append(plan.chain[0].peer)
    assert Counter(taken) == {"r0": 3, "r1": 3}


def test_a_member_that_claims_a_thousand_times_its_speed_loses_it_after_one_answer() -> None:
    router = Router()
    lying = view({"r0": Times(1e-6, 2e-5)})
    plan = router.plan(lying, want(), REPLICAS, 0.0)
    assert plan is not None and plan.chain[0].peer == "r0"
    # In truth it needs twice as long as the others.
    router.beliefs.observed(plan.stages, Observed(4.0, 0.0, 2000, 0.04, 0.0, 50), 1.0)
    for number in range(20):
        plan = router.plan(lying, want(session=bytes(16 * [number])), REPLICAS, 1.0)
        assert plan is not None and plan.chain[0].peer != "r0"


def test_a_stage_that_says_everything_is_cached_loses_its_advantage() -> None:
    router, answers = Router(), 0
    for number in range(20):
        said = replies(router, (0.0, 1999), (0.0, 0))
        plan = router.plan(view(), want(session=bytes(16 * [number])), REPLICAS[:2], 0.0, said)
        assert plan is not None
        if plan.chain[0].peer == "r0":
            answers += 1
            router.beliefs.observed(plan.stages, Observed(4.0, 0.0, 2000), 0.0)
    assert answers <= LATE_ANSWERS


def test_the_replies_of_a_stage_that_was_late_in_a_row_do_not_count() -> None:
    """It would still seem to take 4 s, with its lateness, and the other one 5 s."""
    router = Router()
    for _ in range(LATE_ANSWERS):
        said = replies(router, (0.0, 1999))
        plan = router.plan(view(), want(), REPLICAS[:1], 0.0, said)
        assert plan is not None
        router.beliefs.observed(plan.stages, Observed(4.0, 0.0, 2000), 0.0)
    said = replies(router, (0.0, 1999), (3.0, 0))
    plan = router.plan(view(), want(), REPLICAS[:2], 0.0, said)
    assert plan is not None and plan.chain[0].peer == "r1"


def test_a_stage_whose_answers_are_overdue_is_not_believed() -> None:
    """It says that everything is cached and nothing waits, and then it sends nothing."""
    router, sent = Router(), Counter[str]()
    for number in range(20):
        now = 3.0 * number
        said = replies(router, (0.0, 1999), (0.0, 0), at=now)
        plan = router.plan(view(), want(session=bytes(16 * [number])), REPLICAS[:2], now, said)
        assert plan is not None
        router.take(plan, NO_PREFIX, now)
        sent[plan.chain[0].peer] += 1
        if plan.chain[0].peer == "r1":
            router.beliefs.observed(plan.stages, Observed(2.0, 0.0, 2000), now)
    assert sent["r0"] <= 6


def test_answers_quicker_than_a_round_trip_do_not_make_a_stage_late() -> None:
    router = Router()
    for _ in range(10):
        plan = router.plan(view(), want(), REPLICAS[:1], 0.0, replies(router, (0.0, 0)))
        assert plan is not None
        router.take(plan, NO_PREFIX, 0.0)
        router.beliefs.observed(plan.stages, Observed(0.01, 0.02, 2000), 0.0)
    assert router.beliefs.late(shard(REPLICAS[0]), 1000.0) == 0.0


def test_the_times_of_a_stage_are_asked_once_for_a_plan() -> None:
    asked = Counter[str]()

    def claimed(hop: Hop) -> Times:
        asked[hop.peer] += 1
        return FAST

    plan = Router().plan(GatewayView(None, claimed, lambda peer: 0.02), want(), REPLICAS, 0.0)
    assert plan is not None
    chosen = plan.chain[0].peer
    assert asked == {hop.peer: 1 + (hop.peer == chosen) for hop in REPLICAS}


def test_cancelled_requests_do_not_make_a_stage_late() -> None:
    router = Router()
    for _ in range(10):
        plan = router.plan(view(), want(), REPLICAS[:1], 0.0, replies(router, (0.0, 0)))
        assert plan is not None
        router.take(plan, NO_PREFIX, 0.0)
        router.beliefs.dropped(plan.stages)
    assert router.beliefs.late(shard(REPLICAS[0]), 1000.0) == 0.0


def test_a_stage_that_reports_a_false_load_loses_its_advantage() -> None:
    router = Router()
    for replica in REPLICAS[:2]:  # both are measured: 1 ms for each row
        tell(router, replica, 0.0)
        plan = router.plan(view(), want(), [replica], 0.0)
        assert plan is not None
        router.beliefs.observed(plan.stages, Observed(2.0, 0.0, 2000, 0.02, 0.0, 50), 0.0)
    answers = 0
    for number in range(20):
        # r0 says that nothing waits, but each prompt waits for 6 s.
        request = want(session=bytes(16 * [number]))
        said = replies(router, (0.0, 0), (2.0, 0))
        plan = router.plan(view(), request, REPLICAS[:2], 0.0, said)
        assert plan is not None
        if plan.chain[0].peer == "r0":
            answers += 1
            router.beliefs.observed(plan.stages, Observed(8.0, 0.0, 2000), 0.0)
    assert answers <= LATE_ANSWERS


def test_a_chain_follows_the_round_trips_that_its_stages_report() -> None:
    first, near, far = hop("first", 0, 6), hop("near", 6), hop("far", 6)
    reported = {("first", "near"): 0.5, ("first", "far"): 0.01}

    def between(one: PeerId, other: PeerId) -> float:
        return reported.get((one, other)) or reported.get((other, one), 0.0)

    def trip(peer: PeerId) -> float:
        return {"far": 0.03}.get(peer, 0.02)

    hops = [first, near, far]
    plain = GatewayView(None, lambda hop: FAST, trip)
    assert Router().plan(plain, want(), hops, 0.0).chain == (first, near)  # type: ignore[union-attr]
    told = GatewayView(None, lambda hop: FAST, trip, reported=between)
    assert Router().plan(told, want(), hops, 0.0).chain == (first, far)  # type: ignore[union-attr]
    assert told.trip(None, PeerId("far")) == 0.03, "its own links are measured here"


def test_two_that_report_a_short_link_lose_it_after_one_slow_answer() -> None:
    """Both ends of a link may lie together. In truth each of their tokens takes half a second."""
    liars, honest = (hop("l1", 0, 6), hop("l2", 6)), (hop("h1", 0, 6), hop("h2", 6))
    reported = {("l1", "l2"): 0.0005, ("h1", "h2"): 0.05}

    def between(one: PeerId, other: PeerId) -> float:
        return reported.get((one, other)) or reported.get((other, one), 0.3)

    seen = GatewayView(None, lambda hop: FAST, lambda peer: 0.02, reported=between)
    router, hops = Router(), [*liars, *honest]
    plan = router.plan(seen, want(), hops, 0.0)
    assert plan is not None and plan.chain == liars
    # The gateway knows only the reported links.
    links = plan.cost.token_s - sum(each.times.token_s for each in plan.stages)
    slow = Observed(plan.cost.first_s + 0.5, links, 2000, plan.cost.token_s + 0.5, links, 50)
    router.beliefs.observed(plan.stages, slow, 1.0)
    for number in range(20):
        plan = router.plan(seen, want(session=bytes(16 * [number])), hops, 1.0)
        assert plan is not None and plan.chain == honest


def test_a_chain_follows_the_rates_of_its_links() -> None:
    """1 Mbit/s and 1 Gbit/s: a prompt of 2,000 positions has 16 MB of hidden states."""
    first, slow, fast = hop("first", 0, 6), hop("slow", 6), hop("quick", 6)
    rates = {"slow": 125e3, "quick": 125e6}
    seen = GatewayView(
        None, lambda hop: FAST, lambda peer: 0.02, rate=lambda one, other: rates[other]
    )
    for number in range(10):
        plan = Router().plan(
            seen,
            Want(ROOT, LAYERS, 2000, NO_PREFIX, 100, bytes([number] * 16), hidden=2048),
            [first, slow, fast],
            0.0,
        )
        assert plan is not None and plan.chain == (first, fast)
    alone = Router().plan(
        seen, Want(ROOT, LAYERS, 2000, NO_PREFIX, 100, hidden=2048), [first, slow], 0.0
    )
    assert alone is not None and alone.sent.prompt_s == 2000 * 8192 / 125e3
    assert alone.first_s > 131 and alone.cost.token_s > alone.sent.row_s == 8192 / 125e3


def test_the_time_of_sending_counts_once_and_not_as_computing() -> None:
    """After an answer over a slow link that took as long as predicted, its stages are as fast."""
    hops = [hop("a", 0, 6), hop("b", 6)]
    seen = GatewayView(None, lambda hop: FAST, lambda peer: 0.02, rate=lambda one, other: 1e5)
    asked = Want(ROOT, LAYERS, 200, NO_PREFIX, 100, hidden=256)
    router = Router()
    plan = router.plan(seen, asked, hops, 0.0)
    assert plan is not None and plan.sent.row_s == 1024 / 1e5
    computing = sum(each.times.token_s for each in plan.stages)
    ring = plan.cost.token_s - computing - plan.sent.row_s
    taken = Observed(0.0, 0.0, 0, plan.cost.token_s, ring + plan.sent.row_s, 50)
    router.beliefs.observed(plan.stages, taken, 1.0)
    again = router.plan(seen, asked, hops, 1.0)
    assert again is not None and abs(again.cost.token_s / plan.cost.token_s - 1) < 0.01
