"""Which relays are measured, and which are taken."""

import pytest

from shoal.transport.address import Address
from shoal.transport.identity import Identity, PeerId
from shoal.transport.relay.choice import KnownRelays, RelayCandidate, network_of
from shoal.transport.relay.defaults import CANDIDATES, RELAY_ADDRESSES


def peer(number: int) -> PeerId:
    return Identity.from_seed(number.to_bytes(32)).peer


def known(*relays: tuple[int, str, int, float | None]) -> KnownRelays:
    """Relays by number, host, port, round trip."""
    choice = KnownRelays()
    for number, host, port, rtt in relays:
        choice.offer(peer(number), Address(host, port))
        choice.lends(peer(number), True)
        candidate = choice.find(peer(number))
        assert candidate is not None
        candidate.rtt = rtt
    return choice


def everybody(choice: KnownRelays, *numbers: int) -> list[RelayCandidate]:
    found = [choice.find(peer(number)) for number in numbers]
    return [each for each in found if each is not None]


def numbers(candidates: list[RelayCandidate]) -> list[int]:
    names = {peer(number): number for number in range(20)}
    return [names[each.peer] for each in candidates]


def test_the_near_come_first() -> None:
    choice = known((1, "1.0.0.1", 1, 0.3), (2, "2.0.0.1", 1, 0.1), (3, "3.0.0.1", 1, 0.2))
    assert numbers(choice.rank(everybody(choice, 1, 2, 3), (), 3)) == [2, 3, 1]


def test_a_network_comes_twice_only_after_the_others() -> None:
    choice = known(
        (1, "1.0.0.1", 1, 0.1), (2, "1.0.9.1", 1, 0.2), (3, "3.0.0.1", 1, 0.3),
        (4, "4.0.0.1", 1, 0.05),
    )  # fmt: skip
    assert numbers(choice.rank(everybody(choice, 1, 2, 3), (), 2)) == [1, 3, 2]
    choice.offer(peer(5), Address("3.0.0.9", 1))
    assert numbers(choice.rank(everybody(choice, 1, 3), [peer(5)], 2)) == [1, 3]
    assert numbers(choice.rank(everybody(choice, 3, 4, 5), [peer(3)], 2)) == [4, 3, 5]


def test_one_on_443_is_among_those_taken() -> None:
    choice = known(
        (1, "1.0.0.1", 1, 0.1), (2, "2.0.0.1", 1, 0.2), (3, "3.0.0.1", 443, 0.9),
        (4, "4.0.0.1", 443, 0.8),
    )  # fmt: skip
    assert numbers(choice.rank(everybody(choice, 1, 2, 3, 4), (), 2)) == [1, 4, 2, 3]
    assert numbers(choice.rank(everybody(choice, 1, 2, 3), (), 3)) == [1, 2, 3]
    assert numbers(choice.rank(everybody(choice, 1, 2, 3), [peer(4)], 2)) == [1, 2, 3]
    assert choice.lacks_443([peer(1)]) and not choice.lacks_443([peer(1), peer(3)])


def test_one_on_443_is_among_those_measured() -> None:
    choice = known(*((n, f"{n}.0.0.1", 1, None) for n in range(1, 9)), (9, "9.0.0.1", 443, None))
    tried = numbers(choice.to_try((), (), 4, 0.0))
    assert len(tried) == 4 and tried[-1] == 9
    assert 9 not in numbers(choice.to_try([peer(9)], (), 4, 0.0))


def test_those_with_a_link_are_measured_first() -> None:
    choice = known(*((n, f"{n}.0.0.1", 1, None) for n in range(1, 9)))
    assert numbers(choice.to_try((), [peer(7)], 3, 0.0))[0] == 7
    assert numbers(choice.to_try([peer(7)], [peer(7)], 8, 0.0)) == [1, 2, 3, 4, 5, 6, 8]


def test_a_relay_that_replied_is_known_until_it_fails() -> None:
    choice = known((1, "1.0.0.1", 1, None), (2, "2.0.0.1", 443, 0.1))
    assert [each.peer for each in choice.answered()] == [peer(2)]
    choice.failed(peer(2), "not-a-relay", 0.0)
    assert not choice.answered()


def test_udp_443_is_not_what_is_meant() -> None:
    choice = KnownRelays()
    choice.offer(peer(1), Address("1.0.0.1", 443, transport="udp"))
    assert choice.lacks_443([peer(1)])


def test_a_failing_relay_is_backed_off_exponentially() -> None:
    choice = known((1, "1.0.0.1", 1, None))
    pauses = []
    now = 0.0
    for _ in range(12):
        choice.failed(peer(1), "timeout", now)
        pauses.append(choice.next_try(()) - now)
        assert not choice.to_try((), (), 1, now + pauses[-1] - 0.1)
        now += pauses[-1]
        assert choice.to_try((), (), 1, now)
    assert pauses[:4] == [5, 10, 20, 40] and pauses[-1] == 3600
    choice.worked(peer(1))
    choice.failed(peer(1), "timeout", now)
    assert choice.next_try(()) == now + 5


@pytest.mark.parametrize(("code", "pause"), [("not-a-relay", 3600), ("full", 600), ("silent", 5)])
def test_some_refusals_are_for_long(code: str, pause: float) -> None:
    choice = known((1, "1.0.0.1", 1, None))
    choice.failed(peer(1), code, 100.0)
    assert choice.next_try(()) == 100 + pause


def test_offers_are_bounded_and_checked() -> None:
    choice = KnownRelays()
    for number in range(300):
        assert choice.offer(peer(number), Address("1.2.3.4", 1 + number))
    assert choice.find(peer(300 - CANDIDATES)) and not choice.find(peer(299 - CANDIDATES))
    assert not choice.offer(peer(299), Address("1.2.3.4", 300))  # known
    assert not choice.offer(peer(1), Address("1.2.3.4", 5, peer(2)))  # another's
    assert not choice.offer(peer(1), Address("1.2.3.4", 5, peer(2)).through(peer(1)))
    assert choice.offer(peer(1), Address("1.2.3.4", 443, peer(1)))
    for number in range(20):
        choice.offer(peer(1), Address("1.2.3.4", 1000 + number, peer(1)))
    candidate = choice.find(peer(1))
    assert candidate is not None and len(candidate.addresses) == RELAY_ADDRESSES
    assert candidate.everywhere == Address("1.2.3.4", 443, peer(1))
    choice.failed(PeerId("nobody"), "timeout", 0.0)
    choice.worked(PeerId("nobody"))


def test_networks() -> None:
    assert network_of("1.2.3.4") == network_of("1.2.9.9") != network_of("1.3.3.4")
    assert network_of("2600:1:2::1") == network_of("2600:1:3::1") != network_of("2600:2::1")
    assert network_of("a.example") == "a.example"
