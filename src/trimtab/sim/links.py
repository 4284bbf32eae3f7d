"""KV on its way between simulated replicas: set-up, bytes at a rate, and hand-overs that share a link.

Law: each replica has a link, with a rate each for what it sends and what it receives. A hand-over first takes its
set-up, which shares nothing (connection, descriptors), then its bytes go at

    min(rate of the sender / hand-overs it sends, rate of the receiver / hand-overs it receives)

Rates are looked at anew whenever one begins or ends. What the busier end leaves unused at the other is not given to
others, so that crowded links err on the slow side. A slow link has its rate divided.

Failure modes: no switch in between is modelled, so all pairs are equally near; a lost packet costs nothing.
"""

from collections.abc import Callable

import msgspec

from trimtab.sim.kernel import Kernel


class LinkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's link: bytes a second in each direction, and milliseconds before the first byte of a hand-over."""

    bytes_per_s: float
    setup_ms: float = 0.0

    def __post_init__(self) -> None:
        """Refuse links that carry nothing."""
        if not 0.0 < self.bytes_per_s < float("inf"):
            raise ValueError(f"a link needs a rate above 0, got {self.bytes_per_s} bytes/s")
        if not self.setup_ms >= 0.0:
            raise ValueError(f"setup_ms must be at least 0, got {self.setup_ms}")


class Transfer(msgspec.Struct, kw_only=True, gc=False):
    """One hand-over. `left`: bytes still to go at `seen_s`, at `rate` bytes a second (0 during set-up).

    `row` is the sender's own: which request it is for.
    """

    id: int
    source: str
    target: str
    bytes: float
    began_s: float
    left: float
    seen_s: float
    rate: float = 0.0
    version: int = 0
    ended: bool = False
    row: int = -1


Done = Callable[[float, Transfer], None]


class Links:
    """All links of a fleet, and the hand-overs on them."""

    def __init__(self, spec: LinkSpec, kernel: Kernel) -> None:
        self.spec = spec
        self.bytes_moved = 0.0
        self._kernel = kernel
        self._slow: dict[str, float] = {}
        self._out: dict[str, dict[int, Transfer]] = {}
        self._in: dict[str, dict[int, Transfer]] = {}
        self._done: dict[int, Done] = {}
        self._count = 0

    def send(self, now_s: float, source: str, target: str, size: float, done: Done) -> Transfer:
        """Begin a hand-over of so many bytes; `done` is told when the last one is there."""
        self._count += 1
        one = Transfer(
            id=self._count,
            source=source,
            target=target,
            bytes=size,
            began_s=now_s,
            left=size,
            seen_s=now_s,
        )
        start_s = now_s + self.spec.setup_ms / 1000.0
        self._kernel.at(start_s, self._start, (one, done))
        return one

    def sending(self, source: str) -> int:
        """Hand-overs that a replica sends now."""
        return len(self._out.get(source, ()))

    def rate_of(self, replica: str) -> float:
        """Bytes a second that a replica's link carries in one direction."""
        return self.spec.bytes_per_s / self._slow.get(replica, 1.0)

    def slow(self, now_s: float, replica: str, factor: float) -> None:
        """Divide the rate of a replica's link; hand-overs under way go on at the new one."""
        self._slow[replica] = factor
        self._rerate(now_s, replica, replica)

    def drop(self, now_s: float, one: Transfer) -> None:
        """Give a hand-over up; nothing is told of it any more."""
        if not one.ended:
            one.ended = True
            self._take_off(now_s, one)

    def _start(self, now_s: float, what: tuple[Transfer, Done]) -> None:
        one, done = what
        if one.ended:
            return
        one.seen_s = now_s
        self._out.setdefault(one.source, {})[one.id] = one
        self._in.setdefault(one.target, {})[one.id] = one
        self._done[one.id] = done
        self._rerate(now_s, one.source, one.target)

    def _rerate(self, now_s: float, source: str, target: str) -> None:
        """Give every hand-over at either end its present rate."""
        touched = {
            **self._out.get(source, {}),
            **self._in.get(target, {}),
        }
        if source == target:
            touched |= {**self._in.get(source, {}), **self._out.get(target, {})}
        for one in touched.values():
            self._settle(now_s, one)
            one.rate = min(
                self.rate_of(one.source) / len(self._out[one.source]),
                self.rate_of(one.target) / len(self._in[one.target]),
            )
            one.version += 1
            self._kernel.at(now_s + one.left / one.rate, self._over, (one, one.version))

    def _settle(self, now_s: float, one: Transfer) -> None:
        one.left = max(0.0, one.left - one.rate * (now_s - one.seen_s))
        one.seen_s = now_s

    def _over(self, now_s: float, what: tuple[Transfer, int]) -> None:
        one, version = what
        if one.ended or one.version != version:
            return
        one.ended, one.left = True, 0.0
        self.bytes_moved += one.bytes
        done = self._done[one.id]
        self._take_off(now_s, one)
        done(now_s, one)

    def _take_off(self, now_s: float, one: Transfer) -> None:
        if self._done.pop(one.id, None) is None:
            return
        del self._out[one.source][one.id]
        del self._in[one.target][one.id]
        self._rerate(now_s, one.source, one.target)
