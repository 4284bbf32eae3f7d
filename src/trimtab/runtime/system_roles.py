"""The roles of a system's replicas: what they start with, and who keeps them from then on."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from trimtab.core.config import Config
from trimtab.core.cost import CostModel
from trimtab.core.decision import ReplicaView
from trimtab.core.ports import Clock, LedgerSink
from trimtab.core.revision import Revision
from trimtab.core.served import Counter
from trimtab.core.types import Role
from trimtab.engines.served_load import drafts_nothing
from trimtab.policies.router import Router
from trimtab.runtime.attach import AttachedFleet
from trimtab.runtime.fleet import Fleet
from trimtab.runtime.handovers import HandOvers
from trimtab.runtime.hardware import core_count
from trimtab.runtime.role_keeper import Pressure, RoleKeeper, RoleParts, slots_pressure
from trimtab.runtime.role_settings import check_settings


def build_roles(
    config: Config,
    fleet: Fleet | AttachedFleet,
    router: Router,
    ledger: LedgerSink,
    clock: Clock,
    baseline: Revision,
    *,
    cost: Callable[[], CostModel],
    hand_overs: HandOvers,
    cause: Callable[[], str | None],
) -> RoleKeeper:
    """Return who keeps the roles. Those of attached servers begin as the configuration tells."""
    pressure = slots_pressure if isinstance(fleet, Fleet) else ToldPressure(fleet)
    parts = RoleParts(
        fleet=fleet,
        view=lambda: router.load.view(clock.mono_s()),
        plan=lambda: router.plan,
        cost=cost,
        sink=ledger,
        clock=clock,
        baseline=baseline,
        # What travels is long: the mark of hand-overs, not the engine's own, where they differ.
        chunk_tokens=config.handover.mark_tokens(config.engine.chunk_tokens),
        # Whoever builds the pool may put measured costs into it later.
        cost_ahead=lambda cost: hand_overs.pool.cost_ahead(cost),
        threshold=hand_overs.raise_threshold,
        cause=cause,
        drafts_nothing=_DraftsNothing(fleet),
        pressure=pressure,
    )
    return RoleKeeper(config.roles, parts)


class _Process(NamedTuple):
    """What tells one process of a server from the next: each has its own start, or its counters began anew."""

    url: str
    restarts: int
    started_at_s: float


class _DraftsNothing:
    """Says whether a replica is known to draft nothing: by the revision of one of ours, by the page of another's.

    What a page told holds until another page tells otherwise, or the server is another process.
    """

    def __init__(self, fleet: Fleet | AttachedFleet) -> None:
        self._fleet = fleet
        self._told: dict[str, tuple[_Process, bool]] = {}

    def __call__(self, replica: str) -> bool:
        """Return False too where nobody tells."""
        if replica not in self._fleet.replica_ids():
            self._told.pop(replica, None)
            return False
        if isinstance(self._fleet, Fleet):
            return not self._fleet.info(replica).revision.speculation.is_on
        sample, info = self._fleet.sample(replica), self._fleet.info(replica)
        process = _Process(info.url, info.crashes, info.started_at_s)
        told = None if sample is None else drafts_nothing(sample)
        if told is not None:
            self._told[replica] = process, told
        of, last = self._told.get(replica, (process, False))
        return last and of == process


class _Page(NamedTuple):
    """What a server's page told of preemptions since its start, and when it was read."""

    at_s: float
    preempted: float


class ToldPressure:
    """What attached servers tell of their KV and preemptions; where one does not tell, neither is known.

    Pages are read less often than roles tick, each server's at times of its own: between them nobody looked.
    """

    def __init__(self, fleet: AttachedFleet) -> None:
        self._fleet = fleet
        self._pages: dict[str, _Page] = {}

    def __call__(self, decode: Sequence[ReplicaView]) -> Pressure:
        """Return their mean share of KV in use, and how many requests they preempted by pages that are new."""
        shares = [one.kv_used_share for one in decode]
        known = [share for share in shares if share is not None]
        before, pages = self._pages, {one.id: self._page(one.id) for one in decode}
        # One that did not decode a tick ago tells what it preempted in another role, which is no want of room here.
        self._pages = {id_: page for id_, page in pages.items() if page is not None}
        new = [
            page.preempted - before[id_].preempted
            for id_, page in self._pages.items()
            if id_ in before and page.at_s != before[id_].at_s
        ]
        is_told = len(self._pages) == len(pages)
        return Pressure(
            kv_used_share=sum(known) / len(known) if known and len(known) == len(shares) else None,
            # Counters of a server that was started anew begin at nothing.
            preemptions=round(sum(max(0.0, each) for each in new)) if is_told else None,
            looked=bool(new),
        )

    def _page(self, replica: str) -> _Page | None:
        sample = self._fleet.sample(replica)
        told = None if sample is None else sample.counter_sum(Counter.PREEMPTIONS)
        return None if sample is None or told is None else _Page(sample.at_s, told)


def first_roles(
    config: Config, names: Sequence[str], least: int = 0, held: Collection[str] = ()
) -> dict[str, Role]:
    """Return the roles that are not mixed at a start: the last replicas prefill for the others.

    `least`: as many as a lever has that is on, whatever the configuration says; one replica always decodes. `held`: in
    a revision of another lever, which its role would replace.
    """
    free = [name for name in names if name not in held]
    prefill = min(max(config.roles.prefill, least), len(names) - 1, len(free))
    if prefill <= 0:
        return {}
    ahead = free[-prefill:]
    return {name: Role.PREFILL if name in ahead else Role.DECODE for name in names}


async def start_fleet(
    config: Config,
    fleet: Fleet,
    keeper: RoleKeeper,
    revisions: Mapping[str, Revision],
    least: int,
    cause_id: str | None,
) -> None:
    """Start replicas in their roles; those that prefill may have settings of their own. Raises `LaunchError`."""
    check_settings(config, keeper.settings_for(Role.MIXED).revision, cores=core_count())
    held = [name for name, revision in revisions.items() if revision.id != keeper.baseline_id]
    roles = first_roles(config, tuple(revisions), least, held)
    prefill = [name for name in revisions if roles.get(name) is Role.PREFILL]
    own = keeper.settings_for(Role.PREFILL)
    await fleet.start(
        {**revisions, **dict.fromkeys(prefill, own.revision)},
        roles=roles,
        threads=dict.fromkeys(prefill, own.threads),
        cause_id=cause_id,
    )
