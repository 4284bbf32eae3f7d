"""The four budgets: what is used of each, what a lever moves, and whether the payer keeps headroom.

A lever is admissible only if the budget that pays keeps headroom: predicted before, measured after. If the
payer binds after adoption the lever has failed, whatever it gained.
"""

import msgspec

from trimtab.core.evidence import Reading
from trimtab.core.types import Budget

BINDS_AT_SHARE = 0.95
"""A budget counts as binding from this used share on."""

HEADROOM_SHARE = 0.10
"""What must stay free of the paying budget for a lever to be admissible."""


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """Used share (0 to 1) of one budget, or None when it cannot be told.

    `basis` says in words what the share is of (for example "busy time of the replicas' threads").
    """

    budget: Budget
    used_share: float | None
    basis: str
    reading: Reading | None = None


class BudgetMove(msgspec.Struct, frozen=True, kw_only=True):
    """What a lever is predicted to do to one budget: `delta_share` below 0 relieves, above 0 spends.

    None says that the size is not known in advance; the sign is in `spends`.
    """

    budget: Budget
    spends: bool
    delta_share: float | None
    because: str


class Budgets(msgspec.Struct, frozen=True):
    """The four budgets at one moment."""

    uses: tuple[BudgetUse, ...]

    def use(self, budget: Budget) -> BudgetUse:
        """Return the use of one budget; a budget nobody measured is reported as unknown."""
        for use in self.uses:
            if use.budget is budget:
                return use
        return BudgetUse(budget=budget, used_share=None, basis="not measured")

    def after(self, moves: tuple[BudgetMove, ...]) -> "Budgets":
        """Return the budgets as they are predicted to be after `moves`, clamped to [0, 1]."""
        by_budget = {move.budget: move for move in moves}
        return Budgets(tuple(_moved(use, by_budget.get(use.budget)) for use in self.uses))


def _moved(use: BudgetUse, move: BudgetMove | None) -> BudgetUse:
    if move is None:
        return use
    if use.used_share is None or move.delta_share is None:
        return BudgetUse(budget=use.budget, used_share=None, basis=f"{use.basis}; {move.because}")
    share = min(1.0, max(0.0, use.used_share + move.delta_share))
    return BudgetUse(budget=use.budget, used_share=share, basis=use.basis)


def payers_that_bind(budgets: Budgets, moves: tuple[BudgetMove, ...]) -> tuple[Budget, ...]:
    """Return the budgets that pay for `moves` and bind in `budgets` (used share at or above the limit)."""
    paying = [move.budget for move in moves if move.spends]
    shares = [(budget, budgets.use(budget).used_share) for budget in paying]
    return tuple(
        budget for budget, share in shares if share is not None and share >= BINDS_AT_SHARE
    )


def is_admissible(budgets: Budgets, moves: tuple[BudgetMove, ...]) -> bool:
    """Say whether every paying budget is predicted to keep its headroom; unknown payers do not block."""
    after = budgets.after(moves)
    for move in moves:
        share = after.use(move.budget).used_share
        if move.spends and share is not None and share > 1.0 - HEADROOM_SHARE:
            return False
    return True
