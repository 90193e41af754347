"""Randomness: one stream for each (seed, owner, purpose).

A stream belongs to one purpose of one owner, so that another host, or one more packet at one host,
changes no other draw.
"""

from random import Random


class Streams:
    """Random streams of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[tuple[str, str], Random] = {}

    def get(self, owner: str, purpose: str) -> Random:
        """Return the stream of that owner and purpose; the same object each time.

        (Seeding by a string hashes it with SHA-512, so PYTHONHASHSEED does not matter.)
        """
        key = owner, purpose
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Random(f"{self.seed}/{owner}/{purpose}")
        return stream
