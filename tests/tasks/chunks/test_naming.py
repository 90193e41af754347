"""Names of chunks, and proofs of knowing one."""

from shoal.tasks.chunks.naming import CHUNK, block_names, chunk_names, proof_of
from shoal.tasks.inference.names import PrefixNames, names_behind

from .pair import GIVER, OTHER, TAKER

IDS = [(7 * at) % 1000 for at in range(3 * CHUNK + 100)]
NAMES = PrefixNames(b"secret")


def test_a_chunk_has_the_name_of_its_last_block() -> None:
    names = NAMES.of("ab" * 32, IDS)
    assert chunk_names(names) == [names[end - 16 : end] for end in (256, 512, 768)]
    assert chunk_names(names[: 16 * 15]) == []
    assert block_names(names, CHUNK, CHUNK + 32) == names[256:288]


def test_names_depend_on_all_that_determines_the_values() -> None:
    mine = chunk_names(NAMES.of("ab" * 32, IDS))
    others = [
        chunk_names(NAMES.of("cd" * 32, IDS)),
        chunk_names(NAMES.of("ab" * 32 + "ef" * 32, IDS)),
        chunk_names(PrefixNames(b"salt").of("ab" * 32, IDS)),
        chunk_names(names_behind(NAMES.of("ab" * 32, IDS), ["a stage"])),
        chunk_names(NAMES.of("ab" * 32, [1, *IDS[1:]])),
    ]
    assert all(not set(mine) & set(other) for other in others)


def test_a_proof_is_for_one_asker_and_one_provider() -> None:
    name = b"n" * 16
    proofs = {
        proof_of(name, TAKER.peer, GIVER.peer),
        proof_of(name, OTHER.peer, GIVER.peer),
        proof_of(name, TAKER.peer, OTHER.peer),
        proof_of(b"m" * 16, TAKER.peer, GIVER.peer),
    }
    assert len(proofs) == 4 and name not in proofs
