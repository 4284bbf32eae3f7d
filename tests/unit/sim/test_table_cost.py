"""The step cost of a table of step times: of a table that is the formula itself, and of one that is not."""

import pytest

from trimtab.core.layout import EstimateSource
from trimtab.core.step_cost import StepCost
from trimtab.sim.fit import Limits
from trimtab.sim.table_cost import cost_of_times

COST = StepCost(
    overhead_ms=2.0,
    weights_ms=10.0,
    token_ms=0.05,
    stream_ms=0.05,
    context_ms=4e-5,
    pair_ms=1e-6,
    source="made up",
)
LIMITS = Limits(kv_tokens=200_000, streams_max=128, budget_tokens=2048)


class Table:
    """Step times of a cost; prompts beyond a size take longer by a factor, as another kernel would."""

    source = EstimateSource.KERNEL_TABLES
    notes: tuple[str, ...] = ()
    extended = False

    def __init__(self, slower: float = 1.0) -> None:
        self.slower = slower
        self.asked: list[float] = []

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """As the port says."""
        self.asked.append(batch * context_tokens)
        return COST.step_ms(tokens=batch, streams=batch, context_tokens=batch * context_tokens)

    def communication_ms(self, batch: float, context_tokens: float) -> float | None:
        """As the port says."""
        return None

    def prefill_ms(
        self, prompt_tokens: float, cached_tokens: float, *, busy_share: float = 1.0
    ) -> float:
        """As the port says."""
        size = prompt_tokens - cached_tokens
        took = COST.step_ms(tokens=size, pairs=size * (cached_tokens + size / 2.0))
        return took * (self.slower if size > 256 else 1.0)

    def beside_ms(
        self,
        chunk_tokens: float,
        prompt_tokens: float,
        cached_tokens: float,
        batch: float,
        *,
        busy_share: float = 1.0,
    ) -> float:
        """As the port says."""
        return 0.0


def test_table_that_follows_the_formula_gives_its_steps() -> None:
    """Within a few per cent at every step, also of both kinds at once."""
    found = cost_of_times(Table(), LIMITS, source="a table")
    assert found.error_mean < 0.02
    assert found.cost.source == "a table"
    asked = {"tokens": 564.0, "streams": 64.0, "context_tokens": 64_000.0, "pairs": 300_000.0}
    assert found.cost.step_ms(**asked) == pytest.approx(COST.step_ms(**asked), rel=0.05)


def test_error_of_the_formula_is_told() -> None:
    """A table with a jump in it cannot be followed, and the answer says by how much."""
    found = cost_of_times(Table(slower=1.6), LIMITS, source="a table")
    assert found.error_max > 0.1
    assert found.error_max >= found.error_mean > 0.0


def test_no_more_context_is_asked_for_than_the_kv_holds() -> None:
    """Streams that could never run together say nothing of the engine."""
    table = Table()
    cost_of_times(table, Limits(kv_tokens=30_000, streams_max=128), source="a table")
    assert max(table.asked) <= 30_000
