"""The whole plan: what is possible, what fits, what meets the targets, and what would settle the rest."""

from typing import Final

import msgspec

from trimtab.planning.candidates import Candidate, Standing
from trimtab.planning.capacity import Capacity, capacity
from trimtab.planning.choose import candidate_of, choose, where_it_fits
from trimtab.planning.layouts import Impossible, possible_layouts
from trimtab.planning.plan_ask import Ask, Goal, check_ask
from trimtab.planning.plan_ports import Estimator
from trimtab.planning.relief import Relief, relief_of
from trimtab.planning.rules import Fits
from trimtab.planning.settle import Measurement, measurements, rivals_of, uncertain
from trimtab.planning.split import Split, split_of
from trimtab.planning.steps import Growth, Spread, growth, spread
from trimtab.workloads.trace_load import TraceLoad

PREFIX_SAID: Final = 0.01
"""Below this a trace repeats nothing worth a word."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. `ranked`: every possible layout, the best first; the first is chosen if one meets the targets.

    `growth`: what devices add to one replica; `spread`: what they add to the fleet; `unknown`: facts that were not
    given and would change the answer.
    """

    goal: Goal
    because: str
    fits: Fits
    chosen: Candidate | None
    ranked: tuple[Candidate, ...]
    impossible: tuple[Impossible, ...]
    growth: tuple[Growth, ...]
    spread: tuple[Spread, ...]
    uncertain: tuple[str, ...]
    measurements: tuple[Measurement, ...]
    split: Split
    capacity: Capacity | None
    relief: Relief | None
    unknown: tuple[str, ...]

    @property
    def next(self) -> tuple[Candidate, ...]:
        """The layouts that come after the chosen one."""
        return tuple(each for each in self.ranked if each.standing is Standing.NEXT)


def plan(ask: Ask, estimator: Estimator, *, trace: TraceLoad | None = None) -> Plan:
    """Plan a layout; raises `PlanInputError` for an ask that cannot be."""
    check_ask(ask)
    unknown = (*_unknown(ask), *_unknown_of_trace(ask, trace))
    ask = ask.judged
    possible = possible_layouts(ask.model, ask.cluster, ask.sizes)
    fits = where_it_fits(possible.layouts, ask, estimator)
    found = [candidate_of(layout, ask, fits, estimator) for layout in possible.layouts]
    ranked = choose(found, ask.goal)
    best = ranked[0]
    chosen = best if best.standing is Standing.CHOSEN else None
    loaded = _loaded(ask, best)
    rivals = rivals_of(chosen, ranked, ask, fits, estimator) if chosen and _has_load(ask) else []
    return Plan(
        goal=ask.goal,
        because=_because(ask, best, fits),
        fits=fits,
        chosen=chosen,
        ranked=tuple(ranked),
        impossible=possible.impossible,
        growth=growth(
            ranked, _in_flight(loaded, best), fits, estimator, replicas=best.layout.replicas
        ),
        spread=spread(ranked, ask.cluster.total, chosen.layout.devices if chosen else None),
        uncertain=uncertain(ranked, ask),
        measurements=measurements(ranked, rivals, ask),
        split=split_of(best, ask),
        capacity=capacity(chosen, loaded, fits, estimator, trace) if chosen else None,
        relief=None if chosen else relief_of(ranked, ask, fits, estimator),
        unknown=unknown,
    )


def _has_load(ask: Ask) -> bool:
    return ask.goal is Goal.FEWEST


def _loaded(ask: Ask, best: Candidate) -> Ask:
    """Return the ask with the load that the best layout was judged at, where none was stated."""
    if _has_load(ask):
        return ask
    each = best.expected.batch if best.expected else 1.0
    demand = msgspec.structs.replace(ask.demand, concurrency=each * best.layout.replicas)
    return msgspec.structs.replace(ask, demand=demand)


def _in_flight(loaded: Ask, best: Candidate) -> Ask:
    """Return the ask with a rate as the streams that the best layout has in flight at it.

    At one rate every size of replica does the same work, which says nothing of what devices add.
    """
    if loaded.demand.rate_per_s is None or best.expected is None:
        return loaded
    streams = max(1.0, best.expected.batch * best.layout.replicas)
    demand = msgspec.structs.replace(loaded.demand, concurrency=streams, rate_per_s=None)
    return msgspec.structs.replace(loaded, demand=demand)


def _because(ask: Ask, best: Candidate, fits: Fits) -> str:
    total = ask.cluster.total
    if best.standing is Standing.CHOSEN:
        if ask.goal is Goal.THROUGHPUT:
            return f"most tokens per second of {_accelerators(total)} within the targets: {best.because}"
        enough = "is enough" if best.layout.devices == 1 else "are enough"
        return f"{best.layout.devices} of {_accelerators(total)} {enough}: {best.because}"
    if fits.devices is None and best.standing is Standing.DOES_NOT_FIT:
        return (
            f"the model does not fit on {_accelerators(total)} in any layout; "
            f"{best.layout.label} comes nearest: {best.because}"
        )
    if best.standing is Standing.FORBIDDEN:
        return f"every layout that fits is ruled out; of {best.layout.label}: {best.because}"
    return f"no layout on {_accelerators(total)} meets the targets; {best.layout.label} comes nearest: {best.because}"


def _accelerators(count: int) -> str:
    return "1 accelerator" if count == 1 else f"{count} accelerators"


def _unknown_of_trace(ask: Ask, trace: TraceLoad | None) -> list[str]:
    if trace is None or ask.demand.prefix_share or trace.prefix_share_max < PREFIX_SAID:
        return []
    return [
        f"prefix_share: {trace.prefix_share_max:.0%} of the trace's input repeats what came before, the most that a "
        "cache can hold; none is counted (--prefix-share trace counts all)"
    ]


def _rate_unknown(ask: Ask) -> bool:
    cluster = ask.cluster
    joint = cluster.node_link
    between = cluster.nodes > 1 and (joint is None or not joint.bytes_per_s)
    return between or not cluster.link.bytes_per_s


def _not_used(ask: Ask) -> list[str]:
    """Say which facts were given that nothing of this question depends on."""
    given = {"expert_skew": ask.expert_skew, "collective": ask.exchange}
    told = [
        f"{name}: {ask.model.name} has no experts: not used"
        for name, value in given.items()
        if value is not None and not ask.model.experts
    ]
    if ask.cluster.node_link is not None and ask.cluster.nodes == 1:
        told.append(
            "node_link: one node is joined to no other: not used (--hardware NAME:COUNTxNODES)"
        )
    return told


def _unknown(ask: Ask) -> list[str]:
    told: list[str] = []
    link, joint = ask.cluster.link, ask.cluster.node_link
    if ask.cluster.devices > 1 and (link.bytes_per_s is None or link.peer_access is None):
        told.append(
            f"link: how fast devices of a node are joined is not known: {link.name} (--link)"
        )
    if ask.cluster.nodes > 1 and (joint is None or joint.bytes_per_s is None):
        told.append("link: what joins the nodes is not known (--node-link)")
    if ask.model.experts and ask.expert_skew is None:
        told.append(
            "expert_skew: load of the ranks, max over mean, is not measured: times have that of the tables "
            "(--expert-skew)"
        )
    if ask.model.experts and ask.exchange is None:
        told.append(
            "collective: how ranks exchange tokens of experts is not known: times have the engine's default "
            "(--collective)"
        )
    if ask.model.experts and ask.exchange and _rate_unknown(ask):
        told.append(
            "collective: without a link's rate times have the engine's default exchange, not the one named"
        )
    if ask.targets.tpot_ms is not None and ask.demand.output_tokens == 1:
        told.append(
            "tpot_ms: an answer of one token has no token after its first, so TPOT is not judged"
        )
    told += _not_used(ask)
    if ask.targets.tpot_ms is None and ask.targets.ttft_ms is None:
        told.append("targets: without --ttft-ms and --tpot-ms only fit and load decide")
    if ask.demand.draft_tokens and ask.demand.draft_acceptance is None:
        told.append("draft_acceptance: how many drafts are accepted is not known")
    return told
