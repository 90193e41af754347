"""Memory for the sessions of a worker, and which one ends if there is too little. No I/O."""

from collections.abc import Callable, Mapping, Sequence

from ..interface import SessionId
from ..session import Session
from ..shard import LoadedShard
from ..training import Training


class Room:
    """KV memory for sessions, some of which must end for others."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        training: Training,
        evict: Callable[[Session, str], None],
    ) -> None:
        """`evict` ends a session, whose gateway may open it again; its second argument is the
        reason."""
        self._sessions, self._training, self._evict = sessions, training, evict

    def make(self, shard: LoadedShard, blocks: int) -> None:
        """Free memory of a shard that no session needs until `blocks` blocks can be promised, as
        far as possible."""
        shard.adapters.make_room(blocks)
        self._training.make_room(shard, blocks)

    def secured(self, work: list[tuple[Session, int]]) -> list[tuple[Session, int]]:
        """Return the part of the work for which there is memory, after ending the sessions whose
        memory it needs.

        Such a session's gateway opens it again when there is room. Each time, the owner that has
        most loses its youngest session; so each owner's oldest session ends some day.
        """
        for session, rows in work:
            job, pool = session.job, session.shard.pool
            while job is not None and session.job is job:
                end = job.position + rows
                self.make(session.shard, session.table.lacks(end))
                if session.table.lacks(end) <= pool.total - pool.promised:
                    session.table.secure(end)
                    break
                self._preempt(session.shard)
        return [(session, rows) for session, rows in work if session.job is not None]

    def _preempt(self, shard: LoadedShard) -> None:
        """End a session of a shard to free its memory: first one into which KV is copied, which has
        computed nothing."""
        sessions = [each for each in self._sessions.values() if each.shard is shard]
        has = _promised(sessions)
        victim = max(
            sessions,
            key=lambda each: (
                each.arrival is not None,
                each.share.background,
                not each.own,
                has[each.owner],
                each.age,
            ),
        )
        self._evict(victim, "its memory was needed by another session")


def _promised(sessions: Sequence[Session]) -> dict[str, int]:
    """Return the number of blocks by owner: those of its sessions, and of the adapters that these
    use."""
    has: dict[str, int] = {}
    adapters: dict[str, set[str]] = {}
    for each in sessions:
        has[each.owner] = has.get(each.owner, 0) + each.table.promised
        used = adapters.setdefault(each.owner, set())
        if each.adapter is not None and each.adapter.root not in used:
            used.add(each.adapter.root)
            has[each.owner] += len(each.adapter.blocks)
    return has
