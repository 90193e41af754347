"""Names of shared models among many members, of which many may be an attacker's."""

import time
from hashlib import sha256

from shoal.state.membership.record import MemberRecord, SharedModel
from shoal.tasks.sharing.offers import called, offers, offers_of, pinned, read_name
from shoal.transport.identity import PeerId
from shoal.transport.shortid import COMMON

_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def peer(number: int) -> PeerId:
    """A peer id whose first characters are those of many others."""
    digest = sha256(str(number).encode()).digest()
    return PeerId(COMMON + "1" * 8 + "".join(_DIGITS[byte % 4] for byte in digest))


def members(count: int, models: int) -> dict[PeerId, MemberRecord]:
    shared = tuple(SharedModel(f"llama-{number}", "other") for number in range(models))
    return {each: MemberRecord(each, 1, shared=shared) for each in map(peer, range(count))}


def test_an_offer_is_called_by_its_name_or_pinned_beside_a_root() -> None:
    many = members(40, 3)
    everyone = offers(many)
    found = called(many, {"llama-1"})
    assert [offer for _, offer in found] == everyone
    for name, offer in found:
        rooted = offer.model.name == "llama-1"
        assert name == (pinned(offer, everyone) if rooted else offer.model.name)
        assert not rooted or offers_of(many, read_name(name)) == [offer]


def test_a_member_that_offers_a_name_twice_does_not_hide_its_neighbours() -> None:
    many = members(30, 1)
    twice = (SharedModel("llama-0", "other"),) * 2
    many = {each: MemberRecord(each, 1, shared=twice) for each in many}
    for name, offer in called(many, {"llama-0"}):
        assert name == pinned(offer, offers(many))


def test_many_offers_under_the_names_of_other_models_do_not_stall_the_node() -> None:
    many, names = members(512, 8), {f"llama-{number}" for number in range(8)}
    began = time.process_time()
    assert len(called(many, names)) == 4096
    assert time.process_time() - began < 1.0  # it took 40 s to pin each among all
