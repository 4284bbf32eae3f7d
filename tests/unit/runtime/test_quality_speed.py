"""Speed is measured in turns in which both arms are warmed up alike."""

import pytest

from trimtab.quality.turns import SpeedSeen
from trimtab.runtime.quality_speed import in_turns

BASE, RUNG = "http://base", "http://rung"


class Machine:
    """Two equal arms on one machine: a pass right after the other arm's work is a third slower."""

    def __init__(self) -> None:
        self.last = ""
        self.calls: list[tuple[str, str, int]] = []

    async def warm(self, url: str, prompts: int) -> None:
        """Work that is not timed."""
        self.last = url
        self.calls.append(("warm", url, prompts))

    async def see(self, url: str, prompts: int) -> SpeedSeen:
        """Work that is."""
        slower = 1.0 if self.last == url else 1.5
        self.last = url
        self.calls.append(("see", url, prompts))
        return SpeedSeen(100.0 * slower, 20.0 * slower, {4: 120.0 / slower})


@pytest.mark.parametrize("seed", range(6))
async def test_original_beside_itself_is_one_though_a_change_of_arm_costs(seed: int) -> None:
    """Every pass begins from the arm's own work, so what the other one left behind slows neither."""
    machine = Machine()
    found = await in_turns(BASE, RUNG, rounds=3, seed=seed, warm=machine.warm, see=machine.see)
    assert (found.tpot_ms.n, found.tpot_ms.ratio) == (3, pytest.approx(1.0))
    assert found.tpot_ms.base == pytest.approx(20.0)
    assert found.tpot_ms.rung == pytest.approx(20.0)


async def test_each_pass_follows_a_warm_up_of_the_same_arm() -> None:
    """Both have as many, so neither is older than the other."""
    machine = Machine()
    await in_turns(BASE, RUNG, rounds=2, seed=1, warm=machine.warm, see=machine.see)
    warmed, timed = machine.calls[::2], machine.calls[1::2]
    assert [("see", url, prompts) for _, url, prompts in warmed] == timed
    assert sum(url == BASE for _, url, _ in timed) == sum(url == RUNG for _, url, _ in timed) == 5
