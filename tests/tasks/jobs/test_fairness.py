"""Tests of fair queueing: no user delays another, whatever it submits."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.fairness import FairQueue, weight_of
from shoal.transport.identity import PeerId

USERS = [PeerId(letter * 52) for letter in "abcdefgh"]


class Server:
    """A server that does one piece at a time, in the order of the queue."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.waiting: list[tuple[PeerId, str, float, int, float]] = []
        self.served: dict[PeerId, float] = {}

    def submit(
        self, user: PeerId, job: str, pieces: int, work: float, *, priority: int = 0,
        deadline: float = 0.0,
    ) -> None:  # fmt: skip
        self.queue.came(user, job, pieces * work)
        self.waiting += [(user, job, work, priority, deadline)] * pieces

    def step(self) -> tuple[PeerId, str]:
        """Do the next piece."""
        best = min(
            self.waiting,
            key=lambda each: self.queue.order(
                each[0], each[1], each[2], priority=each[3], deadline=each[4]
            ),
        )
        self.waiting.remove(best)
        user, job, work, _, _ = best
        self.queue.begin(user, work)
        self.served[user] = self.served.get(user, 0.0) + work
        return user, job

    def has(self, user: PeerId) -> bool:
        return any(each[0] == user for each in self.waiting)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),  # user
            st.integers(1, 12),  # pieces
            st.floats(0.05, 10.0),  # work of a piece
            st.integers(0, 9),  # priority
            st.sampled_from([0.0, 5.0, 100.0]),  # deadline
            st.integers(0, 10),  # pieces that the server does before it comes
        ),
        max_size=12,
    )
)
def test_backlogged_users_get_equal_work_within_two_pieces(
    jobs: list[tuple[int, int, float, int, float, int]],
) -> None:
    """Between any two moments at which two users always had work, they got the same work, but for
    the largest piece of each."""
    server = Server(FairQueue())
    largest = max([work for _, _, work, *_ in jobs], default=0.0)
    log: list[dict[PeerId, tuple[bool, float]]] = []

    def step() -> None:
        if server.waiting:
            log.append({u: (server.has(u), server.served.get(u, 0.0)) for u in USERS[:4]})
            server.step()

    for number, (user, pieces, work, priority, deadline, before) in enumerate(jobs):
        for _ in range(before):
            step()
        server.submit(USERS[user], str(number), pieces, work, priority=priority, deadline=deadline)
    while server.waiting:
        step()
    for one in USERS[:4]:
        for two in USERS[:4]:
            start: dict[PeerId, tuple[bool, float]] | None = None
            for moment in log:
                if not (moment[one][0] and moment[two][0]):
                    start = None
                    continue
                start = start or moment
                got = [moment[user][1] - start[user][1] for user in (one, two)]
                assert abs(got[0] - got[1]) <= 2 * largest + 1e-6


def test_a_flood_delays_no_other_user() -> None:
    server = Server(FairQueue())
    for number in range(500):
        server.submit(USERS[0], f"flood {number}", 2, 1.0, priority=9, deadline=1.0)
    for _ in range(100):
        server.step()
    for user in USERS[1:4]:
        server.submit(user, f"of {user}", 1, 1.0)
    order = [server.step()[0] for _ in range(6)]
    assert set(USERS[1:4]) <= set(order[:5])


def test_a_user_saves_up_nothing_while_it_has_no_jobs() -> None:
    server = Server(FairQueue())
    server.submit(USERS[1], "early", 1, 1.0)
    server.submit(USERS[0], "long", 300, 1.0)
    for _ in range(200):
        server.step()
    server.submit(USERS[1], "late", 100, 1.0)
    turns = [server.step()[0] for _ in range(40)]
    assert 19 <= turns.count(USERS[1]) <= 21


def test_within_a_user_deadlines_come_first_and_small_jobs_do_not_wait() -> None:
    server = Server(FairQueue())
    server.submit(USERS[0], "giant", 100, 1.0)
    for _ in range(10):
        server.step()
    server.submit(USERS[0], "small", 2, 1.0)
    server.submit(USERS[0], "due", 2, 1.0, deadline=50.0)
    server.submit(USERS[0], "urgent", 1, 1.0, priority=5)
    order = [server.step()[1] for _ in range(6)]
    assert order == ["urgent", "due", "due", "small", "small", "giant"]


def test_a_giant_job_is_not_overtaken_for_ever() -> None:
    """Small jobs of the same user keep coming; each new one has a later tag."""
    server, lot = Server(FairQueue()), Random(1)
    server.submit(USERS[0], "giant", 50, 1.0)
    done = 0
    for number in range(2000):
        if number % 2 == 0:
            server.submit(USERS[0], f"small {number}", 1, lot.uniform(0.5, 1.5))
        done += bool(server.waiting) and server.step()[1] == "giant"
    assert done == 50


def test_a_user_that_has_given_gets_more() -> None:
    weights = {USERS[0]: weight_of(0.0), USERS[1]: weight_of(3600.0)}
    server = Server(FairQueue(lambda user: weights[user]))
    for user in USERS[:2]:
        server.submit(user, f"of {user}", 300, 1.0)
    turns = [server.step()[0] for _ in range(300)]
    assert weights[USERS[1]] == 2.0 and 98 <= turns.count(USERS[0]) <= 102
    assert server.queue.share(USERS[1], USERS[:1]) == 2 / 3
    assert weight_of(1e12) > weight_of(36_000.0) > weight_of(3600.0)


def test_the_place_of_a_piece_is_that_in_which_it_is_served() -> None:
    """Users of different weights, in all orders: the piece is begun when its place says."""
    weights = {USERS[0]: 1.0, USERS[1]: 2.0, USERS[2]: 4.0}
    piece = defaults.PIECE_TIME
    for user in USERS[:3]:
        for mine in (0, 1, 3, 7):
            server = Server(FairQueue(lambda user: weights.get(user, 1.0)))
            for each in USERS[:3]:
                server.submit(each, f"of {each}", 10, piece)
            waiting = {each: 10 for each in USERS[:3] if each != user}
            expected, seen, turns = server.queue.ahead(user, mine, waiting), 0, 0
            while seen <= mine:
                seen += server.step()[0] == user
                turns += 1
            assert abs(expected - (turns - 1)) <= len(waiting), (user, mine)
            assert server.queue.ahead(user, mine, {USERS[3]: 0}) == mine


def test_no_weight_is_without_bounds() -> None:
    server = Server(FairQueue(lambda user: 1e9 if user == USERS[0] else -5.0))
    for user in USERS[:2]:
        server.submit(user, f"of {user}", 300, 1.0)
    turns = [server.step()[0] for _ in range(100)]
    assert turns.count(USERS[1]) >= 100 / (1 + defaults.MOST_WEIGHT) - 1


def test_memory_is_bounded() -> None:
    queue = FairQueue()
    for number in range(3 * defaults.USERS):
        user = PeerId(f"{number:052d}")
        queue.came(user, "job", 1.0)
        queue.begin(user, 1.0)
    assert len(queue.users) <= defaults.USERS + 1
    for number in range(2 * defaults.TAGS):
        queue.came(USERS[0], str(number), 1.0)
    assert len(queue.users[USERS[0]].tags) <= defaults.TAGS
