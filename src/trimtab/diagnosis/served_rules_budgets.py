"""The four budgets of servers of others as used shares; what metrics cannot tell stays unknown and says so."""

from trimtab.core.budgets import Budgets, BudgetUse
from trimtab.core.evidence import Readings
from trimtab.core.types import Budget
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_costs import Costs


def budgets_served(readings: Readings, facts: ServedFacts, costs: Costs) -> Budgets:
    """Return compute, memory, communication and quality as used shares (0 to 1)."""
    return Budgets(
        (
            _compute(costs),
            _memory(readings),
            _communication(readings, facts),
            BudgetUse(
                budget=Budget.QUALITY,
                used_share=None,
                basis="metrics say nothing of outputs: an evaluation would tell",
            ),
        )
    )


def work_share(costs: Costs) -> float | None:
    """Return the part of the time that the observed work would take at its costs, None if unknown."""
    told = [
        share for share in (costs.prefill_busy_share, costs.decode_busy_share) if share is not None
    ]
    return sum(told) if len(told) == 2 else None


def _compute(costs: Costs) -> BudgetUse:
    share = work_share(costs)
    return BudgetUse(
        budget=Budget.COMPUTE,
        used_share=None if share is None else min(1.0, share),
        basis=(
            f"prefill and decode work over time by {costs.source}"
            if share is not None
            else costs.missing or "token rates of a window would tell"
        ),
    )


def _memory(readings: Readings) -> BudgetUse:
    name = ServedName.KV_USED_SHARE_MAX
    share = readings.value(name)
    if share is None:
        name = ServedName.KV_USED_SHARE_MEAN
        share = readings.value(name)
    return BudgetUse(
        budget=Budget.MEMORY,
        used_share=share,
        basis="KV cache in use, the fullest rank" if share is not None else "KV usage is unknown",
        reading=readings.get(name),
    )


def _communication(readings: Readings, facts: ServedFacts) -> BudgetUse:
    link = None if facts.transfer is None else facts.transfer.link_bytes_per_s
    name = ServedName.TRANSFER_BYTES_PER_S
    rate, spent = readings.value(name), readings.value(ServedName.TRANSFER_MS_MEAN)
    known = rate is not None and bool(link)
    basis = (
        "rate while a transfer lasts over the link's"
        if known
        else "what the link carries is unknown"
    )
    if spent is None and rate is None:
        basis = "no transfer is reported, and what ranks exchange is not counted by metrics"
    return BudgetUse(
        budget=Budget.COMMUNICATION,
        used_share=min(1.0, rate / link) if rate is not None and link else None,
        basis=basis,
        reading=readings.get(name),
    )
