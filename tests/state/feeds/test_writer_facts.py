"""A node's own facts are in its feeds, whatever was there before."""

from shoal.state.feeds.entry import FeedName
from shoal.state.feeds.feed import Feed
from shoal.state.feeds.writer import FeedWriter, OwnFacts, Place, Value, WrittenFacts
from shoal.transport.identity import Identity

ALICE = Identity.from_seed(b"a" * 32)
ROOT = "1" * 64


class Feeds:
    """The own feeds of one node, without a disk."""

    def __init__(self) -> None:
        self.feeds: dict[FeedName, Feed] = {}
        self.now = 0.0
        self.wall = 0
        self.writer = self.begin()

    def begin(self) -> FeedWriter:
        """Begin another run."""
        self.writer = FeedWriter(ALICE, self.feed, lot=lambda n: 0)
        return self.writer

    def feed(self, name: FeedName) -> Feed:
        return self.feeds.setdefault(name, Feed(name))

    def write(self) -> int:
        """Write the facts, and return the number of entries that this took."""
        self.now += 10
        self.wall += 1000
        entries = self.writer.flush(self.now, self.wall)
        self.writer.stored(entries)
        return len(entries)

    def holds(self, kind: str, part: int = 0) -> set[str]:
        document = self.feed(FeedName(ALICE.peer, kind, part)).document
        return set() if document is None else set(document.facts())


def models(*names: str) -> WrittenFacts:
    return WrittenFacts("models", {(0, name): {"root": ROOT, "layers": 6} for name in names})


def member(**facts: int) -> WrittenFacts:
    said: dict[Place, Value] = {(0, key): {"is": value} for key, value in facts.items()}
    return WrittenFacts("member", said, {"about", "capacity"}.__contains__)


def test_withdrawn_facts_are_deleted() -> None:
    feeds, own = Feeds(), OwnFacts()
    own.say(models("a", "b"))
    assert own.settle(feeds.writer) is None
    assert feeds.write() == 1 and feeds.holds("models") == {"a", "b"}
    own.say(models("b", "c"))
    own.settle(feeds.writer)
    assert feeds.write() == 1 and feeds.holds("models") == {"b", "c"}


def test_facts_of_an_earlier_run_are_deleted() -> None:
    feeds, own = Feeds(), OwnFacts()
    feeds.writer.set("models", 0, "old", {"root": ROOT})
    feeds.writer.set("shards", 3, "3" * 64 + "/0", {"start": 0})
    feeds.write()
    feeds.begin()
    own.say(models("new"))
    own.say(WrittenFacts("shards", {}))
    own.settle(feeds.writer)
    feeds.write()
    assert feeds.holds("models") == {"new"} and feeds.holds("shards", 3) == set()


def test_other_facts_in_the_same_feed_stay() -> None:
    feeds, own = Feeds(), OwnFacts()
    feeds.writer.set("member", 0, "vouches", {"keys": []})
    feeds.writer.set("member", 0, "capacity", {"is": 9})
    own.say(member(about=1))
    own.settle(feeds.writer)
    feeds.write()
    assert feeds.holds("member") == {"about", "vouches"}
    feeds.writer.set("jobs", 0, "x", {})
    own.settle(feeds.writer)
    feeds.write()
    assert feeds.holds("jobs") == {"x"}, "a kind without own facts"


def test_settling_again_writes_nothing() -> None:
    feeds, own = Feeds(), OwnFacts()
    own.say(models("a"))
    own.settle(feeds.writer)
    assert feeds.write() == 1
    for _ in range(3):
        own.settle(feeds.writer)
        assert feeds.write() == 0
    feeds.begin()  # its facts are there already
    own.settle(feeds.writer)
    assert feeds.write() == 0


def test_a_full_feed_does_not_stop_others() -> None:
    feeds, own = Feeds(), OwnFacts()
    own.say(WrittenFacts("models", {(0, "x" * 300): {"root": ROOT}, (0, "short"): {"root": ROOT}}))
    own.say(WrittenFacts("shards", {(1, ROOT + "/0"): {"start": 0}}))
    failed = own.settle(feeds.writer)
    assert failed is not None and failed.code == "fact-too-large"
    feeds.write()
    assert feeds.holds("models") == {"short"} and feeds.holds("shards", 1) == {ROOT + "/0"}
    own.say(models("short"))
    assert own.settle(feeds.writer) is None
