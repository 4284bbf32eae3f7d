"""The roles of a system's replicas: what they start with, and who keeps them from then on."""

from collections.abc import Callable, Mapping, Sequence

from trimtab.core.config import Config
from trimtab.core.cost import CostModel
from trimtab.core.ports import Clock, LedgerSink
from trimtab.core.revision import Revision
from trimtab.core.types import Role
from trimtab.policies.router import Router
from trimtab.runtime.attach import AttachedFleet
from trimtab.runtime.fleet import Fleet
from trimtab.runtime.role_keeper import RoleKeeper, RoleParts


def build_roles(
    config: Config,
    fleet: Fleet | AttachedFleet,
    router: Router,
    ledger: LedgerSink,
    clock: Clock,
    baseline: Revision,
    *,
    cost: Callable[[], CostModel],
    threshold: Callable[[float], None],
    cause: Callable[[], str | None],
) -> RoleKeeper | None:
    """Return who keeps the roles; None for servers of others, whose roles the configuration tells."""
    if not isinstance(fleet, Fleet):
        return None
    parts = RoleParts(
        fleet=fleet,
        view=lambda: router.load.view(clock.mono_s()),
        plan=lambda: router.plan,
        cost=cost,
        sink=ledger,
        clock=clock,
        baseline=baseline,
        chunk_tokens=config.engine.chunk_tokens,
        threshold=threshold,
        cause=cause,
    )
    return RoleKeeper(config.roles, parts)


def first_roles(config: Config, names: Sequence[str]) -> dict[str, Role]:
    """Return the roles that are not mixed at a start: the last replicas prefill for the others."""
    prefill = config.roles.prefill
    if prefill == 0:
        return {}
    first = len(names) - prefill
    return {name: Role.PREFILL if at >= first else Role.DECODE for at, name in enumerate(names)}


def first_revisions(
    keeper: RoleKeeper | None, roles: Mapping[str, Role], revisions: Mapping[str, Revision]
) -> dict[str, Revision]:
    """Return what each replica starts with: those that prefill may have a revision of their own."""
    if keeper is None:
        return dict(revisions)
    return {
        name: keeper.revision_for(Role.PREFILL) if roles.get(name) is Role.PREFILL else revision
        for name, revision in revisions.items()
    }
