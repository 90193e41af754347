"""`kv.part`: chunks are given to peers that know a name, within limits."""

from typing import Any

import pytest
import trio

from shoal.tasks.chunks.messages import AskPart
from shoal.tasks.chunks.naming import CHUNK, chunk_names, is_signed, proof_of
from shoal.tasks.defaults import CHUNK_REFUSALS, PARTS_GIVEN_TO_ONE
from shoal.tasks.engine.interface import KvRange
from shoal.transport.identity import PeerId
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Answer, Call, Refusal, Reply

from .pair import GIVER, OTHER, TAKER, Pair, names, origin

pytestmark = pytest.mark.trio
FIRST = KvRange(0, CHUNK, 0, 1)


def asked(pair: Pair, of: KvRange = FIRST, **changes: Any) -> dict[str, Any]:
    chain = origin().chain(pair.names)
    assert chain is not None
    chunk = of.start // CHUNK
    proof = proof_of(chunk_names(pair.names)[chunk], TAKER.peer, GIVER.peer)
    return AskPart(chain.tags[chunk], proof, of, "int8").header() | changes


async def ask(pair: Pair, header: dict[str, Any], peer: PeerId = TAKER.peer) -> Answer:
    answer: Answer = await pair.board.handlers["kv.part"](Call(peer, header, b""))
    return answer


def code(answer: Answer) -> str:
    return answer.code if isinstance(answer, Refusal) else "ok"


async def test_a_part_is_given_with_a_signature(autojump_clock: object) -> None:
    pair = Pair()
    part = KvRange(CHUNK + 32, 2 * CHUNK, 1, 2)
    header = asked(pair, part)
    reply = await ask(pair, header)
    assert isinstance(reply, Reply) and reply.priority is Priority.BULK
    signature: Any = reply.header["signature"]
    assert is_signed(GIVER.peer, header["tag"], bytes(reply.payload), signature)
    assert not is_signed(OTHER.peer, header["tag"], bytes(reply.payload), signature)
    ((blocks, told),) = pair.giving.asked
    assert told == part and (blocks.owner, blocks.shard) == (origin().owner, 0)
    assert blocks.names == pair.names[16 * 18 : 16 * 32]


async def test_who_does_not_know_the_name_gets_what_anybody_gets(autojump_clock: object) -> None:
    """A peer that saw the tag in a record, or the proof of another asker, learns nothing."""
    pair = Pair()
    unknown = await ask(pair, asked(pair, tag=bytes(32)))
    guessed = await ask(pair, asked(pair, proof=bytes(16)))
    replayed = await ask(pair, asked(pair), OTHER.peer)
    assert unknown == guessed == replayed and code(unknown) == "unknown-chunk"
    assert not pair.giving.asked


async def test_without_the_proof_a_tag_would_be_enough(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin of the test above."""
    monkeypatch.setattr("hmac.compare_digest", lambda *_: True)
    pair = Pair()
    assert code(await ask(pair, asked(pair, proof=bytes(16)))) == "ok"


BAD: list[dict[str, Any]] = [
    {"tag": bytes(31)},
    {"tag": "x" * 32},
    {"proof": b""},
    {"form": "int4"},
    {"part": [0, 0, 0, 1]},
    {"part": [0, CHUNK, 1, 1]},
    {"part": [0, 2 * CHUNK, 0, 1]},
    {"part": [16, 8, 0, 1]},
    {"part": [-16, 16, 0, 1]},
    {"part": [0, 1 << 40, 0, 1]},
    {"part": "0:256"},
    {"part": None},
]


@pytest.mark.parametrize("changes", BAD)
async def test_malformed_requests(changes: dict[str, Any], autojump_clock: object) -> None:
    pair = Pair()
    assert code(await ask(pair, asked(pair, **changes))) == "bad-request"
    assert not pair.giving.asked


async def test_positions_of_another_chunk(autojump_clock: object) -> None:
    pair = Pair()
    header = asked(pair, part=[CHUNK, CHUNK + 16, 0, 1])
    assert code(await ask(pair, header)) == "bad-request"


async def test_a_flood_of_guesses_is_refused_without_looking(autojump_clock: object) -> None:
    pair = Pair()
    codes = [code(await ask(pair, asked(pair, tag=number.to_bytes(32)))) for number in range(1000)]
    assert codes.count("unknown-chunk") == int(CHUNK_REFUSALS[0])
    assert set(codes) == {"unknown-chunk", "busy"}
    assert code(await ask(pair, asked(pair))) == "ok", "what it knows, it gets"


async def test_one_peer_gets_a_limited_number_of_parts_at_once(autojump_clock: object) -> None:
    pair = Pair()
    pair.giving.pause = 1.0
    codes: list[str] = []

    async def one() -> None:
        codes.append(code(await ask(pair, asked(pair))))

    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(one)
    assert codes.count("ok") == PARTS_GIVEN_TO_ONE and codes.count("busy") == 24
    assert not pair.provider.giving


async def test_evicted_chunks_are_withdrawn(autojump_clock: object) -> None:
    pair = Pair()
    pair.giving.evicted = True
    assert code(await ask(pair, asked(pair, form="exact"))) == "unknown-chunk"
    assert len(pair.store) == 3, "a copy in int8 may be there"
    assert code(await ask(pair, asked(pair, KvRange(CHUNK, 2 * CHUNK, 0, 1)))) == "unknown-chunk"
    assert len(pair.store) == 1 and len(pair.board.withdrawn) == 1


async def test_the_number_of_chunks_is_limited(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.tasks.chunks.store.CHUNKS_STORED", 50)
    pair = Pair()
    for seed in range(100):
        pair.store.add(origin(), names(7, seed))
    assert len(pair.store) == 50


async def test_chunks_are_published_only_if_somebody_may_want_them(
    autojump_clock: object,
) -> None:
    pair = Pair()
    assert [publish for _, _, publish in pair.board.announced] == [True]
    pair.store.wanted = lambda root, layers: False
    pair.store.add(origin(), names(2, seed=5))
    assert [publish for _, _, publish in pair.board.announced] == [True, False]
    pair.store.add(origin(), names(2, seed=6)[: 15 * 16])
    assert len(pair.board.announced) == 2, "no full chunk"
