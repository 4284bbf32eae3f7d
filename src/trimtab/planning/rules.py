"""Layout rules with reasons: what a layout is for, what forbids it, and which fact is missing to say so.

    tensor parallel     within a fast node, for fit or for the latency of a single stream; not without peer access where
                        the model fits one device: every layer's exchange would cross the host
    expert parallel     for many tokens a step, many experts and a real all-to-all; a step waits for the busiest rank,
                        so the load of the ranks (max over mean) is the straggler factor; by all-reduce it saves nothing
    pipeline            across nodes, or over links without peer access, when nothing else fits; its bubble is
                        (stages - 1) / (micro-batches + stages - 1), and one stream gets no faster by it
    replicas            what fits on fewer devices comfortably shares nothing and spends no communication
    KV copies           beyond the KV heads a rank's KV does not shrink; a latent KV (MLA) is whole on every rank

Failure mode: a rule knows no times. It forbids and ranks; what is chosen among the rest is a matter of estimates.
Sources: Megatron-LM (Narayanan et al., 2021) for the bubble; DeepSeek-V2 (2024) for latent attention.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from trimtab.core.layout import Expected, Layout
from trimtab.diagnosis.roofline_layout import kv_copies
from trimtab.diagnosis.served_facts import ExpertExchange
from trimtab.diagnosis.served_rules_layout import EXPERT_TOKENS_MIN, EXPERTS_PER_RANK_MIN, SKEW_MAX
from trimtab.planning.layouts import spans_nodes, tensor_spans_nodes
from trimtab.planning.plan_ask import Ask

NODE_LINK_FAST_BYTES_PER_S = 200e9
"""From this rate for each device on, a link between nodes carries tensor parallelism like one inside a node."""


class Rule(StrEnum):
    """Which rule speaks."""

    TENSOR_NO_PEER = "tensor_no_peer"
    TENSOR_ACROSS_NODES = "tensor_across_nodes"
    TENSOR_FOR_LATENCY = "tensor_for_latency"
    LINK_UNKNOWN = "link_unknown"
    PIPELINE_NOT_NEEDED = "pipeline_not_needed"
    PIPELINE_UNEVEN = "pipeline_uneven"
    PIPELINE_BUBBLE = "pipeline_bubble"
    EXPERTS_NOTHING_SAVED = "experts_nothing_saved"
    EXPERTS_TOO_FEW_TOKENS = "experts_too_few_tokens"
    EXPERTS_TOO_FEW = "experts_too_few"
    EXPERTS_SKEWED = "experts_skewed"
    EXPERTS_SKEW_UNKNOWN = "experts_skew_unknown"
    EXPERTS_EXCHANGE_UNKNOWN = "experts_exchange_unknown"
    EXPERTS_SUMMED = "experts_summed"
    EXPERTS_CANDIDATE = "experts_candidate"
    KV_COPIED = "kv_copied"
    ATTENTION_GROUPS = "attention_groups"
    REPLICAS_SHARE_NOTHING = "replicas_share_nothing"


class Force(StrEnum):
    """What a remark does to a layout."""

    FORBIDS = "forbids"
    AGAINST = "against"
    FOR = "for"
    NOTES = "notes"
    UNKNOWN = "unknown"


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule says of one layout, with the numbers it rests on."""

    rule: Rule
    force: Force
    text: str
    numbers: Mapping[str, float] = {}


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """Where the model fits without pipelining. `devices`: the fewest of one replica; None: nowhere.

    `in_node`: some layout without stages fits within a node; `uncut`: one fits that cuts no matrix across nodes.
    `streams`: of the longest context that the smallest replica holds; `enough`: as many as its share of the load.
    """

    devices: int | None
    in_node: bool
    uncut: bool = True
    streams: float = 1.0
    enough: bool = True


def size_remarks(layout: Layout, ask: Ask, fits: Fits) -> Iterator[Remark]:
    """Give what follows from sizes, links and memory alone."""
    if layout.tp > 1 or layout.moe_tp > 1:
        yield from _tensor(layout, ask, fits)
    if layout.pp > 1:
        yield from _pipeline(layout, ask, fits)
    if layout.moe_ep > 1:
        yield from _experts_known(layout, ask)
    yield from _kv(layout, ask)
    if layout.devices_per_replica == fits.devices and ask.cluster.total > fits.devices:
        yield Remark(
            rule=Rule.REPLICAS_SHARE_NOTHING,
            force=Force.FOR,
            text=(
                f"the model fits {_devices(fits.devices)} with {fits.streams:.0f} streams: "
                "more of these are replicas that share nothing"
            ),
        )


def load_remarks(layout: Layout, ask: Ask, expected: Expected) -> Iterator[Remark]:
    """Give what follows from the tokens of a step."""
    if layout.moe_ep > 1 and ask.exchange is not ExpertExchange.ALL_REDUCE:
        tokens = expected.batch * (1.0 + ask.demand.draft_tokens)
        yield from _experts_loaded(layout, ask, tokens)
    if layout.pp > 1:
        micro = min(float(layout.pp), max(1.0, expected.batch))
        bubble = (layout.pp - 1) / (micro + layout.pp - 1)
        yield Remark(
            rule=Rule.PIPELINE_BUBBLE,
            force=Force.AGAINST,
            text=(
                f"{bubble:.0%} of a step is bubble with {micro:.0f} micro-batches over {layout.pp} stages; "
                "a single stream passes the stages one after another"
            ),
            numbers={"bubble_share": bubble},
        )


def _devices(count: int) -> str:
    return "one device" if count == 1 else f"{count} devices"


def _tensor(layout: Layout, ask: Ask, fits: Fits) -> Iterator[Remark]:
    link = ask.cluster.link
    needed = fits.devices is None or fits.devices > 1
    if link.peer_access is False and not needed and fits.enough:
        yield Remark(
            rule=Rule.TENSOR_NO_PEER,
            force=Force.FORBIDS,
            text=f"the model fits one device, and over {link.name} every layer's exchange crosses the host",
        )
    elif link.peer_access is False:
        yield Remark(
            rule=Rule.TENSOR_NO_PEER,
            force=Force.AGAINST,
            text=f"over {link.name} every layer's exchange crosses the host; it is here for fit and KV only",
        )
    if link.peer_access is None or link.bytes_per_s is None:
        yield Remark(
            rule=Rule.LINK_UNKNOWN,
            force=Force.UNKNOWN,
            text=f"how fast devices are joined (link: {link.name}) is not known: what exchanges cost here is a guess",
        )
    if tensor_spans_nodes(layout, ask.cluster) and not _nodes_joined_fast(ask):
        yield Remark(
            rule=Rule.TENSOR_ACROSS_NODES,
            force=Force.FORBIDS if fits.uncut else Force.AGAINST,
            text=(
                f"matrices cut over {max(layout.tp, layout.moe_tp)} ranks cross nodes of {ask.cluster.devices}, "
                "and every layer waits for their link"
            ),
        )
    if not needed and link.peer_access is not False:
        yield Remark(
            rule=Rule.TENSOR_FOR_LATENCY,
            force=Force.NOTES,
            text=(
                f"the model fits one device with {fits.streams:.0f} streams: "
                "more ranks are for more of them, or for the latency of each"
            ),
        )


def _nodes_joined_fast(ask: Ask) -> bool:
    link = ask.cluster.node_link
    return link is not None and (link.bytes_per_s or 0.0) >= NODE_LINK_FAST_BYTES_PER_S


def _pipeline(layout: Layout, ask: Ask, fits: Fits) -> Iterator[Remark]:
    layers = ask.model.layers or layout.pp
    if layers % layout.pp:
        most = -(-layers // layout.pp)
        yield Remark(
            rule=Rule.PIPELINE_UNEVEN,
            force=Force.NOTES,
            text=f"{layers} layers do not divide over {layout.pp} stages: a step waits for those with {most}",
            numbers={"layers_max": float(most)},
        )
    slow = ask.cluster.link.peer_access is False
    if fits.in_node and not (slow and fits.devices != 1):
        where = "one device" if fits.devices == 1 else "a node"
        yield Remark(
            rule=Rule.PIPELINE_NOT_NEEDED,
            force=Force.FORBIDS,
            text=f"the model fits {where} without stages, and stages only add a bubble",
        )
    elif not spans_nodes(layout, ask.cluster) and not slow:
        yield Remark(
            rule=Rule.PIPELINE_NOT_NEEDED,
            force=Force.FORBIDS,
            text=f"its stages lie within one node, where tensor parallelism over {ask.cluster.link.name} does the same",
        )


def _experts_known(layout: Layout, ask: Ask) -> Iterator[Remark]:
    """Give what does not depend on the load."""
    if ask.exchange is ExpertExchange.ALL_REDUCE:
        yield Remark(
            rule=Rule.EXPERTS_NOTHING_SAVED,
            force=Force.AGAINST,
            text="every rank gets every token: no communication saved against tensor parallelism",
        )
    elif ask.exchange is None:
        yield Remark(
            rule=Rule.EXPERTS_EXCHANGE_UNKNOWN,
            force=Force.AGAINST,
            text="how ranks exchange tokens is unknown: without an all-to-all no communication is saved",
        )
    if ask.expert_skew is None:
        yield Remark(
            rule=Rule.EXPERTS_SKEW_UNKNOWN,
            force=Force.UNKNOWN,
            text="the load of the ranks (max over mean) is not measured; each step waits for the busiest",
        )
    elif ask.expert_skew > SKEW_MAX:
        yield Remark(
            rule=Rule.EXPERTS_SKEWED,
            force=Force.FORBIDS,
            text=(
                f"the busiest rank has {ask.expert_skew:g} times the mean load and each step waits for it "
                f"(straggler factor {ask.expert_skew:g}): balance the experts first"
            ),
            numbers={"straggler_factor": ask.expert_skew},
        )
    if (ask.model.experts or 0) < EXPERTS_PER_RANK_MIN * layout.moe_ep:
        yield Remark(
            rule=Rule.EXPERTS_TOO_FEW,
            force=Force.AGAINST,
            text=f"{ask.model.experts} experts over {layout.moe_ep} ranks leave too few a rank to even out their load",
        )


def _experts_loaded(layout: Layout, ask: Ask, tokens: float) -> Iterator[Remark]:
    numbers = {"tokens_per_step": tokens}
    if tokens < EXPERT_TOKENS_MIN:
        yield Remark(
            rule=Rule.EXPERTS_TOO_FEW_TOKENS,
            force=Force.FORBIDS,
            text=(
                f"{tokens:.0f} tokens a step are too few to send around (from {EXPERT_TOKENS_MIN:.0f} on): "
                "tensor parallelism keeps every rank busy"
            ),
            numbers=numbers,
        )
        return
    known = ask.exchange is ExpertExchange.ALL_TO_ALL
    if known and layout.attention_dp == 1:
        yield Remark(
            rule=Rule.EXPERTS_SUMMED,
            force=Force.NOTES,
            text=(
                "without attention groups every rank holds every token and engines sum the experts' parts by "
                "all-reduce: the all-to-all that was named is not used"
            ),
        )
        return
    even = ask.expert_skew is not None and ask.expert_skew <= SKEW_MAX
    if known and even:
        yield Remark(
            rule=Rule.EXPERTS_CANDIDATE,
            force=Force.FOR,
            text=(
                f"{tokens:.0f} tokens a step, {ask.model.experts} experts, all-to-all, "
                f"load max/mean {ask.expert_skew:g}: worth a canary"
            ),
            numbers=numbers | {"straggler_factor": ask.expert_skew or 1.0},
        )


def _kv(layout: Layout, ask: Ask) -> Iterator[Remark]:
    copies = kv_copies(ask.model, layout.tp)
    if copies is None or copies <= 1.0:
        if layout.attention_dp > 1 and ask.model.latent_kv:
            yield Remark(
                rule=Rule.ATTENTION_GROUPS,
                force=Force.FOR,
                text=f"{layout.attention_dp} attention groups each hold the latent KV of their own requests, once",
            )
        return
    if ask.model.latent_kv:
        text = (
            f"the latent KV is one head that each of {layout.tp} ranks needs whole: {copies:g} copies; "
            "attention data parallelism holds each request's once"
        )
    else:
        text = (
            f"{ask.model.kv_heads} KV heads over {layout.tp} ranks: {copies:g} copies, "
            f"a rank's KV is as large as at TP{ask.model.kv_heads}"
        )
    yield Remark(rule=Rule.KV_COPIED, force=Force.NOTES, text=text, numbers={"kv_copies": copies})
