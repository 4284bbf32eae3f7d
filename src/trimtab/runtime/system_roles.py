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


def first_roles(config: Config, names: Sequence[str], least: int = 0) -> dict[str, Role]:
    """Return the roles that are not mixed at a start: the last replicas prefill for the others.

    `least`: as many as a lever has that is on, whatever the configuration says; one replica always decodes.
    """
    prefill = min(max(config.roles.prefill, least), len(names) - 1)
    if prefill <= 0:
        return {}
    first = len(names) - prefill
    return {name: Role.PREFILL if at >= first else Role.DECODE for at, name in enumerate(names)}


async def start_fleet(
    config: Config,
    fleet: Fleet,
    keeper: RoleKeeper | None,
    revisions: Mapping[str, Revision],
    least: int,
    cause_id: str | None,
) -> None:
    """Start replicas in their roles; those that prefill may have a revision of their own. Raises `LaunchError`."""
    roles = first_roles(config, tuple(revisions), least)
    started = {
        name: keeper.revision_for(Role.PREFILL)
        if keeper is not None and roles.get(name) is Role.PREFILL
        else revision
        for name, revision in revisions.items()
    }
    await fleet.start(started, roles=roles, cause_id=cause_id)
