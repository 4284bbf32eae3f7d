"""A jump over decode steps agrees with the sum of its steps."""

import pytest

from trimtab.sim.jumps import Jump

JUMPS = (Jump(15.0, 0.01, 1.0), Jump(2.0, 0.0, 3.0), Jump(0.5, 0.4, 1.0))


@pytest.mark.parametrize("jump", JUMPS)
def test_time_of_a_jump_is_the_sum_of_its_steps(jump: Jump) -> None:
    """Every step takes as much longer than the one before as contexts grew."""
    steps = [(jump.first_ms + jump.growth_ms * at) * jump.slow / 1000.0 for at in range(50)]
    assert jump.seconds(50) == pytest.approx(sum(steps))


@pytest.mark.parametrize("jump", JUMPS)
def test_steps_passed_are_those_that_ended(jump: Jump) -> None:
    """At the end of a step it has passed, just before it has not; no more pass than were planned."""
    ends = [jump.seconds(steps) for steps in range(1, 41)]
    assert [jump.passed(end, 40) for end in ends] == list(range(1, 41))
    assert [jump.passed(end * (1.0 - 1e-9), 40) for end in ends] == list(range(40))
    assert jump.passed(1e9, 40) == 40


@pytest.mark.parametrize("jump", JUMPS)
def test_time_falls_into_the_step_that_ends_next(jump: Jump) -> None:
    """A time at the end of a step belongs to it, one after it to the next, and the first step is the least."""
    ends = [jump.seconds(steps) for steps in range(1, 41)]
    assert [jump.ending(end, 40) for end in ends] == list(range(1, 41))
    assert [jump.ending(end * (1.0 + 1e-9), 41) for end in ends] == list(range(2, 42))
    assert (jump.ending(0.0, 40), jump.ending(1e9, 40)) == (1, 40)
