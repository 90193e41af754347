"""The queue of requests for memory, which one gateway must not fill."""

from typing import cast

from shoal.tasks.defaults import QUEUED_OF_ONE, QUEUED_REQUESTS
from shoal.tasks.inference.memoryqueue import MemoryQueue
from shoal.tasks.inference.messages import Open
from tests.tasks.fake_swarm import peer_of

EVE, ALICE, BOB = map(peer_of, range(1, 4))


class Asked:
    def __init__(self, user: bytes, soon: int = 100) -> None:
        self.user, self.soon = user, soon


def asked(user: int) -> Open:
    return cast(Open, Asked(b"%d" % user))


def test_one_gateway_does_not_fill_the_queue_with_made_up_users() -> None:
    queue = MemoryQueue()
    for user in range(2 * QUEUED_REQUESTS):
        queue.wait(EVE, asked(user), 1, 0.0)
    assert len(queue.waiting) == QUEUED_OF_ONE
    queue.wait(ALICE, asked(0), 5, 1.0)
    assert queue.ahead(BOB, asked(0), 2.0) == 6
    assert queue.ahead(ALICE, asked(0), 2.0) == 1
