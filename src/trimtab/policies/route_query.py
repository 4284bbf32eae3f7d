"""What the gateway knows of a request when it asks for a replica, and what of it decides about slices."""

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.ports import RequestFacts
from trimtab.core.tenants import ANONYMOUS
from trimtab.core.traffic import CandidatePlan, StickyBy, TrafficPlan
from trimtab.policies.estimates import cuts_before_serving


class RouteQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway knows of a request when it asks for a replica.

    `blocks` are its hashed prompt blocks; `key_class` is that of their scope (`PrefixScope.key_class`), `salt` the
    cache salt in it; `now_s` is of the monotonic clock, as the traffic plan's times are. `marks`: the headers that the
    plan's cuts ask about, values hashed.
    """

    request_id: str
    facts: RequestFacts
    blocks: tuple[int, ...]
    prompt_size: int
    session: str
    label: str | None
    repetition: float | None
    now_s: float
    key_class: str = "plain"
    salt: str = ""
    tenant: str | None = None
    marks: tuple[str, ...] = ()


def key_of(query: RouteQuery, candidate: CandidatePlan) -> str:
    """Return what keeps its place in the slice: sessions stay in one arm, whose replicas hold their prefixes.

    A lever whose arms share the replicas takes any request, so that a slice of few sessions is no slice of few
    prompts. A lever record may ask for another rule. Without tenants a session stands for its tenant.
    """
    by = candidate.sticky_by or (StickyBy.SESSION if candidate.replicas else StickyBy.REQUEST)
    tenant = None if query.tenant == ANONYMOUS else query.tenant
    keys = {
        StickyBy.SESSION: query.session,
        StickyBy.TENANT: tenant or query.session,
        StickyBy.REQUEST: query.request_id,
    }
    return keys[by]


def asks_cuts(plan: TrafficPlan) -> bool:
    """Say whether a plan treats some cuts in another way than others."""
    return bool(plan.candidate or plan.preferences or plan.reserves)


def cuts_of_query(query: RouteQuery, prompt_tokens: int) -> tuple[Cut, ...]:
    """Return the cuts of a request that are known before it is served."""
    return cuts_before_serving(
        query.facts,
        label=query.label,
        repetition=query.repetition,
        prompt_tokens=prompt_tokens,
        tenant=query.tenant,
        marks=query.marks,
    )
