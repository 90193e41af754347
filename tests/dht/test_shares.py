"""shares: finding the largest share, and that shares within an equal part are safe."""

from random import Random

from shoal.dht.shares import Shares


def test_amounts_are_counted() -> None:
    shares = Shares()
    shares.change("a", 5)
    shares.change("b", 3)
    shares.change("a", -5)
    assert (shares["a"], shares["b"], len(shares), shares.total()) == (0, 3, 1, 3)
    shares.change("b", -3)
    assert len(shares) == 0 and not shares.order


def test_the_largest_share_is_found_with_pending_changes() -> None:
    shares = Shares()
    for name, size in (("a", 5), ("b", 9), ("c", 7)):
        shares.change(name, size)
    assert shares.largest("d", {"d": 1}) == "b"
    assert shares.largest("a", {"a": 5}) == "a"
    assert shares.largest("a", {"a": 1, "b": -4}) == "c"
    assert shares.largest("c", {"c": 2}) == "c", "ties evict the newcomer"
    assert shares.largest("a", {"a": 4}) == "a"


def test_the_order_stays_correct() -> None:
    random = Random(1)
    shares, plain = Shares(), dict.fromkeys("abcdefgh", 0)
    for _ in range(2_000):
        name = random.choice(list(plain))
        amount = random.randrange(-plain[name], 9)
        plain[name] += amount
        shares.change(name, amount)
        assert shares[name] == plain[name]
        if any(plain.values()):
            assert plain[shares.largest("x", {})] == max(plain.values())
    assert shares.order == sorted((size, name) for name, size in plain.items() if size)
