"""What computing a prompt costs, as hand-overs are decided by: as it was measured, else as traffic shows it."""

from collections import deque
from typing import Final

from trimtab.core.cost import CostModel
from trimtab.core.record import RequestRecord
from trimtab.diagnosis.traffic_cost import cost_from_traffic
from trimtab.policies.prefill_pool import PrefillPool

RECORDS_LEARNED_FROM: Final = 600
LEARN_EVERY: Final = 25


class LearnedCost:
    """Gives a pool its costs. `is_told`: it has some that were measured, and learns none."""

    def __init__(self, pool: PrefillPool, *, is_told: bool) -> None:
        self._pool = pool
        self._is_told = is_told
        self._records: deque[RequestRecord] = deque(maxlen=RECORDS_LEARNED_FROM)
        self._unlearned = 0

    def use(self, cost: CostModel) -> None:
        """Decide by measured costs from now on."""
        self._is_told, self._pool.cost = True, cost

    def learn(self, record: RequestRecord) -> None:
        """Learn costs from traffic as long as nobody measured them."""
        if self._is_told or not self._pool.load.has_prefill:
            return
        self._records.append(record)
        self._unlearned += 1
        if self._unlearned >= LEARN_EVERY:
            self._unlearned = 0
            found = cost_from_traffic(self._records)
            if isinstance(found, CostModel):
                self._pool.cost = found
