"""The key by which several gateways send a request to the same replica without asking each other.

A key is to be as coarse as possible, so that what shares cache meets, and fine enough that one key is no more than
about a replica's share of the traffic, so that no replica is overrun. So it is the shortest beginning of the prompt (1,
2, 4, 8... blocks) that is not too popular; if all of them are, the session. A system prompt that everybody sends says
nothing about where to go; the documents or the group behind it do.

How popular a beginning is every gateway counts for itself, over its last thousands of requests. Gateways that get a
fair sample of the same traffic count nearly the same shares, so they agree on nearly all keys; none needs the others.
"""

from typing import Final

WINDOW: Final = 2048
"""Requests in one window; shares are over the current and the last one."""

COUNT_MIN: Final = 8
"""A beginning seen less often is not popular, whatever its share: at the start every share is large."""


class HomeKeys:
    """Counts beginnings of prompts and picks keys. Memory: two windows of at most about 20 beginnings a request."""

    def __init__(self) -> None:
        self._now: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._seen = 0
        self._seen_before = 0

    def saw(self, blocks: tuple[int, ...]) -> None:
        """Count a request."""
        if self._seen >= WINDOW:
            self._before, self._seen_before = self._now, self._seen
            self._now, self._seen = {}, 0
        self._seen += 1
        now = self._now
        depth, length = 1, len(blocks)
        while depth <= length:
            head = blocks[depth - 1]
            now[head] = now.get(head, 0) + 1
            depth += depth

    def key(self, blocks: tuple[int, ...], replicas: int) -> int | None:
        """Return the key of a prompt in a fleet of so many replicas, None where its session is to be taken."""
        total = self._seen + self._seen_before
        depth, length = 1, len(blocks)
        while depth <= length:
            head = blocks[depth - 1]
            count = self._now.get(head, 0) + self._before.get(head, 0)
            if count < COUNT_MIN or count * replicas <= total:
                return head
            depth += depth
        return None
