"""What a walk over the precisions found: as a table for a terminal and as words."""

from typing import Final

from rich.console import Console
from rich.table import Table

from trimtab.core.types import Verdict
from trimtab.engines.gguf_tensors import LINEAR
from trimtab.quality.ladder import Ratio, RungResult, bar_of
from trimtab.quality.quantized import Plan, Quantized
from trimtab.quality.rung_results import loss_gate
from trimtab.quality.sensitivity import GroupChoice

SIGNS: Final = {
    Verdict.PASS: "\u2713 pass",
    Verdict.FAIL: "\u2715 fail",
    Verdict.HOLD: "\u25cc hold",
    Verdict.ERROR: "! error",
}
HEADS: Final = (
    "rung",
    "verdict",
    "bits",
    "file MB",
    "resident MB",
    "KV B/token",
    "log loss against the original (nats a token)",
    "TTFT",
    "TPOT",
    "tok/s",
    "latency and cost",
)


BESIDE_ITSELF: Final = ", beside itself"


def rows_of(found: Quantized) -> list[tuple[str, ...]]:
    """Return a row of words for each rung, in the order of the ladder."""
    return [_row(one, found) for one in found.results]


def _row(one: RungResult, found: Quantized) -> tuple[str, ...]:
    mark = " \u2190" if one.rung.label == found.choice.rung else ""
    speed = one.speed
    most = max(speed.tokens_per_s) if speed else None
    beside = BESIDE_ITSELF if one.rung.is_original else ""
    return (
        one.rung.label + beside + mark,
        SIGNS[one.verdict],
        # A rung that could not be written has no file.
        f"{one.bits_per_weight:.1f}" if one.file_bytes else "unknown",
        f"{one.file_bytes / 1e6:,.0f}" if one.file_bytes else "unknown",
        "unknown" if one.resident_bytes is None else f"{one.resident_bytes / 1e6:,.0f}",
        "unknown" if one.kv_bytes_per_token is None else f"{one.kv_bytes_per_token:,.0f}",
        "; ".join(harm_words(one, kind) for kind in one.kinds),
        ratio_words(speed.ttft_ms if speed else None),
        ratio_words(speed.tpot_ms if speed else None),
        ratio_words(speed.tokens_per_s[most] if speed and most else None),
        ratio_words(speed.score if speed else None),
    )


def harm_words(one: RungResult, kind: str) -> str:
    """Say by how much a rung is worse on one kind of text."""
    gate = one.quality.get(loss_gate(kind))
    if gate is None or gate.harm is None or gate.interval is None:
        return f"{kind} unknown"
    return (
        f"{kind} {gate.harm:+.4f} [{gate.interval.low:+.4f}, {gate.interval.high:+.4f}] n={gate.n}"
    )


def ratio_words(ratio: Ratio | None) -> str:
    """Say a ratio with its interval and count."""
    if ratio is None or ratio.ratio is None:
        return "unknown"
    if ratio.interval is None:
        return f"{ratio.ratio:.2f} (n={ratio.n})"
    return f"{ratio.ratio:.2f} [{ratio.interval.low:.2f}, {ratio.interval.high:.2f}]"


def plan_words(plan: Plan) -> tuple[str, ...]:
    """Say what is to be measured, and how small a difference that can tell."""
    texts = ", ".join(
        f"{count:,} positions of {kind} in {plan.blocks[kind]} blocks (tells {plan.margin_nats:g} nats apart "
        f"if blocks differ by up to {plan.spread_max[kind]:.3f})"
        for kind, count in plan.positions.items()
    )
    return (
        texts,
        f"{plan.free_prompts} beginnings continued by each arm; "
        f"{plan.eval_items} of {plan.eval_items_total} eval items"
        + (f", sampled ones {plan.eval_runs} times" if plan.eval_runs > 1 else "")
        + (f"; lm-eval: {', '.join(plan.harness)}" if plan.harness else ""),
        f"speed in {plan.rounds} rounds of four passes, original and rung around each other, drawn who begins, at 1 "
        f"and {plan.concurrencies} streams",
    )


def noise_floor_words(found: Quantized) -> tuple[str, ...]:
    """Say how far the original came out from itself: the noise floor of every ratio of speed; empty if unmeasured."""
    original = found.results[0]
    speed = original.speed
    if not original.rung.is_original or speed is None:
        return ()
    most = max(speed.tokens_per_s)
    named = {
        "TTFT": speed.ttft_ms,
        "TPOT": speed.tpot_ms,
        f"tok/s at {most}": speed.tokens_per_s[most],
        "latency and cost": speed.score,
    }
    told = ", ".join(f"{name} {ratio_words(ratio)}" for name, ratio in named.items())
    bar = bar_of(original)
    lines = [
        f"noise floor of speed, {original.rung.label} beside itself in {speed.tpot_ms.n} rounds: {told}; "
        f"a rung is faster only where its latency and cost are below {bar.ratio:.3f} and all of their interval is "
        f"below {bar.high:.3f}"
    ]
    apart = [
        name
        for name, ratio in named.items()
        if ratio.interval is not None and not ratio.interval.low <= 1.0 <= ratio.interval.high
    ]
    if apart:
        lines.append(
            f"the original differs from itself beyond noise ({', '.join(apart)}): its two arms are not alike here, "
            "and such a difference is no gain of a rung"
        )
    return tuple(lines)


def show(found: Quantized, console: Console) -> None:
    """Print the answer."""
    table = Table(*HEADS, box=None, pad_edge=False)
    for row in rows_of(found):
        table.add_row(*row)
    console.print(f"[bold]{found.choice.rung}[/]: {found.choice.because}", highlight=False)
    if found.confirmation is not None:
        sign = "confirmed" if found.confirmation.holds else "NOT confirmed"
        console.print(f"{sign}: {found.confirmation.because}", highlight=False)
    console.print()
    console.print(table)
    for line in noise_floor_words(found):
        console.print(line, highlight=False)
    for line in (*plan_words(found.plan), found.original_note, repeat_words(found), *found.notes):
        console.print(f"[dim]{line}[/]", highlight=False)
    for kept in kept_words(found):
        console.print(f"[dim]{kept}[/]", highlight=False)


def kept_words(found: Quantized) -> tuple[str, ...]:
    """Say which tensors stay high and why."""
    if found.sensitivity is None:
        return ("which tensors are sensitive was not measured",)
    lines = [f"{one.group.value}: {_step(one)}; {one.because}" for one in found.sensitivity.groups]
    outliers = found.sensitivity.outliers
    if outliers:
        names = ", ".join(one.name for one in outliers[:6])
        more = f" and {len(outliers) - 6} more" if len(outliers) > 6 else ""
        lines.append(f"heavy in outliers, kept high where their group is lowered: {names}{more}")
    return tuple(lines)


def _step(one: GroupChoice) -> str:
    """Say what the ladder does with a group."""
    if one.group not in LINEAR:
        return "never lowered here"
    return "lowered first" if one.lowered else "lowered last"


def repeat_words(found: Quantized) -> str:
    """Say whether a score of the original repeats."""
    if found.repeats_exactly:
        return "the original, scored twice, gave the same to the last digit"
    return (
        f"the original, scored twice, differs by up to {found.repeat_spread:.2g} nats at a position"
    )
