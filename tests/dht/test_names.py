"""names: meanings of names, and their vouchers."""

from typing import Any

import pytest

from shoal.dht import defaults
from shoal.dht.errors import ModelError
from shoal.dht.finding import FindingResult
from shoal.dht.lookup.foundrecords import FoundRecord
from shoal.dht.names import NameQuery, NameResolver, VoucherSource, chosen, read, spelled
from shoal.dht.records.key import Key, record_key
from shoal.dht.records.record import Body, NameBody, OtherBody
from shoal.transport.identity import PeerId

from .nodes import identity, record

A, B, C = "aa" * 32, "bb" * 32, "aa" * 20 + "cc" * 12
OWN, KEEPER = PeerId("own"), PeerId("keeper")


def body(name: str, root: str) -> NameBody:
    return NameBody(name, root, 6, 1 << 20)


class Swarm:
    """Names given `here`, `told` by members, and `far`: the DHT's reply for any key."""

    def __init__(self) -> None:
        self.here: dict[str, str] = {}
        self.known: list[str] = []
        self.told: list[tuple[PeerId, NameBody]] = []
        self.far: list[FoundRecord] = []
        self.asked: list[Key] = []
        self.names = NameResolver(
            self,
            own=OWN,
            here=lambda: self.here,
            known=lambda: self.known,
            told=lambda: self.told,
        )

    async def find(self, key: Key, **how: Any) -> FindingResult:
        self.asked.append(key)
        return FindingResult(tuple(self.far))

    def says(self, author: int, said: Body, age: float = 5.0) -> None:
        self.far.append(FoundRecord(record(said, author), age, KEEPER))


@pytest.mark.trio
async def test_names_given_here_take_precedence() -> None:
    swarm = Swarm()
    swarm.here["tiny"] = A
    swarm.told = [(identity(1).peer, body("tiny", B)), (OWN, body("tiny", A))]
    swarm.says(2, body("tiny", C))
    meant = await swarm.names.resolve("tiny")
    assert (meant.root, meant.source, meant.layers) == (A, VoucherSource.HERE, 6)
    assert [each.peer for each in meant.vouchers] == [OWN] and not swarm.asked
    del swarm.here["tiny"], swarm.told[1]
    assert (await swarm.names.resolve("tiny")).root == B, "then those of members"
    assert not swarm.asked
    swarm.told.clear()
    meant = await swarm.names.resolve("tiny")
    assert (meant.root, meant.source) == (C, VoucherSource.DHT), "then those in the DHT"
    assert swarm.asked == [record_key("name", "tiny")]
    assert [(each.peer, each.age) for each in meant.vouchers] == [(identity(2).peer, 5.0)]


@pytest.mark.trio
async def test_several_roots_are_choices_and_a_hash_picks() -> None:
    swarm = Swarm()
    for author, root in ((1, A), (2, B), (3, B)):
        swarm.says(author, body("tiny", root))
    with pytest.raises(ModelError) as raised:
        await swarm.names.resolve("tiny")
    assert raised.value.code == "ambiguous-model"
    first = raised.value.message.index("tiny@bbbbbbbb")
    assert first < raised.value.message.index("tiny@aaaaaaaa"), "most vouchers first"
    assert "and 1 more" in raised.value.message and identity(1).peer in raised.value.message
    assert (await swarm.names.resolve("tiny@a")).root == A
    assert (await swarm.names.resolve(f"tiny@{B}")).root == B
    with pytest.raises(ModelError) as raised:
        await swarm.names.resolve("tiny@c")
    assert raised.value.code == "unknown-model"
    assert raised.value.hint == "the name is known with another hash: tiny@bbbbbbbb, tiny@aaaaaaaa"


@pytest.mark.trio
async def test_a_hash_overrides_nearer_sources() -> None:
    swarm = Swarm()
    swarm.here["tiny"] = A
    swarm.told = [(identity(1).peer, body("tiny", A))]
    swarm.says(2, body("tiny", B))
    assert (await swarm.names.resolve(f"tiny@{B[:8]}")).root == B


@pytest.mark.trio
async def test_an_attacker_can_match_a_prefix_but_not_all_digits() -> None:
    """Two roots share their first digits. The error lists enough digits to tell them apart; all 64
    digits are unambiguous."""
    swarm = Swarm()
    swarm.says(1, body("tiny", A))
    swarm.says(2, body("tiny", C))
    with pytest.raises(ModelError) as raised:
        await swarm.names.resolve("tiny@aaaaaaaa")
    assert f"tiny@{A[:41]} " in raised.value.message and f"tiny@{C[:41]} " in raised.value.message
    assert (await swarm.names.resolve(f"tiny@{A}")).root == A


@pytest.mark.trio
async def test_an_author_counts_once_by_its_nearest_source() -> None:
    swarm = Swarm()
    swarm.told = [(identity(1).peer, body("tiny", A))]
    swarm.says(1, body("tiny", A))
    swarm.says(2, body("tiny", A), age=9.0)
    (meant,) = await swarm.names.meanings("tiny")
    assert [(each.peer, each.source) for each in meant.vouchers] == [
        (identity(1).peer, VoucherSource.MEMBERS), (identity(2).peer, VoucherSource.DHT),
    ]  # fmt: skip


@pytest.mark.trio
async def test_records_of_other_names_and_kinds_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hostile node returns records signed for another name or kind, or in this node's name."""
    swarm = Swarm()
    swarm.says(1, body("other", A))
    swarm.says(2, OtherBody("name2", ("tiny",), ""))
    own = record(body("tiny", B), 3)
    swarm.names = NameResolver(swarm, own=own.author, here=dict, known=list, told=list)
    swarm.far.append(FoundRecord(own, 0.0, KEEPER))
    with pytest.raises(ModelError) as raised:
        await swarm.names.resolve("tiny")
    assert raised.value.code == "unknown-model"

    # Twin: without checking what was signed, another model is taken for it.
    monkeypatch.setattr(NameQuery, "fits", lambda self, name, root: True)
    assert (await swarm.names.resolve("tiny")).root == A


@pytest.mark.trio
async def test_the_number_of_roots_is_limited() -> None:
    swarm = Swarm()
    for author in range(1, 60):
        swarm.says(author, body("tiny", f"{author:064x}"))
    meanings = await swarm.names.meanings("tiny")
    assert len(meanings) == defaults.NAME_MEANINGS
    with pytest.raises(ModelError) as raised:
        await swarm.names.resolve("tiny")
    assert raised.value.message.count("tiny@") == defaults.NAME_CHOICES
    assert len(raised.value.message) < 1000 and "more" in raised.value.message


@pytest.mark.trio
async def test_roots_need_no_name() -> None:
    swarm = Swarm()
    assert (await swarm.names.resolve(B)).root == B, "a full root needs no voucher"
    swarm.known = [A, C]
    assert (await swarm.names.resolve(C[:60])).root == C
    with pytest.raises(ModelError) as raised:
        await swarm.names.resolve("aaaaaaaa")
    assert raised.value.code == "ambiguous-model"
    swarm.told = [(identity(1).peer, body("tiny", B))]
    meant = await swarm.names.resolve("bbbbbbbb")
    assert (meant.name, meant.root, len(meant.vouchers)) == ("", B, 1)
    assert not swarm.asked, "the start of a root does not give the key of its records"


@pytest.mark.trio
async def test_a_name_given_here_may_look_like_a_hash() -> None:
    swarm = Swarm()
    swarm.here["deadbeef"] = A
    assert (await swarm.names.resolve("deadbeef")).root == A


BAD = [
    "",
    "@",
    "tiny@",
    "tiny@xyz",
    "tiny@AB",
    "@ab",
    "a b",
    "-x",
    "x" * 65,
    "\x1b[2J",
    "t\u0456ny",
    "a/b",
]


@pytest.mark.trio
@pytest.mark.parametrize("text", [*BAD, "tiny@" + "a" * 65, "\u202etiny"])
async def test_bad_names(text: str) -> None:
    with pytest.raises(ModelError) as raised:
        await Swarm().names.resolve(text)
    assert raised.value.code == "bad-name"
    assert raised.value.message.isascii() and raised.value.message.isprintable()


def test_parsing() -> None:
    assert read("tiny") == NameQuery("tiny", "")
    assert read("tiny@ab") == NameQuery("tiny", "ab")
    assert read("abcdef01") == NameQuery("", "abcdef01")
    assert read("abcdef0") == NameQuery("abcdef0", ""), "seven digits are a name"


@pytest.mark.trio
async def test_spellings_are_unique() -> None:
    swarm = Swarm()
    swarm.told = [(identity(1).peer, body("tiny", A)), (identity(2).peer, body("tiny", B))]
    meanings = await swarm.names.meanings("tiny")
    assert {spelled(one, meanings) for one in meanings} == {"tiny@aaaaaaaa", "tiny@bbbbbbbb"}
    assert chosen(NameQuery("tiny", ""), []) == []
