"""Limits of one stage for all trainers together, and the frames between trainer and stage."""

import json
from pathlib import Path

import pytest

from shoal.node.defaults import EMBEDDED_ROOT
from shoal.tasks.engine.adapters import AdapterTerms
from shoal.tasks.engine.defaults import TUNINGS
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import Parts
from shoal.tasks.errors import BadMessage, SessionError
from shoal.tasks.tuning.defaults import (
    HEAD_BYTES,
    PEER_BYTES,
    STAGE_BYTES,
    TUNINGS_OF_OTHERS,
    TUNINGS_PER_NETWORK,
    TUNINGS_PER_PEER,
)
from shoal.tasks.tuning.messages import (
    Said,
    TuneOpen,
    frame,
    frame_size,
    parse_frame,
    refusal_error,
    refused,
)
from shoal.tasks.tuning.stage.opened import OpenedTuning, OpenedTunings
from shoal.tasks.usage.metering import Use
from shoal.transport.identity import PeerId

OWN, *OTHERS = (PeerId(f"peer{number}") for number in range(TUNINGS_OF_OTHERS + 2))
TINY = Path(__file__).parents[3] / "shoal" / "models" / "tiny"
ARCH = architecture(json.loads((TINY / "config.json").read_text()))
TERMS = AdapterTerms(EMBEDDED_ROOT, 4, 8.0, False, "F32", ("q_proj",), (0,))
PARTS = Parts(True, 0, 1, False)


def opened(
    tunings: OpenedTunings, peer: PeerId, name: bytes = b"n" * 16, payer: PeerId | None = None
) -> OpenedTuning:
    with tunings.opening(peer, name, payer or peer):
        order, use = TuneOpen(name, EMBEDDED_ROOT, PARTS, "float32", TERMS), Use(peer, "", "")
        found = OpenedTuning(order, peer, PARTS, ARCH, name, use, 0.0, payer or peer)
        tunings.add(found)
    return found


def test_tunings_of_all_trainers_are_bounded_but_not_the_owner_s() -> None:
    tunings = OpenedTunings(OWN, str)
    for peer in OTHERS[:TUNINGS_OF_OTHERS]:
        opened(tunings, peer)
    with pytest.raises(SessionError, match="limit"):
        opened(tunings, OTHERS[-1])
    for number in range(6):
        opened(tunings, OWN, bytes([number]) * 16)
    first = next(iter(tunings))
    assert tunings.remove(first, "idle") and not tunings.remove(first, "idle")
    opened(tunings, OTHERS[-1])


def test_many_identities_of_one_network_leave_places_to_others() -> None:
    networks = dict.fromkeys(OTHERS[:-2], "192.0.2.1") | {OTHERS[-2]: "192.0.2.2"}
    tunings = OpenedTunings(OWN, lambda peer: networks.get(peer, ""))
    for peer in OTHERS[:TUNINGS_PER_NETWORK]:
        opened(tunings, peer)
    refused_one = OTHERS[TUNINGS_PER_NETWORK]
    with pytest.raises(SessionError, match="limit"):
        opened(tunings, refused_one)
    opened(tunings, OTHERS[-2])
    opened(tunings, OTHERS[-1])
    opened(tunings, refused_one, payer=OWN)
    opened(tunings, OWN, payer=OTHERS[-2])
    assert tunings.remove(next(iter(tunings)), "idle")
    opened(tunings, refused_one, b"m" * 16)


def test_a_user_has_a_few_places_however_many_trainers_it_has() -> None:
    tunings, author = OpenedTunings(OWN, str), OTHERS[-1]
    for peer in (*OTHERS[: TUNINGS_PER_PEER - 1], OWN):
        opened(tunings, peer, payer=author)
    for trainer in (OTHERS[TUNINGS_PER_PEER], OWN):
        with pytest.raises(SessionError, match="limit"):
            opened(tunings, trainer, b"m" * 16, author)
    opened(tunings, OTHERS[TUNINGS_PER_PEER])


def test_a_trainer_of_this_node_s_own_job_has_a_few_places_too() -> None:
    tunings = OpenedTunings(OWN, str)
    for number in range(TUNINGS_PER_PEER):
        opened(tunings, OTHERS[0], bytes([number]) * 16, OWN)
    with pytest.raises(SessionError, match="limit"):
        opened(tunings, OTHERS[0], payer=OWN)
    opened(tunings, OTHERS[1], payer=OWN)


def test_trainers_that_name_jobs_of_this_node_are_bounded_together() -> None:
    """Claims cost nothing, and neither do identities that claim. The engine has room for more."""
    tunings, most = OpenedTunings(OWN, str), 2 * TUNINGS_OF_OTHERS
    for number in range(most):
        opened(tunings, PeerId(f"trainer{number}"), payer=OWN)
    with pytest.raises(SessionError, match="limit"):
        opened(tunings, OTHERS[0], payer=OWN)
    assert most < TUNINGS
    opened(tunings, OWN)


def test_places_are_taken_while_tunings_open() -> None:
    tunings = OpenedTunings(OWN, str)
    with tunings.opening(OTHERS[0], b"a" * 16, OTHERS[0]):
        with pytest.raises(SessionError) as error:
            opened(tunings, OTHERS[0], b"a" * 16)
        assert error.value.code == "session-exists"
        opened(tunings, OTHERS[1], b"a" * 16)
    opened(tunings, OTHERS[0], b"a" * 16)


def test_memory_is_bounded_for_one_trainer_and_for_all() -> None:
    tunings = OpenedTunings(OWN, str)
    one, two, three = OTHERS[:3]
    with tunings.memory(one, PEER_BYTES):
        for size in (1, STAGE_BYTES):
            with pytest.raises(SessionError), tunings.memory(one, size):
                raise AssertionError
        with tunings.memory(two, STAGE_BYTES - PEER_BYTES):
            with pytest.raises(SessionError), tunings.memory(three, 1):
                raise AssertionError
        with tunings.memory(three, 1):
            pass
    with tunings.memory(one, PEER_BYTES):
        pass


def test_frames_are_bounded_and_checked() -> None:
    packed = frame(Said("done", size=7))
    assert parse_frame(packed[4:]).size == 7 and frame_size(packed[:4]) == len(packed) - 4
    with pytest.raises(BadMessage):
        frame_size((HEAD_BYTES + 1).to_bytes(4))
    for data in (b"", b"\xc1", packed[4:-1], packed[4:] + b"\0", frame(Said("done", size=-1))[4:]):
        with pytest.raises(BadMessage):
            parse_frame(data)


def test_a_stage_chooses_neither_codes_nor_what_a_terminal_does() -> None:
    error = refusal_error("rm -rf", "\x1b[2Jgone\n" + "x" * 1000)
    assert error.code == "stage-failed" and error.message.isprintable()
    assert len(error.message) <= 300
    assert len(refused("c" * 99, "m" * 999).message) <= 300
