"""Independent streams of randomness out of one seed, each by its name.

A stream's numbers depend on the seed and its name alone, so a part that draws more or less changes no other part, and
two policies that are compared meet the same arrivals and the same faults.
"""

import hashlib
import random


class Streams:
    """Hands out a generator for each name; the same name is the same generator."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, random.Random] = {}

    def stream(self, name: str) -> random.Random:
        """Return the generator of a name, made at its first use."""
        found = self._streams.get(name)
        if found is None:
            digest = hashlib.blake2b(f"{self.seed}:{name}".encode(), digest_size=16).digest()
            found = self._streams[name] = random.Random(int.from_bytes(digest))
        return found
