"""The chosen rung as a lever record to propose: what was measured is filled in, what only a person knows is marked."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trimtab.core.types import Verdict
from trimtab.interfaces.quantize_view import harm_words
from trimtab.interfaces.toml_text import toml_comment, toml_text
from trimtab.quality.eval_scores import EvalAnswer, EvalOutcome
from trimtab.quality.ladder import RungResult
from trimtab.quality.quantized import Quantized

RECORD: Final = """\
# Written by `trimtab quantize`; {because}
{started}name = "precision-{name}"
technique = "quantization"
owner = "unnamed"
premise = "decode is bound by memory bandwidth, or memory capacity binds; TPOT {ratio:.2f} of the original"
condition = {condition}
failure_modes = [
    "outputs change in a kind of traffic that was not among the texts it was judged by",
    "rounding errors build up in answers longer than those that were measured",
]
quality_gate = {gate}
expires_after = "30d"
{slice}{absent}
[revision]
{revision}
[bottleneck]
phase = "decode"
resource = "memory_bandwidth"
diagnosis = "say here which diagnosis found decode bound by memory bandwidth (trimtab diagnose)"

[[moves]]
budget = "memory"
spends = false
because = {saved}

[[moves]]
budget = "quality"
spends = true
because = {harm}

[expected.tpot_ms]
ratio = {ratio:.3f}
low = {low:.3f}
high = {high:.3f}
because = "measured beside the original in {rounds} rounds"

[[triggers]]
signal = "net_tpot_ratio"
off_at = 1.05
off_when_above = true
because = "the gain that pays for the quality at risk is gone"

[[triggers]]
signal = "effective_mismatch"
off_at = 0.0
off_when_above = true
because = "what runs is not the precision that was measured: nothing is known of its quality"
{gates}"""

NO_EQUALITY: Final = """\
absent = {{ output_difference = "another precision rounds otherwise, so that greedy outputs part where two tokens are \
close; quality is what was scored" }}
"""
"""Equal outputs are no measure of a lossy lever: they would refuse every precision but the original."""

SCORED: Final = """
[[gates]]
metric = "quality_loss"
question = "veto"
margin = {margin:g}
during = ["canary", "ramping", "proving"]
"""
"""Asked where there are scored items, which `trimtab rollout score` brings."""


def lever_record(found: Quantized) -> str | None:
    """Return the TOML text; None where the original is the answer or its gain has no interval."""
    chosen = next(one for one in found.results if one.rung.label == found.choice.rung)
    tpot = chosen.speed.tpot_ms if chosen.speed else None
    if found.artifact is None or tpot is None or tpot.interval is None or tpot.ratio is None:
        return None
    refused = ", ".join(found.choice.refused_for)
    kinds = _kinds(chosen, found)
    return RECORD.format(
        because=toml_comment(chosen.because),
        started=_started(found, chosen),
        name=re.sub(r"[^a-z0-9_.-]+", "-", chosen.rung.name.lower()).strip("-"),
        condition=toml_text(
            f"requests labelled {', '.join(kinds)}; {refused} must stay with the original"
            if refused
            else "all traffic"
        ),
        slice=f"slice = {toml_text([f'label={kind}' for kind in kinds])}\n" if refused else "",
        absent=NO_EQUALITY.format(),
        gates=SCORED.format(margin=found.plan.eval_margin) if found.items else "",
        revision=_revision(chosen, found.artifact),
        gate=toml_text(
            f"paired log loss within {found.plan.margin_nats:g} nats a token ({', '.join(kinds)})"
        ),
        saved=toml_text(
            f"weights of {chosen.bits_per_weight:.1f} bits: a file of {chosen.file_bytes / 1e6:,.0f} MB instead of "
            f"{found.results[0].file_bytes / 1e6:,.0f} MB"
        ),
        harm=toml_text("; ".join(harm_words(chosen, kind) for kind in chosen.kinds)),
        ratio=tpot.ratio,
        low=tpot.interval.low,
        high=tpot.interval.high,
        rounds=tpot.n,
    )


def scores(found: Quantized) -> str | None:
    """Return the chosen rung's eval items as lines for `trimtab rollout score`; None without items or another rung."""
    chosen = next(one for one in found.results if one.rung.label == found.choice.rung)
    if not found.items or chosen.rung.is_original:
        return None
    lines = (
        line
        for before, after in zip(found.items, chosen.items, strict=True)
        for line in _score_lines(before, after.answer)
    )
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def floor_words(found: Quantized) -> str:
    """Return the options of `rollout score` that tell the noise floor; empty where no item was sampled."""
    if not found.floors:
        return ""
    return f" --floor {max(found.floors.values()):.4f} --floor-runs {found.plan.eval_runs}"


def _score_lines(item: EvalOutcome, answer: EvalAnswer) -> Iterator[dict[str, object]]:
    """Yield a line for each seeded run of an item: runs with one seed belong together."""
    several = len(answer.right) > 1
    for run, (was, now) in enumerate(zip(item.answer.right, answer.right, strict=True), start=1):
        line: dict[str, object] = {
            "item": f"{item.id}#{run}" if several else item.id,
            "baseline": int(was),
            "candidate": int(now),
            "cuts": [f"label={item.kind}"],
        }
        if item.answer.input_tokens is not None:
            line["input_tokens"] = item.answer.input_tokens
        yield line


def _kinds(chosen: RungResult, found: Quantized) -> list[str]:
    """Return the kinds of text that speak for the rung: those that passed, where it is refused for others."""
    if not found.choice.refused_for:
        return list(chosen.kinds)
    return [kind for kind, verdict in chosen.kinds.items() if verdict is Verdict.PASS]


def start_command(found: Quantized) -> str:
    """Return what starts the chosen rung on a server of its own, empty where trimtab's own fleet takes it by itself."""
    chosen = next(one for one in found.results if one.rung.label == found.choice.rung)
    if found.artifact is None or not found.engine.startswith("vllm/"):
        return ""
    kv = f" --kv-dtype {chosen.rung.kv_type}" if chosen.rung.lowers_kv else ""
    return f"trimtab engine vllm --model {shlex.quote(str(Path(found.artifact).resolve()))}{kv}"


def _started(found: Quantized, chosen: RungResult) -> str:
    command = start_command(found)
    if not command:
        return ""
    return (
        f"# {toml_comment(chosen.rung.label)} was read back from a running vLLM. Its servers are started by who runs "
        f"them, such as:\n#   {toml_comment(command)}\n"
    )


def _revision(chosen: RungResult, artifact: str) -> str:
    lines = [f"model = {toml_text(str(Path(artifact).resolve()))}"]
    if chosen.rung.lowers_kv:
        lines.append(f"kv_type = {toml_text(chosen.rung.kv_type)}")
    return "".join(f"{line}\n" for line in lines)
