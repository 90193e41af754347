"""KV memory of one shard in blocks of 16 positions, shared by all of its sessions. No I/O.

A session has a table of blocks in the order of its positions. It is promised the blocks that it
will soon need, and more as it grows. All promises fit into the pool; if they would not, the core
ends another session. A session occupies a block only when it writes to it. Meanwhile the remaining
blocks hold the prefixes of earlier sessions.

A full block whose content has a name can be found by later sessions, which then share it. A name
stands for the whole prefix up to the end of its block, and is chosen by the session's gateway
(docs/spec/session.md). Blocks without a user stay cached until their memory is needed; the one that
was released first is evicted first. A session that must write to a shared block gets a copy.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

from ..errors import EngineError
from .freeruns import FreeRuns

BLOCK: Final = 16
"""Number of positions in a block."""

GROWTH: Final = 3
"""Number of blocks that a growing session is promised beyond those that it needs at once."""

BlockName = tuple[str, bytes]
"""(scope, name): the gateway whose sessions may share the block, and the prefix's name."""

_INEXACT: Final = " int8"  # ends the scope of blocks that stem from a copy in int8


def inexact(names: Sequence[BlockName]) -> list[BlockName]:
    """Return the names of blocks that stem from a copy in int8, which exact sessions do not
    find."""
    return [(scope + _INEXACT, name) for scope, name in names]


def _from(block: int, names: Sequence[BlockName]) -> list[BlockName]:
    """Return the names, those from number `block` on as inexact ones."""
    return [*names[:block], *inexact(names[block:])]


class BlockCopy(NamedTuple):
    """Command to copy the content of the block `source` to the block `target`."""

    source: int
    target: int


def blocks_for(tokens: int) -> int:
    """Return the number of blocks that `tokens` positions occupy."""
    return -(-tokens // BLOCK)


class BlockPool:
    """All blocks of a shard, numbered from 0.

    Each block is free, cached (named, but in no table) or used: `free + cached + used == total`.
    `promised` is the number of blocks that open sessions may use now; it is at most `total`.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.promised = 0
        self._free = FreeRuns(total)
        self._users = array("i", bytes(4 * total))  # by block: the number of tables with it
        self._cached: OrderedDict[int, None] = OrderedDict()  # the first released first
        self._by_name: dict[BlockName, int] = {}
        self._names: dict[int, BlockName] = {}

    @property
    def free(self) -> int:
        """Number of blocks without content."""
        return self._free.count

    @property
    def cached(self) -> int:
        """Number of blocks that only the cache holds."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Number of blocks that are in a session's table."""
        return self.total - self.free - self.cached

    def promise(self, blocks: int) -> None:
        """Promise blocks to a session. Raises EngineError `no-memory` if too many are promised."""
        if blocks > self.total - self.promised:
            self.refuse(blocks)
        self.promised += blocks

    def refuse(self, blocks: int) -> NoReturn:
        """Raise EngineError `no-memory` for a number of blocks."""
        raise EngineError(
            "no-memory",
            f"{blocks * BLOCK} positions of KV are asked for, "
            f"{(self.total - self.promised) * BLOCK} of {self.total * BLOCK} are free",
        )

    def reserve(self, blocks: int) -> list[int]:
        """Take blocks out of use, because something else is in memory in their place.

        Raises EngineError `no-memory` if too many blocks are promised.
        """
        self.promise(blocks)
        taken: list[int] = []
        while len(taken) < blocks:
            taken += self.allocate(blocks - len(taken), taken[-1] if taken else -1)
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Return blocks that `reserve` has taken."""
        for block in blocks:
            self.release(block)
        self.promised -= len(blocks)

    def find(self, names: Sequence[BlockName]) -> list[int]:
        """Return the blocks of the longest known prefix, and count the caller as their user."""
        found = []
        for name in names:
            block = self._by_name.get(name)
            if block is None:
                break
            self.use(block)
            found.append(block)
        return found

    def look(self, name: BlockName) -> int | None:
        """Return the block with a name, or None. It stays in the cache, and may be evicted."""
        return self._by_name.get(name)

    def use(self, block: int) -> None:
        """Count one more table that has the block."""
        self._users[block] += 1
        self._cached.pop(block, None)

    def allocate(self, wanted: int, after: int) -> range:
        """Return 1 to `wanted` consecutive blocks for a table whose last block is `after` (-1:
        none).

        Evicts cached blocks if none is free. There are always enough for what was promised.
        """
        while self._free.count < wanted and self._cached:
            block, _ = self._cached.popitem(last=False)
            self._unname(block)
            self._free.add(block)
        taken = self._free.take(wanted, after)
        for block in taken:
            self._users[block] = 1
        return taken

    def release(self, block: int) -> None:
        """Count one table less that has the block. Without a user it is cached if it has a name."""
        self._users[block] -= 1
        if self._users[block] == 0:
            if block in self._names:
                self._cached[block] = None
            else:
                self._free.add(block)

    def is_shared(self, block: int) -> bool:
        """Return whether several tables have the block."""
        return self._users[block] > 1

    def name(self, block: int, name: BlockName) -> None:
        """Name the content of a full block, unless the name or the block is taken already."""
        if name not in self._by_name and block not in self._names:
            self._by_name[name] = block
            self._names[block] = name

    def unname(self, block: int) -> None:
        """Remove the name of a block whose content is about to change."""
        if block in self._names:
            self._unname(block)

    def _unname(self, block: int) -> None:
        del self._by_name[self._names.pop(block)]


class BlockTable:
    """Blocks of one session. Positions 0 to `length` - 1 hold keys and values.

    `tokens` is the number of positions that the session may use in all, and `promised` the number
    of blocks that it may use now. `runs` lists the blocks as [first
    block, number of consecutive blocks]. `changes` counts how often a block was added or removed.
    """

    held = 0
    """Positions below it keep their blocks, because parts of their KV have arrived."""
    taken = 0, 0
    """The positions from the first one to before the second one came from elsewhere while the
    session computed, and are not computed again."""
    dropped = False
    """Whether positions were ever dropped. Those in their place may be of another text."""

    def __init__(
        self,
        pool: BlockPool,
        tokens: int,
        names: Sequence[BlockName] = (),
        *,
        soon: int | None = None,
        exact: bool = True,
    ) -> None:
        """Create a table with the longest prefix of `names` that is cached.

        Unless `exact`, the prefix may go on with blocks that stem from copies in int8. `soon` is
        the number of positions to promise now (None: all). Raises EngineError `no-memory`
        if they cannot be promised, or if the pool is smaller than `tokens` positions.
        """
        self.tokens = tokens
        self.length = 0
        self.runs: list[list[int]] = []
        self._pool = pool
        soon = tokens if soon is None else min(soon, tokens)
        if blocks_for(tokens) > pool.total:
            pool.refuse(blocks_for(tokens))
        self.promised = blocks_for(soon)
        pool.promise(self.promised)
        self._blocks: list[int] = []
        self._names = names[: soon // BLOCK]
        self._named = 0  # leading blocks that were offered to the cache
        self._withheld: Sequence[BlockName] | None = None  # names that are not offered yet
        self.inexact_from: int | None = None
        """The first block that stems from a copy in int8, or None."""
        self._written = False
        self.changes = 0
        found = pool.find(self._names)
        rest = [] if exact else pool.find(inexact(self._names[len(found) :]))
        if rest:
            self.mark_inexact(len(found))
        for block in [*found, *rest]:
            self._append(block)
        self.length = self._named = len(self._blocks) * BLOCK
        self._named //= BLOCK

    @property
    def blocks(self) -> Sequence[int]:
        """The blocks in the order of positions."""
        return self._blocks

    def free(self) -> None:
        """Release all blocks and the promise. May be called repeatedly."""
        self.held = 0
        self.truncate(0)
        self._pool.promised -= self.promised
        self.promised = 0

    def leave(self) -> None:
        """Release all blocks and the promise while the content is elsewhere. The length stays."""
        while self._blocks:
            self._pool.release(self._pop())
        self._pool.promised -= self.promised
        self.promised = self._named = 0

    def come_back(self) -> None:
        """Take blocks for the content, which the caller then writes. Raises EngineError `no-memory`
        if they cannot be promised."""
        self.secure(self.next_end)
        self._allocate(self.length)

    @property
    def next_end(self) -> int:
        """The number of positions with a further block, so that a session gets on."""
        return min(self.length + BLOCK, self.tokens)

    def lacks(self, end: int) -> int:
        """Return how many more blocks must be promised before `end` positions can be written.

        If any, they are for GROWTH blocks more than that, so that this happens rarely.
        """
        if blocks_for(end) <= self.promised:
            return 0
        return min(blocks_for(end) + GROWTH, blocks_for(self.tokens)) - self.promised

    def secure(self, end: int) -> None:
        """Make sure that `end` positions are promised. Raises EngineError `no-memory` if they
        cannot be."""
        lacks = self.lacks(end)
        self._pool.promise(lacks)
        self.promised += lacks

    def truncate(self, length: int) -> None:
        """Drop the positions from `length` on, and release the blocks without other positions.

        Other content than the names stand for may follow, so the names of these positions are
        dropped too.
        """
        if length < self.length:
            self._names = self._names[: length // BLOCK]
            self._withheld = self._withheld and self._withheld[: length // BLOCK]
        self._shorten(length)

    def _shorten(self, length: int) -> None:
        """Drop the positions from `length` on, but no names."""
        if length < self.length:
            self.held, self.taken, self.dropped = 0, (0, 0), True
        self.length = min(self.length, length)
        for _ in range(len(self._blocks) - blocks_for(max(self.length, self.held))):
            self._pool.release(self._pop())
        self._named = min(self._named, len(self._blocks))

    def discard(self, length: int) -> None:
        """Drop the positions from `length` on, and their blocks' names, because they are wrong."""
        for block in self._blocks[length // BLOCK :]:
            self._pool.unname(block)
        self.truncate(length)

    def prepare(self, start: int, end: int) -> list[BlockCopy]:
        """Make the positions `start` to `end` - 1 writable, and drop those from `start` on.

        `start` is at most `length`, and `end` is promised. Returns the copies that must be
        made before anything is written.
        """
        # A session may compute again what it has found under its names, but nothing else.
        (self.truncate if self._written else self._shorten)(start)
        self._written = True
        if len(self._blocks) > self._full:
            copies = self._own(start, end)
        else:
            copies = self._own_last() if start % BLOCK else []
        self._allocate(end)
        return copies

    def step_back(self, start: int) -> None:
        """Let the positions from `start` on be computed again, and keep what there is of them:
        `fill` may leave some of them out. `start` is the first position of a block."""
        self.held = max(self.held, self.length)
        self.length, self._named = start, min(self._named, start // BLOCK)

    @property
    def written(self) -> bool:
        """Whether the session has computed anything."""
        return self._written

    def grow(self, end: int) -> list[BlockCopy]:
        """Take blocks for the positions up to `end`, which is promised, and drop none.

        Returns the copies that must be made before anything is written from `length` on.
        """
        blocks = len(self._blocks)
        copies = self._own_last() if self.length % BLOCK and blocks == self._full else []
        self._allocate(end)
        return copies

    def hold(self, end: int) -> list[BlockCopy]:
        """Do the same, and keep these blocks while the positions before them are computed."""
        self.held = max(self.held, end)
        return self.grow(end)

    def take(self, end: int) -> None:
        """Record that the positions from `length` to `end` - 1 have come from elsewhere."""
        began, stop = self.taken
        self.taken = (began if stop == self.length else self.length), end
        self.fill(end)

    @property
    def _full(self) -> int:
        """The number of blocks that hold the positions below `length`."""
        return blocks_for(self.length)

    def _allocate(self, end: int) -> None:
        """Append blocks until `end` positions have one."""
        missing = blocks_for(end) - len(self._blocks)
        while missing > 0:
            taken = self._pool.allocate(missing, self._blocks[-1] if self._blocks else -1)
            for block in taken:
                self._append(block)
            missing -= len(taken)

    def _own_last(self) -> list[BlockCopy]:
        """Make the last block writable: copy it if another table has it, else remove its name."""
        last = self._blocks[-1]
        self._named = min(self._named, len(self._blocks) - 1)
        if not self._pool.is_shared(last):
            self._pool.unname(last)
            return []
        self._pop()
        (own,) = self._pool.allocate(1, self._blocks[-1] if self._blocks else -1)
        self._append(own)
        self._pool.release(last)
        return [BlockCopy(last, own)]

    def _own(self, start: int, end: int) -> list[BlockCopy]:
        """Make the blocks of the positions `start` to `end` - 1 writable that the table has. Copies
        those that other tables have, and removes the others' names."""
        copies = []
        for index in range(start // BLOCK, min(blocks_for(end), len(self._blocks))):
            block = self._blocks[index]
            if not self._pool.is_shared(block):
                self._pool.unname(block)
                continue
            (own,) = self._pool.allocate(1, self._blocks[index - 1] if index else -1)
            copies.append(BlockCopy(block, own))
            self._blocks[index] = own
            self._pool.release(block)
        if copies:
            blocks, self._blocks, self.runs = self._blocks, [], []
            for block in blocks:
                self._append(block)
        return copies

    def fill(self, length: int) -> None:
        """Record that the positions below `length` are computed, and offer full blocks with a name
        to the cache."""
        self.length = length
        full = min(length // BLOCK, len(self._names))
        for index in range(self._named, full):
            self._pool.name(self._blocks[index], self._names[index])
        self._named = max(self._named, full)

    def name_all(self, names: Sequence[BlockName]) -> None:
        """Replace the names by those of the whole session, and offer all full blocks to the cache,
        except withheld ones."""
        names = names[: self.length // BLOCK]
        if self._withheld is not None:
            names = names[: len(self._names)]
        first = self.inexact_from
        self._names = names if first is None else _from(first, names)
        self.fill(self.length)

    def mark_inexact(self, block: int) -> None:
        """Record that the blocks from `block` on stem from a copy in int8, unless earlier ones
        do."""
        if self.inexact_from is None:
            self.inexact_from = block
            self._names = _from(block, self._names)
            self._withheld = self._withheld and _from(block, self._withheld)

    def withhold(self) -> None:
        """Offer no more blocks to the cache until `trust` is called."""
        if self._withheld is None:
            self._withheld, self._names = self._names, self._names[: self.length // BLOCK]

    def trust(self) -> None:
        """Offer the blocks to the cache that were withheld."""
        if self._withheld is not None:
            self._names, self._withheld = self._withheld, None
            self.fill(self.length)

    def share(self, other: "BlockTable") -> None:
        """Replace the content by that of another table, without copying it. Its length must be
        promised."""
        self.held = 0
        self.truncate(0)
        self._names, self._named, self._written = (), 0, True
        for block in other._blocks[: blocks_for(other.length)]:
            self._pool.use(block)
            self._append(block)
        self.length = other.length

    def slot(self, position: int) -> int:
        """Return the number of a position in the whole pool."""
        return self._blocks[position // BLOCK] * BLOCK + position % BLOCK

    def spans(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the slots of the positions `start` to `end` - 1 as consecutive (first, after
        last)."""
        found, at = [], 0
        for first, count in self.runs:
            low, high = max(start - at, 0), min(end - at, count * BLOCK)
            if low < high:
                found.append((first * BLOCK + low, first * BLOCK + high))
            at += count * BLOCK
            if at >= end:
                break
        return found

    def _append(self, block: int) -> None:
        self.changes += 1
        self._blocks.append(block)
        if self.runs and sum(self.runs[-1]) == block:
            self.runs[-1][1] += 1
        else:
            self.runs.append([block, 1])

    def _pop(self) -> int:
        self.changes += 1
        self.runs[-1][1] -= 1
        if not self.runs[-1][1]:
            self.runs.pop()
        return self._blocks.pop()
