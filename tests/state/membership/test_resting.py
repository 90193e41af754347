"""Which links rest; a linked peer may report links to peers without end."""

from shoal.state import defaults
from shoal.state.membership.resting import Resting
from shoal.transport.identity import PeerId


def test_peers_that_do_not_exist_do_not_fill_the_memory() -> None:
    said: dict[PeerId, set[PeerId]] = {PeerId("eve"): set(), PeerId("bob"): {PeerId("eve")}}
    answering = {PeerId("eve"): "here", PeerId("bob"): "here"}
    resting = Resting(PeerId("own"), answering=answering, said=said)
    for turn in range(3 * defaults.PLACES // defaults.TESTIMONIES):
        said[PeerId("eve")] = {PeerId(f"{turn}-{number}") for number in range(defaults.TESTIMONIES)}
        resting.reported(PeerId("eve"))
        resting.changed()
        resting.watchers(PeerId("eve"))
        assert len(resting.places) <= defaults.PLACES
