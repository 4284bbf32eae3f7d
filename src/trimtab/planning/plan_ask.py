"""What a plan is asked: a model on a cluster under a demand, and what is known of experts, exchange and price."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.layout import Cluster, Demand, PlanInputError, Targets
from trimtab.core.nearest import nearest_names
from trimtab.core.served import Accelerator, ModelShape
from trimtab.diagnosis.served_facts import ExpertExchange
from trimtab.planning.layouts import Sizes

FIGURE_MAX: Final = 1e9
"""No figure of an ask is larger; neither infinity nor what is no number gets past it."""


DRAFT_TOKENS_MAX: Final = 64
"""Beyond what any engine's drafter proposes in a step: trees of EAGLE have 60 nodes, chains 3 to 8."""


class Goal(StrEnum):
    """What is looked for among layouts that meet the targets."""

    FEWEST = "fewest"
    """The fewest accelerators that carry the load."""
    THROUGHPUT = "throughput"
    """The most output tokens per second of all accelerators there are."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One question. `price_per_h`: of one accelerator for an hour; `exchange` and `expert_skew` (load of the busiest
    rank over the mean) None: unknown. Without concurrency and rate the goal is throughput.
    """

    model: ModelShape
    accelerator: Accelerator
    cluster: Cluster
    demand: Demand
    targets: Targets = Targets()
    sizes: Sizes = Sizes()
    exchange: ExpertExchange | None = None
    expert_skew: float | None = None
    price_per_h: float | None = None

    @property
    def goal(self) -> Goal:
        """What is looked for."""
        told = self.demand.concurrency is not None or self.demand.rate_per_s is not None
        return Goal.FEWEST if told else Goal.THROUGHPUT

    @property
    def judged(self) -> "Ask":
        """The ask by which layouts are judged: an answer of one token has no token after its first, so no TPOT."""
        if self.demand.output_tokens > 1:
            return self
        targets = msgspec.structs.replace(self.targets, tpot_ms=None)
        return msgspec.structs.replace(self, targets=targets)


_ALL_TO_ALL: Final = ExpertExchange.ALL_TO_ALL
_ALL_REDUCE: Final = ExpertExchange.ALL_REDUCE

# Names of vLLM's and SGLang's backends. Those of the second kind send every token to every rank.
_COLLECTIVES: Final[Mapping[str, ExpertExchange]] = {
    "all-to-all": _ALL_TO_ALL,
    "deepep": _ALL_TO_ALL,
    "deepep-high-throughput": _ALL_TO_ALL,
    "deepep-low-latency": _ALL_TO_ALL,
    "pplx": _ALL_TO_ALL,
    "mori": _ALL_TO_ALL,
    "mooncake": _ALL_TO_ALL,
    "nixl-ep": _ALL_TO_ALL,
    "flashinfer": _ALL_TO_ALL,
    "flashinfer-all2allv": _ALL_TO_ALL,
    "all-reduce": _ALL_REDUCE,
    "naive": _ALL_REDUCE,
    "allgather-reducescatter": _ALL_REDUCE,
}
_COLLECTIVE_WORDS: Final = {
    "all2all": "all-to-all",
    "alltoall": "all-to-all",
    "allreduce": "all-reduce",
}


def find_exchange(name: str) -> ExpertExchange:
    """Return how a backend exchanges tokens between experts; raises `PlanInputError` on the field `collective`."""
    plain = name.strip().lower().replace("_", "-")
    plain = _COLLECTIVE_WORDS.get(plain, plain)
    found = _COLLECTIVES.get(plain)
    if found is None:
        near = nearest_names(name, _COLLECTIVES) or tuple(_COLLECTIVES)
        raise PlanInputError("collective", f"no backend {name!r} is known", near)
    return found


def check_ask(ask: Ask) -> None:
    """Raise `PlanInputError` for a value that cannot be, naming the field and what is nearest."""
    demand, targets = ask.demand, ask.targets
    _above_zero("isl", demand.input_tokens, "1")
    _above_zero("osl", demand.output_tokens, "1")
    _above_zero("concurrency", demand.concurrency, "1")
    _above_zero("rate", demand.rate_per_s, "1")
    _above_zero("ttft_ms", targets.ttft_ms, "1")
    _above_zero("tpot_ms", targets.tpot_ms, "1")
    if demand.concurrency is not None and demand.rate_per_s is not None:
        raise PlanInputError("rate", "a load is streams at once or requests per second, not both")
    for name, value in (
        ("prefix_share", demand.prefix_share),
        ("draft_acceptance", demand.draft_acceptance),
    ):
        if value is not None and not 0.0 <= value <= 1.0:
            raise PlanInputError(name, f"{value:g} is no share", ("0" if value < 0 else "1",))
    if demand.draft_acceptance is not None and demand.draft_tokens == 0:
        raise PlanInputError(
            "draft_acceptance", "nothing is drafted that could be accepted", ("--draft-tokens 3",)
        )
    if not 0 <= demand.draft_tokens <= DRAFT_TOKENS_MAX:
        near = min(max(0, demand.draft_tokens), DRAFT_TOKENS_MAX)
        raise PlanInputError(
            "draft_tokens",
            f"{demand.draft_tokens} are not from 0 to the {DRAFT_TOKENS_MAX} of a step",
            (str(near),),
        )
    if ask.price_per_h is not None and not 0.0 <= ask.price_per_h <= FIGURE_MAX:
        near_price = f"{FIGURE_MAX:.0f}" if ask.price_per_h > 0.0 else "0"
        raise PlanInputError("price", f"{ask.price_per_h:g} an hour is no price", (near_price,))
    if ask.expert_skew is not None and not 1.0 <= ask.expert_skew <= FIGURE_MAX:
        near_skew = f"{FIGURE_MAX:.0f}" if ask.expert_skew > 1.0 else "1"
        raise PlanInputError(
            "expert_skew",
            f"{ask.expert_skew:g}: the busiest rank has at least the mean",
            (near_skew,),
        )
    _check_context(ask)


def _above_zero(field: str, value: float | None, nearest: str) -> None:
    if value is None or 0 < value <= FIGURE_MAX:
        return
    near = f"{FIGURE_MAX:.0f}" if value > 0 else nearest
    raise PlanInputError(field, f"{value:g} is not above 0 and at most {FIGURE_MAX:.0f}", (near,))


def _check_context(ask: Ask) -> None:
    demand, most = ask.demand, ask.model.context_tokens_max
    whole = demand.input_tokens + demand.output_tokens
    asked = demand.context_tokens
    if asked is not None and asked < whole:
        raise PlanInputError(
            "context", f"{asked} tokens do not hold an input and its output", (str(whole),)
        )
    longest = asked or whole
    if most is not None and longest > most:
        field = "context" if asked is not None else "isl"
        near = most if asked is not None else max(1, most - demand.output_tokens)
        raise PlanInputError(
            field, f"{longest} tokens of context are beyond the {most} of {ask.model.name}", (str(near),)
        )  # fmt: skip


def demand_of_replica(demand: Demand, replicas: int) -> Demand:
    """Return what one of so many replicas gets; a replica that runs has at least one stream."""
    streams, rate = demand.concurrency, demand.rate_per_s
    return msgspec.structs.replace(
        demand,
        concurrency=None if streams is None else max(1.0, streams / replicas),
        rate_per_s=None if rate is None else rate / replicas,
    )
