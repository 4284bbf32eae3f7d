"""KV on its way: set-up and bytes apart, links that are shared, slowed, and hand-overs given up."""

import pytest

from trimtab.sim.kernel import Kernel
from trimtab.sim.links import Links, LinkSpec, Transfer


class Bench:
    """Links of 1,000 bytes a second with a set-up of 100 ms."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.links = Links(LinkSpec(bytes_per_s=1000.0, setup_ms=100.0), self.kernel)
        self.ended: dict[str, float] = {}

    def send(self, at_s: float, source: str, target: str, size: float = 1000.0) -> None:
        """Send at a time; the end is kept under source-target."""

        def begin(now_s: float, _: object) -> None:
            self.links.send(now_s, source, target, size, self._done)

        self.kernel.at(at_s, begin)

    def _done(self, now_s: float, one: Transfer) -> None:
        self.ended[f"{one.source}-{one.target}"] = now_s


def test_lone_hand_over_takes_its_set_up_and_its_bytes() -> None:
    """0.1 s and 1 s."""
    bench = Bench()
    bench.send(0.0, "p0", "d0")
    bench.kernel.run()
    assert bench.ended == {"p0-d0": pytest.approx(1.1)}
    assert bench.links.bytes_moved == 1000.0


def test_hand_overs_of_one_sender_share_its_link_and_speed_up_when_one_ends() -> None:
    """Half the rate while both run; set-ups share nothing."""
    bench = Bench()
    bench.send(0.0, "p0", "d0", 500.0)
    bench.send(0.0, "p0", "d1", 1000.0)
    bench.kernel.run()
    assert bench.ended == {"p0-d0": pytest.approx(1.1), "p0-d1": pytest.approx(1.6)}


def test_receiver_is_shared_as_well() -> None:
    """Two senders into one replica."""
    bench = Bench()
    bench.send(0.0, "p0", "d0")
    bench.send(0.0, "p1", "d0")
    bench.send(0.0, "p2", "d1")
    bench.kernel.run()
    assert bench.ended["p2-d1"] == pytest.approx(1.1)
    assert bench.ended["p0-d0"] == bench.ended["p1-d0"] == pytest.approx(2.1)


def test_slow_link_slows_what_is_under_way() -> None:
    """Half of the bytes at the old rate, half at a tenth of it."""
    bench = Bench()
    bench.send(0.0, "p0", "d0")
    bench.kernel.at(0.6, lambda now_s, _: bench.links.slow(now_s, "d0", 10.0))
    bench.kernel.run()
    assert bench.ended == {"p0-d0": pytest.approx(0.6 + 5.0)}


@pytest.mark.parametrize("at_s", [0.05, 0.6])
def test_hand_over_that_is_given_up_leaves_its_link_to_others(at_s: float) -> None:
    """During the set-up or the bytes; nothing is told of it."""
    bench = Bench()
    gone: list[Transfer] = []

    def begin(now_s: float, _: object) -> None:
        gone.append(bench.links.send(now_s, "p0", "d1", 1e9, lambda *_: None))

    bench.kernel.at(0.0, begin)
    bench.send(0.0, "p0", "d0")
    bench.kernel.at(at_s, lambda now_s, _: bench.links.drop(now_s, gone[0]))
    bench.kernel.run()
    shared_s = max(0.0, at_s - 0.1)
    assert bench.ended == {"p0-d0": pytest.approx(1.1 + shared_s / 2.0)}
    assert bench.links.sending("p0") == 0


@pytest.mark.parametrize("values", [{"bytes_per_s": 0.0}, {"bytes_per_s": 1.0, "setup_ms": -1.0}])
def test_link_that_carries_nothing_is_refused(values: dict[str, float]) -> None:
    """With the figure."""
    with pytest.raises(ValueError, match=r"above 0|at least 0"):
        LinkSpec(**values)
