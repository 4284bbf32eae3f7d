"""The report's section on levers: what each was for, what it did, its gates as a grid, its chain in words."""

from collections.abc import Sequence
from html import escape

from trimtab.core.gate import GateResult
from trimtab.core.narrate_words import number, share
from trimtab.interfaces.report_plots import effects_picture
from trimtab.interfaces.report_tables import badge, card, figure, table
from trimtab.interfaces.report_words import VERDICT_SIGNS, effect, interval, verdict_css
from trimtab.runtime.result import LeverResult, TuneResult


def levers_section(result: TuneResult) -> str:
    """Return the section: effects as a picture, then a card for each lever, the tried ones first."""
    tried = [lever for lever in result.levers if lever.measured or lever.gates or lever.chain]
    others = [lever for lever in result.levers if lever not in tried]
    picture = _effects(tried)
    rest = ""
    if others:
        rows = [
            (
                lever.name,
                lever.verdict,
                f"{'holds' if lever.premise_holds else 'does not hold'}: {lever.premise}",
                share(lever.predicted_gain_share),
                lever.because,
            )
            for lever in others
        ]
        headings = ("lever", "outcome", "premise", "predicted gain", "why not")
        rest = card(f"<h3>Not tried</h3>{table(headings, rows)}")
    cards = "".join(card(_lever(lever)) for lever in tried)
    return f'<section id="levers"><h2>Levers</h2>{picture}{cards}{rest}</section>'


def _effects(levers: Sequence[LeverResult]) -> str:
    if not any(effect.ratio for lever in levers for effect in lever.measured):
        return "<p>No lever was measured on a slice of traffic.</p>"
    rows = [
        (
            lever.name,
            found.metric,
            found.cut,
            number(found.ratio),
            interval(found.interval),
            f"{found.n_candidate} against {found.n_baseline}",
            str(found.n_units),
            number(found.predicted_ratio),
        )
        for lever in levers
        for found in lever.measured
    ]
    headings = ("lever", "metric", "cut", "ratio", "interval", "n", "units", "predicted")
    return card(
        figure(
            effects_picture(levers),
            "Candidate over baseline on the same slice of traffic; 1 is no effect.",
            table(headings, rows),
        )
    )


def _lever(lever: LeverResult) -> str:
    facts = [
        ("premise", f"{lever.premise} ({'held' if lever.premise_holds else 'did not hold'})"),
        ("predicted", _gain(lever.predicted_gain_share)),
        *(("measured", effect(found)) for found in lever.measured),
        ("outcome", lever.because),
        ("kept for", ", ".join(lever.cuts_kept) or "nothing"),
        *(("refused for", f"{cut}: {why}") for cut, why in sorted(lever.cuts_refused.items())),
    ]
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    return (
        f'<div class="lever-head"><h3>{escape(lever.name)}</h3>'
        f"{badge(lever.verdict, verdict_css(lever.verdict))}"
        f'<span class="soft">{escape(lever.technique.replace("_", " "))}</span></div>'
        f"<dl>{listed}</dl>{_gates(lever.gates)}{_chain(lever.chain)}"
    )


def _gain(gain_share: float | None) -> str:
    if gain_share is None:
        return "gain unknown in advance"
    return f"{share(gain_share)} less time of requests"


def _gates(gates: Sequence[GateResult]) -> str:
    if not gates:
        return ""
    rows = [
        (
            badge(VERDICT_SIGNS[gate.verdict.value], gate.verdict.value),
            gate.gate if gate.required else f"{gate.gate} (veto only)",
            f"{gate.question.value.replace('_', ' ')}: {gate.metric.value}",
            gate.cut,
            number(gate.value),
            interval(gate.interval),
            share(gate.margin),
            f"{gate.n_candidate} against {gate.n_baseline}",
            gate.reason,
        )
        for gate in gates
    ]
    headings = (
        "verdict", "gate", "asks", "cut", "value", "interval", "margin", "n", "reason"
    )  # fmt: skip
    return (
        f"<details open><summary>Gates at the last look</summary>{table(headings, rows)}</details>"
    )


def _chain(steps: Sequence[str]) -> str:
    if not steps:
        return ""
    items = "".join(f"<li>{_step(step, repeats)}</li>" for step, repeats in _without_repeats(steps))
    return (
        f"<details><summary>The whole causal record in words ({len(steps)} events)</summary>"
        f'<ol class="chain" tabindex="0">{items}</ol></details>'
    )


def _step(step: str, repeats: int) -> str:
    first, *rest = step.splitlines()
    told = escape(first)
    if repeats:
        told += f' <span class="soft">(the last of {repeats + 1} looks with this verdict)</span>'
    listed = "".join(f"<li>{escape(line.strip())}</li>" for line in rest)
    return f"{told}<ul>{listed}</ul>" if listed else told


def _without_repeats(steps: Sequence[str]) -> list[tuple[str, int]]:
    """Of looks in a row with one verdict keep the last; the ledger has them all."""
    kept: list[tuple[str, int]] = []
    for step in steps:
        if kept and _look(step) is not None and _look(step) == _look(kept[-1][0]):
            kept[-1] = (step, kept[-1][1] + 1)
        else:
            kept.append((step, 0))
    return kept


def _look(step: str) -> str | None:
    first = step.partition("\n")[0]
    if not first.startswith("Look "):
        return None
    return first.partition("(")[2]
