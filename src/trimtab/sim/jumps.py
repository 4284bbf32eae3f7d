"""Steps of decodes alone, taken in one jump: how long so many of them take, and how many pass in a time.

Between two changes of a replica's streams only their contexts grow, each step by the same number of tokens, so m steps
take
    m * first + growth * m * (m - 1) / 2     with growth = context_ms * tokens by which all contexts grow in a step
milliseconds. How many pass in a time is the root of that, put right by at most a step or two of rounding.
"""

import math

import msgspec


class Jump(msgspec.Struct, frozen=True, gc=False):
    """Steps that begin with one of `first_ms` and grow by `growth_ms` each; `slow` multiplies every step's time."""

    first_ms: float
    growth_ms: float
    slow: float

    def seconds(self, steps: int) -> float:
        """Return how long the first `steps` steps take."""
        return (
            (self.first_ms * steps + self.growth_ms * steps * (steps - 1) / 2.0)
            * self.slow
            / 1000.0
        )

    def passed(self, gone_s: float, most: int) -> int:
        """Return how many whole steps, at most `most`, end within a time."""
        if self.seconds(most) <= gone_s:
            return most
        half, gone_ms = self.growth_ms / 2.0, gone_s * 1000.0 / self.slow
        linear = self.first_ms - half
        steps = int(2.0 * gone_ms / (linear + math.sqrt(linear * linear + 4.0 * half * gone_ms)))
        steps = min(max(steps, 0), most)
        while steps > 0 and self.seconds(steps) > gone_s:
            steps -= 1
        while steps < most and self.seconds(steps + 1) <= gone_s:
            steps += 1
        return steps

    def ending(self, at_s: float, most: int) -> int:
        """Return the step, from 1 to `most`, in which or at whose end a time falls."""
        steps = self.passed(at_s, most)
        if steps > 0 and self.seconds(steps) >= at_s:
            return steps
        return min(steps + 1, most)
