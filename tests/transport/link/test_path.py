"""Choice among the paths of a link: which one is used, and which are dropped."""

from typing import Any

from shoal.transport.bytestream import PathKind
from shoal.transport.defaults import SPARE_S
from shoal.transport.lane.connection import LaneConnection
from shoal.transport.link.path import LinkPath, best, redundant


class FakePath:
    """The part of a path that these tests need."""

    def __init__(self, medium: str) -> None:
        self.medium = medium
        self.address = ("192.0.2.1", 1)


def path(
    path_kind: PathKind = PathKind.DIRECT, medium: str = "tcp", *, came: float = 0.0
) -> LinkPath:
    """Return a path whose first ping was answered after 10 ms."""
    connection = LaneConnection(idle_s=2.0, silent_s=3.5, now=came)
    secured: Any = FakePath(medium)
    writer: Any = None
    found = LinkPath(secured, path_kind, connection, writer, came)
    hear(found, came + 0.01)
    return found


def hear(which: LinkPath, now: float) -> None:
    """Answer the path's ping."""
    which.connection.heard = now
    which.connection.ponged(which.connection.urgent[-1].offset, now)


def test_the_best_path_kind_then_tcp_then_the_newest_wins() -> None:
    relayed, udp, tcp = path(PathKind.RELAYED), path(medium="udp"), path()
    newest = path(came=0.05)
    assert best([relayed, udp], 1.0, None) is udp
    assert best([relayed, udp, tcp], 1.0, udp) is tcp
    assert best([relayed, udp, tcp, newest], 1.0, tcp) is newest
    assert best([], 1.0, None) is None


def test_a_silent_path_is_left_and_used_again_once_it_replies() -> None:
    direct, relayed = path(), path(PathKind.RELAYED)
    direct.connection.ping(1.0)
    assert best([direct, relayed], 1.5, direct) is direct
    relayed.connection.heard = 1.6
    assert best([direct, relayed], 2.0, direct) is relayed
    hear(direct, 2.1)
    assert best([direct, relayed], 2.1, relayed) is direct


def test_a_path_not_heard_since_is_no_alternative() -> None:
    direct, punched, relayed = path(), path(PathKind.PUNCHED), path(PathKind.RELAYED)
    direct.connection.ping(1.0)
    for each in (punched, relayed):
        each.connection.ping(1.3)
    hear(relayed, 1.4)
    assert best([direct, punched, relayed], 1.6, direct) is relayed


def test_received_bytes_do_not_restore_a_path_without_pongs() -> None:
    """Received bytes prove only one direction; the other may be cut."""
    direct, relayed = path(), path(PathKind.RELAYED)
    direct.connection.ping(1.0)
    direct.connection.heard = 2.4
    assert best([direct, relayed], 2.5, direct) is direct  # in use: pongs may wait behind bulk
    assert best([direct, relayed], 2.5, relayed) is relayed
    hear(direct, 2.6)
    assert best([direct, relayed], 2.6, relayed) is direct


def test_a_relayed_path_is_dropped_when_a_direct_path_has_lasted() -> None:
    relayed, direct = path(PathKind.RELAYED), path(came=10.0)
    assert redundant([relayed, direct], direct, 10.0 + SPARE_S) == []
    assert redundant([relayed, direct], direct, 10.1 + SPARE_S) == [relayed]
    assert redundant([relayed, direct], relayed, 1000.0) == []
    other = path(PathKind.RELAYED, "circuit")
    assert redundant([relayed, other], relayed, 1000.0) == []
