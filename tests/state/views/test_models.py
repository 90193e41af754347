"""A name refers to the model that most members say, and the members that say so are shown."""

from shoal.state.feeds.entry import FeedName
from shoal.state.membership.record import ModelName
from shoal.state.views.models import Meaning, ModelNames, model_fact
from shoal.transport.identity import Identity

PEERS = sorted(Identity.from_seed(bytes([n]) * 32).peer for n in range(1, 5))
FEEDS = [FeedName(peer, "models", 0) for peer in PEERS]
ONE, OTHER = "1" * 64, "2" * 64


def says(view: ModelNames, number: int, name: str, root: str) -> ModelName:
    model = ModelName(name, root, 22, 2**30)
    view.changed(FEEDS[number], name, model_fact(model))
    return model


def test_the_root_with_the_most_vouchers_comes_first() -> None:
    view = ModelNames()
    for number, root in enumerate((OTHER, ONE, OTHER)):
        says(view, number, "tiny", root)
    expected = (Meaning(OTHER, (PEERS[0], PEERS[2])), Meaning(ONE, (PEERS[1],)))
    assert view.get("tiny") == expected
    says(view, 0, "tiny", ONE)
    assert view.get("tiny") == (
        Meaning(ONE, (PEERS[0], PEERS[1])),
        Meaning(OTHER, (PEERS[2],)),
    )
    assert view.get("unknown") is None


def test_ties_are_sorted_by_root() -> None:
    views = ModelNames(), ModelNames()
    for view, order in zip(views, ((0, 1), (1, 0)), strict=True):
        for number in order:
            says(view, number, "tiny", (OTHER, ONE)[number])
    assert views[0].get("tiny") == views[1].get("tiny")


def test_members_that_name_a_root() -> None:
    view = ModelNames()
    first, second = says(view, 0, "tiny", ONE), says(view, 0, "small", ONE)
    third = says(view, 1, "tiny", ONE)
    assert sorted(view.told_of(ONE), key=str) == sorted(
        [(PEERS[0], first), (PEERS[0], second), (PEERS[1], third)], key=str
    )
    assert view.of(PEERS[0]) == (second, first) and view.of(PEERS[3]) == ()
    assert set(view.names()) == {"tiny", "small"} and set(view.roots()) == {ONE}


def test_a_removed_feed_leaves_no_trace() -> None:
    view = ModelNames()
    says(view, 0, "tiny", ONE)
    says(view, 0, "small", OTHER)
    view.forgotten(FEEDS[0])
    assert view.get("tiny") is None and not list(view.names()) and not list(view.roots())


def test_malformed_models_are_refused() -> None:
    view = ModelNames()
    for name, fact in (
        ("bell\a", {"root": ONE, "layers": 1, "bytes": 1}),
        ("x" * 129, {"root": ONE, "layers": 1, "bytes": 1}),
        ("tiny", {"root": ONE[:-1], "layers": 1, "bytes": 1}),
        ("tiny", {"root": ONE, "bytes": 1}),
    ):
        view.changed(FEEDS[0], name, fact)
    assert view.bad == 4 and not list(view.names())
    view.changed(FEEDS[0], "tiny", {"root": ONE, "layers": 0, "bytes": -1})
    assert view.of(PEERS[0]) == (ModelName("tiny", ONE, 1, 0),)
