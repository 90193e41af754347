"""The cache of documents in memory keeps its limits."""

from shoal.state.feeds.feed import Feed
from shoal.state.replication.replicafeeds import Documents
from tests.state.fake_feeds import MEMBER, Writer

FAR = 2**30


def feeds(count: int) -> list[Feed]:
    made = []
    for number in range(count):
        entry = Writer(number + 1).write(MEMBER, a={"v": number})
        feed = Feed(entry.name)
        feed.admit(entry)
        made.append(feed)
    return made


def held(some: list[Feed]) -> list[int]:
    return [number for number, feed in enumerate(some) if feed.document is not None]


def test_the_least_recently_used_are_unloaded() -> None:
    some, documents = feeds(4), Documents(2, FAR)
    for number in (0, 1, 0, 2):
        documents.use(some[number])
    assert held(some[:3]) == [0, 2] and len(documents) == 2


def test_bytes_are_limited_and_the_last_document_stays() -> None:
    some = feeds(3)
    size = some[0].document.memory if some[0].document else 0
    documents = Documents(10, int(2.5 * size))
    for feed in some:
        documents.use(feed)
    assert held(some) == [1, 2]
    documents = Documents(10, 1)
    documents.use(some[1])
    documents.use(some[2])
    assert held(some) == [2] and len(documents) == 1


def test_an_unloaded_document_takes_no_space() -> None:
    some, documents = feeds(3), Documents(2, FAR)
    documents.use(some[0])
    documents.use(some[1])
    documents.let_go(some[1])
    documents.use(some[2])
    assert held(some) == [0, 2]
    some[2].unload()
    documents.use(some[2])
    assert len(documents) == 1
