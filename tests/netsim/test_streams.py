"""A stream belongs to one owner and purpose only."""

import subprocess
import sys

from shoal.netsim.streams import RandomStreams


def draws(seed: int, owner: str, purpose: str) -> list[float]:
    stream = RandomStreams(seed).get(owner, purpose)
    return [stream.random() for _ in range(5)]


def test_seed_owner_and_purpose_make_a_stream() -> None:
    mine = draws(1, "alice", "loss")
    assert mine == draws(1, "alice", "loss")
    others = [draws(2, "alice", "loss"), draws(1, "bob", "loss"), draws(1, "alice", "jitter")]
    assert mine not in others and len({tuple(other) for other in others}) == 3


def test_another_s_draws_change_nothing() -> None:
    streams = RandomStreams(1)
    first = streams.get("alice", "loss").random()
    for _ in range(100):
        streams.get("bob", "loss").random()
    assert [first, streams.get("alice", "loss").random()] == draws(1, "alice", "loss")[:2]
    assert streams.get("alice", "loss") is streams.get("alice", "loss")


def test_hash_seeds_do_not_matter() -> None:
    code = (
        "from shoal.netsim.streams import RandomStreams\n"
        "print(RandomStreams(7).get('alice', 'loss').random())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True
        ).stdout
        for seed in "012"
    }
    assert len(printed) == 1 and printed != {b""}
