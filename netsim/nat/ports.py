"""Choice of the outer port for a new mapping of a NAT."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from ..network.gateway import check
from ..network.packet import Addr

LOW_PORT: Final = 1024
HIGH_PORT: Final = 65535
TRIES: Final = 32  # random ports to try before all ports are tried in order


class PortAllocator:
    """Allocator of outer ports. `policy` is "preserve" (the inner port if it is free, otherwise a
    random port), "random", "sequential", or "block". With "block", each host gets `block`
    consecutive ports of its own.
    """

    def __init__(self, policy: str, block: int, luck: Callable[[], Random]) -> None:
        check("ports", policy, ("preserve", "random", "sequential", "block"))
        if not 1 <= block <= HIGH_PORT - LOW_PORT + 1:
            raise ValueError(f"block_size is {block}; it can be 1 to {HIGH_PORT - LOW_PORT + 1}")
        self._policy = policy
        self._size = block
        self._luck = luck
        self._next = LOW_PORT
        self._blocks: dict[tuple[str, str], int] = {}  # (subscriber, outer address): first port
        self._dealt: dict[str, int] = {}  # number of blocks given out, by outer address

    def clear(self) -> None:
        self._blocks.clear()
        self._dealt.clear()

    def candidates(self, inner: Addr, ip: str) -> Iterator[int]:
        """Yield the outer ports to try, best first. In the end every port of the range has been
        yielded.
        """
        low, count = LOW_PORT, HIGH_PORT - LOW_PORT + 1
        if self._policy == "block":
            low, count = self._block(inner[0], ip)
            if not count:
                return
        elif self._policy == "preserve":
            yield inner[1]
        if self._policy == "sequential":
            start = self._next
        else:
            random = self._luck()
            for _ in range(min(TRIES, count)):
                yield low + random.randrange(count)
            start = low + random.randrange(count)
        for step in range(count):
            port = low + (start - low + step) % count
            self._next = port + 1 if port < HIGH_PORT else LOW_PORT
            yield port

    def _block(self, subscriber: str, ip: str) -> tuple[int, int]:
        """Return (first port, number of ports) of a subscriber's block. The number is 0 if all
        blocks are taken.
        """
        found = self._blocks.get((subscriber, ip))
        if found is None:
            number = self._dealt.get(ip, 0)
            if LOW_PORT + (number + 1) * self._size > HIGH_PORT + 1:
                return LOW_PORT, 0
            self._dealt[ip] = number + 1
            found = self._blocks[subscriber, ip] = LOW_PORT + number * self._size
        return found, self._size
