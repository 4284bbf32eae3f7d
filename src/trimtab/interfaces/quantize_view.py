"""What a walk over the precisions found: as a table for a terminal, as words, and as a lever record to propose."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from trimtab.core.types import Verdict
from trimtab.quality.ladder import Ratio, RungResult
from trimtab.quality.quantized import Quantized
from trimtab.quality.rung_results import loss_gate

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


def rows_of(found: Quantized) -> list[tuple[str, ...]]:
    """Return a row of words for each rung, in the order of the ladder."""
    return [_row(one, found) for one in found.results]


def _row(one: RungResult, found: Quantized) -> tuple[str, ...]:
    mark = " \u2190" if one.rung.label == found.choice.rung else ""
    speed = one.speed
    most = max(speed.tokens_per_s) if speed else None
    return (
        one.rung.label + mark,
        SIGNS[one.verdict],
        f"{one.bits_per_weight:.1f}",
        f"{one.file_bytes / 1e6:,.0f}",
        "unknown" if one.resident_bytes is None else f"{one.resident_bytes / 1e6:,.0f}",
        "unknown" if one.kv_bytes_per_token is None else f"{one.kv_bytes_per_token:,.0f}",
        "; ".join(_harm_words(one, kind) for kind in one.kinds),
        ratio_words(speed.ttft_ms if speed else None),
        ratio_words(speed.tpot_ms if speed else None),
        ratio_words(speed.tokens_per_s[most] if speed and most else None),
        ratio_words(speed.score if speed else None),
    )


def _harm_words(one: RungResult, kind: str) -> str:
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


def plan_words(found: Quantized) -> tuple[str, ...]:
    """Say what was to be measured, as it was said before."""
    plan = found.plan
    texts = ", ".join(
        f"{count:,} positions of {kind} in {plan.blocks[kind]} blocks (tells {plan.margin_nats:g} nats apart "
        f"if blocks differ by up to {plan.spread_max[kind]:.3f})"
        for kind, count in plan.positions.items()
    )
    return (
        texts,
        f"{plan.free_prompts} beginnings continued by each arm; "
        f"{plan.eval_items} of {plan.eval_items_total} eval items",
        f"speed in {plan.rounds} rounds, original and rung in turn, at 1 and {plan.concurrencies} streams",
    )


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
    for line in (*plan_words(found), found.original_note, *found.notes):
        console.print(f"[dim]{line}[/]", highlight=False)
    for kept in kept_words(found):
        console.print(f"[dim]{kept}[/]", highlight=False)


def kept_words(found: Quantized) -> tuple[str, ...]:
    """Say which tensors stay high and why."""
    if found.sensitivity is None:
        return ("which tensors are sensitive was not measured",)
    lines = [
        f"{one.group.value}: {'lowered' if one.lowered else 'kept high'}; {one.because}"
        for one in found.sensitivity.groups
    ]
    outliers = found.sensitivity.outliers
    if outliers:
        names = ", ".join(one.name for one in outliers[:6])
        more = f" and {len(outliers) - 6} more" if len(outliers) > 6 else ""
        lines.append(f"heavy in outliers, kept high where their group is lowered: {names}{more}")
    return tuple(lines)


def lever_record(found: Quantized) -> str | None:
    """Return the lever record that puts the chosen rung on a slice; None where the original is the answer."""
    chosen = next(one for one in found.results if one.rung.label == found.choice.rung)
    speed = chosen.speed
    if found.artifact is None or speed is None or speed.tpot_ms.interval is None:
        return None
    name = re.sub(r"[^a-z0-9_.-]+", "-", chosen.rung.name.lower()).strip("-")
    tpot = speed.tpot_ms
    bounds = tpot.interval
    assert bounds is not None
    saved = 1.0 - chosen.file_bytes / max(one.file_bytes for one in found.results)
    refused = ", ".join(found.choice.refused_for)
    condition = f"all traffic but {refused}" if refused else "all traffic"
    slices = [f"label={kind}" for kind, verdict in chosen.kinds.items() if verdict is Verdict.PASS]
    chosen_slice = f"slice = {_list(slices)}\n" if refused else ""
    kv = f'kv_type = "{chosen.rung.kv_type}"\n' if chosen.rung.kv_type != "f16" else ""
    return f"""# Written by `trimtab quantize`; {chosen.because}
name = "precision-{name}"
technique = "quantization"
owner = "unnamed"
premise = "decode is bound by memory bandwidth, or memory capacity binds; TPOT {tpot.ratio:.2f} of the original"
condition = "{condition}"
failure_modes = [
    "outputs change in a kind of traffic that was not among the texts it was judged by",
    "rounding errors build up in answers longer than those that were measured",
]
quality_gate = "paired log loss within {found.plan.margin_nats:g} nats a token ({", ".join(chosen.kinds)})"
expires_after = "30d"
{chosen_slice}
[revision]
model = "{Path(found.artifact).resolve()}"
{kv}
[bottleneck]
phase = "decode"
resource = "memory_bandwidth"
diagnosis = "say here which diagnosis found decode bound by memory bandwidth (trimtab diagnose)"

[[moves]]
budget = "memory"
spends = false
delta_share = {-saved:.3f}
because = "the file has {chosen.bits_per_weight:.1f} bits a weight"

[[moves]]
budget = "quality"
spends = true
because = "{_harm_line(chosen)}"

[expected.tpot_ms]
ratio = {tpot.ratio:.3f}
low = {bounds.low:.3f}
high = {bounds.high:.3f}
because = "measured beside the original in {tpot.n} rounds"

[[triggers]]
signal = "effective_mismatch"
off_at = 0.5
off_when_above = true
because = "the replica runs other weights or another KV precision than those that were judged"

[[triggers]]
signal = "net_tpot_ratio"
off_at = 1.05
off_when_above = true
because = "the gain that pays for the quality at risk is gone"
"""


def _harm_line(chosen: RungResult) -> str:
    return "; ".join(_harm_words(chosen, kind) for kind in chosen.kinds)


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"
