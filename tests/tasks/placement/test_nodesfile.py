"""Files that describe machines: what is read, and what is refused with the entry's name."""

import time

import pytest

from shoal.tasks.costs.rates import UNKNOWN, LinkRates
from shoal.tasks.errors import BadNodes
from shoal.tasks.placement.fleet import DEMAND, FAR, Demand
from shoal.tasks.placement.nodesfile import FILE_BYTES, MACHINES, read_newcomer, read_nodes
from shoal.transport.identity import PeerId

NODE = '[[node]]\nname = "{}"\nmemory = "4GiB"\n'
TWO = NODE.format("a") + NODE.format("b")


def test_a_whole_file() -> None:
    found = read_nodes(
        b"""
        [demand]
        sessions = 4
        [links]
        round_trip_ms = 30
        [[node]]
        name = "desk"
        memory = "24 GiB"
        bandwidth = 1008
        tflops = 165
        load = 3
        [[node]]
        name = "laptop"
        memory = "8.5GB"
        [[link]]
        between = ["laptop", "desk"]
        round_trip_ms = 2
        mbit = 800
        """
    )
    desk, laptop = found.fleet.machines
    assert (desk.memory, desk.rates.bandwidth) == (24 * 2**30, 1.008e12)
    assert (desk.rates.bfloat16, desk.rates.load) == (1.65e14, 3e9)
    assert desk.rates.efficiency.layer_s > 0
    assert laptop.memory == 8_500_000_000 and laptop.rates.bandwidth == UNKNOWN.bandwidth
    assert found.demand == Demand(4, DEMAND.prompt, DEMAND.answer)
    assert found.fleet.link(desk.peer, laptop.peer) == LinkRates(0.002, 1e8)
    assert found.fleet.link(desk.peer, PeerId("x")) == LinkRates(0.03, FAR.rate)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 entries"),
        (NODE.format("a") * 2, "same name"),
        ("".join(NODE.format(n) for n in range(MACHINES + 1)), "65 entries"),
        ("node = 3", "write [[node]]"),
        ("node = [1]", "write [[node]]"),
        ("nodes = 1\n" + TWO, "unknown key `nodes`"),
        ("[[node]]\nname = 3", "no `name`"),
        ('[[node]]\nname = ""', "no `name`"),
        ('[[node]]\nname = "a\\u001b[31m"', "no `name`"),
        (f'[[node]]\nname = "{"a" * 65}"', "no `name`"),
        ('[[node]]\nname = "a"', "`memory` is not a size"),
        ('[[node]]\nname = "a"\nmemory = 4', "`memory` is not a size"),
        ('[[node]]\nname = "a"\nmemory = "nanGiB"', "`memory` is not a size"),
        ('[[node]]\nname = "a"\nmemory = "-1GiB"', "`memory` is not a size"),
        ('[[node]]\nname = "a"\nmemory = "1e30GiB"', "`memory` is not a size"),
        ('[[node]]\nname = "a"\nmemory = "4 furlongs"', "`memory` is not a size"),
        (NODE.format("a") + "bandwidth = nan", "`bandwidth` is not a number"),
        (NODE.format("a") + "bandwidth = inf", "`bandwidth` is not a number"),
        (NODE.format("a") + "bandwidth = 0", "`bandwidth` is not a number"),
        (NODE.format("a") + "tflops = true", "`tflops` is not a number"),
        (NODE.format("a") + "price = 3", "unknown key `price`"),
        (TWO + "[[link]]\nround_trip_ms = 3", "no `between`"),
        (TWO + '[[link]]\nbetween = ["a"]', "no `between`"),
        (TWO + '[[link]]\nbetween = ["a", 1]', "no `between`"),
        (TWO + '[[link]]\nbetween = ["a", "z"]', "names the node 'z'"),
        (TWO + '[[link]]\nbetween = ["a", "a"]', "with itself"),
        (TWO + '[[link]]\nbetween = ["a", "b"]\nround_trip_ms = -1', "`round_trip_ms`"),
        (TWO + "[demand]\nsessions = 0", "`sessions` is not a whole number"),
        (TWO + "[demand]\nsessions = 65", "`sessions` is not a whole number"),
        (TWO + "[demand]\nprompt = 1.5", "`prompt` is not a whole number"),
        ("demand = 1\n" + TWO, "write [demand]"),
        ("a = " + "[" * 5000, "nested too deeply"),
        ("[[node]", "not TOML"),
        (NODE.format("a") + "load = " + "1" * 5000, "not TOML"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadNodes) as failure:
        read_nodes(text.encode())
    assert says in failure.value.message and failure.value.hint


def test_bytes_that_are_no_text_and_large_files_are_refused() -> None:
    for data, says in ((b"\xff\xfe", "not UTF-8"), (b"#" * (FILE_BYTES + 1), "the file has over")):
        with pytest.raises(BadNodes) as failure:
            read_nodes(data)
        assert says in failure.value.message


@pytest.mark.parametrize(
    "bomb", ["a.", "a .\t", '"a\\"".', "'a'.", "[a.a.", "x = {a.", "é.", '"\\"', "1"]
)
def test_files_that_would_take_hours_are_refused_at_once(bomb: str) -> None:
    text = bomb + bomb.lstrip("[x= {") * (FILE_BYTES // len(bomb.encode()) - 16)
    began = time.process_time()
    with pytest.raises(BadNodes):
        read_nodes(f"{text}a = 1".encode())
    assert time.process_time() - began < 10


def test_a_newcomer() -> None:
    found = read_newcomer("memory=24GiB, bandwidth=1008,round_trip_ms=5,mbit=80", "new")
    assert (found.machine.memory, found.machine.rates.bandwidth) == (24 * 2**30, 1.008e12)
    assert found.link == LinkRates(0.005, 1e7) and found.machine.peer == "new"


@pytest.mark.parametrize(
    "text", ["", "memory", "memory=4GiB,memory=5GiB", "name=x,memory=4GiB", "memory=4GiB,tflops=x",
             "memory=4GiB,tflops=nan", "bandwidth=1008"],
)  # fmt: skip
def test_newcomers_that_are_refused(text: str) -> None:
    with pytest.raises(BadNodes) as refused:
        read_newcomer(text, "new")
    assert "--add" in str(refused.value) and "[[node]]" not in str(refused.value)
