"""Memory for the sessions of a worker, and which one leaves or ends if there is too little. No I/O.

Where the KV is in the memory of a device, sessions first leave for host memory: those without work,
and then those that would end. They come back when they have work and there are blocks for them.
"""

from collections.abc import Callable, Mapping, Sequence

from ..defaults import HOST_WAIT_S
from ..interface import SessionId
from ..kv.hostcopies import HostCopies, HostCopy
from ..session import Session
from ..shard import LoadedShard
from ..training import Training


class Room:
    """KV memory for sessions, some of which must end for others."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        training: Training,
        copies: HostCopies,
        clock: Callable[[], float],
        *,
        evict: Callable[[Session, str], None],
        rest: Callable[[Session], None],
    ) -> None:
        """`copies` are those of sessions in host memory. `evict` ends a session, whose gateway may
        open it again; its second argument is the reason. `rest` has no step compute it."""
        self._sessions, self._training = sessions, training
        self._clock, self._evict, self._rest = clock, evict, rest
        self.copies = copies
        self._returning: dict[Session, float] = {}  # with work but without blocks: since when

    def make(self, shard: LoadedShard, blocks: int) -> None:
        """Free memory of a shard that no session needs now until `blocks` blocks can be promised,
        as far as possible."""
        shard.adapters.make_room(blocks)
        self._training.make_room(shard, blocks)
        pool = shard.pool
        while blocks > pool.total - pool.promised and shard.compute.has_own_memory:
            idle = [each for each in self._present(shard) if not each.busy and _can_leave(each)]
            if not idle or not self._leave(_victim(idle)):
                break

    def _present(self, shard: LoadedShard) -> list[Session]:
        """Return the sessions of a shard that have not left it."""
        return [
            each for each in self._sessions.values() if each.shard is shard and each.copy is None
        ]

    # Host memory.

    def _leave(self, session: Session) -> bool:
        """Move the KV of a session to host memory. Return False if it has no room there."""
        table, shard = session.table, session.shard
        size = table.length * shard.token_bytes
        if not self.copies.take(size):
            return False
        spans = table.spans(0, table.length)
        values = shard.compute.copied_kv(spans) if spans else None
        session.copy = HostCopy(values, size)
        table.leave()
        return True

    def bring_back(self, session: Session) -> bool:
        """Move the KV of a session back to its device, if it has left. Return whether it is there.

        If it is not, the session waits for blocks.
        """
        copy, table, shard = session.copy, session.table, session.shard
        if copy is None:
            return True
        lacks = table.lacks(table.next_end)
        self.make(shard, lacks)
        if lacks > shard.pool.total - shard.pool.promised:
            self._returning.setdefault(session, self._clock())
            return False
        table.come_back()
        if spans := table.spans(0, table.length):
            shard.compute.restore_kv(spans, copy.values)
        self.forget(session)
        return True

    def forget(self, session: Session) -> None:
        """Drop the copy of a session, if it has one."""
        self._returning.pop(session, None)
        if session.copy is not None:
            self.copies.give_back(session.copy)
            session.copy = None

    def returned(self) -> Sequence[Session]:
        """Return the sessions that waited for blocks and have them now, the longest waiting first.

        One ends if it has waited for long, or if no session is there that could free any.
        """
        back, now = list[Session](), self._clock()
        for session, since in list(self._returning.items()):
            if not session.busy:
                del self._returning[session]
            elif self.bring_back(session):
                back.append(session)
            elif now >= since + HOST_WAIT_S or not any(
                each.busy for each in self._present(session.shard)
            ):
                self._evict(session, "there was no memory for it to come back to")
        return back

    def secured(self, work: list[tuple[Session, int]]) -> list[tuple[Session, int]]:
        """Return the part of the work for which there is memory, after ending the sessions whose
        memory it needs.

        Such a session's gateway opens it again when there is room. Each time, the owner that has
        most loses its youngest session; so each owner's oldest session ends some day.
        """
        for session, rows in work:
            current, pool = session.current, session.shard.pool
            while current is not None and session.current is current and session.copy is None:
                end = current.position + rows
                lacks = session.table.lacks(end)
                if not lacks:
                    break
                self.make(session.shard, lacks)
                if session.table.lacks(end) <= pool.total - pool.promised:
                    session.table.secure(end)
                    break
                self.preempt(session.shard)
        return [each for each in work if each[0].current is not None and each[0].copy is None]

    def preempt(self, shard: LoadedShard) -> None:
        """Free the memory of a session of a shard: move it to host memory, or else end it."""
        victim = _victim(self._present(shard))
        if shard.compute.has_own_memory and _can_leave(victim) and self._leave(victim):
            self._returning[victim] = self._clock()
            self._rest(victim)
        else:
            self._evict(victim, "its memory was needed by another session")


def _can_leave(session: Session) -> bool:
    """Return whether the KV of a session can be copied to host memory. Of recurrent layers it
    cannot, and content that is not checked yet is not worth it."""
    whole = session.arrival is None and session.ahead is None and session.doubt is None
    return session.shard.reuses and whole


def _victim(sessions: Sequence[Session]) -> Session:
    """Return the session that frees its memory: first one into which KV is copied, which has
    computed nothing."""
    has = _promised(sessions)
    return max(
        sessions,
        key=lambda each: (
            each.arrival is not None,
            each.share.background,
            not each.own,
            has[each.owner],
            each.age,
        ),
    )


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
