"""The four budgets as used shares, each with the basis in words; what cannot be told stays unknown."""

from trimtab.core.budgets import Budgets, BudgetUse
from trimtab.core.evidence import Readings, Unknown
from trimtab.core.types import Budget
from trimtab.diagnosis.names import FleetFacts, Name


def budgets_of(readings: Readings, fleet: FleetFacts) -> Budgets:
    """Return compute, memory, communication and quality as used shares (0 to 1)."""
    return Budgets(
        (
            _compute(readings),
            _memory(readings, fleet),
            _communication(readings),
            BudgetUse(
                budget=Budget.QUALITY,
                used_share=0.0,
                basis="no lever in force may change outputs: equality at temperature 0 is gated",
            ),
        )
    )


def _compute(readings: Readings) -> BudgetUse:
    for name, basis in (
        (Name.CPU_BUSY_SHARE, "CPU time of the replicas over their threads' time"),
        (Name.BUSY_SHARE, "time in which a replica had a prefill or a decode running"),
    ):
        share = readings.value(name)
        if share is not None:
            return BudgetUse(
                budget=Budget.COMPUTE, used_share=share, basis=basis, reading=readings.get(name)
            )
    return BudgetUse(
        budget=Budget.COMPUTE,
        used_share=None,
        basis="neither CPU time nor the replicas' timeline is known",
        reading=readings.get(Name.CPU_BUSY_SHARE),
    )


def _memory(readings: Readings, fleet: FleetFacts) -> BudgetUse:
    resident = readings.value(Name.MEMORY_RESIDENT_BYTES)
    shares: list[tuple[float, Name, str]] = []
    if resident is not None and fleet.memory_available_bytes:
        share = min(1.0, resident / fleet.memory_available_bytes)
        shares.append(
            (
                share,
                Name.MEMORY_RESIDENT_BYTES,
                "resident memory of the replicas over what is available",
            )
        )
    kv = readings.value(Name.KV_RUNNING_SHARE)
    if kv is not None:
        shares.append((kv, Name.KV_RUNNING_SHARE, "KV of running requests over the slots' context"))
    if not shares:
        return BudgetUse(
            budget=Budget.MEMORY,
            used_share=None,
            basis="neither resident memory nor KV use is known",
            reading=readings.get(Name.KV_RUNNING_SHARE),
        )
    share, name, basis = max(shares)
    others = "; ".join(f"{text}: {value:.0%}" for value, other, text in shares if other != name)
    return BudgetUse(
        budget=Budget.MEMORY,
        used_share=share,
        basis=f"{basis} ({others})" if others else basis,
        reading=readings.get(name),
    )


def _communication(readings: Readings) -> BudgetUse:
    moved = readings.value(Name.TRANSFER_SHARE)
    if moved:
        return BudgetUse(
            budget=Budget.COMMUNICATION,
            used_share=None,
            basis=f"{moved:.1%} of request time is transfer; what the link could carry is unknown",
            reading=readings.get(Name.TRANSFER_SHARE),
        )
    told = readings.get(Name.TRANSFER_SHARE)
    if isinstance(told, Unknown) and readings.value(Name.HAND_OVERS):
        return BudgetUse(
            budget=Budget.COMMUNICATION,
            used_share=None,
            basis=f"KV moves between replicas: {told.reason}",
            reading=told,
        )
    return BudgetUse(
        budget=Budget.COMMUNICATION,
        used_share=0.0,
        basis="mixed replicas on one node: nothing is transferred between replicas",
    )
