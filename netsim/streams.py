"""Seeded random generators, called streams, one for each combination of seed, owner and purpose.

Each stream serves one purpose of one owner. Therefore an additional host, or an additional packet
at one host, does not change the random numbers of any other.
"""

from random import Random


class RandomStreams:
    """Random streams of one run, created at their first use."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[tuple[str, str], Random] = {}

    def get(self, owner: str, purpose: str) -> Random:
        """Return the stream of this owner and purpose, which is the same object each time.

        Seeding with a string hashes it with SHA-512, so that PYTHONHASHSEED does not matter.
        """
        key = owner, purpose
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Random(f"{self.seed}/{owner}/{purpose}")
        return stream
