"""A plan in words and rows, the same for terminal and page."""

import math
from collections.abc import Iterator, Sequence

from trimtab.core.layout import EstimateSource, Span
from trimtab.core.narrate_words import UNKNOWN, number, share
from trimtab.interfaces.plan_answer import LayoutAnswer, MemoryAnswer, PlanAnswer
from trimtab.planning.candidates import ENDLESS, Standing
from trimtab.planning.capacity import Capacity
from trimtab.planning.settle import Measurement

GB = 1e9
LAYOUTS_SHOWN = 8
IMPOSSIBLE_SHOWN = 8

SIGNS = {
    Standing.CHOSEN: "\u2713 chosen",
    Standing.NEXT: "next",
    Standing.MEETS: "meets",
    Standing.MISSES: "\u2715 misses",
    Standing.FORBIDDEN: "\u2715 ruled out",
    Standing.DOES_NOT_FIT: "\u2715 does not fit",
}
SOURCES = {
    EstimateSource.MEASURED: "measured",
    EstimateSource.KERNEL_TABLES: "kernel tables",
    EstimateSource.EXTENDED_TABLES: "tables and formula",
    EstimateSource.ROOFLINE: "roofline",
}

SERVING = (Standing.CHOSEN, Standing.NEXT, Standing.MEETS, Standing.MISSES)

LAYOUT_HEADS = (
    "layout", "devices", "", "TTFT ms", "TPOT ms", "tokens/s", "per device", "from", "because",
)  # fmt: skip
MEMORY_HEADS = ("on the fullest rank", "GB", "because")
GROWTH_HEADS = (
    "devices", "replica", "TPOT ms", "tokens/s", "per device", "each adds", "efficiency",
    "comm. share", "",
)  # fmt: skip
SPREAD_HEADS = ("devices", "layout", "carries", "each adds", "efficiency")


def headline(answer: PlanAnswer) -> str:
    """Return the answer in one line."""
    because = answer.because
    if answer.chosen is None:
        return because[:1].upper() + because[1:]
    return f"{title(answer)}: {because}"


def title(answer: PlanAnswer) -> str:
    """Return what was chosen in a few words."""
    if answer.chosen is None:
        return "No layout meets the targets"
    canary = ", on a canary first" if answer.chosen.canary else ""
    return (
        f"{answer.chosen.label} on {answer.chosen.devices} x {answer.hardware.accelerator}{canary}"
    )


def asked_words(answer: PlanAnswer) -> str:
    """Return what was asked, in one line."""
    demand, hardware = answer.demand, answer.hardware
    nodes = f" in {hardware.nodes} nodes" if hardware.nodes > 1 else ""
    load = "as much as all of them carry"
    if demand.concurrency is not None:
        load = f"{demand.concurrency:g} streams at once"
    elif demand.rate_per_s is not None:
        load = f"{demand.rate_per_s:.3g} requests per second"
    cached = f", {share(demand.prefix_share)} of input cached" if demand.prefix_share else ""
    inside = "link unknown" if hardware.link == UNKNOWN else hardware.link
    joined = f"{inside}{f', {hardware.node_link} between nodes' if hardware.node_link else ''}"
    return (
        f"{answer.model}; {hardware.devices * hardware.nodes} x {hardware.accelerator}{nodes} ({joined}); "
        f"{demand.input_tokens:,} tokens in, {demand.output_tokens:,} out{cached}; {load}"
    )


def span_words(span: Span | None) -> str:
    """Return a time with its interval."""
    if span is not None and not math.isfinite(span.value):
        return ENDLESS
    return "" if span is None else f"{_ms(span.value)} ({interval_words(span)})"


def value_words(span: Span | None) -> str:
    """Return a time without its interval."""
    if span is not None and not math.isfinite(span.value):
        return ENDLESS
    return UNKNOWN if span is None else f"{_ms(span.value)} ms"


def interval_words(span: Span | None) -> str:
    """Return the interval of a time."""
    if span is None or span.low is None or span.high is None:
        return "? to ?"
    return f"{_ms(span.low)} to {_ms(span.high)}"


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 1000.0 else f"{value:,.0f}"


def layout_rows(answer: PlanAnswer) -> list[tuple[str, ...]]:
    """Return the chosen layout, the next ones and those that come near, one row each."""
    serving = [each for each in answer.layouts if each.standing in SERVING]
    rows = serving[:LAYOUTS_SHOWN] or answer.layouts[:LAYOUTS_SHOWN]
    return [
        (
            each.label,
            str(each.devices),
            SIGNS[each.standing] + (" (canary)" if each.canary else ""),
            span_words(each.ttft_ms),
            span_words(each.tpot_ms),
            number(each.output_tokens_per_s) if each.output_tokens_per_s is not None else "",
            number(each.output_tokens_per_s_device)
            if each.output_tokens_per_s_device is not None
            else "",
            SOURCES[each.source] if each.source else "",
            _why(each),
        )
        for each in rows
    ]


def _why(each: LayoutAnswer) -> str:
    if each.standing in (Standing.MISSES, Standing.FORBIDDEN, Standing.DOES_NOT_FIT):
        return each.because
    return "; ".join(remark.text for remark in each.remarks)


def memory_rows(memory: MemoryAnswer) -> list[tuple[str, ...]]:
    """Return every use of the fullest rank's memory, what is left for KV, what is kept free, and their sum."""
    rows: list[tuple[str, ...]] = [
        (each.name, f"{each.bytes / GB:.2f}", each.because) for each in memory.parts
    ]
    rows.append(("left for KV", f"{memory.kv_bytes / GB:.2f}", memory.because))
    rows.append((memory.kept.name, f"{memory.kept.bytes / GB:.2f}", memory.kept.because))
    rows.append(("the device", f"{memory.device_bytes / GB:.2f}", "the sum of the rows above"))
    return rows


def kv_words(memory: MemoryAnswer) -> str:
    """Return what the KV cache of one replica holds."""
    return (
        f"KV of a replica: {memory.kv_tokens:,.0f} tokens, {memory.streams:,.1f} streams of the longest context; "
        f"{memory.kv_bytes_per_token_rank / 1024:.1f} KiB a token on each rank"
    )


def ruled_out(answer: PlanAnswer) -> list[str]:
    """Return why layouts beyond those shown cannot serve, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for each in answer.layouts:
        if each.standing in (Standing.FORBIDDEN, Standing.DOES_NOT_FIT):
            reasons.setdefault(_reason(each), []).append(each.label)
    return [f"{_some(labels)}: {reason}" for reason, labels in reasons.items()]


def _reason(each: LayoutAnswer) -> str:
    return "does not fit" if each.standing is Standing.DOES_NOT_FIT else each.because


def _some(labels: Sequence[str], most: int = 6) -> str:
    more = len(labels) - most
    return ", ".join(labels[:most]) + (f" and {more} more" if more > 0 else "")


def impossible_words(answer: PlanAnswer) -> list[str]:
    """Return the sizes that the model forbids, with what is nearest."""
    told = [
        f"{each.what}: {each.because}"
        + (f"; nearest {' or '.join(each.nearest)}" if each.nearest else "")
        for each in answer.impossible
    ]
    more = len(told) - IMPOSSIBLE_SHOWN
    return (
        told if more <= 0 else [*told[:IMPOSSIBLE_SHOWN], f"and {more} more; --json has them all"]
    )


def growth_rows(answer: PlanAnswer) -> list[tuple[str, ...]]:
    """Return what devices add to one replica."""
    return [
        (
            str(each.devices),
            each.layout.label,
            span_words(each.tpot_ms),
            number(each.output_tokens_per_s),
            number(each.output_tokens_per_s_device),
            "" if each.adds_tokens_per_s is None else f"{each.adds_tokens_per_s:+.3g}",
            share(each.efficiency),
            share(each.communication_share),
            " ".join(
                word
                for word, holds in (
                    ("KV too small", not each.carries),
                    ("slower than smaller", each.reverses),
                    ("meets", each.meets),
                )
                if holds
            ),
        )
        for each in answer.growth
    ]


def spread_rows(answer: PlanAnswer) -> list[tuple[str, ...]]:
    """Return what devices add to the fleet."""
    return [
        (
            str(each.devices),
            each.layout.label,
            number(each.carries),
            "" if each.adds is None else f"{each.adds:+.3g}",
            share(each.efficiency),
        )
        for each in answer.spread
    ]


def measurement_words(each: Measurement) -> str:
    """Return one measurement as something to do."""
    load = (
        f"{each.rate_per_s:.3g} requests per second"
        if each.rate_per_s is not None
        else f"{each.concurrency:.0f} requests in flight"
        if each.concurrency is not None
        else "a single stream"
    )
    return (
        f"one replica of {each.layout.label}, {load}, {each.input_tokens:,} tokens in and "
        f"{each.output_tokens:,} out: {each.settles}"
    )


def capacity_words(answer: PlanAnswer) -> Iterator[str]:
    """Give what the chosen layout carries, its spare and its cost."""
    found = answer.capacity
    if found is None:
        return
    if found.whole is not None:
        used = f", {share(found.used_share)} used" if found.used_share is not None else ""
        yield f"It carries {number(found.whole)} {found.unit} within the targets{used}."
    away = found.one_away
    spare = (
        f" {away.replicas_for_spare} replicas would keep the targets."
        if not away.holds and away.replicas_for_spare
        else ""
    )
    yield f"One replica away: {'holds' if away.holds else 'does not hold'}: {away.because}.{spare}"
    yield from _cost_words(found)
    if found.hours is not None:
        hours = found.hours
        yield (
            f"Over the trace, in windows of {hours.window_s:g} s, {hours.replicas_min} to {hours.replicas_max} "
            f"replicas are needed, {hours.replicas_mean:.2f} on average: following the load would spare "
            f"{share(hours.spared_share)}."
        )


def _cost_words(found: Capacity) -> Iterator[str]:
    cost = found.cost
    if cost is None:
        yield "Cost: unknown without --price."
        return
    output = cost.per_million_output_tokens
    each = (
        UNKNOWN
        if output is None or cost.per_million_tokens is None
        else f"{output:.3g} a million output tokens, {cost.per_million_tokens:.3g} a million of all"
    )
    over = cost.over_trace
    if over is None:
        yield f"Cost: {cost.per_h:.2f} an hour, {each}."
        return
    yield f"Cost: {cost.per_h:.2f} an hour. In the trace's busiest window {each}."
    yield (
        f"Over the whole trace {over.per_million_output_tokens:.3g} a million output tokens, "
        f"{over.per_million_tokens:.3g} a million of all; with the replicas that each window needs "
        f"{over.following_per_million_output_tokens:.3g} and {over.following_per_million_tokens:.3g}."
    )


def split_words(answer: PlanAnswer) -> str:
    """Return what a split of prefill and decode would mean."""
    split = answer.split
    if not split.possible:
        return f"not possible: {split.because}"
    sign = {True: "worth trying", False: "not advised", None: "cannot be told"}[split.advised]
    part = (
        f"; {share(split.prefill_share)} of device time is prefill"
        if split.prefill_share is not None
        else ""
    )
    return f"{sign}: {split.because}{part}"


def source_words(answer: PlanAnswer) -> list[str]:
    """Return where facts were read."""
    hardware = answer.hardware
    told = [
        f"model: {answer.model_source}",
        f"{hardware.accelerator}: {hardware.accelerator_source}",
        f"{hardware.link}: {hardware.link_source}",
    ]
    if hardware.node_link:
        told.append(f"{hardware.node_link}: {hardware.node_link_source}")
    return [*told, *answer.sources, *answer.model_notes]
